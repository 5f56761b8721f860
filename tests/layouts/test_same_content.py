"""The rule pair/same-content: a file copied over that of another step or rank, and what looks like it but is
none. Times say nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.distributed.checkpoint as saver
from fixture_trees import CASES, materialise, overwrite, selection, tree_of
from places import LAYOUT_TREES
from safetensors.torch import save as safetensors_save
from shards import DAY, copy, numbers, optimizer, put, shard
from small_files import dcp, saved, trainer
from told_trees import Made, Question, flipped, hold, table

from ckpt_tools.api import plan, scan, verify
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

Found = set[tuple[str, str]]


def states(
    tree: Path,
    steps: Sequence[int],
    of: Callable[[int, int], tuple[int, ...]] = lambda step, rank: (step, rank),
    world: int = 2,
) -> Path:
    """DLRover's file of every rank: nothing in it but its place tells the step."""
    for step in steps:
        for rank in range(world):
            put(tree / str(step) / f"rank_{rank}.pt", saved({"model": {"w": numbers(*of(step, rank))}}), step)
    put(tree / "dlrover_latest.txt", str(steps[-1]).encode(), steps[-1] + 1)
    return tree


def trained(tree: Path, steps: Sequence[int]) -> Path:
    """The Trainer's checkpoints: safetensors has no checksum, the optimizer counts its steps."""
    for step in steps:
        for name, data in trainer(step).items():
            put(tree / f"checkpoint-{step}" / name, data, step)
    return tree


def found(tree: Path) -> Found:
    """(path below the tree, severity) of the findings of copies."""
    rows = ((row.report.path, f) for row in verify([str(tree)]).files for f in row.report.findings)
    return {(os.path.relpath(path, tree), str(f.severity)) for path, f in rows if f.code == "same-content"}


TWO, THREE = (10, 20), (10, 20, 30)


def scaled(tree: Path, steps: Sequence[int] = THREE) -> Path:
    """The Trainer's, whose model is another one at each step."""
    trained(tree, steps)
    for step in steps:
        data = safetensors_save({"w": numbers(step)}, {"format": "pt"})
        put(tree / f"checkpoint-{step}" / "model.safetensors", data, step)
    return tree


def followed(tree: Path) -> Path:
    """A target network is what the trained one was at the save before."""
    for i, step in enumerate((10, 20, 30, 40)):
        for rank, seed in enumerate((step, (step - 10) if i else 1)):
            put(tree / str(step) / f"rank_{rank}.pt", saved({"model": {"w": numbers(seed)}}), step)
    return tree


def with_best(tree: Path) -> Path:
    for step in THREE:
        put(tree / f"model_{step}.pt", saved({"w": numbers(step)}), step)
    put(tree / "best.pt", (tree / "model_20.pt").read_bytes(), 40)
    return tree


MADE: dict[str, Made] = {
    "shards-2": lambda tree: shard(tree, TWO),
    "shards-3": lambda tree: shard(tree, THREE),
    "shards-alike": lambda tree: shard(tree, THREE, lambda step, rank: (step,)),
    "ranks-1": lambda tree: states(tree, (10,)),
    "ranks-2": lambda tree: states(tree, TWO),
    "ranks-3": lambda tree: states(tree, THREE),
    "ranks-12": lambda tree: states(tree, range(10, 130, 10)),
    "replicas-2": lambda tree: states(tree, THREE, lambda step, rank: (step, 0)),
    "replicas-4": lambda tree: states(tree, THREE, lambda step, rank: (step, rank % 2), 4),
    "frozen": lambda tree: states(tree, THREE, lambda step, rank: (1, rank)),
    "frozen-rank": lambda tree: states(tree, THREE, lambda step, rank: (step if rank else 1, rank)),
    "trainer-2": lambda tree: scaled(tree, TWO),
    "trainer-3": scaled,
    "followed": followed,
    "best": with_best,
}
TREES = table(
    """
    # --- Over the file of another step: either may have been overwritten, and nobody knows which.
    shards-2 slow
        cp iter_0000010/mp_rank_01/distrib_optim.pt iter_0000020/
            -> exit 2 pair/same-content => broken same-content
        then as it is | max_step=15 -> exit 2 pair/same-content
        then as it is | max_step=10 -> iter_0000010 ~same-content
        then as it is | level=structure -> iter_0000020
    shards-3 slow
        # The newer of the two loses anyway; what is left may hold another step's optimizer.
        cp iter_0000030/mp_rank_01/distrib_optim.pt iter_0000020/;
            cut iter_0000030/mp_rank_00/model_optim_rng.pt -> exit 2 pair/same-content
        then as it is | max_step=10 -> iter_0000010
        then as it is | max_step=20 -> iter_0000020 ~same-content
        # Other checkpoints of the run are witnesses even when they are hidden.
        cp iter_0000010/mp_rank_00/distrib_optim.pt iter_0000020/ -> iter_0000030
        then as it is | max_step=10 -> iter_0000010 ~same-content
        then as it is | max_step=30 -> iter_0000030
        then as it is | max_step=25 -> exit 2 pair/same-content
    ranks-2 slow
        # With two saves nobody knows whether a rank's part of the model is trained at all: so it is said.
        cp 10/rank_1.pt 20/ -> 20 +same-content +world-size-inferred => suspect same-content
        # Another rank's: one other save may have begun differently by chance, two are enough to know.
        cp 20/rank_0.pt 20/rank_1.pt -> 20 +same-content +world-size-inferred => suspect same-content
    ranks-3 slow
        cp 20/rank_1.pt 30/ -> exit 2 pair/same-content => broken same-content
        then as it is | max_step=20 -> 20 +world-size-inferred ~same-content
        cp 30/rank_0.pt 30/rank_1.pt
            -> 20 -missing-rank -same-content +dangling-tracker +world-size-inferred => broken same-content
    ranks-1
        cp 10/rank_0.pt 10/rank_1.pt -> 10 +world-size-inferred => ok   # nothing to compare with
    shards-3 slow
        cp iter_0000030/mp_rank_00/distrib_optim.pt iter_0000030/mp_rank_01/distrib_optim.pt
            -> iter_0000020 -missing-rank -same-content +dangling-tracker => broken same-content
    ranks-12 slow
        # All checkpoints of the run are compared, not the next ones alone.
        cp 10/rank_1.pt 120/ -> exit 2 pair/same-content
        then as it is | max_step=110 -> 110 +world-size-inferred
        cp 10/rank_0.pt 120/rank_1.pt -> exit 2 pair/same-content
    trainer-2 slow
        # The optimizer moved on, and there is nothing else that it could have changed.
        as it is -> checkpoint-20 => ok
        # Where a counter tells, the copy is what is wrong, and the other, which is sound, is not called so.
        cp checkpoint-10/{optimizer.pt,scheduler.pt,trainer_state.json} checkpoint-20/
            -> checkpoint-10 -step-mismatch => broken step-mismatch
        cp checkpoint-20/{optimizer.pt,scheduler.pt,trainer_state.json} checkpoint-10/
            -> checkpoint-20 => broken step-mismatch
        cp checkpoint-10/model.safetensors checkpoint-20/ -> exit 2 pair/same-content => broken same-content
    trainer-3 slow
        cp checkpoint-20/{optimizer.pt,scheduler.pt,trainer_state.json} checkpoint-30/
            -> checkpoint-20 -step-mismatch => broken step-mismatch
        cp checkpoint-20/model.safetensors checkpoint-30/ -> exit 2 pair/same-content => broken same-content
        # A frozen model is saved once more because a framework saves everything: an adapter is what is trained.
        cp checkpoint-10/model.safetensors checkpoint-20/; cp checkpoint-10/model.safetensors checkpoint-30/
            -> checkpoint-30
    planted
        step_10.pt:state step_20.pt:state step_30.pt:state20; ln step_30.pt last.pt -> exit 2 pair/same-content
        # A file of another step in a directory whose name tells none: another file there tells the step.
        step-10/:dcp step-20/:dcp step-30/:dcp30; cp step-20/__0_1.distcp step-30/__0_1.distcp
            -> exit 2 pair/same-content
        step-10/:dcp step-20/:dcp good/:dcp30; cp step-20/__0_1.distcp good/__0_1.distcp -> exit 2 pair/same-content
        step-10/:dcp step-20/:dcp step-30-ok/:dcp30; cp step-20/__0_1.distcp step-30-ok/__0_1.distcp
            -> exit 2 pair/same-content
        # A link to the newest, as JoeyNMT and DeePMD make it, hides no copy.
        model-10.ckpt:uncounted model-20.ckpt:uncounted model-30.ckpt:uncounted20; ln model-30.ckpt {latest,model}.ckpt
            -> exit 2 pair/same-content
        # Replicas that differ because older saves are damaged.
        rank_0/net-1_10.ckpt:mindspore rank_1/net-1_10.ckpt:mindspore= rank_0/net-1_20.ckpt:mindspore;
            rank_1/net-1_20.ckpt:mindspore= rank_0/net-1_30.ckpt:mindspore rank_1/net-1_30.ckpt:mindspore=;
            flip rank_0/net-1_10.ckpt; flip rank_0/net-1_20.ckpt | world_size=2 -> step 30
    lightning/engine
        # Only its name calls it the newest: it shows no step.
        cp epoch=0-step=4.ckpt/checkpoint/zero_pp_rank_0_mp_rank_00_optim_states.pt last.ckpt/checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt
            -> exit 2 pair/same-content
    # --- What is no copy
    followed slow
        as it is -> 40 +world-size-inferred
    best slow
        as it is -> model_30.pt => ok
        then cp model_20.pt model_30.pt -> exit 2 pair/same-content
        then as it is | max_step=20 -> model_20.pt ~same-content
    replicas-2 slow
        as it is -> 30 +world-size-inferred => ok
    replicas-4 slow
        as it is -> 30 +world-size-inferred => ok
    shards-alike
        as it is -> iter_0000030 => ok
    frozen slow
        as it is -> 30 +world-size-inferred => ok
    frozen-rank
        as it is -> 30 +world-size-inferred => ok
    shards-2
        # Damaged files are damaged and no copies.
        zero iter_00000*/mp_rank_01/distrib_optim.pt
            -> exit 4 choice/none-usable -missing-rank -zero-filled => broken zero-filled
        # A hard link was meant.
        rm iter_0000020/mp_rank_01/distrib_optim.pt; hl iter_0000010/mp_rank_01/distrib_optim.pt iter_0000020/
            -> iter_0000020 => ok
    accelerate/epoch_last slow
        cp step_30/model.safetensors epoch_0/ -> exit 2 pair/same-content
        cp step_30/scheduler.bin epoch_0/ -> step_30 -step-mismatch
    accelerate/both_names slow
        # Nothing says that training moved on between step_32 and epoch_1, until their models differ.
        flip epoch_1/model.safetensors -4 -> exit 2 pair/same-content => broken same-content
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_is_answered_about_a_copy(tree: str | Made, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.slow
def test_each_answer_that_is_offered_leads_on(tmp_path: Path) -> None:
    """Either may have been overwritten: to go back would lose training for nothing, or load the very copy."""
    tree = shard(tmp_path, TWO)
    older, newer = optimizer(10, 1), optimizer(20, 1)
    os.utime(tree / older, (DAY + 11, DAY + 11))  # ranks do not finish in the same second
    copy(tree, newer, older)
    assert found(tree) == {(newer, "error"), (older, "note")}
    with pytest.raises(UsageError) as e:
        plan(str(tree))
    assert f"{older} and {newer} are byte for byte the same" in str(e.value)
    assert "restore whichever is the copy" in e.value.hint
    offered = dict(re.findall(r"(--max-step|--exclude) (\S+) ", e.value.hint))
    for asked, step in (
        (Selection(max_step=int(offered["--max-step"])), 10),
        (Selection(exclude=(offered["--exclude"],)), 20),
    ):
        made = plan(str(tree), asked)
        told = "same-content" in {f.code for f in made.warnings}
        assert (made.resume_step, told) == (step, step == 10)


def test_equal_pages_are_not_equal_files(tmp_path: Path) -> None:
    """Only a few pages of each file are looked at first; what has the same ones is compared byte by byte."""
    trained(tmp_path, TWO)
    names = [f"checkpoint-{step}/model.safetensors" for step in TWO]
    data = safetensors_save({"w": numbers(1)}, {"format": "pt"})
    for name in names:
        put(tmp_path / name, data, 10)
    assert found(tmp_path) == {(names[0], "note"), (names[1], "error")}
    overwrite(tmp_path / names[1], flipped(data, len(data) // 8), 0)  # in none of those pages
    assert found(tmp_path) == set()


@pytest.mark.parametrize("older", [0, 2])
def test_a_file_over_that_of_a_save_that_only_its_date_places(older: int, tmp_path: Path) -> None:
    """What it holds tells the step of the save that it was copied from; nothing else tells that of its own."""
    root = tree_of("ray/train-v2", tmp_path)
    saves = sorted(root.glob("checkpoint_2*/checkpoint.pt"))
    copied = str(shutil.copyfile(saves[older], saves[-1]))
    if older:  # of the same epoch, so times tell
        assert [f.path for f in plan(str(root)).warnings if f.code == "same-content"] == [copied]
    else:
        with pytest.raises(UsageError, match="which checkpoint is the newest"):
            plan(str(root))
    told = {path for path, severity in found(root) if severity != "note"}
    assert told == {os.path.relpath(copied, root)}


def test_a_damaged_shard_of_an_older_save_is_no_question_about_the_newest(tmp_path: Path) -> None:
    root = tree_of("tensorflow/sharded", tmp_path)
    for old in sorted(root.glob("model.ckpt-200*")):  # two of the three shards stay as they are
        minute = old.stat().st_mtime_ns - 60 * 10**9
        overwrite(root / old.name.replace("-200", "-100"), old.read_bytes(), minute)
    for file in sorted(root.glob("model.ckpt-200.data*")):
        data = file.read_bytes()
        for damaged in (bytes(len(data)), b""):
            overwrite(file, damaged, 0)
            assert plan(root).resume.path == str(root / "model.ckpt-300")
        overwrite(file, data, 0)


def test_equal_metadata_of_two_saves_is_no_copy(tmp_path: Path) -> None:
    metadata = pickle.loads(dcp(10)[".metadata"])
    metadata.storage_meta = None  # up to torch 2.3 nothing in it tells the save
    for step in THREE:
        for name, data in {**dcp(step), ".metadata": pickle.dumps(metadata)}.items():
            put(tmp_path / f"step-{step}" / name, data, step)
    assert found(tmp_path) == set()
    overwrite(tmp_path / "step-30" / ".metadata", b"", 0)
    assert plan(tmp_path).resume.path == str(tmp_path / "step-20")


def test_a_file_for_each_tensor_may_stay_and_is_called_by_a_number_that_means_nothing(tmp_path: Path) -> None:
    for step in TWO:
        state = {f"m{i}": numbers(step, i) for i in range(4)} | {"frozen": numbers(1)}
        state |= {"a": numbers(step)} if step > 10 else {}  # what comes first moves all other numbers on
        home = tmp_path / f"step-{step}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = saver.FileSystemWriter(home, single_file_per_rank=False)
            saver.save({"model": state, "step": step, "lr": 0.1}, storage_writer=writer, no_dist=True)
        for file in home.iterdir():
            put(file, file.read_bytes(), step)
    assert found(tmp_path) == set()
    for limit in (10, None):
        made = plan(tmp_path, Selection(max_step=limit))
        assert (made.resume_step, made.warnings) == (limit or 20, ())


# --- A file of another step copied over one of the newest checkpoint, in every layout: it is never loaded
# as if nothing had happened. ``cp`` instead of ``mv``, a restore from the wrong directory, a synchronising
# job that raced: the bytes are sound, and in the wrong place.


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


def asked_tree(case: Path, target: Path) -> Tree | None:
    """None where no undamaged question of the fixture has an older checkpoint beside its answer."""
    root, questions = materialise(case, target), json.loads(case.read_text())["plans"]
    for options in (q.get("options", {}) for q in questions if not q.keys() & EDITS):
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


def copies(tree: Tree, everything: bool) -> Iterator[Copy]:
    """Every loaded file under one of the next checkpoint: of its own place, of another rank, of each other
    kind. Not ``everything``: of each kind of file one, each way once.
    """
    assert tree.made.checkpoint is not None
    mine = {p.path: p for p in tree.made.checkpoint.parts}
    other = older(tree.made)[0]
    seen = set[tuple[str, str]]()
    for path in tree.made.files():
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
    if c.over not in made.files():
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
    paths = set(tree.made.files())
    return [p for p in tree.made.checkpoint.parts if p.path in paths]


@cache
def known(path: str) -> Report:
    return inspect(path, Level.STRUCTURE)[0]


def try_copies(case: Path, target: Path, everything: bool) -> int:
    tree = asked_tree(case, target)
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
    assert try_copies(
        next(c for c in CASES if f"{c.parent.parent.name}/{c.parent.name}" == name),
        tmp_path,
        everything=False,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_no_copied_file_of_any_layout_is_loaded_in_silence(case: Path, tmp_path: Path) -> None:
    try_copies(case, tmp_path, everything=True)


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
