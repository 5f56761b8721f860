"""Saves that never finished beside the checkpoint that a plan chooses: what the plan, its story and its JSON
say about them. On real files.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import run_helpers
from fixture_trees import tree_of
from in_process import executed
from safetensors.torch import save as safetensors_save
from small_files import dcp, megatron, tensor
from timed import put
from told_trees import change

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError, NoneUsable, NotRecognised
from ckpt_tools.guard import seal
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.selection import Selection


def save(root: Path, step: int, at: float, *, whole: bool = True) -> None:
    """A checkpoint as torch.distributed.checkpoint leaves it; without its .metadata the save was cut off."""
    for name, data in dcp(step).items():
        if whole or name != ".metadata":
            put(root / f"step-{step}" / name, data, at)


def said(findings: Sequence[Finding], root: Path) -> list[tuple[str, str]]:
    return [(f.message, os.path.relpath(f.path, root)) for f in findings if f.code == "unfinished-save"]


def beyond(step: int) -> tuple[str, str]:
    why = "is newer than the choice, but has no metadata file, which is written last"
    return f"the checkpoint of step {step} {why}", f"step-{step}"


@pytest.mark.slow
def test_many_are_counted(tmp_path: Path) -> None:
    save(tmp_path, 10, 0)
    for step in range(20, 100, 10):
        save(tmp_path, step, step, whole=False)
    rest = ("3 more saves like these never finished: step {20, 30, 40}", ".")
    told = said(plan(str(tmp_path)).warnings, tmp_path)
    assert told == [*map(beyond, (90, 80, 70, 60, 50)), rest]


@pytest.mark.slow
def test_a_failure_names_all_of_them(tmp_path: Path) -> None:
    for at, step in enumerate((10, 20, 30)):
        save(tmp_path, step, at, whole=step == 20)
    change(tmp_path, "cut step-20/__0_0.distcp")
    texts = [f"the checkpoint of step {n} has no metadata file, which is written last" for n in (30, 10)]
    with pytest.raises(NoneUsable) as caught:
        plan(str(tmp_path))
    assert caught.value.plan is not None
    assert said(caught.value.plan.warnings, tmp_path) == [*zip(texts, ("step-30", "step-10"), strict=True)]
    code, out, _ = executed(["plan", str(tmp_path), "--json"])
    told = [f["message"] for f in json.loads(out)["warnings"] if f["code"] == "unfinished-save"]
    assert (code, told) == (4, texts)
    assert f": step-30\n  {texts[0]} [unfinished-save" in executed(["plan", str(tmp_path), "--explain"])[1]


# -- saves that may still be written -------------------------------------------------------------------------


def written_now(root: Path, ranks: int, step: int = 30) -> None:
    """A save under way: some ranks' files of a job of four are there, the last one only begun."""
    for rank in range(ranks):
        path = root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt"
        put(path, megatron(step, rank, 4, 1, 4)[: 200 if rank == ranks - 1 else None], time.time())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_save_of_seconds_ago_is_said_to_look_unfinished(ranks: int, tmp_path: Path) -> None:
    run_helpers.megatron(tmp_path, (10, 20), world=4)
    written_now(tmp_path, ranks)
    made = plan(str(tmp_path), Selection(settle=1e9))
    ((text, where),) = said(made.warnings, tmp_path)
    expected = rf"the checkpoint of step 30 looks unfinished: {ranks} files?, the last written \d+ s ago"
    assert re.fullmatch(expected, text) and (made.resume_step, where) == (20, "iter_0000030")
    assert said(plan(str(tmp_path), Selection(settle=0)).warnings, tmp_path) == []  # long ago
    code, _, err = executed(["latest", str(tmp_path), "--rank", "0", "--settle", "99d"])
    assert code == 0 and re.search(f"unfinished-save: {expected}\n", err)
    if ranks == 4:  # what is damaged otherwise does not look so
        put(tmp_path / "iter_0000030/mp_rank_00/model_optim_rng.pt", b"\0" * 64 + b"else", 0)
        assert said(plan(str(tmp_path), Selection(settle=1e9)).warnings, tmp_path) == []


def test_a_save_without_its_commit_says_how_far_it_is(tmp_path: Path) -> None:
    save(tmp_path, 10, 0)
    save(tmp_path, 20, time.time(), whole=False)
    ((text, _),) = said(plan(str(tmp_path), Selection(settle=1e9)).warnings, tmp_path)
    far = r": 2 files, the last written \d+ s ago"
    assert re.fullmatch(beyond(20)[0] + far, text)
    (tmp_path / "step-10/.metadata").unlink()
    with pytest.raises(NotRecognised) as caught:
        plan(str(tmp_path), Selection(settle=1e9))
    assert caught.value.plan is not None
    told = said(caught.value.plan.warnings, tmp_path)
    assert any(re.search(f"written last{far}", text) for text, _ in told)


# --- Downloads that are not finished: named by what their downloader keeps beside them, or by their own
# endings, and never loaded.


CONTROLS = (".aria2", ".lftp-pget-status")
ENDINGS = (".crdownload", ".!qB", ".opdownload", ".part", ".partial", ".incomplete", ".filepart", ".!ut")


def models(tmp_path: Path) -> Path:
    return put(tmp_path / "models/unet/model.safetensors", safetensors_save({"w": tensor(1)})).parent


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
    begun = [
        put(home / f"depth.safetensors{ending}", safetensors_save({"w": tensor(1)})) for ending in ENDINGS
    ]
    for found in (verify(str(home)).findings, scan(str(home)).findings):
        assert sorted((f.code, f.path) for f in found) == sorted(("unfinished-save", str(p)) for p in begun)


def test_a_whole_download_is_not_to_be_renamed(tmp_path: Path) -> None:
    """It may have been given its size before its bytes."""
    home = models(tmp_path)
    (home / "model.safetensors").rename(home / "model.safetensors.!qB")
    with pytest.raises(CkptError) as asked:
        plan(str(home), Selection(allow_none=True))
    assert "finish the download" in str(asked.value.hint) and "rename" not in str(asked.value.hint)
