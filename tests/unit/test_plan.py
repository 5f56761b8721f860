"""Planning is pure: parts built in memory, signatures given as functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import lcm
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.discovery.completeness import expect_sizes
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning.assign import Groups, assign
from ckpt_tools.planning.facts import Evidence, OwnFile, Tensors
from ckpt_tools.planning.rules.save.rank_mismatch import Placed, find_rank_order
from ckpt_tools.planning.topology import find_topology

NOTHING: Mapping[int, str] = {}


def checkpoint(ranks: Sequence[int], layout: str = "mindspore") -> Checkpoint:
    piece = {"mindspore": "model_rank", "pytorch-sample": "checkpoint"}[layout]
    parts = tuple(Part(f"/r/rank_{r}/x", layout, piece, "model", "run", "/r", rank=r, size=1) for r in ranks)
    return Checkpoint(layout, "run", Kind.PERIODIC, parts, "/r", 1, 10)


PAIRS = Selection(replica_groups={"": ((0, 2), (1, 3))})


def run(
    ranks: Sequence[int],
    world: int = 4,
    selection: Selection = PAIRS,
    bad: Collection[int] = (),
    known: Mapping[int, str] = NOTHING,
) -> Assignment:
    """What is assigned where the files of ``bad`` ranks are flipped, and the signatures of others are ``known``."""

    def own(rank: int, part: Part) -> OwnFile | None:
        return OwnFile("its file at step 5", known[rank]) if rank in known else None

    c = checkpoint(ranks)
    found = {p.path: (finding("crc-mismatch", "flipped"),) for p in c.parts if p.rank in bad}
    evidence = Evidence(lambda p: Tensors(known.get(p.rank or 0, "")), own)
    return assign(c, Groups(Topology(world), selection), found, evidence)


def whose(a: Assignment) -> dict[int, int | None]:
    return {rank: loads[0].part.rank for rank, loads in a.loads.items()}


def test_an_equal_signature_is_the_proof_and_silence_is_a_note_or_with_strict_a_refusal() -> None:
    a = run(range(4), bad={3}, known={1: "a", 3: "b"})  # one that contradicts is never used
    assert 3 not in a.loads and {"replica-mismatch", "missing-rank"} <= {f.code for f in a.findings}
    proven = run(range(4), bad={3}, known={1: "a", 3: "a"})
    (load,) = proven.loads[3]
    assert load.part.rank == 1 and load.substituted and not proven.findings
    assert "names, types and shapes" in load.reason and "--replica-groups" in load.reason
    assert [f.code for f in run(range(4), bad={3}).findings] == ["replica-unproven"]
    strict = Selection(replica_groups=PAIRS.replica_groups, strict=True)
    assert 3 not in run(range(4), selection=strict, bad={3}).loads


SILENT = Evidence(lambda p: Tensors(""), lambda rank, part: None)


@pytest.mark.parametrize(
    ("topology", "selection"),
    [
        (Topology(2, {"tp": 1}), Selection(replicas_all=True)),
        (Topology(2, {"tp": 1}, strategy=((0, 1),)), Selection(strategy_dir="d")),
    ],
)
def test_neither_a_flag_nor_strategy_files_replicate_a_sharded_piece(
    topology: Topology, selection: Selection
) -> None:
    part = Part("/r/optim.pt", "megatron", "optim", "optimizer", "run", "/r", coords=(("tp", 0), ("dp", 0)))
    c = Checkpoint("megatron", "run", Kind.PERIODIC, (part,), "/r", 1, 10)
    a = assign(c, Groups(topology, selection), {}, SILENT)
    assert whose(a) == {0: None} and [f.code for f in a.findings] == ["missing-rank"]


def written(rank: int, tp: int, pp: int) -> Placed:
    part = Part(f"/r/mp_rank_{tp:02d}_{pp:03d}/x", "megatron", "model", "model", "run", "/r")
    return Placed(part, rank, (("tp", tp), ("pp", pp)), (("world", 4), ("tp", 2), ("pp", 2)))


def test_the_files_own_ranks_settle_the_order() -> None:
    order = find_rank_order([written(0, 0, 0), written(1, 0, 1), written(2, 1, 0), written(3, 1, 1)])
    assert order.index("pp") < order.index("tp")
    assert find_rank_order([written(0, 0, 0), written(1, 1, 0)]) == find_rank_order([]) == Topology(1).order
    swapped = [written(1, 0, 1), written(2, 1, 0)]
    # its own where others explain no more
    assert find_rank_order([*swapped, written(1, 1, 0), written(2, 0, 1)]) == Topology(1).order


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.permutations(["tp", "cp", "dp", "pp"]))
def test_the_grid_is_a_bijection(tp: int, pp: int, dp: int, axes: list[str]) -> None:
    t = Topology(tp * pp * dp, {"tp": tp, "pp": pp}, "-".join([*axes, "ep"]))
    seen = {tuple(t.coordinates(r)[a] for a in ("tp", "cp", "dp", "pp")) for r in range(t.world_size)}
    assert len(seen) == t.world_size


FOUR, THREE = st.integers(1, 4), st.integers(1, 3)


@given(st.tuples(FOUR, THREE, FOUR, FOUR, THREE, FOUR), st.permutations(["tp", "cp", "ep", "dp"]))
def test_the_grid_of_the_experts_is_a_bijection(sizes: tuple[int, ...], axes: list[str]) -> None:
    """Megatron-LM demands that pipeline stages are the same ranks in both grids, as they are with pp last."""
    tp, cp, ep, etp, pp, dp = sizes
    world = lcm(tp * cp * pp * dp, etp * ep * pp)
    order = "-".join([*axes, "pp"])
    t = Topology(world, {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "pp": pp}, order)
    at = [t.coordinates(r) for r in range(world)]
    assert len({tuple(c[a] for a in ("etp", "ep", "edp", "pp")) for c in at}) == world
    assert len({tuple(c[a] for a in ("tp", "cp", "dp", "pp")) for c in at}) == world
    assert {c["ep"] for c in at} == set(range(ep)) and {c["etp"] for c in at} == set(range(etp))


@pytest.mark.parametrize(
    ("sizes", "order", "experts"),
    [
        # expert groups as Megatron-LM's RankGenerator makes them: for each rank, its place among the experts
        ({"tp": 2, "ep": 2}, "tp-cp-ep-dp-pp", [0, 0, 1, 1, 0, 0, 1, 1]),
        ({"cp": 2, "ep": 2}, "tp-cp-ep-dp-pp", [0, 1, 0, 1, 0, 1, 0, 1]),
        ({"tp": 2, "etp": 1, "ep": 4}, "tp-cp-ep-dp-pp", [0, 1, 2, 3, 0, 1, 2, 3]),
        ({"tp": 4, "etp": 2, "ep": 2}, "tp-cp-ep-dp-pp", [0, 0, 1, 1, 0, 0, 1, 1]),
        ({"ep": 2, "pp": 2}, "tp-cp-ep-dp-pp", [0, 1, 0, 1, 0, 1, 0, 1]),
        ({"ep": 2}, "tp-cp-dp-ep-pp", [0, 0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_experts_have_a_grid_of_their_own(sizes: dict[str, int], order: str, experts: list[int]) -> None:
    t = Topology(8, sizes, order)
    assert [t.coordinates(r)["ep"] for r in range(8)] == experts


@pytest.mark.parametrize(
    ("sizes", "peers"),
    [({}, [0, 2, 4, 6]), ({"etp": 2}, [0, 2, 4, 6]), ({"ep": 2}, [0, 4]), ({"etp": 1, "ep": 4}, [0, 4])],
)
def test_ranks_with_different_experts_are_no_replicas(sizes: dict[str, int], peers: list[int]) -> None:
    t = Topology(8, {"tp": 2, "cp": 2, **sizes})
    axes, at = t.apart(("dp", "cp")), [t.coordinates(r) for r in range(8)]
    assert [r for r in range(8) if all(at[r][a] == at[0][a] for a in axes)] == peers


class Told:
    """A session whose files all say the same."""

    root, options, found, layouts = "/r", ReadOptions(jobs=1), SimpleNamespace(bare=()), BUILT_IN
    reader = SimpleNamespace(rate=None)

    def __init__(self, **said: int) -> None:
        self.said = {f"args.{key}": value for key, value in said.items()}

    def report(self, part: Part, level: Level) -> Report:
        return Report(part.path, "torch_zip", 1, Verdict.OK, level, metadata=self.said)


def told(selection: Selection, **said: int) -> Topology:
    parts = tuple(
        Part(f"/r/{tp}", "megatron", "model", "model", "run", "/r", coords=(("tp", tp),)) for tp in range(2)
    )
    found = [Checkpoint("megatron", "run", Kind.PERIODIC, parts, "/r", 1, 10)]
    return find_topology(Told(**said), found, expect_sizes(found, BUILT_IN), selection)[0]  # type: ignore[arg-type]


def test_the_parallel_sizes_tell_the_world_size() -> None:
    assert told(Selection()).world_size == 2
    assert told(Selection(sizes={"dp": 3})).world_size == 6
    t = told(Selection(sizes={"dp": 3, "pp": 2, "cp": 2, "ep": 3}))
    assert t.world_size == 24 and t.sizes == {"tp": 2, "pp": 2, "cp": 2, "ep": 3, "dp": 3}
    assert t.provenance["dp"].provenance == "--parallel dp"
    assert told(Selection(sizes={"dp": 3}, world_size=12)).world_size == 12
    with pytest.raises(UsageError, match=r"3 ranks, and 8 .--world-size. are no multiple of it"):
        told(Selection(sizes={"dp": 3}, world_size=8))


def test_the_files_or_a_flag_tell_the_tensor_parallel_size_of_the_experts() -> None:
    sizes = {"tensor_model": 2, "expert_tensor": 1, "expert_model": 4}
    t = told(Selection(), **{f"{name}_parallel_size": n for name, n in sizes.items()}, world_size=8)
    assert t.sizes["etp"] == 1 and [t.coordinates(r)["ep"] for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert told(Selection(sizes={"etp": 2}), expert_tensor_parallel_size=1).sizes["etp"] == 2


def test_an_order_must_place_every_axis() -> None:
    assert told(Selection(rank_order="tp-dp")).order == "tp-dp"
    with pytest.raises(UsageError, match="does not say where ep is, whose size is 4"):
        told(Selection(rank_order="tp-pp-dp", sizes={"ep": 4}))


def test_the_order_of_sources_of_replica_groups() -> None:
    strategy = ((0, 3), (1,), (2,))

    def whose_is_3(selection: Selection, layout: str = "mindspore") -> int | None:
        c = checkpoint([0, 1, 2, 3], layout)
        gone = {p.path: (finding("crc-mismatch", "flipped"),) for p in c.parts if p.rank == 3}
        t = Topology(4, selection.sizes, strategy=strategy)
        return whose(assign(c, Groups(t, selection), gone, SILENT)).get(3)

    assert whose_is_3(Selection(strategy_dir="d")) == 0
    assert whose_is_3(Selection(strategy_dir="d", replicas_all=True)) == 0
    assert whose_is_3(Selection(strategy_dir="d", sizes={"tp": 2})) == 1
    assert whose_is_3(Selection(strategy_dir="d", sizes={"tp": 2}, replica_groups={"": ((2, 3),)})) == 2
    assert whose_is_3(Selection(strategy_dir="d"), "pytorch-sample") == 0


@given(st.sets(st.integers(0, 7), min_size=1), st.sets(st.integers(0, 7)))
def test_laws_of_assignment(saved: set[int], broken: set[int]) -> None:
    """Every rank gets one file or is named in a finding; no broken file is ever planned; a plan stays inside
    the groups.
    """
    asked = Selection(replica_groups={"": ((0, 2, 4, 6), (1, 3, 5, 7))})
    a = run(sorted(saved), 8, asked, broken)
    for rank in range(8):
        possible = {r for r in saved - broken if r % 2 == rank % 2}
        assert (rank in a.loads) == bool(possible)
        if possible:
            assert whose(a)[rank] in possible and (whose(a)[rank] == rank) == (rank in possible)
