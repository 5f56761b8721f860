"""A model and its optimizer in two files of arrays, of which only the names tell which is which."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_save

from ckpt_tools import plan
from ckpt_tools.errors import NotNewest
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
