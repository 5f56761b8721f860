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
from typing import Any, NamedTuple

import pytest
import small_files
from fixture_trees import CASES, materialise, selection
from places import LAYOUT_TREES
from small_files import saved, tensor
from timed import put

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.inspection.check import inspect
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.counters import STEPS
from ckpt_tools.layouts.common.piece import Changes
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection

REPLICATED = ("nvrx-local", "pytorch-sample")
"""Layouts in which another rank's file may be this rank's own, kept twice."""
SAVED = ("save_id", "consumed_samples", "optimizer_step", "last_epoch")
"""What else of a file is another at every save."""
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
    another rank's, or another role's. ``part`` is what it is put over.
    """

    kind: str
    source: str
    part: Part

    @property
    def over(self) -> str:
        return self.part.path


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
    """The candidates of another place in the order of training: one state may have two names."""
    assert made.checkpoint is not None
    mine = {p.path for p in made.checkpoint.parts}
    apart = [c for c in made.candidates if c.order != made.checkpoint.order]
    return [c for c in apart if mine.isdisjoint(p.path for p in c.parts)]


def loaded(made: LoadPlan) -> list[str]:
    return list(dict.fromkeys(f.path for f in (*made.shared, *(f for r in made.by_rank for f in r.files))))


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
                yield Copy(kind, q.path, p)


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


def allowed(c: Copy, tree: Tree) -> set[str]:
    """What a plan may make of it: of a model's and an optimizer's files what can be told of another save's is
    never loaded, and where the bytes leave a doubt, a warning says so.
    """
    assert tree.made.checkpoint is not None
    piece = BUILT_IN[c.part.layout].piece(c.part.piece)
    other = (
        c.part.role.endswith(("rng", "scheduler", "metadata", "index")) or piece.changes is Changes.CONSTANT
    )
    if other or not known(c.over).tensors or untold(c, tree) or is_one_of_many(c, tree):
        return {"lost", "warned", "silent"}
    if c.kind == "role":
        return {"lost", "warned"} if is_whole(c, tree) or stateless(c) else {"lost"}
    doubtful = c.part.role == "data" or tree.made.checkpoint.layout in REPLICATED or partly(c, tree)
    return {"lost", "warned"} if doubtful or is_whole(c, tree) or loader(c) else {"lost"}


def is_one_of_many(c: Copy, tree: Tree) -> bool:
    """Whether each tensor has a file of its own, of which some are the same in every save; or what a rank keeps
    of other things has one.
    """
    files = [p for p in loaded_parts(tree) if p.role == c.part.role and known(p.path).tensors < 2]
    return (known(c.over).tensors < 2 and len(files) > 4) or (c.kind == "rank" and c.part.role == "state")


def is_whole(c: Copy, tree: Tree) -> bool:
    """Whether the file is all that is loaded of its save, but for what counts: a copy is an older save, and not
    a mix of two.
    """
    return {p.path for p in loaded_parts(tree) if known(p.path).tensors} == {c.over}


def partly(c: Copy, tree: Tree) -> bool:
    """Whether two saves do not tell that the file is trained: some of a model that is in several files may be
    frozen, and so may an average of it.
    """
    several = [
        p for p in loaded_parts(tree) if p.role not in ("optimizer", "parameter") and known(p.path).tensors
    ]
    return c.kind == "step" and c.part in several and len(several) > 1


def untold(c: Copy, tree: Tree) -> bool:
    """Whether nothing in the file is another at every save: it has neither tensors nor a number that grows
    with the steps, so that of two or three saves it may well be the same in two. Nor has what has a name drawn
    by lot a place in another save.
    """
    report = known(c.over)
    by_lot = (
        c.kind == "rank"
        and c.part.role == "data"
        and all(p.name != c.part.name for o in older(tree.made) for p in o.parts)
    )
    counted = {*STEPS, *SAVED} & {key.rpartition(".")[2] for key in report.metadata}
    return by_lot or (c.kind == "step" and not report.tensors and not counted)


def stateless(c: Copy) -> bool:
    """Whether neither is a state of training, or only an index names both: its framework cannot load one in
    place of the other.
    """
    return c.part.role == "data" or not (known(c.source).tensors or known(c.over).tensors)


def loader(c: Copy) -> bool:
    """Whether the file says how far an epoch has been read: so far may be that of another."""
    return any(key.startswith(("_num_yielded", "_snapshot")) for key in known(c.over).metadata)


def loaded_parts(tree: Tree) -> list[Part]:
    assert tree.made.checkpoint is not None
    paths = set(loaded(tree.made))
    return [p for p in tree.made.checkpoint.parts if p.path in paths]


@cache
def known(path: str) -> Report:
    return inspect(path, Level.STRUCTURE)[0]


def hold(case: Path, target: Path, everything: bool) -> int:
    tree = tree_of(case, target)
    wrong, tried = [], 0
    for i, c in enumerate(copies(tree, everything) if tree else ()):
        assert tree is not None
        may = allowed(c, tree)
        for fresh in (False, True) if everything else (bool(i % 2),):
            got, tried = outcome(tree, c, fresh), tried + 1
            if got not in may:
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


@pytest.mark.slow
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


@pytest.mark.parametrize("link", ["latest.ckpt", "model.ckpt"])
def test_a_link_to_the_newest_hides_no_copy(tmp_path: Path, link: str) -> None:
    """JoeyNMT's and DeePMD's links hold what their file holds, and tell no step."""
    for step in (10, 20, 30):
        data = saved({"model": {"w": tensor(min(step, 20))}, "optimizer": {"param_groups": []}})
        put(tmp_path / f"model-{step}.ckpt", data, 1_700_000_000 + 60 * step)
    (tmp_path / link).symlink_to("model-30.ckpt")
    try:
        made = plan(tmp_path)
    except UsageError:
        return
    assert made.resume_step == 20 and {f.code for f in made.rejected[0].findings} == {"same-content"}


def test_a_copy_over_the_newest_is_seen_where_only_its_name_calls_it_so(tmp_path: Path) -> None:
    """``last.ckpt`` shows no step, so it is neither before nor after the save whose file lies in it."""
    root = materialise(LAYOUT_TREES / "lightning/engine/expected.json", tmp_path)
    name = "checkpoint/zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    newest = root / "last.ckpt" / name.format(1)
    times = newest.stat().st_mtime_ns
    newest.write_bytes((root / "epoch=0-step=4.ckpt" / name.format(0)).read_bytes())
    os.utime(newest, ns=(times, times))
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(root)


def test_damage_in_older_saves_makes_no_copies_of_replicas(tmp_path: Path) -> None:
    """Two ranks hold the same state, and their files differ where one is damaged."""
    for at, step in enumerate((10, 20, 30)):
        for rank in (0, 1):
            path = tmp_path / f"rank_{rank}/net-1_{step}.ckpt"
            path.parent.mkdir(exist_ok=True)
            data = small_files.mindspore(True, 0, epoch_num=1, step_num=step)
            at_payload = data.index(small_files.PAYLOAD)
            flipped = data[:at_payload] + bytes([data[at_payload] ^ 1]) + data[at_payload + 1 :]
            put(path, flipped if rank == 0 and step < 30 else data, 1_700_000_000 + 600 * at)
    made = plan(str(tmp_path), Selection(world_size=2))
    assert made.resume_step == 30
    assert not [f for f in made.warnings if f.code == "same-content"]
