"""Prune over the real trees of all layouts: what is resumed from stays, nothing else than checkpoints goes, and what is
left of one is nothing.
"""

from __future__ import annotations

import os
import tempfile
from itertools import product
from pathlib import Path

import pytest
from described_layouts import HOUR, LAYOUTS, START, described_tree, trackers
from examples import examples
from fixture_trees import CASES, NAMED, materialise
from hypothesis import event, given
from hypothesis import strategies as st
from kill_points import files_of
from timed import same_times

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError
from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.model.answers import Changes
from ckpt_tools.model.selection import Selection

NOW = Selection(settle=0)
SMALLEST = Policy(max_total=1)
"""Keeps nothing of its own accord."""
FIRST = {case.parent.parent.name: case for case in reversed(CASES)}
EACH = [
    pytest.param(c, marks=pytest.mark.exhaustive if n % 6 else (), id=name)
    for n, (name, c) in enumerate(NAMED.items())
]


def answer(root: Path, selection: Selection = NOW) -> tuple[object, ...]:
    try:
        made = plan(root, selection)
    except CkptError as e:
        return (e.exit_code,)
    return 0, made.fingerprint


def listed(root: Path) -> set[str]:
    return {c.key.path for c in scan(root, NOW).checkpoints}


def went(said: Changes) -> list[str]:
    return [c.path for c in said.changes if c.state in ("removed", "would-remove")]


@pytest.mark.share(18)
@pytest.mark.parametrize("case", EACH)
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
        assert answer(root) == was or was == (2,)  # several runs
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
        assert answer(root) == was or was == (2,)  # several runs
        assert after.items() <= before.items()
        lost = {Path(name).name for name in before.keys() - after.keys()}
        assert not any(name == "mine.txt" or name.startswith("link") for name in lost)
        event("removed" if went(done) else "nothing to remove")


TREES = st.sampled_from(list(product(LAYOUTS, (False, True))))
CUTS = st.sets(st.integers(0, 3), max_size=2)


@given(TREES, CUTS, st.integers(1, 3), st.sampled_from([None, 20, 40]), st.booleans())
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
    from ckpt_tools.storage import listing

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
