"""A file of another step copied over one of the newest checkpoint, in every layout: it is never loaded as if
nothing had happened.

``cp`` instead of ``mv``, a restore from the wrong directory, a synchronising job that raced: the bytes are
sound, and in the wrong place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from fixture_trees import CASES, NAMED, materialise, overwrite, selection

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.inspection.check import inspect
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.piece import Changes
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection

EDITS = frozenset(
    {"remove", "copy", "truncate", "write", "flip", "link", "swap", "mtime", "now", "root", "error"}
)


class Tree(NamedTuple):
    """A fixture of at least two checkpoints, the question that it answers undamaged, and that answer."""

    root: Path
    selection: Selection
    made: LoadPlan

    def loads(self) -> list[Part]:
        assert self.made.checkpoint is not None
        return [p for p in self.made.checkpoint.parts if p.path in self.made.files()]


class Copy(NamedTuple):
    """A file of an older save put in the place of the same one; ``part`` is what it is put over."""

    source: str
    part: Part

    @property
    def over(self) -> str:
        return self.part.path


def tree_of(case: Path, target: Path) -> Tree | None:
    """None where no undamaged question of the fixture has an older checkpoint beside its answer."""
    root = materialise(case, target)
    asked = [q.get("options", {}) for q in json.loads(case.read_text())["plans"] if not q.keys() & EDITS]
    for options in asked:
        try:
            made = plan(str(root), selection(options))
        except CkptError:
            continue
        if made.checkpoint is not None and older(made):
            return Tree(root, selection(options), made)
    return None


def older(made: LoadPlan) -> list[Checkpoint]:
    """The candidates of another place in the order of training: one state may have two names."""
    assert made.checkpoint is not None
    mine = {p.path for p in made.checkpoint.parts}
    apart = [c for c in made.candidates if c.order != made.checkpoint.order]
    return [c for c in apart if mine.isdisjoint(p.path for p in c.parts)]


def copies(tree: Tree) -> Iterator[Copy]:
    """Every loaded file under that of the next checkpoint."""
    for p in tree.loads():
        inside = p.path.removeprefix(p.home) if p.home else p.piece
        for q in older(tree.made)[0].parts:
            called = q.path.removeprefix(q.home) if q.home else q.piece
            alike = q.size > 0 and (q.role, q.rank, q.coords, called) == (p.role, p.rank, p.coords, inside)
            if alike and Path(q.path).read_bytes() != Path(p.path).read_bytes():
                yield Copy(q.path, p)


def outcome(tree: Tree, c: Copy, fresh: bool) -> str:
    """What the plan makes of the tree with that copy: lost, warned or silent. The tree is as before
    afterwards.
    """
    over, data = Path(c.over), Path(c.over).read_bytes()
    was = over.stat()
    overwrite(over, Path(c.source).read_bytes(), 0)
    if fresh:
        os.utime(over)
    try:
        made = plan(str(tree.root), tree.selection)
    except CkptError as e:
        return "lost" if e.exit_code in (2, 4) else f"exit {e.exit_code}"
    finally:
        overwrite(over, data, 0)
        os.utime(over, ns=(was.st_mtime_ns,) * 2)
    if c.over not in made.files():
        return "lost"
    warned = any(f.path == c.over and f.severity is Severity.WARNING for f in made.warnings)
    return "warned" if warned else "silent"


def allowed(c: Copy, tree: Tree) -> set[str]:
    """What a plan may make of it: of a model's and an optimizer's files what can be told of another save's is
    never loaded, and where the bytes leave a doubt, a warning says so.
    """
    constant = BUILT_IN[c.part.layout].piece(c.part.piece).changes is Changes.CONSTANT
    report = known(c.over)
    few = [p for p in tree.loads() if p.role == c.part.role and known(p.path).tensors < 2]
    one_of_many = (
        report.tensors < 2 and len(few) > 4
    )  # each tensor has a file of its own: some are the same in all
    if (
        constant
        or c.part.role.endswith(("rng", "scheduler", "metadata", "index"))
        or not report.tensors
        or one_of_many
    ):
        return {"lost", "warned", "silent"}
    trained = [p for p in tree.loads() if p.role not in ("optimizer", "parameter") and known(p.path).tensors]
    # all that is loaded of its save: an older save, and not a mix of two; or one of several, which may be frozen
    whole = {p.path for p in tree.loads() if known(p.path).tensors} == {c.over}
    doubtful = c.part.role == "data" or (c.part in trained and len(trained) > 1)
    return {"lost", "warned"} if whole or doubtful or c.part.layout in REPLICATED else {"lost"}


REPLICATED = ("nvrx-local", "pytorch-sample")
"""Layouts in which another rank's file may be this rank's own, kept twice."""


@cache
def known(path: str) -> Report:
    return inspect(path, Level.STRUCTURE)[0]


@pytest.mark.share(12)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_no_copied_file_of_any_layout_is_loaded_in_silence(case: Path, tmp_path: Path) -> None:
    tree = tree_of(case, tmp_path)
    for i, c in enumerate(copies(tree) if tree else ()):
        assert tree is not None
        may, got = allowed(c, tree), outcome(tree, c, fresh=bool(i % 2))
        assert got in may, (c.source, c.over)


@pytest.mark.slow
@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("case", ["orbax/ocdbt", "orbax/standard", "orbax/items", "orbax/flax"])
@pytest.mark.parametrize("older", [0, -1], ids=["oldest", "newest"])
def test_a_directory_under_the_name_of_a_later_step_is_asked_about(
    case: str, older: int, tmp_path: Path
) -> None:
    """Nothing in it tells the step, but its manifest has names that were drawn by lot."""
    root = materialise(NAMED[case], tmp_path)
    save = sorted(scan(str(root)).checkpoints, key=lambda c: c.order)[older]
    home = Path(save.path)
    later = home.with_name(home.name.replace(str(save.step), "90000"))
    shutil.copytree(home, later, copy_function=shutil.copy)  # without the times of the old one
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(str(root))


def test_a_copy_over_the_newest_is_seen_where_only_its_name_calls_it_so(tmp_path: Path) -> None:
    """``last.ckpt`` shows no step, so it is neither before nor after the save whose file lies in it."""
    root = materialise(NAMED["lightning/engine"], tmp_path)
    name = "checkpoint/zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    older = root / "epoch=0-step=4.ckpt" / name.format(0)
    overwrite(root / "last.ckpt" / name.format(1), older.read_bytes(), 0)
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(root)
