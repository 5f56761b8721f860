"""Seals over the real trees of all layouts: they change no answer about what is good, every changed bit of what
they name is seen, and none is in the way of what frameworks do; and where only seals are left of checkpoints, no job
starts older, or from nothing, in silence.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from unittest.mock import Mock

import pytest
import small_files
from fixture_trees import FIRST, TREES, materialise
from places import FORMAT_FILES
from run_helpers import flip, megatron
from timed import put

from ckpt_tools import guard
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.seal import Sealing
from ckpt_tools.model.selection import Selection

ONE_OF_EACH = [pytest.param(case, id=layout) for layout, case in sorted(FIRST.items())]


@contextmanager
def copied(case: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield materialise(case, Path(made))


def chosen(root: Path) -> tuple[object, ...]:
    """What a plan says: what it chose, the files, and why the others lost."""
    try:
        made = plan(root, Selection(allow_none=True))
    except CkptError as e:
        return type(e).__name__, e.exit_code, str(e).replace(str(root), "")
    files = sorted(made.files())
    lost = sorted((r.checkpoint.path, *sorted({f.code for f in r.findings})) for r in made.rejected)
    return made.checkpoint and made.checkpoint.path, files, lost, sorted({f.code for f in made.warnings})


def listing(root: Path) -> tuple[object, ...]:
    found = scan(root)
    return [(c.path, c.step, len(c.parts)) for c in found.checkpoints], found.bare, found.unrecognised


def judged(root: Path) -> tuple[Verdict, dict[str, list[str]], list[str]]:
    """The verdict, what is wrong with each file, and across files; notes apart."""
    found = verify(root)
    return found.verdict, files(found), sorted({f.code for f in found.findings if f.severity > Severity.NOTE})


def files(found: Verification) -> dict[str, list[str]]:
    rows = (
        (f.report.path, x.code) for f in found.files for x in f.report.findings if x.severity > Severity.NOTE
    )
    return {path: sorted(code for _, code in of) for path, of in groupby(sorted(rows), itemgetter(0))}


@pytest.mark.share(80)
@pytest.mark.parametrize("case", TREES)
def test_a_seal_changes_no_answer_about_what_it_is_of(case: Path) -> None:
    with copied(case) as root:
        before, said, listed = chosen(root), judged(root), listing(root)
        done = guard.seal(root)
        assert chosen(root) == before
        assert judged(root) == said
        assert listing(root) == listed
        sealed = {one.path for one in done.checkpoints if one.state == "sealed"}
        known = (f.report for f in verify(root).files if f.report.path in sealed and f.report.size)
        assert {report.coverage for report in known} <= {1.0}
        again = guard.seal(root)
        assert {one.path for one in again.checkpoints if one.state == "already"} == sealed


@pytest.mark.parametrize("most", [6, pytest.param(1000, marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.share(24)
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_every_changed_bit_of_what_is_sealed_is_seen(case: Path, most: int) -> None:
    """A bit of each of some files, of which the whole tree is asked; of all of them by night."""
    chance = random.Random(case.parent.name)
    with copied(case) as root:
        before, done = broken(root), guard.seal(root)
        assert [one.state for one in done.checkpoints].count("sealed"), done.checkpoints
        named = sealed_files(done, root)
        for path in chance.sample(sorted(named), min(most, len(named))):
            at, mask = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)
            flip(path, at, mask)
            assert str(path) in broken(root), (path, at, mask)
            flip(path, at, mask)
        assert broken(root) == before


def sealed_files(done: Sealing, root: Path) -> set[Path]:
    out = set[Path]()
    for one in done.checkpoints:
        if one.state == "sealed":
            rows = json.loads(Path(one.seal).read_text())["files"]
            out |= {Path(one.seal).parent / row["path"] for row in rows if row["size"]}
    return out


def broken(root: Path) -> set[str]:
    return {f.report.path for f in verify(root).files if f.report.verdict is Verdict.BROKEN}


@pytest.mark.share(18)
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_a_copy_without_times_keeps_its_seals(case: Path) -> None:
    with copied(case) as root, tempfile.TemporaryDirectory() as other:
        guard.seal(root)
        said = judged(root)[1]
        away = Path(other) / "tree"
        shutil.copytree(root, away, symlinks=True, copy_function=shutil.copyfile)
        found = {path.replace(str(away), str(root)): codes for path, codes in files(verify(away)).items()}
        assert not {p: c for p, c in found.items() if any(x.startswith("seal") for x in c)}, (found, said)


def unlink_all_but_seals(root: Path) -> int:
    """Every file but the seals; how many seals there are."""
    files = [p for p in root.rglob("*") if not p.is_dir() or p.is_symlink()]
    seals = [p for p in files if p.name.endswith(NAME) or p.parent.name == FRAGMENTS]
    for path in set(files) - set(seals):
        path.unlink()
    return len(seals)


@pytest.mark.share(18)
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_seals_alone_are_no_first_launch(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    guard.seal(root)
    if not unlink_all_but_seals(root):
        return
    with pytest.raises(CkptError) as raised:
        plan(root, Selection(allow_none=True))
    assert raised.value.exit_code == 4 and "seal" in str(raised.value)
    assert plan(root, Selection(allow_none=True, allow_fresh=True)).checkpoint is None


def missed(findings: Iterable[Finding]) -> list[str]:
    return sorted(os.path.basename(f.path or "") for f in findings if f.code == "seal-missing")


PRUNED = [((), []), ((10,), []), ((10, 40), []), ((20, 50), []), ((50,), [50]), ((10, 50), [50])]


@pytest.mark.parametrize(("pruned", "said"), PRUNED)
def test_who_keeps_the_best_removes_newer_ones_too(
    pruned: Sequence[int], said: list[int], tmp_path: Path
) -> None:
    root, steps = tmp_path / "run", (10, 20, 30, 40, 50)
    for step in steps:
        put(root / f"net-1_{step}.ckpt", small_files.mindspore(True, 0, step_num=step), step)
    guard.seal(root)
    for step in pruned:
        (root / f"net-1_{step}.ckpt").unlink()
    assert missed(verify(root).findings) == [f"net-1_{step}.ckpt" for step in said]
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step_in_epoch == max({*steps} - {*pruned})
    assert bool(missed(made.warnings)) == (50 in pruned)  # what chooses says it always


def test_a_newest_directory_that_is_emptied_is_said(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30), tracker=False)
    guard.seal(root)
    assert not missed(plan(root).warnings)
    for step in (10, 30):
        for path in (root / f"iter_{step:07d}").glob("mp_rank_*"):
            shutil.rmtree(path)
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    assert missed(made.warnings) == ["iter_0000030"]


IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "dangling": lambda path: path.symlink_to("nowhere"), "loop": lambda path: path.symlink_to(path.name), "directory": Path.mkdir,
    "nothing": lambda path: None,
}  # fmt: skip


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_what_lies_in_the_place_of_a_sealed_file_is_said(what: str, tmp_path: Path) -> None:
    """Of a file without state, which no layout looks at; and the checkpoint beside it is as good as before."""
    root = shutil.copytree(FORMAT_FILES / "tf_bundle/good/manager", tmp_path / "run")
    graph = root / "ckpt-2.meta"
    graph.write_bytes(b"graph")
    chosen = plan(root).checkpoint
    seal = next(one.seal for one in guard.seal(root, settle=0).checkpoints if one.path == str(graph))
    graph.unlink()
    IN_ITS_PLACE[what](graph)
    found = verify(root, settle=0)
    said = {(one.report.path, f.code, f.severity) for one in found.files for f in one.report.findings}
    assert {row for row in said if row[1].startswith("seal-")} == {(seal, "seal-missing", Severity.WARNING)}
    assert chosen and plan(root).checkpoint == chosen


INSTEAD: dict[str, Callable[[Path], object]] = {
    **{what: make for what, make in IN_ITS_PLACE.items() if what != "nothing"},
    "full": lambda path: (path / "x").mkdir(parents=True),
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/null"),
}
LOST_MOUNT = ("dangling", "loop")
"""What the seal says may lie elsewhere, so nobody knows it."""


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("place", [NAME, f"{FRAGMENTS}/rank-00000.json", FRAGMENTS])
def test_what_lies_in_the_place_of_a_seal_is_said_by_all(place: str, what: str, tmp_path: Path) -> None:
    """And no job starts older for it."""
    if place == FRAGMENTS and what in ("directory", "full"):
        return
    root = megatron(tmp_path / "run")
    path = root / "iter_0000020" / place
    path.parent.mkdir(exist_ok=True)
    INSTEAD[what](path)
    found = verify(root, settle=0)
    assert [f.report.path for f in found.files if f.report.verdict is not Verdict.OK] == [str(path)]
    try:
        alone = [f.report.path for f in verify(root / "iter_0000020/mp_rank_00/model_optim_rng.pt").files]
    except CkptError as e:
        alone = str(e).split()
    assert str(path) in " ".join(alone)
    if what in LOST_MOUNT:
        with pytest.raises(CkptError, match="seal") as raised:
            plan(root)
        assert raised.value.exit_code == 5 and str(path) in str(raised.value)
        return
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    assert {(f.code, f.path) for f in made.warnings} == {("seal-broken", str(path))}


@pytest.mark.parametrize("sealed", [False, True])
def test_a_checkpoint_that_is_pruned_while_it_is_read_is_said_to_be_gone(
    sealed: bool, tmp_path: Path
) -> None:
    root = megatron(tmp_path / "run")
    if sealed:
        guard.seal(root, settle=0)
    home = root / "iter_0000010"
    shown = Mock()
    shown.file = lambda path, _: path.startswith(str(home)) and shutil.rmtree(home, ignore_errors=True)
    found = verify(root, settle=0, progress=shown)
    reports = [f.report for f in found.files]
    gone = [r for r in reports if r.path.startswith(f"{home}/")]
    assert {r.verdict for r in gone} == {found.verdict} == {Verdict.UNKNOWN}
    assert {r.verdict for r in reports if r not in gone} == {Verdict.OK}
    assert all(f.code == "in-use" and "removed while" in f.message for r in gone for f in r.findings)
