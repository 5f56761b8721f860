"""A file that its framework unpickles without asking and that names what is in no list is a question (exit
2), never an older checkpoint; --trust global=PATTERN answers it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import msgpack
from one_question import Asker
from own_pickles import CALL, MINE, adding
from places import FIXTURES
from run_helpers import OLD, megatron
from timed import put

from ckpt_tools import Level, Selection, plan, verify
from ckpt_tools.cache import pack, unpack
from ckpt_tools.errors import UsageError
from ckpt_tools.formats.pickles.stubs import vouched
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Report, Unlisted
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session

OTHER = b"cothers\nThing\n"


@pytest.fixture
def asker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Asker:
    monkeypatch.chdir(tmp_path)
    return Asker(monkeypatch, capfd, tmp_path / "state")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two Megatron checkpoints; the newer one names a class of the user's own."""
    root = megatron(tmp_path / "run")
    adding(root / "iter_0000020/mp_rank_00/model_optim_rng.pt", CALL)
    return root


@pytest.mark.slow
def test_every_command_asks_and_none_goes_back(run: Path, asker: Asker) -> None:
    for name, answer in asker.everywhere(run).items():
        assert (name, answer.code, answer.step) == (name, 2, None)
    asker.execute("plan", run)
    for word in (
        "mycompany.models.Config",
        "iter_0000020/mp_rank_00/model_optim_rng.pt",
        "--trust global='mycompany.*'",
    ):
        assert word in asker.err


@pytest.mark.slow
def test_the_flag_answers_everywhere(run: Path, asker: Asker) -> None:
    flags = ("--trust-global", "mycompany.*")
    for name, answer in asker.everywhere(run, *flags, trust_global=("mycompany.*",)).items():
        assert (name, answer.code, answer.step) == (name, 0, 20)


@pytest.mark.slow
def test_so_do_the_variable_and_the_file(
    run: Path, asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CKPT_TRUST_GLOBAL", "others.*\nmycompany.models.Config")
    assert asker.ask("plan", run).step == 20
    monkeypatch.delenv("CKPT_TRUST_GLOBAL")
    assert asker.ask("plan", run).code == 2
    (tmp_path / "ckpt.toml").write_text('trust-global = ["mycompany.*"]\n')
    assert asker.ask("plan", run).step == 20


@pytest.mark.parametrize(
    "pattern", ["mycompany", "mycompany.models", "*.Config", "*", "?*", "my company.*", "", "[a-z]*"]
)
def test_a_pattern_is_a_whole_name_and_never_everybody(run: Path, asker: Asker, pattern: str) -> None:
    assert asker.ask("plan", run, "--trust-global", pattern).code == 2


def test_only_named_is_asked_about_as_well(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    adding(root / "iter_0000020/mp_rank_01/model_optim_rng.pt", MINE)
    with pytest.raises(UsageError, match=r"mycompany\.models\.Config"):
        plan(str(root))


def test_the_flag_lifts_no_error(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    adding(root / "iter_0000020/mp_rank_00/model_optim_rng.pt", b"cos\nsystem\n")
    made = plan(str(root), Selection(trust_global=("os.*", "os.system", "posix.*")))
    assert made.resume_step == 10
    assert "unsafe-pickle" in {f.code for r in made.rejected for f in r.findings}


def test_what_cannot_be_used_otherwise_is_not_asked_about(run: Path) -> None:
    path = run / "iter_0000020/mp_rank_01/model_optim_rng.pt"
    path.write_bytes(path.read_bytes()[:-100])
    assert plan(str(run)).resume_step == 10


def test_an_older_checkpoint_is_not_asked_about(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    adding(root / "iter_0000010/mp_rank_00/model_optim_rng.pt", CALL)
    assert plan(str(root)).resume_step == 20


def test_verify_warns_and_the_flag_lifts_the_warning(run: Path) -> None:
    result = verify(str(run), Level.STRUCTURE)
    (one,) = (
        r.report for r in result.files if r.report.path.endswith("iter_0000020/mp_rank_00/model_optim_rng.pt")
    )
    assert (one.verdict, [f.code for f in one.findings if f.severity]) == (
        Verdict.SUSPECT,
        ["unknown-global"],
    )
    assert "--trust global='mycompany.*'" in one.findings[-1].hint
    assert verify(str(run), Level.STRUCTURE, trust_global=("mycompany.*",)).verdict is Verdict.OK


def test_a_file_that_torch_asks_about_is_no_question(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    source = FIXTURES / "formats/torch_zip/good/nested.pt"
    for step in (10, 20):
        put(root / f"step_{step}.pt", source.read_bytes(), OLD + step)
    adding(root / "step_20.pt", CALL)
    warned = [f.code for f in plan(str(root), Selection(exclude=("step_10.pt",))).warnings]
    assert "suspect-call" in warned
    trusted = plan(str(root), Selection(exclude=("step_10.pt",), trust_global=("mycompany.*",)))
    assert "suspect-call" not in [f.code for f in trusted.warnings]


UNASKED: dict[str, Callable[[str], bool]] = {
    "dcp": lambda name: name == ".metadata",
    "deepspeed": lambda name: name.endswith("model_states.pt"),
    "deepspeed-universal": lambda name: name == "fp32.pt",
    "lightning": lambda name: name.endswith(".ckpt"),
    "megatron": lambda name: name.startswith("model_optim_rng"),
    "megatron-core": lambda name: name == "common.pt",
    "nvrx-local": lambda name: name.endswith("_local.pt"),
}


def test_the_layouts_whose_frameworks_do_not_ask() -> None:
    unasked = {layout.name for layout in LAYOUTS if any(p.unasked for p in layout.pieces)}
    others = {
        "hf-trainer",
        "composer",
        "fairseq",
        "fairseq2",
        "mmengine",
        "verl",
        "skyrl",
        "dcp-set",
        "ms-swift",
        "paddle-dist",
        "stable-baselines3",
        "colossalai",
        "nanotron",
        "olmo-core",
        "basicsr",
        "accelerate",
        "elements",
        "torch-checkpointing",
    }
    assert unasked == {*UNASKED, *others, "nemo", "nemo-rl", "openrlhf"}


@pytest.mark.parametrize("layout", UNASKED)
def test_each_of_them_warns(layout: str, tmp_path: Path) -> None:
    case = min((FIXTURES / "layouts" / layout).glob("*/tree"))
    root = Path(shutil.copytree(case, tmp_path / "run", symlinks=True))
    path = max(p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and UNASKED[layout](p.name))
    adding(path, OTHER)
    (one,) = (r.report for r in verify(str(root), Level.STRUCTURE).files if r.report.path == str(path))
    assert "unknown-global" in {f.code for f in one.findings}, one.findings


@pytest.mark.share(12)
@pytest.mark.slow
@pytest.mark.parametrize("layout", [layout.name for layout in LAYOUTS])
def test_no_fixture_names_what_is_in_no_list(layout: str) -> None:
    trees = sorted((FIXTURES / "layouts" / layout).glob("*/tree"))
    for tree in trees:
        if tree.parent.name == "yolo":  # pickles its whole model, whose class reads files when it is called
            continue
        found = {f.code for r in verify(str(tree), Level.STRUCTURE).files for f in r.report.findings}
        assert not found & {"unknown-global", "suspect-call", "unsafe-pickle", "unread-pickle"}, tree


def test_a_report_keeps_its_names_in_the_cache() -> None:
    report = Report(
        "/x",
        "dcp",
        1,
        Verdict.OK,
        Level.STRUCTURE,
        unlisted=(Unlisted("a.b", True, 3), Unlisted("c.d", False, 4)),
    )
    data = pack(report, {})
    assert data is not None
    back = unpack("/x", data)
    assert back is not None
    assert back[0] == report
    changed = msgpack.decode(data)
    changed[0]["unlisted"][0][1] = 1
    assert unpack("/x", msgpack.encode(changed)) is None


def test_what_was_kept_is_asked_about_again(run: Path) -> None:
    for _ in range(2):
        with pytest.raises(UsageError):
            plan(str(run), Selection(cache=True))
    assert plan(str(run), Selection(cache=True, trust_global=("mycompany.*",))).resume_step == 20


def test_vouching_twice_is_vouching_once() -> None:
    report = Report(
        "/x",
        "torch_zip",
        1,
        Verdict.OK,
        Level.STRUCTURE,
        unlisted=tuple(Unlisted(f"a.b{i}", bool(i % 2), i) for i in range(20)),
    )
    once = vouched(report, ("a.b1",), unasked=True)
    assert vouched(once, ("a.b1",), unasked=True) == once
    assert len(once.findings) == 9
    assert once.verdict is Verdict.SUSPECT
    assert vouched(report, ("a.*",), unasked=True).verdict is Verdict.OK


def test_a_report_made_for_something_else_is_asked_about_too(tmp_path: Path) -> None:
    """A name that says nothing is looked into before anybody knows whose file it is."""
    root = megatron(tmp_path / "run")
    path = root / "iter_0000020/mp_rank_00/model_optim_rng.pt"
    adding(path, CALL)
    s = open_session(str(root), ReadOptions())
    part = next(p for p in s.parts if p.path == str(path))
    s.reports[part.path] = s.report_file(part.path, Level.CONTENT)
    assert "unknown-global" in {f.code for f in s.report(part, Level.CONTENT).findings}
