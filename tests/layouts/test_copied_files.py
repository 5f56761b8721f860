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
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fixture_trees import CASES, materialise, selection
from places import LAYOUT_TREES

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

SHARDS = ("deepspeed", "deepspeed-universal", "hf-trainer", "accelerate")
"""Layouts whose fixtures have two saves of a model in several files, or of a scheduler that is not stepped at
every save.
"""
REPLICATED = ("nvrx-local", "pytorch-sample")
"""Layouts in which another rank's file may be this rank's own, kept twice."""
EDITS = frozenset(
    {"remove", "copy", "truncate", "write", "flip", "link", "swap", "mtime", "now", "root", "error"}
)


class Tree(NamedTuple):
    """A fixture of at least two checkpoints, the question that it answers undamaged, and that answer."""

    root: Path
    selection: Selection
    made: LoadPlan


class Copy(NamedTuple):
    """One file put in the place of another; ``kind`` says whose it is: the same place's at another step,
    another rank's, or another role's.
    """

    kind: str
    source: str
    over: str
    role: str


def questions(case: Path) -> Iterator[dict[str, Any]]:
    yield from (q.get("options", {}) for q in json.loads(case.read_text())["plans"] if not q.keys() & EDITS)


def tree_of(case: Path, target: Path) -> Tree | None:
    """None where no undamaged question of the fixture has an older checkpoint beside its answer."""
    root = materialise(case, target)
    for options in questions(case):
        try:
            made = plan(str(root), selection(options))
        except CkptError:
            continue
        if made.checkpoint is not None and older(made):
            return Tree(root, selection(options), made)
    return None


def older(made: LoadPlan) -> list[Checkpoint]:
    assert made.checkpoint is not None
    mine = {p.path for p in made.checkpoint.parts}
    return [c for c in made.candidates if mine.isdisjoint(p.path for p in c.parts)]


def loaded(made: LoadPlan) -> list[str]:
    return list(dict.fromkeys(f.path for f in (*made.shared, *(f for r in made.ranks for f in r.files))))


def copies(tree: Tree, everything: bool) -> Iterator[Copy]:
    """Every loaded file under one of the next checkpoint: of its own place, of another rank, of each other
    kind. Not ``everything``: of each kind of file one, each way once.
    """
    assert tree.made.checkpoint is not None
    mine = {p.path: p for p in tree.made.checkpoint.parts}
    other = older(tree.made)[0]
    seen = set[tuple[str, str]]()
    for path in loaded(tree.made):
        if (p := mine.get(path)) is None:
            continue
        for kind, q in sources(p, other):
            if (everything or (p.piece, kind) not in seen) and Path(q.path).read_bytes() != Path(
                path
            ).read_bytes():
                seen.add((p.piece, kind))
                yield Copy(kind, q.path, path, p.role)


def sources(p: Part, other: Checkpoint) -> Iterator[tuple[str, Part]]:
    inside = p.path.removeprefix(p.home) if p.home else ""
    sound = [q for q in other.parts if q.size > 0]
    # a piece of saves that count epochs is called otherwise than the same one of those that count steps
    same = [
        q
        for q in sound
        if (q.role, q.rank, q.coords) == (p.role, p.rank, p.coords)
        and (q.path.removeprefix(q.home) if q.home else q.piece) == (inside or p.piece)
    ]
    alike = [*same, *(q for q in sound if q.piece == p.piece and q not in same)]
    yield from (("step", q) for q in same)
    yield from (("rank", q) for q in [q for q in alike if q not in same][:1])
    yield from (
        ("role", q) for q in {q.piece: q for q in sound if q.piece != p.piece and q not in same}.values()
    )


def outcome(tree: Tree, c: Copy, fresh: bool) -> str:
    """What the plan makes of the tree with that copy: lost, warned or silent. The tree is as before
    afterwards.
    """
    over, was, data = Path(c.over), os.stat(c.over), Path(c.over).read_bytes()
    over.unlink()
    over.write_bytes(Path(c.source).read_bytes())
    over.chmod(was.st_mode & 0o777)
    if not fresh:
        os.utime(over, ns=(was.st_mtime_ns,) * 2)
    try:
        made = plan(str(tree.root), tree.selection)
    except CkptError as e:
        return "lost" if e.exit_code in (2, 4) else f"exit {e.exit_code}"
    finally:
        over.unlink()
        over.write_bytes(data)
        over.chmod(was.st_mode & 0o777)
        os.utime(over, ns=(was.st_mtime_ns,) * 2)
    if c.over not in loaded(made):
        return "lost"
    return (
        "warned"
        if any(f.path == c.over and f.severity is Severity.WARNING for f in made.warnings)
        else "silent"
    )


def allowed(c: Copy, layout: str) -> set[str]:
    """What a plan may make of it. Two saves do not tell whether some of a model's weights are trained, nor
    whether a program draws random numbers.
    """
    if c.role == "rng":
        may = {"rank": {"lost", "warned"}, "step": {"lost", "warned", "silent"}}
        return may.get(c.kind, {"lost"})
    if c.role == "data":  # a loader may stand at the same place of another epoch
        return {"lost", "warned"}
    shards = c.kind == "step" and c.role not in ("optimizer", "parameter") and layout in SHARDS
    return {"lost", "warned"} if shards or layout in REPLICATED else {"lost"}


def hold(case: Path, target: Path, everything: bool) -> int:
    tree = tree_of(case, target)
    wrong, tried = [], 0
    for i, c in enumerate(copies(tree, everything) if tree else ()):
        assert tree is not None and tree.made.checkpoint is not None
        for fresh in (False, True) if everything else (bool(i % 2),):
            got, tried = outcome(tree, c, fresh), tried + 1
            if got not in allowed(c, tree.made.checkpoint.layout):
                wrong.append(
                    (
                        got,
                        c.kind,
                        os.path.relpath(c.source, tree.root),
                        os.path.relpath(c.over, tree.root),
                        "fresh" if fresh else "kept",
                    )
                )
    assert wrong == []
    return tried


FEW = ("accelerate/auto", "dcp/two", "deepspeed/zero1", "dlrover/flash", "hf-trainer/fsdp", "keras/callback", "lightning/callback", "megatron/distopt",
       "megatron-core/mcore", "mindio-ttp/tft", "mindspore/flat", "orbax/ocdbt", "tensorflow/manager")  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_copied_file_is_never_loaded_in_silence(name: str, tmp_path: Path) -> None:
    assert hold(
        next(c for c in CASES if f"{c.parent.parent.name}/{c.parent.name}" == name),
        tmp_path,
        everything=False,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_no_copied_file_of_any_layout_is_loaded_in_silence(case: Path, tmp_path: Path) -> None:
    hold(case, tmp_path, everything=True)


@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("case", ["orbax/ocdbt", "orbax/standard", "orbax/items", "orbax/flax"])
@pytest.mark.parametrize("older", [0, -1], ids=["oldest", "newest"])
def test_a_directory_under_the_name_of_a_later_step_is_asked_about(
    case: str, older: int, tmp_path: Path
) -> None:
    """Nothing in it tells the step, but its manifest has names that were drawn by lot."""
    root = materialise(LAYOUT_TREES / case / "expected.json", tmp_path)
    saves = sorted(scan(str(root)).checkpoints, key=lambda c: c.order)
    home = Path(saves[older].path)
    later = home.with_name(home.name.replace(str(saves[older].step), "90000"))
    shutil.copytree(home, later, copy_function=shutil.copy)  # without the times of the old one
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(str(root))
