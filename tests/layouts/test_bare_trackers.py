"""A text that names the latest save (``latest_checkpoint.txt``) beside files of no known arrangement: no older
checkpoint is taken without a reason, and a text that means something else is none.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.selection import Selection

MADE = {
    "files": ("planted", "step_100.pt step_200.pt"),
    "directories": ("planted", "step_100/state.pt:whole100 step_200/state.pt:whole200"),
    "averages": ("planted", "model_100.pt ema_100.pt= model_200.pt ema_200.pt="),
    "last": ("planted", "model_100.pt model_200.pt last.pt:whole200="),
    "halves": (
        "planted",
        "weights_20.pt:model training_state_20.pt:optimizer= weights_30.pt:model training_state_30.pt:optimizer=",
    ),
}
TREES = table(
    """
    files
        put latest_checkpoint.txt {step_300.pt,/elsewhere/ckpts/step_300.pt,out/step_300.pt/}
            -> step_200.pt -missing-part +dangling-tracker
        then rm *.pt | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
        put {latest,latest.txt,last.txt,last_checkpoint.txt,latest_ckpt.txt} step_100.pt
            -> step_200.pt +stale-tracker
        put {latest,last.txt} step_300.pt -> step_200.pt -missing-part +dangling-tracker
        put {latest,last.txt} loss 0.25 nothing else -> step_200.pt +dangling-tracker
        put latest_checkpoint.txt {200,the best so far,a b} -> step_200.pt +bad-tracker
        latest_checkpoint.txt:{empty,zeros,json} -> step_200.pt +bad-tracker
    directories
        put latest_checkpoint.txt {step_300,/elsewhere/ckpts/step_300,out/step_300/}
            -> step_200 -missing-part +dangling-tracker
        then rm step_*/* | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
        put latest_checkpoint.txt step_100 -> step_200 +stale-tracker
        put latest_checkpoint.txt {200,the best so far} -> step_200 +bad-tracker
    # It names the model of several files, or any file of a save.
    averages
        put latest_checkpoint.txt model_100.pt -> ema_200.pt +stale-tracker
        put latest_checkpoint.txt model_200.pt -> ema_200.pt
    last
        put latest_checkpoint.txt model_100.pt -> model_200.pt +stale-tracker
        put latest_checkpoint.txt model_200.pt -> model_200.pt
    halves
        put latest_checkpoint.txt {weights,training_state}_30.pt -> weights_30.pt
        put latest_checkpoint.txt {weights,training_state}_20.pt -> weights_30.pt +stale-tracker
        put latest_checkpoint.txt {weights,training_state}_20.pt | resume_from=tracker
            -> weights_20.pt +stale-tracker
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_a_text_names(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


PADDLE_SPEECH = {
    "checkpoint_latest": ("{}.pdparams", "model_checkpoint_path:{}\n"),
    "records.jsonl": (
        "snapshot_iter_{}.pdz",
        '{{"path": "/out/checkpoints/snapshot_iter_{0}.pdz", "iteration": {0}}}\n',
    ),
}


@pytest.mark.parametrize("tracker", PADDLE_SPEECH)
def test_paddlespeech_names_its_latest_save_in_a_list(tracker: str, tmp_path: Path) -> None:
    name, row = PADDLE_SPEECH[tracker]
    held = [pickle.dumps({"w": np.full((3, 4), n, np.float32)}, 2) for n in (1, 2)]
    files = [put(tmp_path / name.format(n), data, n) for n, data in enumerate(held, 1)]
    put(tmp_path / tracker, row.format(2))
    assert not plan(str(tmp_path)).rejected
    put(tmp_path / tracker, row.format(2) + row.format(3))
    made = plan(str(tmp_path))
    assert made.resume.path == str(files[1])
    assert [f.code for r in made.rejected for f in r.findings] == ["missing-part"]
    for path in files:
        path.unlink()
    with pytest.raises(NoneUsable):
        plan(str(tmp_path), Selection(allow_none=True))
    for other in (b"", b"{}", b'{"path": 7, "iteration": 1}', b"\xff" * 9, b"[" * 100_000):
        put(tmp_path / tracker, other)
        assert plan(str(tmp_path), Selection(allow_none=True)).checkpoint is None
