"""A file that its framework unpickles without asking and that names what is in no list is a question (exit
2), never an older checkpoint; --trust global=PATTERN answers it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from one_question import Asker
from own_pickles import CALL, MINE, adding
from places import FIXTURES
from run_helpers import megatron
from small_files import dcp
from timed import lay, put

from ckpt_tools import Level, Selection, plan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.formats.pickles.stubs import lift_trusted
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Report, Unlisted
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session

OTHER = b"cothers\nThing\n"
NEWER = "iter_0000020/mp_rank_00/model_optim_rng.pt"


@pytest.fixture
def asker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Asker:
    monkeypatch.chdir(tmp_path)
    return Asker(monkeypatch, capfd, tmp_path / "state")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two Megatron checkpoints; the newer one names a class of the user's own."""
    root = megatron(tmp_path / "run")
    adding(root / NEWER, CALL)
    return root


@pytest.mark.slow
def test_every_command_asks_and_none_goes_back(run: Path, asker: Asker) -> None:
    for name, answer in asker.everywhere(run).items():
        assert (name, answer.code, answer.step) == (name, 2, None)
    asker.execute("plan", run)
    words = ("mycompany.models.Config", NEWER, "--trust global='mycompany.*'")
    assert [word for word in words if word not in asker.err] == []


def test_a_flipped_bit_in_a_known_name_is_no_code_of_ones_own(tmp_path: Path) -> None:
    flipped = {name: data.replace(b"TensorStorageM", b"TensorStoragdM") for name, data in dcp(20).items()}
    seen = verify(str(lay(tmp_path / "step_20", flipped)), Level.STRUCTURE)
    (hint,) = {f.hint for r in seen.files for f in r.report.findings if f.code == "unknown-global"}
    assert "restore the file from a copy" in hint
    assert "--trust global" not in hint


@pytest.mark.slow
def test_the_flag_answers_everywhere(run: Path, asker: Asker) -> None:
    flags = ("--trust-global", "mycompany.*")
    for name, answer in asker.everywhere(run, *flags, trust_global=("mycompany.*",)).items():
        assert (name, answer.code, answer.step) == (name, 0, 20)


@pytest.mark.parametrize(
    "pattern", ["mycompany", "mycompany.models", "*.Config", "*", "?*", "my company.*", "", "[a-z]*"]
)
def test_a_pattern_is_a_whole_name_and_never_everybody(run: Path, asker: Asker, pattern: str) -> None:
    assert asker.ask("plan", run, "--trust-global", pattern).code == 2


def test_the_flag_lifts_no_error(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    adding(root / "iter_0000020/mp_rank_00/model_optim_rng.pt", b"cos\nsystem\n")
    made = plan(str(root), Selection(trust_global=("os.*", "os.system", "posix.*")))
    assert made.resume_step == 10
    assert "unsafe-pickle" in {f.code for r in made.rejected for f in r.findings}


def test_what_is_only_named_is_asked_about_and_what_is_not_loaded_is_not(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    adding(root / NEWER.replace("20/", "10/"), CALL)
    assert plan(str(root)).resume_step == 20  # an older one
    other = root / NEWER.replace("rank_00", "rank_01")
    adding(other, MINE)
    with pytest.raises(UsageError, match=r"mycompany\.models\.Config"):
        plan(str(root), Selection(max_step=20, exclude=("iter_0000010",)))
    adding(root / NEWER, CALL)
    other.write_bytes(other.read_bytes()[:-100])  # so that it cannot be used
    assert plan(str(root), Selection(trust_global=("mycompany.*",))).resume_step == 10


def test_verify_warns_and_the_flag_lifts_the_warning(run: Path) -> None:
    seen = verify(str(run), Level.STRUCTURE)
    (one,) = (r.report for r in seen.files if r.report.path == str(run / NEWER))
    told = [f.code for f in one.findings if f.severity]
    assert (one.verdict, told) == (Verdict.SUSPECT, ["unknown-global"])
    assert "--trust global='mycompany.*'" in one.findings[-1].hint
    assert verify(str(run), Level.STRUCTURE, trust_global=("mycompany.*",)).verdict is Verdict.OK


def test_a_file_that_torch_asks_about_is_no_question(tmp_path: Path) -> None:
    source = FIXTURES / "formats/torch_zip/good/nested.pt"
    adding(put(tmp_path / "step_20.pt", source.read_bytes()), CALL)
    for trusted in ((), ("mycompany.*",)):
        warned = [f.code for f in plan(str(tmp_path), Selection(trust_global=trusted)).warnings]
        assert ("suspect-call" in warned) is not bool(trusted)


UNASKED = {
    "dcp": ".metadata", "deepspeed": "*model_states.pt", "deepspeed-universal": "fp32.pt", "lightning": "*.ckpt",
    "megatron": "model_optim_rng*", "megatron-core": "common.pt", "nvrx-local": "*_local.pt",
}  # fmt: skip
OTHERS = (
    "hf-trainer composer fairseq fairseq2 mmengine verl skyrl dcp-set ms-swift paddle-dist stable-baselines3 colossalai nanotron"
    " olmo-core basicsr accelerate elements torch-checkpointing nemo nemo-rl openrlhf"
)


def test_the_layouts_whose_frameworks_do_not_ask() -> None:
    unasked = {layout.name for layout in LAYOUTS if any(p.unasked for p in layout.pieces)}
    assert unasked == {*UNASKED, *OTHERS.split()}


@pytest.mark.parametrize("layout", UNASKED)
def test_each_of_them_warns(layout: str, tmp_path: Path) -> None:
    case = min((FIXTURES / "layouts" / layout).glob("*/tree"))
    root = Path(shutil.copytree(case, tmp_path / "run", symlinks=True))
    path = max(p for p in root.rglob(UNASKED[layout]) if p.is_file() and not p.is_symlink())
    adding(path, OTHER)
    (one,) = (r.report for r in verify(str(root), Level.STRUCTURE).files if r.report.path == str(path))
    assert "unknown-global" in {f.code for f in one.findings}, one.findings


def test_what_was_kept_is_asked_about_again(run: Path) -> None:
    for _ in range(2):
        with pytest.raises(UsageError):
            plan(str(run), Selection(cache=True))
    assert plan(str(run), Selection(cache=True, trust_global=("mycompany.*",))).resume_step == 20


def test_a_report_made_for_something_else_is_asked_about_too(run: Path) -> None:
    """A name that says nothing is looked into before anybody knows whose file it is."""
    s = open_session(str(run), ReadOptions())
    part = next(p for p in s.parts if p.path == str(run / NEWER))
    s.reports[part.path] = s.report_file(part.path, Level.CONTENT)
    assert "unknown-global" in {f.code for f in s.report(part, Level.CONTENT).findings}


def test_of_many_names_the_first_are_told_and_the_others_counted() -> None:
    names = tuple(Unlisted(f"a.b{i}", bool(i % 2), i) for i in range(20))
    report = Report("/x", "torch_zip", 1, Verdict.OK, Level.STRUCTURE, unlisted=names)
    once = lift_trusted(report, ("a.b1",), unasked=True)
    assert (len(once.findings), once.verdict) == (9, Verdict.SUSPECT)
    assert lift_trusted(report, ("a.*",), unasked=True).verdict is Verdict.OK
