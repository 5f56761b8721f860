"""Downloads that are not finished: named by what their downloader keeps beside them, or by their own endings,
and never loaded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import tree_of
from safetensors.torch import save
from small_files import tensor
from timed import put

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.guard import seal
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.selection import Selection

CONTROLS = (".aria2", ".lftp-pget-status")
ENDINGS = (".crdownload", ".!qB", ".opdownload", ".part", ".partial", ".incomplete", ".filepart", ".!ut")


def models(tmp_path: Path) -> Path:
    return put(tmp_path / "models/unet/model.safetensors", save({"w": tensor(1)})).parent


@pytest.mark.parametrize("ending", [CONTROLS[0], pytest.param(CONTROLS[1], marks=pytest.mark.slow)])
def test_a_file_beside_which_a_downloader_keeps_its_own_is_broken(ending: str, tmp_path: Path) -> None:
    home = models(tmp_path)
    file = home / "model.safetensors"
    put(home / f"other.safetensors{ending}", bytes(120))  # alone it says nothing
    assert verify(str(home)).verdict is Verdict.OK
    put(home / f"{file.name}{ending}", bytes(120))
    for root in (home.parent, file):
        (report,) = (f.report for f in verify(str(root)).files if f.report.path == str(file))
        (found,) = (f for f in report.findings if f.severity is Severity.ERROR)
        assert report.verdict is Verdict.BROKEN
        assert found.code == "unfinished-save" and f"{file.name}{ending}" in found.message
    listed = [(f.code, f.path) for f in scan(str(home.parent)).findings]
    assert listed == [("unfinished-save", str(file))]
    with pytest.raises(NoneUsable):
        plan(str(home))


def test_what_is_being_downloaded_is_not_sealed(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/trainer", tmp_path)
    put(root / "checkpoint-20/model.safetensors.aria2", bytes(120))
    states = {Path(one.path).name: one.state for one in seal(str(root), settle=0).checkpoints}
    assert states == {"checkpoint-15": "sealed", "checkpoint-20": "unfinished"}


def test_a_file_with_such_an_ending_is_named(tmp_path: Path) -> None:
    home = models(tmp_path)
    begun = [put(home / f"depth.safetensors{ending}", save({"w": tensor(1)})) for ending in ENDINGS]
    for found in (verify(str(home)).findings, scan(str(home)).findings):
        assert sorted((f.code, f.path) for f in found) == sorted(("unfinished-save", str(p)) for p in begun)


def test_a_whole_download_is_not_to_be_renamed(tmp_path: Path) -> None:
    """It may have been given its size before its bytes."""
    home = models(tmp_path)
    (home / "model.safetensors").rename(home / "model.safetensors.!qB")
    with pytest.raises(CkptError) as asked:
        plan(str(home), Selection(allow_none=True))
    assert "finish the download" in str(asked.value.hint) and "rename" not in str(asked.value.hint)
