"""Which file every rank would load, over parts, groups and evidence built in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.layout import Complete, Layout, Piece
from ckpt_tools.layouts.common.piece import COPIES, OWN, SHARDED, Readers
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, Resume
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.assign import Groups, assign
from ckpt_tools.planning.facts import Evidence, Tensors

PIECES = (
    Piece("model", "model", "{step}/{rank}.pt", readers=Readers(replicated_over=("dp",))),
    Piece("copy", "model", "{step}/copy_{rank}.pt", readers=Readers(replicated_over=("dp",))),
    Piece("optim", "optimizer", "{step}/optim_{rank}.pt", readers=SHARDED),
    Piece("log", "log", "{step}/log_{rank}.pt", readers=OWN, loaded=False),
    Piece("config", "config", "{step}/config", readers=COPIES),
    Piece("backup", "config", "{step}/backup", readers=COPIES),
)
TOY = Layout("toy", "", pieces=PIECES, resume=lambda _c, _root: Resume(None), reference="", limits=())
NOTHING_KNOWN = Evidence(lambda _part: Tensors("ab"), lambda _rank, _part: None)
CRC = finding("crc-mismatch", "flipped", offset=3)


def part(name: str, rank: int | None = None, **more: object) -> Part:
    """The file of that name; its piece is what stands before a ``_``."""
    piece = TOY.piece(name.partition("_")[0])
    made = Part(f"/run/10/{name}", "toy", piece.name, piece.role, "/run", "/run", "/run/10", step=10, size=1)
    return made._replace(**{"rank": rank, **more})


def models(*ranks: int, name: str = "model") -> list[Part]:
    return [part(f"{name}_{rank}", rank) for rank in ranks]


def assigned(
    parts: Sequence[Part],
    world: int,
    *bad: str,
    kind: Kind = Kind.PERIODIC,
    layout: Layout = TOY,
    sizes: Mapping[str, int] | None = None,
    why: Finding = CRC,
    known: Evidence = NOTHING_KNOWN,
    **asked: object,
) -> Assignment:
    selection = Selection(layouts=Layouts((layout,)), **asked)  # type: ignore[arg-type]
    checkpoint = Checkpoint("toy", "/run", kind, tuple(parts), "/run/10", 1, 10)
    groups = Groups(Topology(world, sizes or {}), selection)
    return assign(checkpoint, groups, {f"/run/10/{name}": (why,) for name in bad}, known)


def loads(made: Assignment) -> dict[int, list[str]]:
    return {rank: [load.part.path.rpartition("/")[2] for load in some] for rank, some in made.loads.items()}


def codes(made: Assignment) -> list[str]:
    return [f.code for f in made.findings]


def test_a_damaged_file_is_replaced_by_the_nearest_good_one() -> None:
    made = assigned(models(0, 1, 2, 3, 4), 5, "model_3", "model_2")
    assert loads(made) == {n: [f"model_{of}"] for n, of in enumerate((0, 1, 1, 4, 4))}
    assert [n for n in range(5) if made.loads[n][0].substituted] == [2, 3]
    assert loads(assigned(models(0, 1, 2), 3, "model_1"))[1] == ["model_0"]  # of two as near the lower


def test_an_own_second_copy_goes_before_another_rank() -> None:
    parts = [*models(0, 1), part("copy_1", 1)]
    assert loads(assigned(parts, 2, "model_1"))[1] == ["copy_1"]
    assert loads(assigned(parts, 2))[1] == ["model_1"]
    assert loads(assigned(parts, 2, "copy_1"))[1] == ["model_1"]


def test_a_substitute_is_proven_by_a_file_of_its_own_kind() -> None:
    """What another piece of the same role holds is other tensors, and would contradict it."""
    compared: list[tuple[str, str]] = []

    def differences(one: Part, other: Part) -> tuple[str, ...]:
        compared.append((one.piece, other.piece))
        return ()

    known = replace(NOTHING_KNOWN, differences=differences)
    made = assigned([*models(0, 1, 2), part("copy_0", 0)], 3, "model_1", known=known)
    assert loads(made)[1] == ["model_0"] and compared == [("model", "model")]


def test_of_two_own_files_that_of_this_node_and_then_the_newer_goes_first() -> None:
    here, there = (part(f"model_{n}", 1, coords=(("node", n),)) for n in (1, 0))
    assert loads(assigned([there, here], 2, ranks=frozenset({1})))[1] == ["model_1"]
    old, new = (part(f"model_{t}", 0, coords=(("world", t),), mtime_ns=t) for t in (4, 8))
    assert loads(assigned([old, new], 1))[0] == ["model_8"]
    old, new = (part(f"model_{t}", 0, coords=(("tp", 0),), mtime_ns=t) for t in (4, 8))
    assert loads(assigned([old, new], 1))[0] == ["model_4"]  # elsewhere time tells nothing


def test_what_no_rank_may_stand_in_for() -> None:
    made = assigned([*models(0, 1), *models(0, 1, name="optim")], 2, "optim_1")
    assert loads(made) == {0: ["model_0", "optim_0"], 1: ["model_1"]}
    assert codes(made) == ["crc-mismatch", "missing-rank"]
    assert made.findings[0].path == "/run/10/optim_1" and made.findings[0].offset == 3
    assert made.findings[1].ranks == ((1, 1),) and made.findings[1].follows
    assert made.findings[1].message == "rank 1 has no good optimizer file"
    lost = assigned(models(0, name="optim"), 2)
    assert codes(lost) == ["missing-rank"] and not lost.findings[0].follows
    elsewhere = assigned(models(0), 1, "model_0", why=replace(CRC, path="/run/10/other"))
    assert elsewhere.findings[0].path == "/run/10/other", "a finding that has a path keeps it"


def test_nobody_knows_of_a_group() -> None:
    """Where every file was saved that was meant to be, a rank without one needs a replica."""
    by_name = replace(TOY, complete=Complete(by_name=True))
    made = assigned(models(0, name="optim"), 3, layout=by_name)
    (one,) = made.findings
    assert (made.groupless, one.code, one.ranks) == ((1, 2), "replica-groups-needed", ((1, 2),))
    assert one.message.endswith("no rank is known to hold the same state, for 2 of 3 ranks: 1, 2")
    (one,) = assigned(models(0, name="optim"), 2, layout=by_name).findings
    assert one.message == "rank 1 has no file in this checkpoint, and no rank is known to hold the same state"
    broken = assigned(models(0, 1, name="optim"), 2, "optim_1", layout=by_name)
    assert not broken.groupless and codes(broken) == ["crc-mismatch", "missing-rank"]
    known = assigned(models(0), 2, "model_0", layout=by_name)
    assert not known.groupless and codes(known) == ["crc-mismatch", "missing-rank", "missing-rank"]


def test_members_of_another_group_do_not_stand_in() -> None:
    halves = {"sizes": {"tp": 2}}
    assert loads(assigned(models(0, 1, 2, 3), 4, "model_0", **halves))[0] == ["model_2"]
    assert 2 not in loads(assigned(models(1, 3), 4, **halves))
    assert loads(assigned(models(0, 1, 3), 4, **halves))[2] == ["model_0"]
    large = assigned(models(1, 7), 64, ranks=frozenset({0, 6}))  # more ranks than files
    assert loads(large) == {0: ["model_1"], 6: ["model_7"]}
    # the group has more ranks than there are files: they are gone through the other way around
    made = assigned(models(1, 2), 8, "model_2", **halves)
    assert 2 not in loads(made) and codes(made)
    assert loads(assigned(models(0, 1, 2), 8, "model_2", **halves))[2] == ["model_0"]


def test_what_a_rank_saved_while_it_failed_is_never_loaded() -> None:
    dying = {"kind": Kind.DYING_GASP, "fault_ranks": frozenset({1})}
    made = assigned(models(0, 1, 2), 3, **dying)  # type: ignore[arg-type]
    assert loads(made) == {0: ["model_0"], 1: ["model_0"], 2: ["model_2"]}
    other = assigned(models(0, 1, 2), 3, "model_2", **dying)  # type: ignore[arg-type]
    assert loads(other)[2] == ["model_0"]
    lost = assigned(models(0, 1, name="optim"), 2, **dying)  # type: ignore[arg-type]
    assert loads(lost) == {0: ["optim_0"]} and codes(lost) == ["fault-rank", "missing-rank"]
    healthy = assigned(models(0, 1, name="optim"), 2, "optim_0", **dying)  # type: ignore[arg-type]
    assert codes(healthy)[:2] == ["crc-mismatch", "fault-rank"]


@pytest.mark.parametrize("names", [["config", "backup"], ["backup", "config"]])
def test_of_copies_one_is_enough(names: list[str]) -> None:
    parts = [*models(0), *map(part, names)]
    made = assigned(parts, 1)
    assert [(load.part.path, load.reason) for load in made.shared] == [("/run/10/config", "")]
    second = assigned(parts, 1, "config")
    assert [load.part.path for load in second.shared] == ["/run/10/backup"] and not second.findings
    assert second.shared[0].reason == "config is not usable; this is a copy"
    none = assigned(parts, 1, "config", "backup")
    assert not none.shared and codes(none) == ["crc-mismatch", "crc-mismatch"]
    assert [f.path for f in none.findings] == ["/run/10/config", "/run/10/backup"]


def test_nothing_to_load_is_no_start() -> None:
    made = assigned(models(0, 1, name="log"), 2)
    assert codes(made) == ["missing-part"] and made.findings[0].path == "/run/10"
    assert not made.loads and not made.shared
