"""The order in which ``ckpt prune`` deletes objects of a store, for every layout: however far it came, what a
job resumes from is what it was before, or an answer that stops it; and never from a checkpoint of which
something is gone.

A store cannot rename, so the law is held on disks: a tree without the objects that are gone is what is left.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from asked_plan import loads
from fixture_trees import CASES, below, materialise

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError
from ckpt_tools.guard.prune.entries import Entry, find_entries
from ckpt_tools.guard.prune.protected import find_stages
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session

QUESTION = Selection(settle=0, order="step")


def answer(root: Path) -> tuple[int, str]:
    """(exit code, fingerprint) of ``ckpt plan``."""
    try:
        made = plan(str(root), QUESTION)
    except CkptError as e:
        return e.exit_code, ""
    return (0, made.fingerprint) if made.checkpoint else (3, "")


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


def first_of_each_layout() -> list[Path]:
    seen: dict[str, Path] = {}
    for case in CASES:
        expected = json.loads(case.read_text())
        if len(expected.get("mtimes", ())) > 1 and case.parent.name not in ("cut", "killed", "empty"):
            seen.setdefault(case.parent.parent.name, case)
    return list(seen.values())


@pytest.mark.slow
@pytest.mark.share(16)
@pytest.mark.parametrize("case", first_of_each_layout(), ids=lambda case: case.parent.parent.name)
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
    whole = answer(root)
    assert whole[0] == 0
    for e in going[:1]:
        mine = {os.path.relpath(path, root) for path in e.group.files}
        others = [max(o.group.files, key=os.path.getsize) for o in found if o is not e]
        for gone in points(in_order(found, e, root)):
            left = tmp_path / "left"
            shutil.copytree(root, left, symlinks=True)
            for path in gone:
                removed(str(left / os.path.relpath(path, root)), left)
            code, now = answer(left)
            assert code or now == whole[1], gone
            for path in others:  # nothing else can be used, and its names still tell what there should be
                os.truncate(left / os.path.relpath(path, root), 7)
            first_left = not set(in_order(found, e, root)[0]) <= set(gone)
            assert not used(left, mine, stand_ins=first_left), (e.group.label, gone)
            shutil.rmtree(left)
