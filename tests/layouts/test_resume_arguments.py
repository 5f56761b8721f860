"""What a plan tells a framework names one checkpoint: the arguments for another one of the run are others."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import TREES

from ckpt_tools.api import scan
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.checkpoint import Checkpoint

ALONE = {"espnet"}
"""Goes on from the one file that it writes over, and from nothing else."""


@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_arguments_tell_which_of_several_checkpoints_is_meant(case: Path) -> None:
    said: dict[tuple[object, ...], Checkpoint] = {}
    for c in scan(case.parent / "tree").checkpoints:
        resume = BUILT_IN[c.layout].resume(c, None)
        if (resume.args or resume.env) and not c.unfinished and c.layout not in ALONE:
            told = (c.layout, c.run, resume.args, *sorted(resume.env.items()))
            assert said.setdefault(told, c) is c, resume.args
