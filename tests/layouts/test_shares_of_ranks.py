"""Files of a loop of one's own: a directory of single tensors, shares of ranks that no layout describes, and weights
alone where a Trainer saves.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save as safetensors_save
from small_files import saved, tensor
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.finding import Verdict


def arcface(root: Path, *epochs: int) -> Path:
    """A directory for each epoch with a file of paddle.save for each tensor, and a classifier's shard for each
    rank (insightface/recognition/arcface_paddle/dynamic/utils/io.py).
    """
    for epoch in epochs:
        for rank, name in ((0, "conv2d_0.w_0"), (0, "dist@fc@rank@00000.w"), (1, "dist@fc@rank@00001.w")):
            for seed, end in ((0, ".pdparam"), (1, "_velocity_0.pdopt")):
                array = np.random.default_rng((epoch, rank, len(name), seed)).standard_normal((4, 8))
                put(root / str(epoch) / f"{name}{end}", pickle.dumps(array.astype("f4"), 4), 600 * epoch)
        told = pickle.dumps({"last_epoch": epoch, "last_lr": 0.1}, 4)
        put(root / str(epoch) / "LR_Scheduler.pdopt", told, 600 * epoch)
    return root


def test_single_tensors_of_paddle_are_read_as_its_optimizers(tmp_path: Path) -> None:
    seen = verify(arcface(tmp_path, 118, 119))
    assert (seen.summary.ok, seen.findings) == (14, ())
    assert {f.report.verdict for f in seen.files} == {Verdict.OK}


@pytest.mark.parametrize("lost", [False, True])
def test_the_share_of_one_rank_is_never_given_to_all(lost: bool, tmp_path: Path) -> None:
    arcface(tmp_path, 118, 119)
    if lost:  # the only files that tell of another rank are older
        for file in tmp_path.glob("119/dist@fc@rank@00001*"):
            file.unlink()
    with pytest.raises(UsageError, match=r"119.*file of one rank") as e:
        plan(tmp_path)
    assert f"ckpt layouts --guess {tmp_path}" in e.value.hint


def test_weights_alone_where_a_trainer_saves_are_no_state_of_training(tmp_path: Path) -> None:
    for name in ("mm_projector.bin", "non_lora_trainables.bin", "model.safetensors"):
        root = tmp_path / name
        write = safetensors_save if name.endswith("safetensors") else saved
        for step in (500, 1000):
            put(root / f"checkpoint-{step}" / "config.json", b'{"model_type": "llava"}', step)
            put(root / f"checkpoint-{step}" / name, write({"proj.weight": tensor(step)}), step)
        made = plan(root)
        assert made.checkpoint is not None
        assert made.checkpoint.step == 1000
        said = [f.message for f in made.warnings if f.code == "missing-part"]
        assert any("trainer_state.json" in text for text in said), made.warnings
        assert verify(root).verdict is Verdict.OK
