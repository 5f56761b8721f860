"""Files of Keras' ModelCheckpoint, whatever its user calls them: the fixture's own files under other names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import tree_of
from places import LAYOUT_TREES
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan, show, verify
from ckpt_tools.model.finding import Verdict

TREES = table(
    """
    keras/callback slow
        # Whatever its user calls it.
        only model-02.keras; mv model-02.keras checkpoint.model.keras -> checkpoint.model.keras => ok
        then cut checkpoint.model.keras -> exit 4 choice/none-usable -truncated
        only cp-0002.weights.h5; mv cp-0002.weights.h5 ckpt.weights.h5 -> ckpt.weights.h5 => ok
        then empty ckpt.weights.h5 -> exit 4 choice/none-usable -empty-file
        only model-0*; mv model-01.keras best.keras; mv model-02.keras last.keras -> last.keras => ok
        then cut last.keras -> best.keras -truncated
        only model-0*; mv model-01.keras weights.1-0.53.keras; mv model-02.keras weights.2-0.22.keras
            -> weights.2-0.22.keras => ok
        then cut weights.2-0.22.keras -> weights.1-0.53.keras -truncated
        then empty weights.2-0.22.keras -> weights.1-0.53.keras -empty-file
        only cp-*; mv cp-0001.weights.h5 model_9_12.5.weights.h5;
            mv cp-0002.weights.h5 model_10_val0.2217.weights.h5 -> model_10_val0.2217.weights.h5 => ok
        then cut model_10_val0.2217.weights.h5 -> model_9_12.5.weights.h5 -truncated
        only cp-*; mv cp-0001.weights.h5 model_1.h5; mv cp-0002.weights.h5 model_2.h5 -> model_2.h5 => ok
        then cut model_2.h5 -> model_1.h5 -truncated
        only cp-*; mv cp-0001.weights.h5 weights.01-3.71.hdf5; mv cp-0002.weights.h5 weights.02-3.70.hdf5
            -> weights.02-3.70.hdf5 => ok
        then cut weights.02-3.70.hdf5 -> weights.01-3.71.hdf5 -truncated
        # Keras numbers shards from 0, epochs from 1; the index of shards is written last.
        only cp-*; mv cp-0001.weights.h5 model_00001.weights.h5; mv cp-0002.weights.h5 model_00002.weights.h5
            -> model_00002.weights.h5
        only cp-*; mv cp-0001.weights.h5 model_00000.weights.h5; mv cp-0002.weights.h5 model_00001.weights.h5
            -> exit 4 choice/none-usable -missing-part
        # Models kept beside a directory of backups.
        only model-0*; cp //keras-backup/one/tree backup; at backup 60 -> backup
        only model-0*; cp //keras-backup/one/tree backup; at backup -30 -> exit 2 tree/several-runs
        only model-0*; mv model-01.keras models/model-01.keras; mv model-02.keras models/model-02.keras;
            cp //keras-backup/one/tree backup; at backup 60 -> backup
        only model-0*; mv model-01.keras models/model-01.keras; mv model-02.keras models/model-02.keras;
            cp //keras-backup/one/tree backup; at backup -30 -> exit 2 tree/several-runs
    keras/batches
        # A file of the epoch that tells no batch is that of its end.
        cp ckpt-03-0002.weights.h5 ckpt-03-0008_b.weights.h5; at ckpt-03-0008_b.weights.h5 {0,1}
            -> ckpt-03-0008_b.weights.h5
    keras-shards/named slow
        as it is -> cp-03
        rm cp-03{.weights.json,_00000.weights.h5,_00001.weights.h5,_00002.weights.h5}
            -> cp-02 -missing-part => broken missing-part
        cp cp-0{1,2}.weights.json cp-03.weights.json -> cp-02 -missing-part => broken missing-part
        cp cp-0{1,2}_00000.weights.h5 cp-03_00000.weights.h5
            -> exit 2 pair/same-content => broken same-content
        cp cp-0{1,2}_00001.weights.h5 cp-03_00001.weights.h5
            -> exit 2 pair/same-content => broken same-content
        cp cp-0{1,2}_00002.weights.h5 cp-03_00002.weights.h5
            -> exit 2 pair/same-content => broken same-content
    keras-backup/double
        # States of ModelCheckpoint in the directory of a backup.
        rm *.bkp; cp //keras-backup/double/tree/latest.weights.h5{.bkp,} m-1.weights.h5
            -> exit 2 choice/unplaced-newer
        rm *.bkp; cp latest.weights.h5 m-rank1.weights.h5 -> exit 2 choice/unplaced-newer
        # What was the latest before is older whatever its times are.
        at *.bkp {-1,0,1} -> loads latest.weights.h5 training_metadata.json
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_files_of_keras(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


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
