"""Random trees as descriptions for the oracle: what each framework writes on a random arrangement of ranks,
and what may happen to it afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from pathlib import Path

import small_files
from helpers import flipped
from hypothesis import strategies as st
from oracle import File, Question, Save, Tree, there

Draw = st.DataObject
START = 1_760_000_000
"""2025-10-09: every tree is of that day, a checkpoint ten minutes after the one before."""


def grid(tp: int, pp: int, dp: int) -> Iterator[tuple[int, int, int, int]]:
    """(rank, tp, dp, pp): tensor parallel ranks are neighbours, pipeline stages farthest apart."""
    yield from ((rank, t, d, p) for rank, (p, d, t) in enumerate(product(range(pp), range(dp), range(tp))))


def megatron(data: Draw, steps: Sequence[int], ascend: bool = False) -> Tree:
    tp, pp, dp = (data.draw(st.integers(1, 2), label=axis) for axis in ("tp", "pp", "dp"))
    optimizer = data.draw(st.booleans(), label="distributed optimizer")
    cells = list(grid(tp, pp, dp))
    world = len(cells)

    def files(step: int) -> Iterator[File]:
        for rank, t, d, p in cells:
            home = f"iter_{step:07d}/mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
            same = tuple(r for r, t2, _, p2 in cells if (t, p) == (t2, p2))
            content = small_files.megatron(step, rank, tp, pp, world)
            if ascend:
                own = {"owner": rank, "mine": (rank,), "spare": same, "tells": True, "swap": True}
                yield File(f"{home}/model_optim_rng_{rank}.pt", content, **own)
                if optimizer:
                    of = small_files.megatron_optimizer(step, rank)
                    yield File(f"{home}/distrib_optim_{rank}.pt", of, "optimizer", rank, (rank,))
            elif d == 0:
                yield File(f"{home}/model_optim_rng.pt", content, mine=same, tells=True, swap=True)
                if optimizer:
                    of = small_files.megatron_optimizer(step, rank)
                    yield File(f"{home}/distrib_optim.pt", of, "optimizer", mine=same)

    said = data.draw(st.sampled_from([b"%d" % max(steps), b"10", b"999", b"x", b"", None]), label="tracker")
    others = {} if said is None else {"latest_checkpointed_iteration.txt": said}

    named = int(said) if said and said.isdigit() and int(said) in steps else None
    saves = [Save(s, 0, list(files(s))) for s in steps]
    holds = "" if said is None else "a name" if said.isdigit() else "garbage"
    return Tree("megatron", world, saves, ascend, others=others, named=named, tracker=holds)


def ascend(data: Draw, steps: Sequence[int]) -> Tree:
    return megatron(data, steps, ascend=True)


def deepspeed(data: Draw, steps: Sequence[int]) -> Tree:
    dp, mp = data.draw(st.integers(1, 3), label="dp"), data.draw(st.integers(1, 2), label="mp")
    prefix = data.draw(st.sampled_from(["", "bf16_"]))
    saves = []
    for step in steps:
        home, files = f"global_step{step}", list[File]()
        for m in range(mp):
            model = small_files.deepspeed_model(step, dp, mp, m)
            mine = tuple(d * mp + m for d in range(dp))
            files.append(File(f"{home}/mp_rank_{m:02d}_model_states.pt", model, mine=mine, tells=True))
        for m, d in product(range(mp), range(dp)):
            path, rank = f"{home}/{prefix}zero_pp_rank_{d}_mp_rank_{m:02d}_optim_states.pt", d * mp + m
            files.append(File(path, small_files.deepspeed_zero(step, dp, rank), "optimizer", mine=(rank,)))
        saves.append(Save(step, 0, files))
    trackers = [f"global_step{max(steps)}".encode(), b"global_step10", b"else", b"", None]
    tracker = data.draw(st.sampled_from(trackers), label="tracker")
    named = next((s for s in steps if tracker == f"global_step{s}".encode()), None)
    holds = "" if tracker is None else "a name" if tracker else "garbage"
    others = {} if tracker is None else {"latest": tracker}
    return Tree(
        "deepspeed", dp * mp, saves, needed=("model", "optimizer"), others=others, named=named, tracker=holds
    )


def trainer(data: Draw, steps: Sequence[int]) -> Tree:
    roles = {"config.json": "config", "model.safetensors": "model", "training_args.bin": "args", "optimizer.pt": "optimizer", "scheduler.pt": "scheduler",
             "rng_state.pth": "rng", "trainer_state.json": "state"}  # fmt: skip

    def files(step: int) -> Iterator[File]:
        for name, content in small_files.trainer(step).items():
            role = roles[name]
            yield File(f"checkpoint-{step}/{name}", content, role, shared=True, commit=role == "state", loaded=role != "args", swap=role == "state",
                       flip=name.endswith(("pt", "pth", "bin")))  # fmt: skip

    return Tree("hf-trainer", 1, [Save(s, 0, list(files(s))) for s in steps], needed=("model", "optimizer"))


def dcp(data: Draw, steps: Sequence[int]) -> Tree:
    n = data.draw(st.integers(1, 2), label="files")
    saves = []
    for step in steps:
        made = small_files.dcp(step, n)
        files = {f"step-{step}/{k}": (v, k == ".metadata") for k, v in made.items()}
        rows = [File(k, v, shared=True, commit=c, named=not c, flip=not c) for k, (v, c) in files.items()]
        saves.append(Save(step, 0, rows))
    larger = [s for s in steps if data.draw(st.booleans(), label="stale file")]
    stale = dict.fromkeys((f"step-{s}/__7_0.distcp" for s in larger), b"left over from a larger job")
    return Tree("dcp", 1, saves, others=stale)


def _mindspore(data: Draw, steps: Sequence[int], world: int, crc: bool) -> list[Save]:
    def file(s: int, r: int) -> File:
        content = small_files.mindspore(crc, r % max(1, world // 2), epoch_num=1, step_num=s)
        swap = world * len(steps) > 4
        return File(f"rank_{r}/net-1_{s}.ckpt", content, owner=r, mine=(r,), flip=crc, swap=swap)

    return [Save(s, 0, [file(s, r) for r in range(world)]) for s in steps]


def mindspore(data: Draw, steps: Sequence[int]) -> Tree:
    world = data.draw(st.integers(1, 4), label="world")
    return Tree("mindspore", world, _mindspore(data, steps, world, data.draw(st.booleans(), label="crc")))


def mindio(data: Draw, steps: Sequence[int]) -> Tree:
    """Periodic saves of every rank, and dying gasps of one rank of each pair."""
    gasps = [s for s in steps if data.draw(st.booleans(), label="gasp")]
    saves = _mindspore(data, [s for s in steps if s not in gasps], 4, True)
    name = data.draw(st.sampled_from(["tft", "ttp"]))
    for s in gasps:
        alive = [data.draw(st.sampled_from(pair), label="alive") for pair in ((0, 2), (1, 3))]
        tmp = "_tmp" if data.draw(st.integers(0, 3), label="unfinished") == 0 else ""
        home, files = f"{name}_saved_checkpoints-step_{s}{tmp}", list[File]()
        for r in alive:
            content = small_files.mindspore(False, r % 2, epoch_num=1, step_num=s, cur_rank=r, batch_num=1000)
            path = f"{home}/rank_{r}/ttp_rank_{r}-1_{s}.ckpt"
            files.append(File(path, content, owner=r, mine=(r,), flip=False, swap=True))
        saves.append(Save(s, 0, files, dying=True, finished=not tmp, committed=True))
    return Tree("mindio-ttp", 4, sorted(saves, key=lambda s: s.step))


LAYOUTS: dict[str, Callable[[Draw, Sequence[int]], Tree]] = {
    f.__name__: f for f in (megatron, ascend, deepspeed, trainer, dcp, mindspore, mindio)
}  # fmt: skip


def tree(data: Draw, layout: str) -> Tree:
    """Up to four saves ten steps apart; after a rollback the newest is not the one of the highest step."""
    steps = [10 * (i + 1) for i in range(data.draw(st.integers(1, 4), label="saves"))]
    made = LAYOUTS[layout](data, steps)
    order: Sequence[int] = range(len(made.saves))
    if data.draw(st.booleans(), label="rollback"):
        order = data.draw(st.permutations(order), label="order")
    for i, s in zip(order, made.saves, strict=True):
        s.mtime = START + 600 * i + 40 * i * i  # no two gaps alike, so that none is just half of another
    beside = f"{os.path.dirname(made.saves[0].files[0].path)}/notes.txt"
    names = st.sampled_from(["README.md", "events.out.tfevents.17", "core.4711", beside])
    litter = data.draw(st.sets(names), label="litter")
    made.others.update((name.lstrip("/"), b"not a checkpoint") for name in litter)
    return made


def harm(
    data: Draw,
    made: Tree,
    kinds: Sequence[str] = ("truncate", "zero", "remove", "flip", "swap", "rank"),
    fit: Callable[[File], bool] = lambda f: True,
) -> None:
    """Something that happens to one file, or to all files of one rank."""
    files = [(s, f) for s in made.saves for f in s.files if not f.harm and not f.witness and fit(f)]
    if not files:
        return
    s, f = data.draw(st.sampled_from(files), label="harmed")
    of_all = [(o, g) for o in made.saves for g in o.files if not g.harm]
    alike = (f.role, f.owner, f.mine, s.dying)
    donors = [g for o, g in of_all if o is not s and g.swap and (g.role, g.owner, g.mine, o.dying) == alike]
    beside = [g for _, g in of_all if g is not f and (g.role, g.owner) == (f.role, f.owner)]
    if made.layout in ("mindspore", "mindio-ttp") and len(beside) < 2:
        # their counters count from anywhere, so of two equal files nobody knows which is the copy
        donors = []
    flips = f.flip and small_files.PAYLOAD in f.data
    can = {"flip": flips, "swap": f.swap and donors, "rank": f.owner is not None}
    kind = data.draw(st.sampled_from([k for k in kinds if can.get(k, True)]), label="harm")
    if kind == "rank":
        for g in s.files:
            if g.owner == f.owner:
                g.harm = "gone"
        return
    f.changed = kind in ("truncate", "zero", "flip")
    f.harm = "broken" if kind != "remove" or f.named else "gone"
    if kind == "remove":
        f.data = b""
        f.path += "\0"  # not written at all
    elif kind == "truncate":
        # a MindSpore file cut between two records is whole but for its siblings: tests/layouts/test_pipeline.py
        n = int(len(f.data) * data.draw(st.floats(0, 0.99), label="kept"))
        f.data = f.data[: n - (n > 0 and f.data[n] == 0x0A)]
    elif kind == "zero":
        f.data = bytes(len(f.data))
    elif kind == "flip":
        at = f.data.index(small_files.PAYLOAD) + data.draw(st.integers(0, len(small_files.PAYLOAD) - 1))
        f.data = flipped(f.data, 8 * at + data.draw(st.integers(0, 7)))
    else:
        f.data, f.swap = data.draw(st.sampled_from(donors), label="donor").data, False
        for g in beside:
            g.witness = True


def question(data: Draw, made: Tree) -> Question:
    """What the caller knows beyond the files: replica groups where the layout tells none, failed ranks, the
    save interval.
    """
    groups: tuple[tuple[int, ...], ...] = ()
    if made.layout in ("mindspore", "mindio-ttp") and data.draw(st.booleans(), label="groups"):
        half = max(1, made.world // 2)
        groups = tuple(tuple(range(i, made.world, half)) for i in range(half))
        for f in (f for s in made.saves for f in s.files):
            f.spare = next((g for g in groups if f.owner in g), ())
    # a whole group may fail: then nobody holds its state
    same = sorted({f.spare for s in made.saves for f in s.files if len(f.spare) > 1})
    some = st.sets(st.integers(0, made.world - 1), max_size=2)
    faults: Collection[int] = ()
    if data.draw(st.booleans(), label="faulty"):
        faults = data.draw(st.one_of(some, *([st.sampled_from(same)] if same else [])), label="faults")
    interval = None
    if made.layout in ("megatron", "mindio-ttp"):
        interval = data.draw(st.sampled_from([None, 20, 20, 10]), label="interval")
    world = made.world if made.layout == "mindio-ttp" or data.draw(st.booleans(), label="world") else None
    # whose steps are told in two ways
    orders = ["mtime", "step"] if made.layout == "mindio-ttp" else [None, None, "mtime", "step"]
    by = data.draw(st.sampled_from(orders), label="by")
    return Question(world, groups, frozenset(faults), interval, by)


def write(made: Tree, root: Path, shuffle: Callable[[list[File]], None] = lambda files: None) -> None:
    """The tree on disk; ``shuffle`` changes the order of creation."""
    mtimes = {f.path: s.mtime + i for s in made.saves for i, f in enumerate(s.files)}
    files = [f for s in made.saves for f in there(s) if not f.path.endswith("\0")]
    files += [File(k, v) for k, v in made.others.items()]
    shuffle(files)
    for f in files:
        path = root / f.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f.data)
        os.utime(path, (mtimes.get(f.path, START),) * 2)
