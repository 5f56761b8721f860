"""ESPnet: which file is all of a state, and which are weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import errors
from ckpt_tools.api import plan

CASE = LAYOUT_TREES / "espnet/epochs/expected.json"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return materialise(CASE, tmp_path) / "exp"


def test_no_flipped_bit_leads_to_the_weights(out: Path) -> None:
    data = bytearray((out / "checkpoint.pth").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "checkpoint.pth").write_bytes(data)
    with pytest.raises(errors.NoneUsable) as caught:
        plan(str(out))
    assert "crc-mismatch" in str(caught.value)


def test_a_state_of_its_own_beside_no_weights_is_a_bare_file(out: Path, tmp_path: Path) -> None:
    home = tmp_path / "other"
    home.mkdir()
    shutil.copy2(out / "checkpoint.pth", home)
    made = plan(str(home))
    assert made.checkpoint is not None
    assert (made.checkpoint.layout, made.checkpoint.epoch) == ("files", 4)


def test_weights_that_are_named_are_asked_for(out: Path) -> None:
    made = plan(str(out / "3epoch.pth"))
    assert [Path(f.path).name for f in made.shared] == ["3epoch.pth"]


def test_an_average_without_a_trace_of_training_is_an_export(out: Path, tmp_path: Path) -> None:
    home = tmp_path / "zoo"
    home.mkdir()
    shutil.copy2(out / "valid.loss.ave_2best.pth", home)
    made = plan(str(home))
    assert made.checkpoint is not None
    assert (made.checkpoint.layout, made.checkpoint.kind) == ("espnet", "release")


def test_a_loop_that_saves_all_of_its_state_under_such_names_goes_on(out: Path, tmp_path: Path) -> None:
    home = tmp_path / "own"
    home.mkdir()
    shutil.copy2(out / "checkpoint.pth", home / "4epoch.pth")
    made = plan(str(home))
    assert made.checkpoint is not None
    assert (made.checkpoint.layout, made.checkpoint.kind, made.checkpoint.epoch) == ("files", "periodic", 4)
