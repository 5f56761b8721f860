"""However deep one looks, and whoever asks, the answer is the same: names alone lead to the files that contents
lead to, and a rank is told what the plan of all ranks tells it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import TREES, materialise
from msgspec.structs import replace

from ckpt_tools import CkptError, Level, LoadPlan, Selection, latest, plan
from ckpt_tools.errors import UsageError

ASKED = Selection(settle=0)


def files(made: LoadPlan) -> set[str]:
    """What the job loads: which of its ranks loads which, names alone may not tell."""
    return {f.path for load in made.by_rank for f in load.files} | {f.path for f in made.shared}


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_names_alone_and_one_rank_alone_lead_to_the_same_files(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    try:
        read = plan(str(root), ASKED)
    except CkptError:  # several runs, or none that is whole: other tests ask what is said then
        return
    try:
        named = plan(str(root), replace(ASKED, level=Level.PRESENCE))
    except UsageError:  # names count steps and epochs, and only contents tell the steps of both
        assert case.parent.parent.name == "accelerate"
        return
    assert read.checkpoint and named.checkpoint
    if named.checkpoint.key == read.checkpoint.key:
        assert files(named) == files(read)
    else:  # only contents tell that it is damaged
        assert named.checkpoint.key in {r.checkpoint.key for r in read.rejected}
    for load in (*read.by_rank[:1], *read.by_rank[1:][-1:]):
        alone = latest(str(root), replace(ASKED, rank=load.rank))
        assert [r for r in alone.by_rank if r.rank == load.rank] == [load]
