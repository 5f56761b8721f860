"""Which checkpoints a policy keeps: examples of each flag, and what is true of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt_tools.guard.prune.policy import Policy, Save, choose_kept
from ckpt_tools.model.part import Kind

HOUR = 3600 * 10**9
START = 1_700_006_400 * 10**9  # a full hour, and midnight


def hourly(number: int, hours: float = 1) -> list[Save]:
    """Saves of steps 0, 10, 20, …, the newest first."""
    made = [Save(f"s{n}", n * 10, START + int(n * hours * HOUR), size=100) for n in range(number)]
    return made[::-1]


def names(policy: Policy, saves: list[Save], **always: str) -> list[str]:
    return list(choose_kept(policy, saves, always))


def test_examples() -> None:
    saves = hourly(50)
    assert names(Policy(keep_last=2), saves) == names(Policy(max_total=250), saves) == ["s49", "s48"]
    assert names(Policy(keep_every=200), saves) == ["s40", "s20", "s0"]
    for policy in (Policy(keep_within=7200), Policy(keep_hourly=3)):
        assert names(policy, saves) == ["s49", "s48", "s47"]
    assert names(Policy(keep_daily=2), saves) == ["s49", "s47"]
    assert names(Policy(keep_daily=9), saves) == ["s49", "s47", "s23"]
    assert names(Policy(keep_weekly=9), hourly(400)) == ["s399", "s287", "s119"]
    assert names(Policy(keep_last=1, keep_every=250), saves) == ["s49", "s25", "s0"]
    assert names(Policy(keep_last=40, max_total=250), saves, s3="pinned") == ["s49", "s3"]


def test_kinds_and_unknown_steps() -> None:
    saves = [Save("a", None, 3), Save("b", 7, 2, Kind.BEST), Save("c", 8, 1)]
    assert names(Policy(keep_kinds=frozenset({Kind.BEST})), saves) == ["b"]
    assert names(Policy(keep_every=2), saves) == ["a", "c"]


NUMBER = st.none() | st.integers(1, 5)
COUNTED = ("keep_last", "keep_every", "keep_hourly", "keep_daily", "keep_weekly")
POLICIES = st.builds(
    Policy,
    keep_within=st.none() | st.floats(0, 1e6),
    keep_kinds=st.frozensets(st.sampled_from(Kind)),
    max_total=st.none() | st.integers(1, 500),
    **dict.fromkeys(COUNTED, NUMBER),
)
SAVE = st.builds(
    Save,
    name=st.just(""),
    step=st.none() | st.integers(0, 50),
    at_ns=st.integers(0, 10**6).map(lambda s: s * 10**9),
    kind=st.sampled_from(Kind),
    size=st.integers(0, 200),
)
SAVES = st.lists(SAVE, max_size=8).map(lambda made: [replace(s, name=f"{n}") for n, s in enumerate(made)])


@pytest.mark.slow
@given(POLICIES, SAVES, st.sets(st.integers(0, 7)))
def test_what_stays_has_a_reason_and_what_must_stay_stays(
    policy: Policy, saves: list[Save], always: set[int]
) -> None:
    must = {f"{n}": "must" for n in always if n < len(saves)}
    stays = choose_kept(policy, saves, must)
    assert stays == choose_kept(policy, saves, must) and all(stays.values())
    assert must.items() <= stays.items() and stays.keys() <= {s.name for s in saves}
    if policy.max_total is not None:
        free = [s for s in saves if s.name in stays and s.name not in must]
        size = sum(s.size for s in saves if s.name in stays)
        assert not free or size <= policy.max_total


@given(POLICIES, POLICIES, SAVES)
def test_another_flag_never_removes_more(policy: Policy, other: Policy, saves: list[Save]) -> None:
    policy = replace(policy, max_total=None)
    for name in (*COUNTED, "keep_within", "keep_kinds"):
        if replace(policy, max_total=None) != Policy() and not getattr(policy, name):
            more = replace(policy, **{name: getattr(other, name)})
            assert choose_kept(policy, saves).keys() <= choose_kept(more, saves).keys()


@given(POLICIES, SAVES, st.sampled_from(["keep_last", "keep_hourly", "keep_daily", "keep_weekly"]))
def test_a_larger_number_never_removes_more(policy: Policy, saves: list[Save], name: str) -> None:
    policy = replace(policy, max_total=None)
    if number := getattr(policy, name):
        more = replace(policy, **{name: number + 1})
        assert choose_kept(policy, saves).keys() <= choose_kept(more, saves).keys()


@given(POLICIES, SAVES)
def test_who_is_asked_twice_says_the_same(policy: Policy, saves: list[Save]) -> None:
    """What is left after one pass is what is left after the next."""
    left = [s for s in saves if s.name in choose_kept(policy, saves)]
    again = choose_kept(policy, left)
    assert again.keys() == {s.name for s in left}
