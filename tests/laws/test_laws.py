"""Laws of the plan on real random trees: it is what an oracle works out from their description, and it
depends on nothing that does not matter.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from described import LAYOUTS, START, harm, question, tree, write
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from memory import brief_directory
from oracle import Answer, Question, Save, Tree, answer, finished

from ckpt_tools import errors
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

BYTES = ("truncate", "zero", "flip")
"""Damage to the bytes of a file that stays where it is."""


def selection(q: Question) -> Selection:
    return Selection(
        world_size=q.world,
        replica_groups={"": q.groups} if q.groups else {},
        fault_ranks=q.faults,
        save_interval=q.interval,
        order=q.order,
    )


def asked(root: Path, q: Question) -> LoadPlan | str:
    """The plan, or the class of the exception."""
    try:
        return plan(str(root), selection(q))
    except errors.CkptError as e:
        note(f"{type(e).__name__}: {e}")
        return type(e).__name__


def number(made: LoadPlan) -> int | None:
    assert made.checkpoint is not None
    return made.checkpoint.step


def files(made: LoadPlan, root: Path) -> tuple[dict[int, dict[str, list[str]]], list[str]]:
    ranks: dict[int, dict[str, list[str]]] = {}
    for r in made.by_rank:
        for f in r.files:
            ranks.setdefault(r.rank, {}).setdefault(f.role, []).append(os.path.relpath(f.path, root))
    return ranks, [os.path.relpath(f.path, root) for f in made.shared]


def compare(made: LoadPlan | str, expected: Answer | str, root: Path) -> None:
    if isinstance(made, str) or isinstance(expected, str):
        # where another number of ranks saved and files are damaged as well, either is said: both stop the job
        either = (
            isinstance(made, str)
            and isinstance(expected, str)
            and {made, expected} == {"UsageError", "NoneUsable"}
        )
        assert made == expected or either
        return
    assert made.checkpoint is not None
    note(f"rejected {[(r.checkpoint.path, r.findings) for r in made.rejected]}")
    ranks, shared = files(made, root)
    if not expected.ranks and list(ranks) == [0]:  # what the one rank of a job opens by itself
        shared += [name for role in ranks.pop(0).values() for name in role]
    note(f"planned {ranks} {shared}")
    assert number(made) == expected.step
    assert (made.checkpoint.kind is Kind.DYING_GASP) == expected.dying
    assert set(ranks) == set(expected.ranks)
    for rank, roles in expected.ranks.items():
        assert set(ranks[rank]) == set(roles), rank
        for role, fit in roles.items():
            assert len(ranks[rank][role]) == 1 and ranks[rank][role][0] in fit, (rank, role)
    assert len(shared) == len(expected.shared)
    assert all(len(fit & set(shared)) == 1 for fit in expected.shared)


def described(data: st.DataObject, layout: str, harms: int = 3) -> tuple[Tree, Question]:
    made = tree(data, layout)
    q = question(data, made)
    for _ in range(data.draw(st.integers(0, harms), label="harms")):
        harm(data, made)
    return made, q


def as_the_oracle_says(made: Tree, q: Question) -> None:
    expected = answer(made, q)
    note(f"expected {expected}")
    with brief_directory() as top:
        write(made, top)
        compare(asked(top, q), expected, top)


EXAMPLES = examples(int(os.environ.get("LAW_EXAMPLES", "25")))


@pytest.mark.share(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@EXAMPLES
@given(data=st.data())
def test_the_plan_is_what_the_oracle_says(layout: str, data: st.DataObject) -> None:
    as_the_oracle_says(*described(data, layout))


@EXAMPLES
@given(data=st.data())
def test_saves_without_the_highest_ranks_are_what_the_oracle_says(data: st.DataObject) -> None:
    made = LAYOUTS["mindspore"](data, range(10, 10 * data.draw(st.integers(4, 5), label="saves"), 10))
    few = data.draw(st.integers(1, max(1, made.world - 1)), label="few")
    q = question(data, made)
    for i, s in enumerate(made.saves):
        s.mtime = START + 600 * i
        sizes = [few, few, made.world] if i else [made.world]
        for f in s.files[data.draw(st.sampled_from(sizes), label=f"ranks at {s.step}") :]:
            f.harm = "gone"
    for _ in range(data.draw(st.integers(0, 1), label="harms")):
        harm(data, made)
    as_the_oracle_says(made, q)


def built(
    data: st.DataObject, layout: str, root: Path, harms: int = 2
) -> tuple[Tree, Question, Answer | str]:
    """A tree in which files are damaged in place: which checkpoints there are, and of whom, is not in doubt."""
    made = tree(data, layout)
    q = question(data, made)
    q = replace(q, faults=frozenset(), interval=None, order=q.order or "mtime")
    for _ in range(data.draw(st.integers(0, harms), label="harms")):
        harm(data, made, BYTES)
    write(made, root)
    return made, q, answer(made, q)


def remove(s: Save, made: Tree, root: Path) -> None:
    """Remove a save, and what lies in a directory of its own."""
    home = os.path.dirname(s.files[0].path)
    beside = [name for name in made.others if home and os.path.dirname(name) == home]
    for f in s.files:
        (root / f.path).unlink()
    for name in beside:
        (root / name).unlink(missing_ok=True)


def unread(made: LoadPlan | str) -> LoadPlan | str:
    return made if isinstance(made, str) else msgspec.structs.replace(made, bytes_verified=0, bytes_read=0)


def told(made: LoadPlan | str, root: Path) -> object:
    """What a job does with the plan."""
    return made if isinstance(made, str) else (number(made), files(made, root), made.fingerprint)


@pytest.mark.share(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@EXAMPLES
@given(data=st.data())
def test_an_older_checkpoint_never_matters_and_without_the_chosen_one_the_next_is_chosen(
    layout: str, data: st.DataObject
) -> None:
    with brief_directory() as root:
        made, q, expected = built(data, layout, root)
        before = asked(root, q)
        if isinstance(expected, str):
            assert before == expected
            return
        order = sorted(made.saves, key=lambda s: s.mtime if q.order == "mtime" else s.step)
        chosen = next(s for s in order if s.step == expected.step)
        for older in order[: order.index(chosen)]:
            remove(older, made, root)
            assert told(asked(root, q), root) == told(before, root)
            made.saves.remove(older)
        write(replace(made, saves=order), root)
        remove(chosen, made, root)
        order.remove(chosen)
        compare(asked(root, q), answer(replace(made, saves=order), q), root)


@pytest.mark.share(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@EXAMPLES
@given(data=st.data())
def test_damage_where_the_plan_does_not_look_never_changes_it(layout: str, data: st.DataObject) -> None:
    with brief_directory() as root:
        made, q, expected = built(data, layout, root, 1)
        before = asked(root, q)
        if isinstance(before, str):
            assert before == expected
            return
        used = {f.path for r in before.by_rank for f in r.files} | {f.path for f in before.shared}
        for _ in range(2):
            harm(data, made, BYTES, lambda f: str(root / f.path) not in used)
        write(made, root)
        assert told(asked(root, q), root) == told(before, root)


def state(root: Path) -> dict[str, object]:
    def of(p: Path) -> tuple[object, ...]:
        s = p.stat()
        held = p.read_bytes() if p.is_file() else b""
        return s.st_size, s.st_mtime_ns, s.st_mode, s.st_nlink, s.st_ino, held

    return {str(p): of(p) for p in [root, *root.rglob("*")]}


def in_order(
    shuffle: Callable[[list[Any]], None], real: Callable[..., Any] = os.scandir
) -> Callable[..., Any]:
    """``os.scandir`` in an order of its own."""

    def scandir(path: object = ".") -> Any:
        with real(path) as it:
            entries = list(it)
        shuffle(entries)
        return nullcontext(entries)

    return scandir


@pytest.mark.share(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@EXAMPLES
@given(data=st.data())
def test_neither_the_directory_s_order_nor_its_place_matters_and_nothing_is_modified(
    layout: str, data: st.DataObject
) -> None:
    made, q = described(data, layout)
    shuffle = random.Random(data.draw(st.integers(0, 9), label="order of entries")).shuffle
    with brief_directory() as top:
        root, other = top / "here", top / "elsewhere" / "there"
        for at in (root, other):
            at.mkdir(parents=True)
        write(made, root)
        before = state(root)
        first = asked(root, q)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "scandir", in_order(shuffle))
            again = asked(root, q)
        assert unread(again) == unread(first)
        write(made, other, shuffle)
        assert told(asked(other, q), other) == told(first, root)
        verify([str(root)])
        scan(str(root))
        assert state(root) == before


@pytest.mark.parametrize("layout", LAYOUTS)
@EXAMPLES
@given(data=st.data())
def test_verify_blames_what_was_harmed_and_nothing_else(layout: str, data: st.DataObject) -> None:
    made, _ = described(data, layout)
    harmed = [s for s in made.saves if any(f.harm for f in s.files)]
    with brief_directory() as root:
        write(made, root)
        result = verify([str(root)])
        verdicts = {os.path.relpath(r.report.path, root): r.report.verdict for r in result.files}
        note(f"{[(r.report.path, r.report.findings) for r in result.files]} {result.findings}")
        for f in (f for s in made.saves for f in s.files):
            if not f.harm:
                assert verdicts[f.path] is not Verdict.BROKEN or any(f in s.files for s in harmed), f.path
            elif f.harm == "broken" and f.changed:
                assert verdicts[f.path] in (Verdict.BROKEN, Verdict.SUSPECT), f.path
        for finding in result.findings:
            if finding.severity is Severity.ERROR:
                where = os.path.relpath(finding.path, root)
                of_harmed = any(f.path.startswith(where) for s in harmed for f in s.files)
                assert of_harmed or where in made.others or (where == "." and not finished(made)), finding
