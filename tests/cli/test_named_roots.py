"""A ROOT that does not exist is never "none": exit 5 in every command and in the API, whatever else allows a
first launch. Whatever is named and was not inspected is named in the answer, and never exit 0.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import pairs
from in_process import executed
from msgspec.structs import replace
from places import DOCS, LAYOUT_TREES, ROOT
from timed import put

import ckpt_tools
from ckpt_tools import Selection, Verdict, diff, errors, latest, plan, scan, seal, try_load, verify
from ckpt_tools.cli import execute
from ckpt_tools.discovery.walk import is_absent
from ckpt_tools.errors import UsageError

STARTED = f"-- {sys.executable} -c 'raise SystemExit(99)'"
ASK = (
    "ls", "verify", "show", "diff", "layouts --check --layout megatron", "layouts --guess",
    *(f"{command} --allow=none" for command in ("latest", "plan", "hook", "hook --allow fresh")),
    f"run --allow=none {STARTED}",
    f"run --agree --allow=none --nodes 1 --node 0 --world-size 1 --job j --plan-dir plans {STARTED}",
)  # fmt: skip
TYPOS = {
    "one letter": "runs/lllm", "the directory above": "run/llm", "below": "runs/llm/ckpt", "below a file": "runs/llm/a-file/ckpt",
    "a link to nothing": "runs/link", "a space": "runs/llm ",
}  # fmt: skip
"""ROOT as somebody may mistype it beside a run that is there, by what is wrong with it."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("CKPT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CKPT_NO_CACHE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()


def typos(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "runs/llm/checkpoint-1").mkdir(parents=True)
    (tmp_path / "runs/llm/a-file").write_text("x")
    (tmp_path / "runs/link").symlink_to(tmp_path / "gone")
    return {wrong: tmp_path / path for wrong, path in TYPOS.items()}


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize("command", ASK)
def test_every_command_ends_with_5(command: str, typo: str, tmp_path: Path) -> None:
    root = str(typos(tmp_path)[typo])
    first, *words = shlex.split(command)
    before = sorted(tmp_path.joinpath("runs").rglob("*"))
    code, out, err = executed([first, *([root] * (1 + (first == "diff"))), *words])
    assert code == 5 and out in ("", "(exit 5)\n") and "ckpt: error: " in err and "hint: " in err
    assert sorted(tmp_path.joinpath("runs").rglob("*")) == before


@pytest.mark.parametrize("typo", TYPOS)
def test_every_function_raises_cannot_look(typo: str, tmp_path: Path) -> None:
    root = str(typos(tmp_path)[typo])
    for name in OF_PATHS:
        with pytest.raises(errors.CannotLook):
            ALONE[name](root)
    for ask, allowed in product((plan, latest), ("allow_none", "allow_missing")):
        with pytest.raises(errors.CannotLook):
            ask(root, Selection(**{allowed: True}))


def test_the_hint_is_a_line_to_copy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run's 1"
    assert execute(["plan", str(root), "--allow=none"]) == 5
    line = capfd.readouterr().err.partition("by hand: ")[2].strip()
    subprocess.run(["sh", "-c", line], check=True)
    assert execute(["plan", str(root), "--allow=none"]) == 0
    assert execute(["plan", str(tmp_path / "no" / "such"), "--allow=missing"]) == 5
    # it would fail, or make the mount point of a file system that is gone
    assert "mkdir" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["latest", "plan", "hook", "run -- no-such-command"])
def test_a_first_launch_may_say_so(command: str, tmp_path: Path) -> None:
    wrong, (first, *more) = typos(tmp_path), command.split()
    root = tmp_path / "runs" / "new"

    def asked(root: Path, *allowed: str) -> tuple[int, str]:
        code, out, err = executed([first, str(root), "--allow=missing", *allowed, *more])
        return code, out + err

    code, said = asked(root)
    assert code == 5 and "together with --allow none" in said  # alone it allows nothing
    code, said = asked(root, "--allow=none")
    assert code == (127 if more else 0) and "missing-root" in said and not os.path.lexists(root)
    for typo in ("the directory above", "below a file", "a link to nothing"):  # its parent is not there
        assert asked(wrong[typo], "--allow=none")[0] == 5


def test_absent_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "ckpt")
    assert is_absent(root) and is_absent(f"{root}/")
    (tmp_path / "ckpt-old").mkdir()
    assert is_absent(root)
    for name in ("ckpt_0", "ckpt7", "ckpt.index"):  # what ROOT is a prefix of
        (tmp_path / name).touch()
        assert not is_absent(root), name
        (tmp_path / name).unlink()

    def failing(path: object) -> object:
        raise OSError(5, "Input/output error", str(path))

    for call in ("os.scandir", "os.lstat"):
        with monkeypatch.context() as patch:
            patch.setattr(call, failing)
            assert not is_absent(root)


def test_what_scripts_are_told_is_the_safe_form() -> None:
    """No ready script takes a missing ROOT for a first launch, or makes one that is missing: both would hide
    a misspelt path.
    """
    pages = (DOCS / "hooks.md", DOCS / "exit-codes.md", ROOT / "README.md")
    snippets = (ROOT / "ckpt_tools" / "cli" / "snippets").iterdir()
    scripts = {p: p.read_text() for p in snippets if p.suffix in (".sh", ".yaml")}
    scripts |= {p: "\n".join(re.findall(r"```(?:ba)?sh\n(.*?)```", p.read_text(), re.DOTALL)) for p in pages}
    assert len(scripts) > 10 and sum("--allow none" in text for text in scripts.values()) > 10
    for path, text in scripts.items():
        assert not re.search(r"allow\W+(?:none,)?missing", text.lower().replace("_", "-")), path
        assert not re.search(r"mkdir[^\n]*(\$\{?(ROOT|RUN)\b|@ROOT@)", text), path


GOOD = LAYOUT_TREES / "megatron"
NAMES = [
    "notes.txt", "empty/", "notes/", "latest_checkpointed_iteration.txt", "model-graph.meta", "a.lock", "train.log", "noname",
]  # fmt: skip
"""What may be named beside a checkpoint by mistake; those that end in / are directories."""


def good(tmp_path: Path) -> Path:
    """A checkpoint file that is sound."""
    files = (p for p in sorted(GOOD.rglob("model_optim_rng.pt")) if p.stat().st_size)
    sound = next(p for p in files if ckpt_tools.verify(p).verdict is Verdict.OK)
    return Path(shutil.copy(sound, tmp_path / "good.pt"))


def other(tmp_path: Path, name: str) -> Path:
    """Something beside it that is no checkpoint."""
    if name == "empty/":
        (tmp_path / name).mkdir()
    else:
        put(tmp_path / (f"{name}notes.txt" if name.endswith("/") else name), "nothing of ours\n")
    return tmp_path / name


@pytest.mark.share(4)
@pytest.mark.parametrize(("name", "first"), pairs(NAMES, [True, False], pytest.mark.slow))
def test_verify_names_what_it_did_not_inspect(name: str, first: bool, tmp_path: Path) -> None:
    named, sound = other(tmp_path, name), good(tmp_path)
    both = [str(named), str(sound)][:: 1 if first else -1]
    assert [executed(["verify", str(path)])[0] for path in (sound, named)] == [0, 3]
    code, out, _ = executed(["verify", *both, "--level", "structure", "--json"])
    said = json.loads(out)
    left_out = [f["path"] for f in said["findings"] if f["code"] == "not-inspected"]
    assert (code, said["verdict"], left_out) == (5, "unknown", [str(named)])
    code, out, _ = executed(["verify", *both, "-q"])
    assert code == 5 and os.path.basename(named) in out
    assert ckpt_tools.verify(both).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("name", NAMES)
def test_show_and_diff_do_not_end_with_0(name: str, tmp_path: Path) -> None:
    named, sound = other(tmp_path, name), good(tmp_path)
    assert execute(["show", str(named)]) in (3, 5)
    assert execute(["diff", str(sound), str(named)]) in (1, 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("/")])
def test_a_file_for_a_root_is_no_first_launch(name: str, tmp_path: Path) -> None:
    named = other(tmp_path, name)
    for command in ("plan", "latest", "hook"):
        state = ["--plan-dir", "plans"] if command == "hook" else []
        code, _, err = executed([command, str(named), "--allow=none", "--allow=missing", *state])
        assert code == 5 and str(named) in err
    with pytest.raises(errors.CannotLook):
        ckpt_tools.plan(named, Selection(allow_none=True))


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("layout", sorted(p.name for p in LAYOUT_TREES.iterdir()))
def test_every_file_that_is_named_is_in_the_answer(layout: str) -> None:
    """Each file of a tree named by itself: it has a report of its own, or it is named as not inspected."""
    root = next(p for p in sorted((LAYOUT_TREES / layout).iterdir()) if p.is_dir())
    files = [p for p in sorted(root.rglob("*")) if p.is_file()][:12]
    done = ckpt_tools.verify(files, ckpt_tools.Level.STRUCTURE)
    reported = {f.report.path for f in done.files}
    named = {f.path for f in done.findings if f.code == "not-inspected"}
    assert files and {str(p) for p in files} == {str(p) for p in files if str(p) in reported} | named
    assert not (reported & named) and (not named or done.verdict is Verdict.UNKNOWN)


@pytest.mark.parametrize("place", ["plain", "step_5/0/model", "step_5/batched", "checkpoint-5"])
def test_a_named_file_is_looked_at_wherever_it_lies(place: str, tmp_path: Path) -> None:
    """Its name may be that of a companion, which is a part only beside others of its layout."""
    (tmp_path / place).mkdir(parents=True)
    path = shutil.copy(good(tmp_path), tmp_path / place / "weights")
    assert [Path(file.report.path) for file in ckpt_tools.verify(path).files] == [Path(path)]


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("kind", ["tar", "gztar", "bztar", "xztar", "zip"])
@pytest.mark.parametrize("name", ["run", "step_300", "core"])
def test_an_archive_of_a_run_is_neither_good_nor_damaged(kind: str, name: str, tmp_path: Path) -> None:
    """Nobody looked at what is in it; and what is merely compressed is of no checkpoint's format."""
    packed = shutil.make_archive(str(tmp_path / name), kind, GOOD / "tp", "tree" if name == "run" else None)
    code, out, _ = executed(["verify", packed])
    assert code == 3 and "does not look into" in out
    code, _, err = executed(["plan", packed, "--allow=none"])
    assert code == 5 and "unpack it" in err
    assert executed(["verify", str(Path(packed).rename(tmp_path / "noname"))])[0] == 3


FORMS: dict[str, Callable[[Path], Any]] = {"text": str, "bytes": os.fsencode, "object": Path}
ALONE: dict[str, Callable[[Any], Any]] = {
    "scan": scan,
    "verify": lambda p: replace(verify(p), summary=None),  # type: ignore[arg-type]  # what differs from run to run
    "plan": plan,
    "latest": lambda p: latest(p, Selection(rank=0)),
    "diff": lambda p: replace(diff(p, p), seconds=0.0),
    "seal": lambda p: replace(seal(p, dry_run=True), seconds=0.0),
    "show": ckpt_tools.api.show,
    "try_load": lambda p: try_load(p, os.fsdecode),
}
"""What each function says of one path."""
OF_PATHS = sorted(ALONE.keys() - {"try_load"})


def test_every_function_that_takes_a_path_is_here() -> None:
    public = {n for n in ckpt_tools.__all__ if n[0].islower() and callable(getattr(ckpt_tools, n))}
    assert public - {"elastic", "errors"} == ALONE.keys() - {"show"}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALONE)
def test_a_path_is_one_path(root: Path, name: str, form: str) -> None:
    given = root / "iter_0000020/mp_rank_00/model_optim_rng.pt" if name == "show" else root
    said = ALONE[name](FORMS[form](given))
    if name == "try_load":
        assert (said.value, said.trail) == (str(given), ())
    else:
        assert said == ALONE[name](str(given))
        assert str(root) in repr(said)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_verify_takes_one_as_a_list_of_one(root: Path, form: str) -> None:
    one = verify(FORMS[form](root))
    assert one == replace(verify([str(root)]), summary=one.summary)
    assert (one.root, one.summary.files) == (str(root), 4)
    several = verify([FORMS[form](root / "iter_0000010"), root / "iter_0000020"])
    assert (several.root, several.summary.files) == (str(root), 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [*product(OF_PATHS, ["", b"", None, 7]), *product(["verify"], [[], (), [""], [None]])],
)
def test_what_is_no_path_is_refused(root: Path, name: str, given: Any) -> None:
    """An empty path would be the current directory, which nobody named."""
    with pytest.raises(UsageError, match="path"):
        ALONE[name](given)


@pytest.mark.slow
def test_a_name_is_one_name(root: Path) -> None:
    """Its letters would be five keys that no file has."""
    assert plan(root, Selection(require="model")).resume_step == 20  # type: ignore[arg-type]
    assert {verify(root, require=given).verdict for given in ("model", ("model",))} == {ckpt_tools.Verdict.OK}
