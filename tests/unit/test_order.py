"""Which save is the newest is pure: checkpoints built in memory, and the rules of the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.planning.order import (
    OrderFacts,
    order_saves,
)
from ckpt_tools.planning.rules.order import times_contradict_steps, times_mute
from ckpt_tools.planning.rules.rule import Effect

MINUTE = 60 * 10**9
NOW = 1_760_000_000 * 10**9
START = NOW - 1000 * MINUTE
RULES = [r.RULE for r in (times_contradict_steps, times_mute)]


def save(
    step: int | None, at: float, kind: Kind = Kind.PERIODIC, size: int = 0, **more: object
) -> Checkpoint:
    """A save that was written so many minutes after START."""
    path = f"/run/{kind}-{step}-{at}"
    part = Part(f"{path}/model.pt", "megatron", "model", "model", "run", "/run", size=size)
    made = Checkpoint("megatron", "run", kind, (part,), path, int(START + at * MINUTE), step)
    return replace(made, **more)  # type: ignore[arg-type]


def facts(saves: Sequence[Checkpoint], **more: object) -> OrderFacts:
    by_time, by_step = (order_saves(saves, by)[0] for by in ("mtime", "step"))
    made = OrderFacts("/run", NOW, saves, by_time, by_step, {}, lambda kept, other: "--exclude X")
    return replace(made, **more)  # type: ignore[arg-type]


def hits(f: OrderFacts) -> list[tuple[str, Effect]]:
    return [
        (rule.id.partition("/")[2], rule.effect if hit.effect is None else hit.effect)
        for rule in RULES
        for hit in (rule.check(f) if rule.check else ())
    ]


class Case(NamedTuple):
    """Minutes of the saves of steps 10, 20, 30 and 40, the step of the newest, and what is said."""

    minutes: tuple[float, ...]
    newest: int
    said: str = ""
    effect: Effect = Effect.WARN
    named: str = ""


CONTRADICT = "times-contradict-steps"
AHEAD = 2000
BEFORE_1980 = -START / MINUTE
CASES = {
    "in step": Case((0, 10, 20, 30), 40),
    "all equal": Case((5, 5, 5, 5), 40, "times-mute"),
    "before 1980": Case((BEFORE_1980 + 3, *(BEFORE_1980 + n for n in (2, 1, 0))), 40, "times-mute"),
    "that of the highest step is before 1980": Case((0, 10, 20, BEFORE_1980), 40, "times-mute"),
    "that of an older one is before 1980": Case((BEFORE_1980, 10, 20, 30), 40),
    "a rollback": Case((0, 10, 40, 30), 30, CONTRADICT),
    "a rollback to the first": Case((0, 40, 20, 30), 20, CONTRADICT),
    "reversed": Case((30, 20, 10, 0), 10, CONTRADICT, Effect.ASK),
    "the oldest was touched": Case((50, 10, 20, 30), 10, CONTRADICT, Effect.ASK),
    "copied in the order of the names": Case((0.02, 0.03, 0, 0.01), 40, "times-mute"),
    "a rollback that the tracker contradicts": Case(
        (0, 10, 40, 30), 30, CONTRADICT, Effect.ASK, "/run/latest"
    ),
    "a copy that the tracker contradicts": Case(
        (0.02, 0.03, 0, 0.01), 40, CONTRADICT, Effect.ASK, "/run/latest"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_times_decide(name: str) -> None:
    case = CASES[name]
    saves = [save(10 * n, at) for n, at in enumerate(case.minutes, 1)]
    f = facts(saves, tracker=case.named)
    assert f.newest.step == case.newest
    assert hits(f) == ([(case.said, case.effect)] if case.said else [])


def test_a_time_that_has_not_come_yet_says_nothing() -> None:
    f = facts([save(10, AHEAD), save(20, 10), save(30, 20)])
    assert f.newest.step == 30
    assert hits(f) == [("times-mute", Effect.WARN), ("times-mute", Effect.WARN)]


@pytest.mark.parametrize(("size", "newest"), [(10 << 30, 20), (1 << 20, 10)])
def test_what_was_written_as_quickly_as_a_copy_writes_it_was_copied(size: int, newest: int) -> None:
    """Two of 10 GiB within five minutes may have been copied, two of a MiB not."""
    f = facts([save(5, 0, size=size), save(20, 1, size=size), save(10, 5, size=size)])
    assert f.newest.step == newest


def test_a_question_names_what_each_answer_leads_to() -> None:
    first = "add --order mtime to resume from step 10, or"
    for flag, second in ((True, "--order step to resume from step 20"), (False, "--exclude X")):
        f = facts([save(10, 20), save(20, 10)], step_flag=flag)
        (hit,) = times_contradict_steps.RULE.check(f)  # type: ignore[misc]
        assert hit.hint == f"{first} {second}"


def test_saves_whose_steps_do_not_compare_are_a_question_where_times_say_nothing() -> None:
    saves = [save(10, 5), save(20, 5), save(None, 5, epoch=3)]
    f = facts(saves)
    (other,) = f.find_undecided(saves)
    assert (f.newest.step, other.epoch) == (20, 3)
    assert ("times-mute", Effect.ASK) in hits(replace(f, others=[other]))
    apart = [save(10, 5), save(20, 15), save(None, 25, epoch=3)]
    f = facts(apart, by_step=apart[2])
    assert f.newest.epoch == 3 and not list(f.find_undecided(apart)) and not hits(f)


def test_the_best_so_far_goes_last_where_nothing_tells_its_step() -> None:
    saves = [save(10, 0), save(20, 10), save(None, 11, Kind.BEST), save(25, 12, Kind.BEST)]
    assert [c.step for c in order_saves(saves, "mtime")] == [25, 20, 10, None]
    assert [c.step for c in order_saves(saves, "mtime", Kind.BEST)] == [25, None, 20, 10]
