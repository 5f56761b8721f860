"""Files of Keras' ModelCheckpoint, whatever its user calls them: the fixture's own files under other names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from places import LAYOUT_TREES

from ckpt_tools.api import plan, show, verify
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.finding import Verdict

SAVED = LAYOUT_TREES / "keras/callback/tree"
MODELS = ("model-01.keras", "model-02.keras")
WEIGHTS = ("cp-0001.weights.h5", "cp-0002.weights.h5")
NAMED = [
    ("checkpoint.model.keras",),
    ("ckpt.weights.h5",),
    ("best.keras", "last.keras"),
    ("model_1.keras", "model_2.keras"),
    ("weights.1-0.53.keras", "weights.2-0.22.keras"),
    ("model_9_12.5.weights.h5", "model_10_val0.2217.weights.h5"),
    ("01-3.206.weights.h5", "02-3.202.weights.h5"),
    ("model_1.h5", "model_2.h5"),
    ("weights.01-3.71.hdf5", "weights.02-3.70.hdf5"),
]
"""What it is called, the newest last."""


def saved(root: Path, names: tuple[str, ...]) -> list[Path]:
    kept = [root / name for name in names]
    of = MODELS if names[0].lower().endswith(".keras") else WEIGHTS
    for n, (path, source) in enumerate(zip(kept, of[-len(kept) :], strict=True)):
        path.write_bytes((SAVED / source).read_bytes())
        os.utime(path, (1_735_700_000 + 60 * n,) * 2)
    return kept


@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("names", NAMED, ids=" ".join)
@pytest.mark.parametrize("left", [None, 0.5, 0], ids=["whole", "cut", "empty"])
def test_the_newest_is_chosen_whatever_it_is_called(
    names: tuple[str, ...], left: float | None, tmp_path: Path
) -> None:
    *older, newest = saved(tmp_path, names)
    if left is None:
        assert plan(tmp_path).resume.path == str(newest)
        assert verify(tmp_path).verdict is Verdict.OK
        return
    at = newest.stat().st_mtime_ns
    newest.write_bytes(newest.read_bytes()[: int(newest.stat().st_size * left)])
    os.utime(newest, ns=(at, at))
    if not older:
        with pytest.raises(NoneUsable):
            plan(tmp_path)
        return
    made = plan(tmp_path)
    assert made.resume.path == str(older[-1])
    assert [r.checkpoint.path for r in made.rejected] == [str(newest)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_shard_of_weights_is_no_epoch(first: int, tmp_path: Path) -> None:
    """Keras numbers shards from 0, epochs from 1; the index of shards is written last."""
    *_, newest = saved(tmp_path, (f"model_{first:05d}.weights.h5", f"model_{first + 1:05d}.weights.h5"))
    if first:
        assert plan(tmp_path).resume.path == str(newest)
    else:
        with pytest.raises(NoneUsable, match="missing-part"):
            plan(tmp_path)


BATCHES = LAYOUT_TREES / "keras/batches/tree"
LATEST, BESIDE = "ckpt-03-0008.weights.h5", "ckpt-03-0008_b.weights.h5"


@pytest.mark.parametrize("later", [1, 0], ids=["later", "at the same time"])
def test_a_file_of_the_epoch_that_tells_no_batch_is_that_of_its_end(later: int, tmp_path: Path) -> None:
    at = 1_735_700_000_000_000_000
    for n, path in enumerate(sorted(BATCHES.iterdir())):
        shutil.copy(path, tmp_path)
        os.utime(tmp_path / path.name, ns=(at + n * 10**11,) * 2)
    at = (tmp_path / LATEST).stat().st_mtime_ns
    (tmp_path / BESIDE).write_bytes((BATCHES / "ckpt-03-0002.weights.h5").read_bytes())
    os.utime(tmp_path / BESIDE, ns=(at + later,) * 2)
    made = plan(tmp_path)
    assert made.checkpoint is not None and made.checkpoint.path == str(tmp_path / BESIDE)


SHARDS = LAYOUT_TREES / "keras-shards/named/tree"
OF_A_SET = ["{}.weights.json", *(f"{{}}_{n:05d}.weights.h5" for n in range(3))]


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("name", OF_A_SET)
@pytest.mark.parametrize("put", ["nothing", "cp-02", "cp-01"])
def test_a_set_of_shards_is_whole_and_of_one_epoch(name: str, put: str, tmp_path: Path) -> None:
    """A file that is gone, or the one of another epoch, is never loaded with the rest, nor without a word."""
    for n, path in enumerate(sorted(SHARDS.iterdir())):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        os.utime(copy, (1_735_700_000 + n,) * 2)
    assert plan(tmp_path).resume.path == str(tmp_path / "cp-03.weights.json")
    changed = tmp_path / name.format("cp-03")
    at = changed.stat().st_mtime_ns
    changed.unlink()
    if put != "nothing":
        changed.write_bytes((tmp_path / name.format(put)).read_bytes())
        os.utime(changed, ns=(at, at))
    assert verify(tmp_path).verdict is Verdict.BROKEN
    try:
        made = plan(tmp_path)
    except UsageError:  # which of two equal files is the copy?
        assert put != "nothing"
        return
    assert made.resume.path == str(tmp_path / "cp-02.weights.json")
    assert [r.checkpoint.epoch for r in made.rejected] == [3]


@pytest.mark.slow
@pytest.mark.parametrize("called", ["w_", "cp-", "net.epoch_"])
def test_a_set_of_shards_may_count_in_one_digit(called: str, tmp_path: Path) -> None:
    """A file is called after the number of the epoch, as it is in Keras' own examples: it was a run."""
    for path in SHARDS.iterdir():
        copy, data = tmp_path / path.name.replace("cp-0", called), path.read_bytes()
        copy.write_bytes(data.replace(b"cp-0", called.encode()) if path.suffix == ".json" else data)
        os.utime(copy, (1_735_700_000 + int(path.name[4]),) * 2)
    made = plan(tmp_path)
    assert made.resume.path == str(tmp_path / f"{called}3.weights.json")
    (tmp_path / f"{called}3_00001.weights.h5").unlink()
    assert plan(tmp_path).resume.path == str(tmp_path / f"{called}2.weights.json")


def test_an_index_of_shards_is_no_index_of_safetensors() -> None:
    """Both begin alike."""
    report, _ = show(SHARDS / "cp-03.weights.json")
    assert (report.format, report.verdict) == ("keras_shards", Verdict.OK)


@pytest.mark.parametrize(
    ("name", "backup", "beside"),
    [
        ("m-1.weights.h5", "", ".bkp"),
        ("m-1.weights.h5", "", ""),
        ("m-rank1.weights.h5", "", ""),
        ("m-1.weights.h5", ".bkp", ""),
    ],
    ids=["older", "of the same step", "a part of the same step", "later"],
)
def test_states_of_model_checkpoint_in_the_directory_of_a_backup_are_a_question(
    name: str, backup: str, beside: str, tmp_path: Path
) -> None:
    backups = LAYOUT_TREES / "keras-backup/double/tree"
    files = {
        "latest.weights.h5": f"latest.weights.h5{backup}",
        "training_metadata.json": f"training_metadata.json{backup}",
        name: f"latest.weights.h5{beside}",
    }
    for n, (to, source) in enumerate(files.items()):
        (tmp_path / to).write_bytes((backups / source).read_bytes())
        os.utime(tmp_path / to, (1_735_700_000 + n,) * 2)
    with pytest.raises(UsageError, match=name.partition(".")[0]):
        plan(tmp_path)


@pytest.mark.parametrize("place", ["", "models"])
@pytest.mark.parametrize("late", [False, True])
def test_models_kept_beside_a_directory_of_backups_are_a_question_only_if_they_are_later(
    place: str, late: bool, tmp_path: Path
) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    saved(tmp_path / place, MODELS)
    shutil.copytree(LAYOUT_TREES / "keras-backup/one/tree", tmp_path / "backup")
    for path in (tmp_path / "backup").iterdir():
        os.utime(path, (1_735_700_000 + (30 if late else 90),) * 2)
    if late:
        with pytest.raises(UsageError, match="several runs"):
            plan(tmp_path)
    else:
        assert plan(tmp_path).resume.path == str(tmp_path / "backup")


@pytest.mark.parametrize("later", [-1, 0, 1])
def test_what_was_the_latest_before_is_older_whatever_its_times_are(later: int, tmp_path: Path) -> None:
    """As a copy leaves them that keeps no times."""
    root = Path(shutil.copytree(LAYOUT_TREES / "keras-backup/double/tree", tmp_path / "run"))
    for path in root.rglob("*"):
        at = 1_760_000_000 + (later if path.suffix == ".bkp" else 0)
        os.utime(path, (at, at))
    made = plan(str(root))
    assert made.checkpoint is not None
    assert all(p.name != "latest.weights.h5.bkp" for p in made.checkpoint.parts)


@pytest.mark.parametrize("ms", [-400, 50, 400, 1900])
def test_an_epoch_of_less_than_two_seconds_from_before_its_weights(ms: int, tmp_path: Path) -> None:
    """Where times are exact, a copy of such small files takes less."""
    root = Path(shutil.copytree(LAYOUT_TREES / "keras-backup/one/tree", tmp_path / "run"))
    at = 1_760_000_000_123_456_789
    os.utime(root / "training_metadata.json", ns=(at, at))
    os.utime(root / "latest.weights.h5", ns=(at + ms * 10**6,) * 2)
    assert [f.code for f in plan(str(root)).warnings] == (["epoch-mismatch"] if ms > 250 else [])


@pytest.mark.parametrize("apart", [-1, 1, 60])
def test_an_epoch_from_before_its_weights_is_that_of_an_earlier_save(apart: int, tmp_path: Path) -> None:
    """As a job leaves it that is killed between the two: Keras would train that epoch once more."""
    root = Path(shutil.copytree(LAYOUT_TREES / "keras-backup/one/tree", tmp_path / "run"))
    os.utime(root / "training_metadata.json", (1_760_000_000,) * 2)
    os.utime(root / "latest.weights.h5", (1_760_000_000 + apart,) * 2)
    warned = ["epoch-mismatch"] if apart == 60 else []
    assert [f.code for f in plan(str(root)).warnings if f.code == "epoch-mismatch"] == warned
    assert verify(str(root)).verdict is (Verdict.SUSPECT if warned else Verdict.OK)
