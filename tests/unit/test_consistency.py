"""What files say against their names and each other, over parts and reports built in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from ckpt_tools.discovery.completeness import expect_sizes
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy, hides_cuts
from ckpt_tools.formats.pickles.scalars import add_scalars
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common import counters
from ckpt_tools.layouts.common.layout import Compared, Layout, Piece
from ckpt_tools.layouts.common.piece import OWN, Claim, Readers
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Level, Report
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.save import replica_mismatch, signature_changed


def named(rows: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """A check that says what it was given."""
    yield from ((p.path, finding("step-mismatch", r.format or "")) for p, r in rows)


OVER_DP = Readers(replicated_over=("dp",))
PIECES = (
    Piece("model", "model", "{step}/{rank}.pt", readers=OVER_DP),
    Piece("rng", "rng", "{step}/rng_{rank}.pt", readers=OWN),
    Piece("zero", "optimizer", "{step}/zero_{rank}.pt", readers=replace(OVER_DP, sharded=True)),
    Piece("bare", "model", "{name}.pt", readers=OWN, claim=Claim.WEAK),
)
RESUME = Resume(None)
TOY = Layout("toy", "", pieces=PIECES, resume=lambda _c, _root: RESUME, reference="", limits=(), check=named)


def part(step: int, rank: int | None = 0, /, **more: object) -> Part:
    piece = str(more.get("piece", "model"))
    made = Part(f"/run/{step}/{piece}_{rank}.pt", "toy", piece, "model", "/run", "/run", f"/run/{step}")
    return made._replace(**{"rank": rank, "step": step, "size": 10, "mtime_ns": step, **more})


def report(p: Part, signature: str = "ab", **more: object) -> Report:
    made = Report(p.path, "torch_zip", p.size, Verdict.OK, Level.STRUCTURE, signature=signature, tensors=1)
    return replace(made, **more)  # type: ignore[arg-type]


def facts(
    files: Sequence[Part], reports: dict[str, Report], *saves: Checkpoint, layout: Layout = TOY
) -> SavesFacts:
    layouts = Layouts((layout,))
    return SavesFacts(saves, expect_sizes(saves, layouts), files, reports, hides_cuts=hides_cuts)


def odd_ones(*rows: tuple[Part, Report], layout: Layout = TOY) -> list[tuple[str, str]]:
    reports = {p.path: r for p, r in rows}
    found = signature_changed.find_changed(facts([p for p, _ in rows], reports, layout=layout))
    return [(odd.path, typical.path) for odd, typical, _ in found]


def test_a_format_that_hides_cuts_is_compared_in_every_layout() -> None:
    """A file that lost its end between two records looks whole: only the others show what it lacks."""
    layout = replace(TOY, compared=Compared.NONE)
    rows = [(p := part(n), report(p, "cd" if n == 2 else "ab")) for n in (1, 2, 3)]
    assert not odd_ones(*rows, layout=layout)
    cut = [(p, replace(r, format="mindspore_ckpt")) for p, r in rows]
    assert odd_ones(*cut, layout=layout) == [(rows[1][0].path, rows[0][0].path)]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"step": 1}, {"step": 2}),
        ({"step": None}, {"step": 1}),
        ({"step": 5, "epoch": 1}, {"step": 5, "epoch": 2}),
        ({"step": 5, "epoch": None}, {"step": 5, "epoch": 1}),
        ({"step": 5, "epoch": 1, "step_in_epoch": 3}, {"step": 5, "epoch": 1, "step_in_epoch": 4}),
        ({"step": 5, "epoch": 1, "step_in_epoch": None}, {"step": 5, "epoch": 1, "step_in_epoch": 1}),
        ({"step": 5, "epoch": 1, "step_in_epoch": 9}, {"step": 5, "epoch": 2, "step_in_epoch": 0}),
    ],
)
def test_of_two_the_older_file_is_the_usual_one(older: dict[str, int], newer: dict[str, int]) -> None:
    old, new = part(0, path="/run/old", **older), part(0, path="/run/new", **newer)
    rows = [(old, report(old)), (new, report(new, "cd"))]
    assert odd_ones(*rows) == odd_ones(*rows[::-1]) == [("/run/new", "/run/old")]


OTHER = {
    "rank": 1,
    "run": "/other",
    "coords": (("tp", 1),),
    "generation": 2,
    "kind": Kind.RELEASE,
    "piece": "rng",
}


@pytest.mark.parametrize("field", OTHER)
def test_files_of_other_series_are_not_compared(field: str) -> None:
    a, b = part(1), part(2, **{field: OTHER[field]})
    assert not odd_ones((a, report(a)), (b, report(b, "cd")))


def test_what_has_no_comparable_tensors_is_not_compared() -> None:
    a, b = part(1), part(2)
    for code in ("truncated", "bad-header"):
        assert not odd_ones((a, report(a)), (b, report(b, "cd", findings=(finding(code, "x"),))))
    other = report(b, "cd", findings=(finding("crc-mismatch", "x"),))
    assert odd_ones((a, report(a)), (b, other)) == [(b.path, a.path)]
    assert not odd_ones((a, report(a)), (b, report(b, "", tensors=0)))
    assert not odd_ones((a, report(a)), (b, report(b, "cd")), layout=replace(TOY, compared=Compared.NONE))
    c, d = part(1, piece="bare"), part(2, piece="bare")
    assert not odd_ones((c, report(c)), (d, report(d, "cd")))
    assert not odd_ones((a, report(a)), (b, report(b, "cd", format="safetensors")))
    rng = part(2, piece="rng")
    by_role = replace(TOY, compared=Compared.BY_ROLE)
    assert odd_ones((a, report(a)), (rng, report(rng, "cd")), layout=by_role) == [(rng.path, a.path)]


def saved(*parts: Part, **more: object) -> Checkpoint:
    first = parts[0]
    made = Checkpoint("toy", "/run", first.kind, parts, first.home, first.mtime_ns, first.step)
    return replace(made, **more)  # type: ignore[arg-type]


def odd_replicas(parts: Sequence[Part], signatures: Sequence[str | None]) -> list[tuple[str, str]]:
    reports = {p.path: report(p, s) for p, s in zip(parts, signatures, strict=True) if s is not None}
    hits = list(replica_mismatch.check(facts((), reports, saved(*parts))))
    assert all(hit.of_file for hit in hits)
    return [(hit.path, hit.code or "tensors") for hit in hits]


def test_a_replica_with_other_tensors_than_most() -> None:
    parts = [part(1, rank) for rank in range(4)]
    assert odd_replicas(parts, ["ab", "cd", "ab", "ab"]) == [(parts[1].path, "tensors")]
    for signatures in (
        ["ab", "cd", "ab", "cd"],
        ["ab", None, "ab", "ab"],
        ["", "", "", "cd"],
    ):  # half is not most
        assert not odd_replicas(parts, signatures)
    assert not odd_replicas(parts[:2], ["ab", "cd"])
    small = [part(1, rank, coords=(("tp", 0),)) for rank in range(2)]  # hides no other group
    large = [part(1, rank, coords=(("tp", 1),)) for rank in range(2, 5)]
    found = odd_replicas([*small, *large], ["ab", "cd", "ab", "ab", "cd"])
    assert found == [(large[2].path, "tensors")]


def test_a_replica_of_another_size_than_most() -> None:
    def sized(*sizes: int) -> list[tuple[str, str]]:
        parts = [part(1, rank, size=size) for rank, size in enumerate(sizes)]
        return odd_replicas(parts, [None] * len(parts))

    assert sized(1000, 1000, 1011) == [("/run/1/model_2.pt", "size-outlier")]
    assert sized(1000, 989, 1000) == [("/run/1/model_1.pt", "size-outlier")]
    assert not sized(1000, 1000, 1010)
    assert not sized(1000, 1000, 0)  # an empty file is another finding
    assert not sized(1000, 1000, -1)
    empty = part(1, 3, size=0)
    assert not odd_replicas([*(part(1, rank) for rank in range(3)), empty], ["ab", "ab", "ab", "cd"])


def test_only_files_that_are_the_same_by_their_layout_are_replicas() -> None:
    signs = ["ab", "ab", "cd"]
    for piece in ("rng", "zero"):
        assert not odd_replicas([part(1, rank, piece=piece) for rank in range(3)], signs)
    assert not odd_replicas([part(1, rank, coords=(("tp", rank),)) for rank in range(3)], signs)
    nameless = [part(1, None, path=f"/run/1/{name}") for name in "abc"]
    assert not odd_replicas(nameless, signs)


@pytest.mark.parametrize(
    ("value", "step"),
    [
        ({"step_count": 7, "iter_num": 28}, 7),
        ({"meta": {"iter": 7, "epoch": 1}}, 7),
        ({"train_state": {"global_step": 7}}, 7),
        ({"optimizer_history": [{"num_updates": 3}, {"num_updates": 7}]}, 7),
        ({"state": {"timestamp": {"Timestamp": {"batch": 7}}}}, 7),
        ({"state": {"timestamp": {"batch": 7}}}, 7),
        ({"optimizer_history": [], "meta": "of another kind", "state": {"timestamp": 3}}, None),
        ({"step": -1, "iter_num": 7}, 7),
        ({"meta": {"iter": True}, "train_state": [{"step": "7"}]}, None),
    ],
)
def test_the_step_is_found_where_a_framework_keeps_it(value: dict[str, Any], step: int | None) -> None:
    anatomy = Anatomy()
    add_scalars(value, anatomy)
    assert counters.read_count(anatomy.metadata, counters.STEPS) == step
    # Python calls a superscript a digit; safetensors keeps any text
    assert counters.read_counts({"step": "²", "iteration": "12"}, ("step", "iteration")) == (12,)
