"""Files of Keras' ModelCheckpoint, whatever its user calls them: the fixture's own files under other names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import tree_of
from places import LAYOUT_TREES
from timed import put

from ckpt_tools.api import plan, show, verify
from ckpt_tools.model.finding import Verdict

SHARDS = LAYOUT_TREES / "keras-shards/named/tree"


@pytest.mark.slow
@pytest.mark.parametrize("called", ["cp-", "net.epoch_"])
def test_a_set_of_shards_may_count_in_one_digit(called: str, tmp_path: Path) -> None:
    """A file is called after the number of the epoch, as it is in Keras' own examples: it was a run."""
    for path in SHARDS.iterdir():
        data, json = path.read_bytes(), path.suffix == ".json"
        data = data.replace(b"cp-0", called.encode()) if json else data
        put(tmp_path / path.name.replace("cp-0", called), data, int(path.name[4]))
    assert plan(tmp_path).resume.path == str(tmp_path / f"{called}3.weights.json")
    (tmp_path / f"{called}3_00001.weights.h5").unlink()
    assert plan(tmp_path).resume.path == str(tmp_path / f"{called}2.weights.json")


def test_an_index_of_shards_is_no_index_of_safetensors() -> None:
    """Both begin alike."""
    report, _ = show(SHARDS / "cp-03.weights.json")
    assert (report.format, report.verdict) == ("keras_shards", Verdict.OK)


@pytest.mark.parametrize("ms", [-1000, 50, 400, 60_000])
def test_an_epoch_from_before_its_weights_is_that_of_an_earlier_save(ms: int, tmp_path: Path) -> None:
    """As a job leaves it that is killed between the two: Keras would train that epoch once more. Where times are
    exact, a copy of such small files takes less.
    """
    root, at = tree_of("keras-backup/one", tmp_path), 1_760_000_000_123_456_789
    os.utime(root / "training_metadata.json", ns=(at, at))
    os.utime(root / "latest.weights.h5", ns=(at + ms * 10**6,) * 2)
    warned = ["epoch-mismatch"] if ms > 250 else []
    assert [f.code for f in plan(str(root)).warnings] == warned
    assert verify(str(root)).verdict is (Verdict.SUSPECT if warned else Verdict.OK)
