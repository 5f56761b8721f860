"""ckpt answers about every fixture what was recorded: the whole JSON and the exit code of five commands, whose
messages are short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from zlib import crc32

import pytest
from places import FIXTURES
from scripts import loaded

SHOWN = 5
"""Differences of one group that are shown in full."""
ADVICE = """
{group}: {summary}.
A refactoring changes none. Where it is meant, docs/json.md says what may change within a version: fields are
only added, and the wording of messages may change, not what they tell. Then
'python fixtures/make_answers.py {group}' records the answers anew and prints what has changed.
"""


make = loaded(FIXTURES / "make_answers.py")
GROUPS = make.groups()


questions = cache(make.questions)


def answers(group: str, some: Callable[[Any], bool] = lambda _: True) -> dict[str, str]:
    return {str(question): text for question, text in make.answers(filter(some, questions(group)))}


def by_day(group: str) -> Callable[[Any], bool]:
    """Which questions are asked by day: all about files, and about the first tree of a layout; of those about
    its other trees one in three, each tree others (a damaged copy is asked all or nothing).
    """
    first = min((question.subject for question in questions(group)), default="")

    def asked(question: Any) -> bool:
        if group.startswith("formats/") or question.subject == first:
            return True
        kind = question.name or question.damage or " ".join(question.command)
        return crc32(f"{question.subject} {kind}".encode()) % 3 == 0

    return asked


@pytest.mark.share(32)
@pytest.mark.parametrize("group", GROUPS)
def test_the_answers_are_those_that_were_recorded(group: str) -> None:
    now, recorded = answers(group, by_day(group)), make.load(group)
    assert recorded.keys() == set(map(str, questions(group))), f"record the answers of {group}"
    compare(group, {question: recorded[question] for question in now}, now)


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", [group for group in GROUPS if group.startswith("layouts/")])
def test_all_answers_are_those_that_were_recorded(group: str) -> None:
    compare(group, make.load(group), answers(group))


def compare(group: str, recorded: Mapping[str, str], now: Mapping[str, str]) -> None:
    different = make.differences(recorded, now)
    if different:
        advice = ADVICE.format(summary=make.summary_of(different), group=group)
        pytest.fail("\n\n".join([*(d.text for d in different[:SHOWN]), advice]), pytrace=False)


def test_nothing_is_recorded_of_groups_that_are_gone() -> None:
    stored = make.STORED.rglob("*.json.xz")
    assert {str(path.relative_to(make.STORED)).removesuffix(".json.xz") for path in stored} <= set(GROUPS)


MOST = 3 * 80
NAME = re.compile(r"\S{32,}")
"""A name may be of any length: a long one counts as 32 characters."""


def texts(answer: Any) -> Iterator[str]:
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield from [value] if key in ("message", "hint") and isinstance(value, str) else texts(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from texts(value)


@pytest.mark.slow
def test_no_message_is_longer_than_three_lines_of_80_columns() -> None:
    answers = (json.loads(text) for group in GROUPS for text in make.load(group).values())
    found = {text for answer in answers for text in texts(answer)}
    assert len(found) > 1000
    assert not [text for text in found if len(NAME.sub("x" * 32, text)) > MOST]


SMALL = "layouts/dcp-hf"


def test_each_difference_is_seen_and_other_words_come_last() -> None:
    """Another exit code, another order, a lost question, a changed field; and words."""
    before = make.load(SMALL)
    first, second, third, fourth = sorted(q for q in before if "--json" in q)[:4]
    one, two, four = (json.loads(before[q]) for q in (first, second, fourth))
    one["exit_code"] += 1
    two["answer"] = dict(reversed(two["answer"].items()))
    four["answer"]["schema"] = "another"
    now = before | {first: json.dumps(one), second: json.dumps(two), fourth: json.dumps(four)}
    del now[third]
    different = make.differences(before, now)
    assert [(d.same_facts, d.question) for d in different] == [
        (False, q) for q in (first, second, third, fourth)
    ]
    lines = [line for line in different[3].text.splitlines()[2:] if line[0] in "+-"]
    assert lines[-1] == '+  "schema": "another",' and len(lines) == 2
    before = make.load("layouts/megatron")
    now = {q: text.replace('"message": "', '"message": "In other words: ') for q, text in before.items()}
    *worded, last = [q for q in sorted(before) if now[q] != before[q]]
    now[last] = now[last].replace('"exit_code": ', '"exit_code": 1')
    different = make.differences(before, now)
    assert worded
    assert [(d.same_facts, d.question) for d in different] == [(False, last), *((True, q) for q in worded)]


def test_a_change_in_ckpt_itself_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command to the diff: commands look less deeply than they were asked to."""
    execute = make.execute
    lazy = {"content": "structure"}
    monkeypatch.setattr(make, "execute", lambda words: execute([lazy.get(word, word) for word in words]))
    different = make.differences(make.load(SMALL), answers(SMALL))
    assert different
    assert all('-  "level": "content",' in d.text for d in different)


moved = loaded(FIXTURES / "compare_answers.py")


@pytest.mark.parametrize("newest", [2, pytest.param(None, marks=pytest.mark.exhaustive)])
def test_each_commit_that_records_anew_tells_its_moves(newest: int | None) -> None:
    """Which are not to another checkpoint, nor from a question to an answer, unless its message says why."""
    told = [move for commit in moved.recording_commits()[:newest] for move in moved.untold(commit)]
    assert told == [], "a line in the message of the commit says why (fixtures/compare_answers.py)"


def test_a_move_to_less_trust_needs_no_reason() -> None:
    def plan(code: int, path: str = "", step: int = 0) -> dict[str, Any]:
        chosen = {"checkpoint": {"path": path, "step": step}} if path else {"error": {}}
        return {"exit_code": code, "answer": chosen}

    asked = "layouts/megatron/tp: ckpt plan @ --json"
    first, other = plan(0, "/a", 1), plan(0, "/b", 2)
    pairs = ((first, plan(2)), (plan(4), plan(2)), (first, other), (plan(2), first), (plan(2), plan(70)))
    kinds = {moved.kind_of(asked, old, new): [asked] for old, new in pairs}
    needed = dict(moved.reasons_needed(kinds))
    assert needed.keys() == {"choice -> another choice", "question -> choice", "question -> internal error"}
    assert set(needed.values()) == {"layouts/megatron/tp"}
