"""Choosing is pure: checkpoints built in memory, a judge that is a function."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.choose import Judgement, choose, rank

BAD = Judgement(False, (finding("crc-mismatch", "flipped"),), read=True)


def checkpoint(step: int, mtime: int | None = None, kind: Kind = Kind.PERIODIC, **more: object) -> Checkpoint:
    at = step if mtime is None else mtime
    return Checkpoint("megatron", "run", kind, (), f"/run/{kind}/{step}", at, step, **more)  # type: ignore[arg-type]


def test_periodic_goes_before_a_newer_dying_gasp_of_the_same_step() -> None:
    gasp = checkpoint(20, mtime=9, kind=Kind.DYING_GASP)
    periodic, older = checkpoint(20, mtime=3), checkpoint(10, mtime=5)
    assert rank([older, gasp, periodic]) == [periodic, gasp, older]


def test_the_kind_that_is_preferred_goes_before_what_is_newer() -> None:
    gasp, periodic = checkpoint(10, kind=Kind.DYING_GASP), checkpoint(20)
    orders = {kind: rank([gasp, periodic], prefer=kind)[0] for kind in (None, Kind.DYING_GASP, Kind.PERIODIC)}
    assert orders == {None: periodic, Kind.DYING_GASP: gasp, Kind.PERIODIC: periodic}


def test_a_step_that_nothing_tells_is_no_common_step() -> None:
    """A save of a dying job lends its time to the periodic one of its step, and not to all that have none."""
    gasp = replace(checkpoint(0, mtime=9, kind=Kind.DYING_GASP), step=None, path="/run/a")
    old, newer = (replace(checkpoint(0, mtime=t), step=None, path=f"/run/{t}") for t in (3, 5))
    assert rank([old, newer, gasp]) == [gasp, newer, old]


def test_of_two_periodic_ones_of_a_step_the_one_that_was_written_last_goes_first() -> None:
    """Also where a save of a dying job makes both as new as it is."""
    gasp = checkpoint(20, mtime=9, kind=Kind.DYING_GASP)
    first, last = (replace(checkpoint(20, mtime=t), path=f"/run/{t}") for t in (3, 4))
    assert rank([first, gasp, last]) == [last, first, gasp]


def test_of_two_that_are_alike_the_later_generation_goes_first() -> None:
    named = ((None, "A"), (1, "Z1"), (2, "Z2"))
    none, one, two = (replace(checkpoint(10, mtime=5), path=f"/run/{p}", generation=n) for n, p in named)
    assert rank([none, one, two]) == [two, one, none]


def test_nothing_older_than_the_winner_is_judged() -> None:
    seen = []

    def judge(c: Checkpoint) -> Judgement:
        seen.append(c.step)
        return Judgement(c.step == 20, read=True) if c.step == 20 else BAD

    choice = choose(rank([checkpoint(s) for s in (5, 10, 20, 30)]), judge)
    assert seen == [30, 20] and choice.checkpoint is not None and choice.checkpoint.step == 20
    (rejected,) = choice.rejected
    assert rejected.checkpoint.step == 30 and rejected.findings[0].code == "crc-mismatch"


def test_attempts_count_only_candidates_whose_bodies_were_read() -> None:
    cheap = Judgement(False, (finding("missing-rank", "gone"),), read=False)
    ranked = rank([checkpoint(s) for s in range(1, 13)])
    choice = choose(ranked, lambda c: BAD if (c.step or 0) % 2 else cheap, max_attempts=5)
    assert choice.exhausted and choice.attempts == 5 and len(choice.rejected) > 5
    assert not choose(ranked, lambda c: cheap, max_attempts=5).exhausted
    assert choose(ranked[:1], lambda c: BAD).attempts == 1
    assert choose(ranked[:1], lambda c: Judgement(False)).attempts == 0
    assert choose(ranked, lambda c: BAD).attempts == 5


def test_rollback_goes_to_the_save_interval_and_skips_what_lies_above() -> None:
    gasps = [checkpoint(step, mtime=at, kind=Kind.DYING_GASP) for step, at in ((27, 99), (17, 98))]
    ranked = rank([*gasps, *map(checkpoint, (25, 20, 10))])

    def judge(c: Checkpoint) -> Judgement:
        return Judgement(True) if c.kind is Kind.PERIODIC else BAD

    choice = choose(ranked, judge, save_interval=10)
    # the gasp at 17 lowered the target to 10
    assert choice.checkpoint is not None and choice.checkpoint.step == 10
    assert choice.rollback is not None and (choice.rollback.origin, choice.rollback.target) == (27, 10)
    assert (choice.rollback.save_interval, ": flipped; 17 steps" in choice.rollback.why) == (10, True)
    assert choose(ranked, judge).rollback is None
    ranked = rank([checkpoint(27), checkpoint(25)])  # a damaged periodic one sends nobody back
    choice = choose(ranked, lambda c: Judgement(c.step == 25), save_interval=10)
    assert choice.checkpoint is not None and choice.checkpoint.step == 25 and choice.rollback is None


def test_after_a_dying_save_another_one_may_lie_above_the_target() -> None:
    ranked = [checkpoint(s, kind=Kind.DYING_GASP) for s in (27, 25)]
    choice = choose(ranked, lambda c: Judgement(c.step == 25), save_interval=10)
    assert choice.checkpoint is ranked[1] and choice.rollback is not None and choice.rollback.target == 25


def test_what_does_not_tell_its_step_is_not_known_to_lie_below_the_target() -> None:
    gasp, below = checkpoint(27, kind=Kind.DYING_GASP), checkpoint(20)
    untold = replace(checkpoint(1), step=None)
    choice = choose([gasp, untold, below], lambda c: Judgement(c is not gasp), save_interval=10)
    assert choice.checkpoint is below and [r.checkpoint for r in choice.rejected] == [gasp]
    dying = replace(gasp, step=None)
    choice = choose([gasp, dying], lambda c: Judgement(c is dying), save_interval=10)
    assert choice.checkpoint is dying and choice.rollback is None


@pytest.mark.parametrize(("said", "why"), [((), "not resumable"), (("a",), "a"), (("a", "b", "c"), "a; b")])
def test_a_rollback_tells_why(said: tuple[str, ...], why: str) -> None:
    lost = Judgement(False, tuple(finding("crc-mismatch", text) for text in said))
    gasp, below = checkpoint(27, kind=Kind.DYING_GASP), checkpoint(20)
    choice = choose([gasp, below], lambda c: Judgement(True) if c is below else lost, save_interval=10)
    assert choice.rollback is not None and f"is not usable: {why}; 7 steps are lost" in choice.rollback.why


ROW = st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans())
STEPS = st.lists(ROW, min_size=1, max_size=12, unique_by=lambda t: t[0])


@given(STEPS, st.randoms(), st.sampled_from(["mtime", "step"]))
def test_laws(rows: list[tuple[int, int, bool]], shuffle: random.Random, order: str) -> None:
    """The choice does not depend on the order of the listing; removing the winner yields the next sound one;
    an older one never matters.
    """
    good = {step for step, _, sound in rows if sound}
    made = [checkpoint(step, mtime) for step, mtime, _ in rows]

    def pick(some: list[Checkpoint]) -> int | None:
        choice = choose(rank(some, order), lambda c: Judgement(c.step in good), max_attempts=99)
        return choice.checkpoint.step if choice.checkpoint else None

    winner = pick(made)
    shuffle.shuffle(made)
    assert pick(made) == winner
    best = rank([c for c in made if c.step in good], order)
    assert winner == (best[0].step if best else None)
    if len(best) > 1:
        assert pick([c for c in made if c.step != winner]) == best[1].step
    assert pick([*made, checkpoint(-1, mtime=-1)]) == winner
