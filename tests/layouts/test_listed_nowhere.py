"""Files that no index lists, of which only the run's other saves tell that a save has them: DeepSpeed's
experts and layers, and the parameters of its universal checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small_files
from timed import put

from ckpt_tools import NoneUsable, plan

START = 1_750_000_000
Save = Callable[[int], Iterator[tuple[str, bytes]]]


def model(step: int) -> bytes:
    state = {"module": {"w": small_files.tensor(step)}, "skipped_steps": 0, "global_steps": step}
    return small_files.saved({**state, "dp_world_size": 1, "mp_world_size": 1})


def weights(step: int, n: int) -> bytes:
    return small_files.saved({"w": small_files.tensor(step, n)})


def experts(step: int) -> Iterator[tuple[str, bytes]]:
    yield f"global_step{step}/mp_rank_00_model_states.pt", model(step)
    optimizer = small_files.saved({"optimizer": small_files.adam(step)})
    yield f"global_step{step}/expp_rank_0_mp_rank_00_optim_states.pt", optimizer
    for n in range(70):  # more than are read of other saves
        yield f"global_step{step}/layer_{n}_expert_0_mp_rank_00_model_states.pt", weights(step, n)


def layers(step: int) -> Iterator[tuple[str, bytes]]:
    yield f"global_step{step}/mp_rank_00_model_states.pt", model(step)
    for n in range(4):
        yield f"global_step{step}/layer_{n:02d}-model_states.pt", weights(step, n)


LOST = {experts: "layer_69_expert_0_mp_rank_00_model_states.pt", layers: "layer_01-model_states.pt"}


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("save", LOST)
@pytest.mark.parametrize("at", [0, 1, 2], ids=["oldest", "between", "newest"])
def test_a_save_without_a_file_that_damaged_ones_have_is_not_planned(
    save: Save, at: int, tmp_path: Path
) -> None:
    """A file is needed whether or not those of other saves can be loaded."""
    for i, step in enumerate((10, 20, 30)):
        for name, data in save(step):
            path, gone = tmp_path / name, name.endswith(LOST[save])
            path.parent.mkdir(exist_ok=True)
            if not (gone and i == at):
                put(path, data[:100] if gone else data, START + 60 * step)
    with pytest.raises(NoneUsable):
        plan(str(tmp_path))
