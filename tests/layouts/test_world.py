"""The ranks that a checkpoint needs are those of its own save: jobs shrink and grow between two saves, and
random numbers are no reason to go back in time.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import small_files
import torch
from timed import lay, put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection

START = 1_760_000_000
Writer = Callable[[int, int], Mapping[str, bytes]]
"""(step, ranks) -> the files of one save."""


def of_ranks(name: str, make: Callable[[int, int, int], bytes]) -> Writer:
    """A file for each rank, by its step, its number and how many there are."""
    return lambda step, world: {name.format(s=step, r=r): make(step, r, world) for r in range(world)}


def told(step: int, rank: int, world: int) -> bytes:
    return small_files.megatron(step, rank, 1, 1, world)


def counted(step: int, rank: int, _world: int) -> bytes:
    return small_files.mindspore(True, rank, epoch_num=1, step_num=step)


def rng(step: int, rank: int, _world: int = 0) -> bytes:
    return small_files.saved({"cpu": torch.full((16,), (step + rank) % 251, dtype=torch.uint8)})


def trainer(step: int, world: int) -> dict[str, bytes]:
    home = f"checkpoint-{step}"
    made = {
        f"{home}/{k}": v for k, v in small_files.trainer(step).items() if world == 1 or k != "rng_state.pth"
    }
    state = made.pop(f"{home}/trainer_state.json")
    if world > 1:
        made.update({f"{home}/rng_state_{r}.pth": rng(step, r) for r in range(world)})
    return {**made, f"{home}/trainer_state.json": state}


def accelerate(step: int, world: int) -> dict[str, bytes]:
    names = {
        "model.safetensors": "model.safetensors",
        "optimizer.bin": "optimizer.pt",
        "scheduler.bin": "scheduler.pt",
    }
    made = {f"step_{step}/{name}": small_files.trainer(step)[of] for name, of in names.items()}
    return made | {f"step_{step}/random_states_{r}.pkl": rng(step, r) for r in range(world)}


def deepspeed(step: int, world: int) -> dict[str, bytes]:
    return {f"global_step{step}/{name}": data for name, data in small_files.engine(step, world).items()}


def stages(step: int, world: int) -> Mapping[str, bytes]:
    name = "iter_{s:07d}/mp_rank_00_{r:03d}/model_optim_rng.pt" if world > 1 else DATA_PARALLEL
    return of_ranks(name, lambda s, r, w: small_files.megatron(s, r, 1, w, w))(step, world)


def gasp_of(step: int, rank: int, _world: int) -> bytes:
    return small_files.mindspore(False, rank, epoch_num=1, step_num=step, cur_rank=rank, batch_num=1000)


def nemo_of(step: int, rank: int, _world: int) -> bytes:
    """A layout that loads at any size what is in one file, and this at the saved one alone."""
    state = {"global_step": step, "epoch": 0, "pytorch-lightning_version": "2.0", "loops": {}}
    adam = [{"state": {0: {"step": float(step)}}, "param_groups": [{"params": [0]}]}]
    return small_files.saved(
        {**state, "state_dict": {"w": small_files.tensor(step, rank)}, "optimizer_states": adam}
    )


DATA_PARALLEL = "iter_{s:07d}/mp_rank_00/model_optim_rng.pt"
WRITERS: dict[str, Writer] = {
    "trainer": trainer,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "data_parallel": lambda step, world: {DATA_PARALLEL.format(s=step): told(step, 0, world)},
    "tensor_parallel": of_ranks(
        "iter_{s:07d}/mp_rank_{r:02d}/model_optim_rng.pt", lambda s, r, w: small_files.megatron(s, r, w, 1, w)
    ),
    "stages": stages,
    "ascend": of_ranks("iter_{s:07d}/mp_rank_00/model_optim_rng_{r}.pt", told),
    "dcp": lambda step, world: {f"step-{step}/{k}": v for k, v in small_files.dcp(step, world).items()},
    "mindspore": of_ranks("rank_{r}/net-1_{s}.ckpt", counted),
    "gasp": of_ranks("tft_saved_checkpoints-step_{s}/rank_{r}/ttp_rank_{r}-1_{s}.ckpt", gasp_of),
    "dlrover": of_ranks("{s}/rank_{r}.pt", told),
    "local": of_ranks("s/{r}/iter_{s:07d}_{r}_local.pt", told),
    "nemo": of_ranks("mp_rank_{r:02d}/gpt--step={s}.ckpt", nemo_of),
}


def write(root: Path, writer: str, worlds: Mapping[int, int]) -> dict[int, list[str]]:
    """Saves of these worlds at these steps, ten minutes apart; step -> its files."""
    made: dict[int, list[str]] = {}
    for n, (step, world) in enumerate(worlds.items()):
        files = {**WRITERS, **MORE}[writer](step, world)
        lay(root, files, START + 600 * n, 1)
        made[step] = list(files)
    return made


CHANGES = ({10: 4, 20: 4, 30: 2}, {10: 2, 20: 2, 30: 4}, {10: 4, 20: 2, 30: 2}, {10: 2, 20: 2, 30: 1})
"""Step -> ranks that saved it."""


def alarms(root: Path) -> set[tuple[str, str]]:
    seen = verify([str(root)])
    found = [(f.path, f) for f in seen.findings] + [
        (r.report.path, f) for r in seen.files for f in r.report.findings
    ]
    return {(os.path.relpath(path, root), f.code) for path, f in found if f.severity is Severity.ERROR}


def planned(made: LoadPlan, root: Path) -> set[str]:
    return {os.path.relpath(path, root) for path in made.files()}


def lost(made: LoadPlan) -> set[str]:
    return {f.code for r in made.rejected for f in r.findings}


@pytest.mark.share(6)
@pytest.mark.slow
@pytest.mark.parametrize("worlds", CHANGES, ids=str)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_job_that_shrinks_or_grows_between_two_saves_keeps_its_newest(
    writer: str, worlds: dict[int, int], tmp_path: Path
) -> None:
    newest = write(tmp_path, writer, worlds)[30]
    # names alone do not tell a job that shrank from one that lost files: its launcher does
    for told in (worlds[30],) if writer in ("mindspore", "gasp", "nemo") else (None, worlds[30]):
        made = plan(str(tmp_path), Selection(world_size=told))
        assert (
            made.checkpoint is not None
            and not made.rejected
            and "20" not in os.path.relpath(made.checkpoint.path, tmp_path)
        )
        assert planned(made, tmp_path) <= set(newest)
        assert len(made.by_rank) in (0, worlds[30])
    if writer not in ("mindspore", "nemo"):
        assert alarms(tmp_path) == set()


def silent(step: int, rank: int, *_: int) -> bytes:
    """A file that tells nothing of the job that saved it."""
    return small_files.saved({"iteration": step, "model": {"w": small_files.tensor(step, rank)}})


MORE: dict[str, Writer] = {
    "directories": of_ranks("ckpt_{r}/net-1_{s}.ckpt", counted),
    "ascend_optimizer": lambda step, world: {
        **WRITERS["ascend"](step, world),
        **of_ranks(
            "iter_{s:07d}/mp_rank_00/distrib_optim_{r}.pt",
            lambda s, r, _: small_files.megatron_optimizer(s, r),
        )(step, world),
    },
}
INFERRED = ("mindspore", "directories", "dlrover", "local", "ascend_optimizer")
"""Layouts whose names alone tell the world only as the highest rank, and whose ranks hold state of their own."""
JUST_SHRUNK = [
    {10: 4, 20: 2, 30: 2},
    {10: 4, 20: 4, 30: 2, 40: 2},
    {10: 4, 20: 1, 30: 1},
    {10: 4, 20: 2, 30: 2, 40: 1},
    {10: 4, 20: 2, 30: 1, 40: 2},
]


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "megatron", silent)


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("worlds", JUST_SHRUNK, ids=str)
@pytest.mark.parametrize("writer", INFERRED)
def test_after_two_saves_of_fewer_ranks_nothing_older_is_chosen_in_silence(
    writer: str, worlds: dict[int, int], tmp_path: Path
) -> None:
    made = write(tmp_path, writer, worlds)
    size = min(w for w in worlds.values() if list(worlds.values()).count(w) > 1)
    mine = max(step for step, world in worlds.items() if world == size)
    older = max(step for step, world in worlds.items() if world == 4)
    with pytest.raises(UsageError, match=rf"step {mine}\)") as asked:
        plan(str(tmp_path))
    assert f"--world-size {size} " in asked.value.hint and "--world-size 4 " in asked.value.hint
    assert planned(plan(str(tmp_path), Selection(world_size=size)), tmp_path) == set(made[mine])
    old = plan(str(tmp_path), Selection(world_size=4))
    assert (planned(old, tmp_path), lost(old)) == (set(made[older]), {"missing-rank"})


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("writer", INFERRED)
def test_one_save_of_fewer_ranks_is_cut_or_has_lost_them(writer: str, tmp_path: Path) -> None:
    made = write(tmp_path, writer, {10: 4, 20: 4, 30: 2})
    chosen = plan(str(tmp_path))
    assert (planned(chosen, tmp_path), lost(chosen)) == (set(made[20]), {"missing-rank"})
    smaller = plan(str(tmp_path), Selection(world_size=2))
    said = [f for f in smaller.warnings if f.code == "missing-rank"]
    assert planned(smaller, tmp_path) == set(made[30])
    assert "--world-size 4" in said[0].hint
    assert planned(plan(str(tmp_path), Selection(world_size=4)), tmp_path) == set(made[20])


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("case", ["a launcher", "a replica group", "other ranks lost", "of more ranks since"])
@pytest.mark.parametrize("writer", ["mindspore", "dlrover"])
def test_nothing_is_asked_where_something_tells_how_many_ranks_there_are(
    writer: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {40: 4} if case == "of more ranks since" else {}
    made = write(tmp_path, writer, {10: 4, 20: 2, 30: 2, **more})
    groups = {"": ((0, 1), (2, 3))} if case == "a replica group" else {}
    if case == "a launcher":
        monkeypatch.setenv("CKPT_RANK", "0")
        monkeypatch.setenv("CKPT_WORLD_SIZE", "4")
    for step in (20, 30) if case == "other ranks lost" else ():
        (tmp_path / made[step][0]).unlink()
    chosen = plan(str(tmp_path), Selection(replica_groups=groups))
    assert planned(chosen, tmp_path) == set(made[40 if more else 10])


def grid(step: int, tp: int = 2, pp: int = 2, dp: int = 1, order: str = "tp-cp-ep-dp-pp") -> dict[str, bytes]:
    """A Megatron save of that grid, each place written by its first data parallel rank."""
    topology, out = Topology(tp * pp * dp, {"tp": tp, "pp": pp}, order), {}
    for rank in range(tp * pp * dp):
        at = topology.coordinates(rank)
        if at["dp"] == 0:
            name = f"iter_{step:07d}/mp_rank_{at['tp']:02d}_{at['pp']:03d}/model_optim_rng.pt"
            out[name] = small_files.megatron(step, rank, tp, pp, tp * pp * dp)
    return out


def lay_out(root: Path, saves: Mapping[int, Mapping[str, bytes]]) -> None:
    for n, files in enumerate(saves.values()):
        lay(root, files, START + 600 * n, 1)


def swapped(files: Mapping[str, bytes], a: str, b: str) -> dict[str, bytes]:
    """Two files under each other's names; each name is found by its end."""
    one, other = (next(name for name in files if part in name) for part in (a, b))
    return {**files, one: files[other], other: files[one]}


PAIRS = [
    ("00_000", "01_000"),
    ("00_000", "00_001"),
    ("01_000", "00_001"),
    ("00_000", "01_001"),
    ("01_000", "01_001"),
]


@pytest.mark.share(9)
@pytest.mark.slow
@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-tp-cp-ep"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_files_of_two_places_of_a_grid_under_each_other_s_names_are_seen(
    pair: tuple[str, str], order: str, dp: int, tmp_path: Path
) -> None:
    made = {step: grid(step, dp=dp, order=order) for step in (10, 20, 30)}
    lay_out(tmp_path, made)
    assert alarms(tmp_path) == set()
    lay_out(tmp_path, {**made, 30: swapped(made[30], *pair)})
    assert alarms(tmp_path) == {(name, "rank-mismatch") for name in made[30] if any(p in name for p in pair)}
    chosen = plan(str(tmp_path))
    assert chosen.checkpoint is not None and chosen.checkpoint.step == 20
    topology = Topology(4 * dp, {"tp": 2, "pp": 2}, order)
    # in the order in which the sound saves were written, and not in that of the swapped one
    for rank in chosen.by_rank:
        at = topology.coordinates(rank.rank)
        assert f"mp_rank_{at['tp']:02d}_{at['pp']:03d}" in rank.files[0].path


@pytest.mark.parametrize("writer", ["ascend", "gasp", "dlrover", "local"])
def test_files_of_two_ranks_under_each_other_s_names_are_seen(writer: str, tmp_path: Path) -> None:
    made = {step: WRITERS[writer](step, 4) for step in (10, 20)}
    one, *_, other = made[20]
    lay_out(tmp_path, {**made, 20: swapped(made[20], one, other)})
    assert {(one, "rank-mismatch"), (other, "rank-mismatch")} <= alarms(tmp_path)


def test_the_rank_of_an_adapter_is_no_owner(tmp_path: Path) -> None:
    def save(step: int, said: Sequence[int]) -> dict[str, bytes]:
        states = ({"model": {"w": small_files.tensor(step, r)}, "rank": of} for r, of in enumerate(said))
        return {f"{step}/rank_{r}.pt": small_files.saved(state) for r, state in enumerate(states)}

    lay_out(tmp_path / "lora", {step: save(step, (8, 8, 8, 8)) for step in (10, 20)})
    assert alarms(tmp_path / "lora") == set()
    lay_out(tmp_path / "own", {10: save(10, (0, 1, 2, 3)), 20: save(20, (1, 0, 2, 3))})
    assert alarms(tmp_path / "own") == {(f"20/rank_{n}.pt", "rank-mismatch") for n in (0, 1)}


@pytest.mark.slow
def test_files_of_jobs_of_two_sizes_are_no_checkpoint(tmp_path: Path) -> None:
    mixed = {**grid(30), **{k: v for k, v in grid(30, dp=2).items() if "01_001" in k}}
    lay_out(tmp_path, {10: grid(10), 20: grid(20), 30: mixed})
    assert alarms(tmp_path) == {("iter_0000030/mp_rank_01_001/model_optim_rng.pt", "mixed-attempts")}
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.checkpoint.step == 20


def claimed(step: int, places: Sequence[str], tp: int, pp: int, world: int) -> dict[str, bytes]:
    """A Megatron save with these names, whose files all claim these sizes."""
    return {
        f"iter_{step:07d}/mp_rank_{place}/model_optim_rng.pt": small_files.megatron(step, rank, tp, pp, world)
        for rank, place in enumerate(places)
    }


SIZES = [
    (("00_000", "00_001", "01_000", "01_001"), 2, 2, 2, 4),  # four places, and two ranks
    (("00_000", "00_001", "00_002"), 1, 2, 2, 3),  # three stages by name, two by content
    (("00", "01", "02"), 2, 1, 2, 3),
    (("00",), 1, 2, 2, 2),  # stages that no name shows
]


@pytest.mark.slow
@pytest.mark.parametrize(("places", "tp", "pp", "world", "expected"), SIZES, ids=str)
def test_parallel_sizes_that_contradict_themselves_or_the_names_are_said_and_names_win(
    places: tuple[str, ...], tp: int, pp: int, world: int, expected: int, tmp_path: Path
) -> None:
    lay_out(tmp_path, {step: claimed(step, places, tp, pp, world) for step in (10, 20)})
    assert alarms(tmp_path) == set()
    said = [f for r in verify([str(tmp_path)]).files for f in r.report.findings if f.code == "parallel-sizes"]
    assert [f.severity for f in said] == [Severity.WARNING] * 2  # once for each checkpoint
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.checkpoint.step == 20 and made.world_size == expected
    assert "parallel-sizes" in {f.code for f in made.warnings}
    assert {f.path for r in made.by_rank for f in r.files} == {
        str(tmp_path / name) for name in claimed(20, places, tp, pp, world)
    }
    if expected > world:
        with pytest.raises(UsageError, match="topology-mismatch"):
            plan(str(tmp_path), Selection(world_size=world))


@pytest.mark.slow
@pytest.mark.parametrize("told", [None, "silent"])
@pytest.mark.parametrize("world", [1, 2, 3, 6])
@pytest.mark.parametrize("writer", ["tensor_parallel", "stages", "nemo"])
def test_no_job_loads_a_part_of_the_places_of_a_grid(
    writer: str, world: int, told: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whether files or only names tell how many places there are."""
    if told:
        request.getfixturevalue("silence")
    write(tmp_path, writer, {10: 4, 20: 4})
    with pytest.raises(UsageError, match="topology-mismatch"):
        plan(str(tmp_path), Selection(world_size=world))


class Grid(NamedTuple):
    """A job's parallel sizes; ranks are numbered along tp first, then pp where ``stages_first``, then dp."""

    tp: int
    pp: int
    ep: int
    dp: int
    stages_first: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def home(self, rank: int) -> str:
        """Where a rank saves: numbers of stages and of experts only where there are several."""
        stage = rank // self.tp % self.pp if self.stages_first else rank // (self.tp * self.dp)
        numbers = [*([stage] if self.pp > 1 else []), *([rank // self.tp % self.ep] if self.ep > 1 else [])]
        return "_".join((f"mp_rank_{rank % self.tp:02d}", *(f"{n:03d}" for n in numbers)))

    def save(self, root: Path, step: int, *, optimizers: bool = False, lost: str = "") -> None:
        sizes = {"tensor": self.tp, "pipeline": self.pp, "expert": self.ep}
        told = {f"{name}_model_parallel_size": size for name, size in sizes.items()}
        for rank in reversed(range(self.world)):  # the first of those with a place writes
            args = Namespace(world_size=self.world, rank=rank, **told)
            model = {"args": args, "iteration": step, "model": {"w": small_files.tensor(step, rank)}}
            files = {"model_optim_rng.pt": small_files.saved(model)}
            files |= {"distrib_optim.pt": small_files.megatron_optimizer(step, rank)} if optimizers else {}
            if self.home(rank) != lost:
                lay(root / f"iter_{step:07d}" / self.home(rank), files, 60 * step)

    def loads_its_own(self, root: Path) -> bool:
        """Whether each rank is to load what it has saved."""
        made = plan(str(root), Selection(world_size=self.world))
        loads = {r.rank: {Path(f.path).parent.name for f in r.files} for r in made.by_rank}
        return loads == {rank: {self.home(rank)} for rank in range(self.world)}


@pytest.mark.parametrize("optimizers", [False, True])
@pytest.mark.parametrize("grid", [Grid(1, 1, 2, 4), Grid(2, 1, 2, 2), Grid(2, 1, 4, 4)])
def test_each_rank_loads_the_experts_of_its_place(tmp_path: Path, grid: Grid, optimizers: bool) -> None:
    """Whatever files lie beside those that tell the parallel sizes."""
    grid.save(tmp_path, 10, optimizers=optimizers)
    assert grid.loads_its_own(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("after", [Grid(2, 2, 2, 4), Grid(2, 2, 1, 4)])
def test_each_save_says_itself_whether_its_names_count_experts(tmp_path: Path, after: Grid) -> None:
    for n, grid in enumerate((Grid(2, 1, 2, 4), after) * 2, 1):
        grid.save(tmp_path, 10 * n)
        assert grid.loads_its_own(tmp_path)


@pytest.mark.slow
def test_a_save_that_lost_a_stage_does_not_hide_the_order_of_the_ranks(tmp_path: Path) -> None:
    """What is left of it stands where every order has it."""
    grid = Grid(1, 2, 1, 2, stages_first=True)
    grid.save(tmp_path, 10)
    grid.save(tmp_path, 20, lost="mp_rank_00_001")
    assert grid.loads_its_own(tmp_path)


def test_files_of_mindspore_in_the_tree_of_megatron_have_the_places_of_their_directories(
    tmp_path: Path,
) -> None:
    for i, (tp, pp) in enumerate(product(range(2), repeat=2)):
        one, two = (small_files.mindspore(False, 2 * i + n, step_num=5) for n in (0, 1))
        files = {"model_optim_rng.ckpt": one, "distrib_optim.ckpt": two}
        lay(tmp_path / f"iter_0000005/mp_rank_{tp:02d}_{pp:03d}", files)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    made = plan(str(tmp_path), Selection(world_size=8))
    assert made.checkpoint and (made.checkpoint.layout, made.checkpoint.step) == ("megatron", 5)
    for r in made.by_rank:
        assert [f.path.split("/")[-2] for f in r.files] == [f"mp_rank_{r.rank % 2:02d}_{r.rank // 4:03d}"] * 2
    shutil.rmtree(tmp_path / "iter_0000005/mp_rank_01_001")
    with pytest.raises(NoneUsable, match="missing-rank"):
        plan(str(tmp_path), Selection(world_size=8, replicas_all=True))


@pytest.mark.parametrize(("sizes", "refused"), [((2, 1), True), ((1, 2), True), ((1, 1), False)])
@pytest.mark.parametrize("flags", [{}, {"sizes": {"tp": 2}}, {"sizes": {"tp": 1}}, {"replicas_all": True}])
def test_a_file_that_is_told_to_be_of_one_place_is_given_to_none(
    tmp_path: Path, sizes: tuple[int, int], refused: bool, flags: dict[str, Any]
) -> None:
    args = Namespace(tensor_model_parallel_size=sizes[0], pipeline_model_parallel_size=sizes[1])
    state = {"model": {"w": small_files.tensor(1)}, "args": args, "iteration": 7}
    path = put(tmp_path / "weights_7.pt", small_files.saved(state))
    selection = Selection(world_size=4, level=Level.STRUCTURE, **flags)
    if refused:
        why = r"topology-mismatch: \S+weights_7.pt holds the state of one place"
        with pytest.raises(UsageError, match=why):
            plan(str(tmp_path), selection)
    elif "tp" not in flags.get("sizes", {}):
        assert plan(str(tmp_path), selection).files() == [str(path)]


@pytest.mark.parametrize("groups", [{"replicas_all": True}, {"replica_groups": {"": ((0, 1),)}}])
def test_no_flag_makes_a_file_stand_in_for_another_place(tmp_path: Path, groups: dict[str, Any]) -> None:
    args = Namespace(tensor_model_parallel_size=2, rank=0, world_size=2)
    state = {"model": {"w": small_files.tensor(0)}, "args": args, "step": 5}
    lay(tmp_path / "step_5", {"rank_0.pt": small_files.saved(state), "rank_1.pt": b"PK"})
    with pytest.raises(NoneUsable) as raised:
        plan(str(tmp_path), Selection(world_size=2, **groups))
    codes = {f.code for r in raised.value.plan.rejected for f in r.findings}  # type: ignore[union-attr]
    assert {"missing-rank", "replica-mismatch"} <= codes
