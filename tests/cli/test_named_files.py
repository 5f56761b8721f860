"""Whatever is named on the command line and was not inspected is named in the answer, and never exit 0."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import pairs
from places import LAYOUT_TREES

import ckpt_tools
from ckpt_tools import Selection, Verdict, errors
from ckpt_tools.cli import execute

GOOD = LAYOUT_TREES / "megatron"
NAMES = [
    "notes.txt", "empty/", "notes/", "latest_checkpointed_iteration.txt", "model-graph.meta", "a.lock", "train.log", "noname",
]  # fmt: skip
"""What may be named beside a checkpoint by mistake; those that end in / are directories."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("CKPT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CKPT_NO_CACHE", "1")
    monkeypatch.chdir(tmp_path)


def good(tmp_path: Path) -> Path:
    """A checkpoint file that is sound."""
    files = (p for p in sorted(GOOD.rglob("model_optim_rng.pt")) if p.stat().st_size)
    sound = next(p for p in files if ckpt_tools.verify(p).verdict is Verdict.OK)
    return Path(shutil.copy(sound, tmp_path / "good.pt"))


def other(tmp_path: Path, name: str) -> Path:
    """Something beside it that is no checkpoint."""
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
        if name != "empty/":
            (path / "notes.txt").write_text("nothing of ours\n")
    else:
        path.write_text("nothing of ours\n")
    return path


@pytest.mark.share(4)
@pytest.mark.parametrize(("name", "first"), pairs(NAMES, [True, False], pytest.mark.slow))
def test_verify_names_what_it_did_not_inspect(
    name: str, first: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named, sound = other(tmp_path, name), good(tmp_path)
    both = [str(named), str(sound)] if first else [str(sound), str(named)]
    assert execute(["verify", str(sound)]) == 0
    assert execute(["verify", str(named)]) == 3
    capfd.readouterr()
    assert execute(["verify", *both, "--level", "structure", "--json"]) == 5
    said = json.loads(capfd.readouterr().out)
    left_out = [f["path"] for f in said["findings"] if f["code"] == "not-inspected"]
    assert (said["verdict"], left_out) == ("unknown", [str(named)])
    assert execute(["verify", *both, "-q"]) == 5
    assert os.path.basename(named) in capfd.readouterr().out
    assert ckpt_tools.verify(both).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("name", NAMES)
def test_show_and_diff_do_not_end_with_0(name: str, tmp_path: Path) -> None:
    named, sound = other(tmp_path, name), good(tmp_path)
    assert execute(["show", str(named)]) in (3, 5)
    assert execute(["diff", str(sound), str(named)]) in (1, 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("/")])
@pytest.mark.parametrize("command", ["plan", "latest", "hook"])
def test_a_file_for_a_root_is_no_first_launch(
    command: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named = other(tmp_path, name)
    state = ["--plan-dir", "plans"] if command == "hook" else []
    assert execute([command, str(named), "--allow=none", "--allow=missing", *state]) == 5
    assert str(named) in capfd.readouterr().err
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
def test_an_archive_of_a_run_is_neither_good_nor_damaged(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody looked at what is in it; and what is merely compressed is of no checkpoint's format."""
    packed = shutil.make_archive(str(tmp_path / name), kind, GOOD / "tp", "tree" if name == "run" else None)
    assert execute(["verify", packed]) == 3
    assert "does not look into" in capsys.readouterr().out
    assert execute(["plan", packed, "--allow=none"]) == 5
    assert "unpack it" in capsys.readouterr().err
    assert execute(["verify", str(Path(packed).rename(tmp_path / "noname"))]) == 3
