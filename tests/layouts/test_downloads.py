"""Downloads that are not finished: named by what their downloader keeps beside them, or by their own endings,
and never loaded.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from safetensors.torch import save
from small_files import tensor

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.guard import seal
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.selection import Selection

CONTROLS = (".aria2", ".lftp-pget-status")
ENDINGS = (".crdownload", ".!qB", ".opdownload", ".part", ".partial", ".incomplete", ".filepart", ".!ut")


def models(tmp_path: Path) -> Path:
    home = tmp_path / "models/unet"
    home.mkdir(parents=True)
    (home / "model.safetensors").write_bytes(save({"w": tensor(1)}))
    return home


@pytest.mark.parametrize("ending", [CONTROLS[0], pytest.param(CONTROLS[1], marks=pytest.mark.slow)])
def test_a_file_beside_which_a_downloader_keeps_its_own_is_broken(ending: str, tmp_path: Path) -> None:
    file = models(tmp_path) / "model.safetensors"
    assert verify(str(file.parent)).verdict is Verdict.OK
    (file.parent / f"{file.name}{ending}").write_bytes(bytes(120))
    for root in (file.parent.parent, file):
        (report,) = (f.report for f in verify(str(root)).files if f.report.path == str(file))
        assert report.verdict is Verdict.BROKEN
        (found,) = (f for f in report.findings if f.severity is Severity.ERROR)
        assert found.code == "unfinished-save" and f"{file.name}{ending}" in found.message
    (listed,) = scan(str(file.parent.parent)).findings
    assert (listed.code, listed.path) == ("unfinished-save", str(file))
    with pytest.raises(NoneUsable):
        plan(str(file.parent))


def test_a_control_file_alone_says_nothing(tmp_path: Path) -> None:
    home = models(tmp_path)
    (home / "other.safetensors.aria2").write_bytes(bytes(120))
    assert verify(str(home)).verdict is Verdict.OK


def test_what_is_being_downloaded_is_not_sealed(tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "hf-trainer/trainer/expected.json", tmp_path)
    (root / "checkpoint-20/model.safetensors.aria2").write_bytes(bytes(120))
    made = seal(str(root), settle=0)
    assert {Path(one.path).name: one.state for one in made.checkpoints} == {
        "checkpoint-15": "sealed",
        "checkpoint-20": "unfinished",
    }


def test_a_file_with_such_an_ending_is_named(tmp_path: Path) -> None:
    home = models(tmp_path)
    begun = [home / f"depth.safetensors{ending}" for ending in ENDINGS]
    for path in begun:
        shutil.copyfile(home / "model.safetensors", path)
    for found in (verify(str(home)).findings, scan(str(home)).findings):
        assert sorted((f.code, f.path) for f in found) == sorted(("unfinished-save", str(p)) for p in begun)


def test_a_whole_download_is_not_to_be_renamed(tmp_path: Path) -> None:
    """It may have been given its size before its bytes."""
    home = models(tmp_path)
    (home / "model.safetensors").rename(home / "model.safetensors.!qB")
    with pytest.raises(CkptError) as asked:
        plan(str(home), Selection(allow_none=True))
    assert "finish the download" in str(asked.value.hint) and "rename" not in str(asked.value.hint)
