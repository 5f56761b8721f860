"""Prune and quarantine over the real trees of all layouts: what is resumed from stays, nothing else than
checkpoints goes, and what is left of one is nothing; what is put away is no candidate, exists all the same, and
comes back as it was.

Of a store the order in which objects are deleted counts, which cannot be renamed: however far it came, what a
job resumes from is what it was before, or an answer that stops it. The law is held on disks: a tree without the
objects that are gone is what is left.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from asked_plan import loads
from described_layouts import HOUR, LAYOUTS, START, described_tree, trackers
from examples import examples
from fixture_trees import CASES, FIRST, NAMED, below, materialise
from hypothesis import event, given
from hypothesis import strategies as st
from kill_points import files_of
from timed import same_times

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError, NoCheckpoint, UsageError
from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.guard.prune.entries import Entry, find_entries
from ckpt_tools.guard.prune.protected import find_stages
from ckpt_tools.guard.quarantine import quarantine, undo
from ckpt_tools.model.answers import Changes
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.storage import listing

NOW = Selection(settle=0)
SMALLEST = Policy(max_total=1)
"""Keeps nothing of its own accord."""


def by_day(*layouts: str) -> list[Any]:
    """All cases; by day the first one of each of these."""
    first = [FIRST[layout] for layout in layouts]
    return [
        pytest.param(c, id=n, marks=() if c in first else pytest.mark.exhaustive) for n, c in NAMED.items()
    ]


def answer(root: Path, selection: Selection = NOW) -> tuple[int, str]:
    """The exit code and the fingerprint of what a job resumes from."""
    try:
        made = plan(root, selection)
    except CkptError as e:
        return e.exit_code, ""
    return (0, made.fingerprint) if made.checkpoint else (3, "")


def listed(root: Path) -> set[str]:
    return {c.key.path for c in scan(root, NOW).checkpoints}


def went(said: Changes) -> list[str]:
    return [c.path for c in said.changes if c.state in ("removed", "would-remove")]


@pytest.mark.parametrize("case", by_day("dcp", "hf-trainer", "mindspore", "tensorflow", "verl"))
def test_what_is_resumed_from_stays(case: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before, was, there = files_of(root), answer(root), listed(root)
        try:
            said = prune(str(root), SMALLEST, selection=NOW)
        except CkptError:
            assert was[0] in (2, 3, 4, 5)
            with pytest.raises(CkptError):
                prune(str(root), SMALLEST, apply=True, selection=NOW)
            assert files_of(root, state=False) == before
            return
        assert files_of(root) == before, "nothing is done without --apply"
        assert all(c.why for c in said.changes)
        done = prune(str(root), SMALLEST, apply=True, selection=NOW)
        assert went(done) == went(said)
        assert answer(root) == was or was[0] == 2  # several runs
        after = files_of(root, state=False)
        assert (after.items() <= before.items() and len(after) < len(before)) or not went(done)
        assert len(listed(root)) == len(there) - len(went(done)), "nothing half is left"
        assert not list((root / ".ckpt/trash").glob("*")), "what went is gone"
        assert went(prune(str(root), SMALLEST, apply=True, selection=NOW)) == []


HARM = ("remove", "cut", "strange", "link", "young", "tracker")


def harm(root: Path, what: str, at: int) -> None:
    """Do something to one of the files of a tree, and keep its time but for "young"."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return
    path = files[at % len(files)]
    if what == "remove":
        path.unlink()
    elif what == "cut":
        with same_times(path):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif what == "strange":
        (path.parent / "mine.txt").write_text(f"mine, and nowhere else: {path}")
    elif what == "link" and not (root / f"link{at}").is_symlink():
        (root / f"link{at}").symlink_to(path.parent if at % 2 else path)
    elif what == "young":
        os.utime(path)
    elif what == "tracker":
        (path.parent / "latest").write_text("nothing")


HARMS = st.lists(st.tuples(st.sampled_from(HARM), st.integers(0, 200)), max_size=3)


@given(st.sampled_from(CASES), HARMS, st.booleans())
@examples(120)
def test_whatever_happened_to_a_tree(case: Path, harms: list[tuple[str, int]], damaged: bool) -> None:
    """What is resumed from stays the same, and what is no checkpoint's stays where it is."""
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        for what, at in harms:
            harm(root, what, at)
        before, was = files_of(root), answer(root)
        try:
            done = prune(str(root), SMALLEST, damaged=damaged, apply=True, selection=NOW)
        except CkptError:
            assert files_of(root, state=False) == before
            return
        after = files_of(root, state=False)
        assert answer(root) == was or was[0] == 2  # several runs
        assert after.items() <= before.items()
        lost = {Path(name).name for name in before.keys() - after.keys()}
        assert not any(name == "mine.txt" or name.startswith("link") for name in lost)
        event("removed" if went(done) else "nothing to remove")


SMALL = st.sampled_from(list(product(LAYOUTS, (False, True))))
CUTS = st.sets(st.integers(0, 3), max_size=2)


@given(SMALL, CUTS, st.integers(1, 3), st.sampled_from([None, 20, 40]), st.booleans())
@examples(60)
def test_what_is_sound_and_not_kept_goes_and_nothing_else(
    tree: tuple[str, bool], cut: set[int], last: int, every: int | None, damaged: bool
) -> None:
    """Held against the policy in four lines, over the saves of small trees."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        saves = described_tree(tree[0], root, several=tree[1])
        for n, save in enumerate(saves):
            for path in (root / name for name in save.files):
                if n in cut:
                    path.write_bytes(path.read_bytes()[:-40])
                os.utime(path, (START + n * HOUR, START + n * HOUR))
        for path in trackers(root):
            path.unlink()
        cut = {n for n in cut if n < len(saves)}
        sound = [n for n in range(len(saves)) if n not in cut]
        if not sound:
            return
        steps = {n: saves[n].step for n in sound}
        kept = {*sound[-last:], *(n for n in sound if every and (steps[n] is None or not steps[n] % every))}
        gone = {*sound} - kept | (cut if damaged else set())
        was = answer(root)
        prune(str(root), Policy(keep_last=last, keep_every=every), damaged=damaged, apply=True, selection=NOW)
        there = {n for n, save in enumerate(saves) if all((root / f).exists() for f in save.files)}
        none = {n for n, save in enumerate(saves) if not any((root / f).exists() for f in save.files)}
        assert none == gone and there == {*range(len(saves))} - gone
        assert answer(root) == was and was[0] == 0
        event(f"{len(gone)} of {len(saves)} went")


@pytest.mark.parametrize("case", [*FIRST.values()][::4])
def test_what_nobody_could_look_at_keeps_everything(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be listed may hold what the others need."""
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        (root / "closed").mkdir()
        before, real = files_of(root), listing.os.scandir

        def scandir(path: str | int) -> object:
            if isinstance(path, str) and path.endswith("/closed"):
                raise PermissionError(13, "Permission denied", path)
            return real(path)

        monkeypatch.setattr(listing.os, "scandir", scandir)
        with pytest.raises(CkptError):
            prune(str(root), SMALLEST, apply=True, selection=NOW)
        monkeypatch.undo()
        assert files_of(root, state=False) == before


FRESH = Selection(settle=0, allow_none=True)


def chosen_of(root: Path) -> tuple[Any, ...]:
    try:
        made = plan(root, FRESH)
    except CkptError as e:
        return (e.exit_code,)
    wrong, chosen = {f.code for f in made.warnings if f.code.endswith("-tracker")}, made.checkpoint
    return 0, chosen and chosen.path, chosen and chosen.label, wrong


UNPOINTED = {"openrlhf/ppo", "megatron-core/bridge", "megatron-core/fsdp_dtensor"}
"""With trackers that are not rewritten, two in directories of their own, and one that is a torch file."""


@pytest.mark.parametrize("case", by_day("deepspeed", "lerobot", "lightning", "megatron"))
def test_away_and_back(case: Path) -> None:
    """All checkpoints of a tree, one after the other as they are chosen, and back in the reverse order."""
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before, answers = files_of(root), [chosen_of(root)]
        trackers = answers[0][3] if answers[0][0] == 0 else set()
        while answers[-1][0] == 0 and answers[-1][1] is not None and len(answers) < 4:
            chosen = plan(root, FRESH).checkpoint
            assert chosen
            path = chosen.path if chosen.path != str(root) else chosen.parts[0].path
            if chosen.parts[0].home == str(root):
                with pytest.raises(UsageError, match=r"--root|as a whole"):
                    quarantine(str(root), [path], apply=True, selection=FRESH)
                break
            said = quarantine(str(root), [path], apply=True, selection=FRESH)
            assert any(c.state == "moved" for c in said.changes), said
            answers.append(chosen_of(root))
            assert answers[-1][0] != 3 and answers[-1][:2] != (0, None), "it existed"
            assert answers[-1][:3] not in [one[:3] for one in answers[:-1]], "it was put away"
            assert answers[-1][0] or answers[-1][3] <= trackers or "/".join(case.parts[-3:-1]) in UNPOINTED
        while len(answers) > 1:
            answers.pop()
            undo(str(root), apply=True)
            assert chosen_of(root) == answers[-1]
        assert files_of(root, state=False) == before


@pytest.mark.parametrize("case", [case for case in FIRST.values() if "megatron" in str(case)])
def test_restored_by_the_name_that_it_had(case: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before = files_of(root)
        chosen = plan(root, FRESH).checkpoint
        assert chosen
        quarantine(str(root), [chosen.path], apply=True, selection=FRESH)
        with pytest.raises(NoCheckpoint):
            quarantine(str(root), [chosen.path], apply=True, selection=FRESH)
        undo(str(root), [chosen.path], apply=True)
        after = files_of(root, state=False)
        assert after.keys() == before.keys()
        assert {k for k, v in after.items() if v != before[k]} <= {"latest_checkpointed_iteration.txt"}


QUESTION = Selection(settle=0, order="step")


def used(root: Path, mine: set[str], *, stand_ins: bool) -> bool:
    """Whether a job would load one of these files, relative to the root; with ``stand_ins`` that does not
    count where files of other ranks stand in for what is gone.
    """
    try:
        made = plan(str(root), QUESTION)
    except CkptError:
        return False
    if stand_ins and any(f.substituted for f in loads(made)):
        return False
    return any(os.path.relpath(f.path, root) in mine for f in loads(made))


def removed(path: str, root: Path) -> None:
    """A directory of a store is there as long as something lies in it."""
    os.unlink(path)
    home = os.path.dirname(path)
    while home != str(root) and not os.listdir(home):
        os.rmdir(home)
        home = os.path.dirname(home)


def in_order(found: list[Entry], e: Entry, root: Path) -> list[list[str]]:
    """The files of a checkpoint, stage by stage."""
    s = open_session(str(root), QUESTION.read_options())
    s.add_members()
    at = find_stages(s, e)
    out: list[list[str]] = [[], [], [], []]
    for path in sorted(str(file) for top in e.group.paths for file in below(Path(top))):
        out[at(path)].append(path)
    return [stage for stage in out if stage]


def points(order: list[list[str]]) -> Iterator[list[str]]:
    """What is gone at some points: the first and the last file of each stage, and a stage from its other end,
    since a store may delete the objects of one request in any order.
    """
    before: list[str] = []
    for stage in order:
        yield [*before, stage[0]]
        yield [*before, stage[-1]]
        before = [*before, *stage]
        yield list(before)


SOUND = {case.parts[-3]: case for case in reversed(CASES) if case.parts[-2] not in ("cut", "killed", "empty")}


@pytest.mark.slow
@pytest.mark.share(16)
@pytest.mark.parametrize("case", SOUND.values(), ids=SOUND)
def test_what_is_left_of_a_checkpoint_is_none(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    try:
        chosen = plan(str(root), QUESTION)
    except CkptError:
        return  # nothing would be removed
    s = open_session(str(root), QUESTION.read_options())
    found = find_entries(s, QUESTION)
    used_now = {f.path for f in loads(chosen)}
    going = [e for e in found if not used_now & {*e.members, *e.group.files}]
    whole = answer(root, QUESTION)
    assert whole[0] == 0
    for e in going[:1]:
        mine = {os.path.relpath(path, root) for path in e.group.files}
        others = [max(o.group.files, key=os.path.getsize) for o in found if o is not e]
        for gone in points(in_order(found, e, root)):
            left = tmp_path / "left"
            shutil.copytree(root, left, symlinks=True)
            for path in gone:
                removed(str(left / os.path.relpath(path, root)), left)
            code, now = answer(left, QUESTION)
            assert code or now == whole[1], gone
            for path in others:  # nothing else can be used, and its names still tell what there should be
                os.truncate(left / os.path.relpath(path, root), 7)
            first_left = not set(in_order(found, e, root)[0]) <= set(gone)
            assert not used(left, mine, stand_ins=first_left), (e.group.label, gone)
            shutil.rmtree(left)
