"""A file of one place of the tensor, pipeline or expert parallel grid is planned for no other place, whatever
ROOT, flag or layout leads there, unless its layout says that they hold the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import Selection
from ckpt_tools.errors import CkptError
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning.planner import Planner
from ckpt_tools.reading.opening import open_session

AXES = ("tp", "pp", "ep")
Places = Mapping[str, Mapping[str, int]]
GROUP = {"replica_groups": {"": ((0, 1, 2, 3),)}}
OF_FOUR = ({"sizes": {"tp": 2}}, {"replicas_all": True}, GROUP, {"layout": "files"}, {"layout": "rank-files"})
FLAGS = (
    {},
    {"world_size": 2, "sizes": {"tp": 1, "pp": 1}},
    *({"world_size": 4, **more} for more in ({}, *OF_FOUR)),
)
CASES = sorted(
    case
    for case in LAYOUT_TREES.glob("*/*/expected.json")
    if any("p_rank_" in path.as_posix() for path in (case.parent / "tree").rglob("*"))
)


def places_of(root: Path) -> Places:
    """The places of files as the layout of the whole tree tells them: of those that hold something of their
    own along an axis that has several.
    """
    session = open_session(str(root), ReadOptions())
    told, known = dict[str, dict[str, int]](), dict[str, set[int]]()
    for p in session.parts:
        piece = session.layouts.piece_of(p)
        shared = AXES if piece.readers.shared else piece.readers.replicated_over
        own = {a: n for a, n in p.coords if a in AXES and a not in shared}
        told[os.path.relpath(p.path, root)] = own
        for axis, n in own.items():
            known.setdefault(axis, set()).add(n)
    several = ((name, {a: n for a, n in own.items() if len(known[a]) > 1}) for name, own in told.items())
    return {name: at for name, at in several if at}


def check(asked: Path, root: Path, places: Places) -> None:
    """Plan with all flags; ``places`` are those of the files below ``root``."""
    for flags in FLAGS:
        planner = Planner(str(asked), Selection(level=Level.STRUCTURE, **flags), None)
        try:
            made = planner.plan()
        except CkptError:
            continue
        for rank, load in made.loads:
            at = places.get(os.path.relpath(load.path, root), {})
            stands = {} if rank is None else planner.topology.coordinates(rank)
            own = f"_{rank}." in os.path.basename(load.path)  # of that rank, whatever --tp says
            assert own or {a: stands.get(a) for a in at} == at, (asked, flags, rank, load.path)


@pytest.mark.share(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "/".join(case.parts[-3:-1]))
def test_no_file_is_planned_for_another_place(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path / "run")
    places = places_of(root)
    homes = {root / name for name in places}
    roots = {above for path in homes for above in (path, *path.parents) if above.is_relative_to(root)}
    for asked in sorted(roots):
        check(asked, root, places)
    for n, (name, at) in enumerate(sorted(places.items())[:4]):
        alone = tmp_path / f"alone{n}"  # where no layout knows its directory
        copy = alone / "kept" / Path(name).parent.name / f"weights{Path(name).suffix}"
        copy.parent.mkdir(parents=True)
        shutil.copy2(root / name, copy)
        for below in (alone, alone / "kept", copy.parent, copy):
            check(below, alone, {str(copy.relative_to(alone)): at})
