"""A model and its optimizer in two files of arrays, of which only the names tell which is which."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_save
from timed import put

from ckpt_tools import plan
from ckpt_tools.errors import CkptError, NotNewest
from ckpt_tools.model.selection import Selection


def written(ending: str, step: int, words: int) -> bytes:
    """``words`` arrays of a step, one after the other in Equinox' files."""
    arrays = [np.full((2, 3), step + i, np.float32) for i in range(words)]
    out = io.BytesIO()
    if ending == "eqx":
        for array in arrays:
            np.save(out, array)
    elif ending == "npz":
        np.savez(out, **{f"a{i}": array for i, array in enumerate(arrays)})
    else:
        return safetensors_save({f"a{i}": array for i, array in enumerate(arrays)})
    return out.getvalue()


@pytest.mark.parametrize("word", ["opt", "optimizer", "opt_state"])
@pytest.mark.parametrize("ending", ["eqx", "npz", "safetensors"])
def test_both_files_of_a_save_are_loaded_and_missed(ending: str, word: str, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        (tmp_path / f"model_{step}.{ending}").write_bytes(written(ending, step, 2))
        (tmp_path / f"{word}_{step}.{ending}").write_bytes(written(ending, -step, 4))
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.resume_step == 30
    assert {Path(f.path).name for f in made.shared} == {f"model_30.{ending}", f"{word}_30.{ending}"}
    assert not made.warnings
    (tmp_path / f"{word}_30.{ending}").unlink()
    with pytest.raises(NotNewest):
        plan(str(tmp_path), Selection(no_fallback=True))


def state_of_mlx(step: int) -> bytes:
    """What ``mx.save_safetensors`` writes of ``tree_flatten(optimizer.state)``."""
    moments = {f"a0.{letter}": np.full((2, 3), step, np.float32) for letter in "mv"}
    counters = {"step": np.array(step, np.uint64), "learning_rate": np.array(0.1, np.float32)}
    return safetensors_save({**moments, **counters})


@pytest.mark.parametrize("model", ["weights", "model"])
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("form", ["step_{}/{}", "{1}_{0}", "{1}"])
def test_the_state_of_an_optimizer_of_mlx_is_told_by_its_arrays(
    form: str, ending: str, model: str, tmp_path: Path
) -> None:
    """It is no model, and its save is loaded with both files or not at all."""
    for step in (10, 20) if "{}" in form or "{0}" in form else (20,):
        for name, data in (
            (f"{model}.{ending}", written(ending, step, 2)),
            ("state.safetensors", state_of_mlx(step)),
        ):
            stem, _, suffix = name.partition(".")
            called = form.format(step, name) if "/" in form else f"{form.format(step, stem)}.{suffix}"
            put(tmp_path / called, data, 1_735_700_000 + step)
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and not made.warnings
    newest = made.shared
    assert len(newest) == 2 and {f.role for f in newest} == {"model", "optimizer"}
    for f in newest:
        if f.role == "model":
            os.unlink(f.path)
    with pytest.raises(CkptError):
        plan(str(tmp_path), Selection(no_fallback=True))
