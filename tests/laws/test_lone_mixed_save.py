"""A save that is alone, and one of whose files is of another step: there is nothing to compare it with but
the files beside it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import small_files
from described_layouts import described_tree, put

from ckpt_tools import errors
from ckpt_tools.api import plan, verify
from ckpt_tools.model.finding import Verdict

AT = 1_760_000_000


@pytest.mark.parametrize("layout", ["megatron", "ascend", "mindspore", "mindio"])
def test_a_file_of_another_step_is_not_loaded_with_the_others(layout: str, tmp_path: Path) -> None:
    """Every file of these tells its step; of two that disagree nobody knows which is the other save's."""
    saves = described_tree(layout, tmp_path / "all", several=True)
    older, newest = list(saves[0].files.values()), saves[-1].files
    assert len(newest) > 1
    for at, path in enumerate(newest):
        root = tmp_path / "one"
        for i, (other, data) in enumerate(newest.items()):
            put(root / other, older[i] if i == at else data, AT)
        assert verify(str(root)).verdict is Verdict.BROKEN, path
        try:
            made = plan(str(root))
        except errors.NoneUsable:
            pass
        else:  # of one that has replicas
            assert not any(load.path.endswith(path) for rank in made.by_rank for load in rank.files)
        shutil.rmtree(root)


@pytest.mark.parametrize("epoch", [1, 3])
def test_files_of_dying_ranks_that_count_differently_are_not_loaded(epoch: int, tmp_path: Path) -> None:
    """A breakpoint file counts from the start of the run or of its epoch, which in the first is the same."""
    for counted, expected in (((38, 38), Verdict.OK), ((30, 38), Verdict.BROKEN)):
        for rank, step in enumerate(counted):
            data = small_files.mindspore(True, rank, epoch_num=epoch, step_num=step)
            put(tmp_path / f"rank_{rank}" / f"net-{epoch}_38_breakpoint.ckpt", data, AT)
        assert verify(str(tmp_path)).verdict is expected
    with pytest.raises(errors.NoneUsable):
        plan(str(tmp_path))
