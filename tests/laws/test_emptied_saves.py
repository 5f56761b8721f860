"""Directories called as saves are, of which nothing else is left: a job does not start older, or from nothing,
without a word.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NotNewest, NotRecognised
from ckpt_tools.model.selection import Selection

FOLDERS = ("step-{:06d}", "checkpoint-{}", "epoch_{}", "ckpt_{}", "global_step{}")
BESIDE = ("model_config.yaml", "vocab.unknown", "components/0-policy/state.tdc")
BYSTANDERS = ("sample.png", "train.log", "losses.csv")


def weights(step: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + bytes([step % 200 + 1, 2, 3, 60]) * 64


def saves(root: Path, folder: str, beside: str) -> list[Path]:
    """Directories of saves: in each a model, and a file of no format beside it."""
    homes = [root / folder.format(n) for n in (100, 200, 300)]
    for n, home in enumerate(homes, start=1):
        (home / beside).parent.mkdir(parents=True)
        (home / beside).write_bytes(b"a: 1\n" if beside.endswith("yaml") else b"\x03\x9a\xb2\x7f" * 99)
        (home / "weights.safetensors").write_bytes(weights(n))
    return homes


@pytest.mark.share(4)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_newest_save_that_lost_its_model_is_among_the_rejected(
    folder: str, beside: str, tmp_path: Path
) -> None:
    older, chosen, newest = saves(tmp_path, folder, beside)
    whole = plan(tmp_path)
    assert whole.checkpoint is not None
    assert whole.checkpoint.path == str(newest)
    assert not whole.rejected
    (older / "weights.safetensors").unlink()
    assert not plan(tmp_path).rejected  # nobody would resume from it
    (newest / "weights.safetensors").unlink()
    made = plan(tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(chosen)
    assert [(r.checkpoint.path, r.findings[0].code) for r in made.rejected] == [(str(newest), "missing-part")]
    assert str(newest) in {f.path for f in verify(tmp_path).findings if f.code == "missing-part"}
    with pytest.raises(NotNewest):
        plan(tmp_path, Selection(no_fallback=True))


@pytest.mark.share(4)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("folder", FOLDERS)
def test_saves_that_lost_all_models_are_no_first_launch(folder: str, beside: str, tmp_path: Path) -> None:
    for home in saves(tmp_path, folder, beside):
        (home / "weights.safetensors").unlink()
    with pytest.raises(NotRecognised, match=folder.partition("{")[0]):
        plan(tmp_path, Selection(allow_none=True))
    assert plan(tmp_path, Selection(allow_fresh=True)).checkpoint is None


def test_a_job_that_died_in_its_first_save_starts_afresh(tmp_path: Path) -> None:
    first, *others = saves(tmp_path, "step_{}", "config.json")
    (first / "weights.safetensors").unlink()
    for home in others:
        shutil.rmtree(home)
    assert plan(tmp_path, Selection(allow_none=True)).checkpoint is None


@pytest.mark.parametrize("beside", BYSTANDERS)
def test_logs_and_pictures_of_steps_are_a_first_launch(beside: str, tmp_path: Path) -> None:
    for home in saves(tmp_path, "step_{}", beside):
        (home / "weights.safetensors").unlink()
        (home / "figures").mkdir()
    assert plan(tmp_path, Selection(allow_none=True)).checkpoint is None


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_evaluated_more_often_than_it_is_saved_has_lost_nothing(folder: str, tmp_path: Path) -> None:
    *_, newest = saves(tmp_path, folder, "metrics.json")
    for n in (150, 250, 350):
        shutil.copytree(newest, tmp_path / folder.format(n))
        (tmp_path / folder.format(n) / "weights.safetensors").unlink()
    assert not plan(tmp_path).rejected
    shutil.rmtree(tmp_path / folder.format(150))
    assert [r.checkpoint.path for r in plan(tmp_path).rejected] == [str(tmp_path / folder.format(350))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_directory_with_nothing_that_lies_in_saves_has_lost_nothing(folder: str, tmp_path: Path) -> None:
    *_, newest = saves(tmp_path, folder, "model_config.yaml")
    later = tmp_path / folder.format(400)
    later.mkdir()
    (later / "sample.png").write_bytes(b"\x89PNG")
    shutil.copytree(tmp_path / folder.format(100), tmp_path / "figures" / folder.format(500))
    (tmp_path / "figures" / folder.format(500) / "weights.safetensors").unlink()
    made = plan(tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(newest)
    assert not made.rejected


def test_a_save_under_way_has_lost_nothing(tmp_path: Path) -> None:
    """Its file has another name until it is done."""
    _, chosen, newest = saves(tmp_path, "step-{:06d}", "model_config.yaml")
    (newest / "weights.safetensors").rename(newest / "weights.safetensors.tmp")
    made = plan(tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(chosen)
    told = [(f.code, f.path) for f in (*made.warnings, *(x for r in made.rejected for x in r.findings))]
    assert {code for code, path in told if str(path).startswith(str(newest))} == {"unfinished-save"}


def emptied(home: Path) -> None:
    for path in home.rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_later_save_without_any_file_is_told(folder: str, tmp_path: Path) -> None:
    """Where old files are deleted and directories stay, or a job died before it wrote the first file."""
    older, chosen, newest = saves(tmp_path, folder, BESIDE[2])
    (tmp_path / "plots").mkdir()
    emptied(older)
    made = plan(tmp_path)
    assert made.checkpoint and made.checkpoint.path == str(newest)
    assert not [f for f in made.warnings if f.path != str(newest)]  # weights alone in a Trainer's directory
    emptied(newest)
    made = plan(tmp_path)
    assert made.checkpoint and made.checkpoint.path == str(chosen)
    assert [(f.path, f.code) for f in made.warnings if f.path != str(chosen)] == [
        (str(newest), "unfinished-save")
    ]
    assert str(newest) in {f.path for f in verify(tmp_path).findings}
    whole = Selection(exclude=(f"{newest.name}/weights.safetensors",))
    shutil.copy2(chosen / "weights.safetensors", newest)
    assert not [f for f in plan(tmp_path, whole).warnings if f.path == str(newest)]


@pytest.mark.parametrize("tree", ["speechbrain/epochs", "ray/train-v2", "elements/kept"])
def test_an_empty_save_of_a_later_date_is_told(tree: str, tmp_path: Path) -> None:
    """Nothing but the date in its name says when it was saved."""
    root = materialise(LAYOUT_TREES / tree / "expected.json", tmp_path)
    chosen = plan(root).checkpoint
    assert chosen is not None
    for path in [p for p in Path(chosen.path).rglob("*") if p.is_file()]:
        path.unlink()
    told = [f"{f.path} {f.message}" for f in plan(root).warnings]
    assert any(os.path.basename(chosen.path) in text for text in told)  # or by a tracker that names it


@pytest.mark.parametrize("called", ["final", "checkpoint-last", "final_model", "last"])
def test_an_empty_last_save_is_told_unless_it_is_older(called: str, tmp_path: Path) -> None:
    """A job was killed in its last save; what a script makes before it trains is none."""
    newest = saves(tmp_path, FOLDERS[0], BESIDE[0])[-1]
    last = tmp_path / called
    last.mkdir()
    made = newest.joinpath("weights.safetensors").stat().st_mtime_ns
    os.utime(last, ns=(made + 1, made + 1))
    assert [(f.code, f.path) for f in plan(tmp_path).warnings] == [("unfinished-save", str(last))]
    os.utime(last, ns=(made - 10**9, made - 10**9))
    assert not plan(tmp_path).warnings


@pytest.mark.parametrize("beside", ["model_config.yaml", "config.json"])
def test_a_last_save_with_nothing_but_texts_of_saves_is_told(beside: str, tmp_path: Path) -> None:
    """What LitGPT's ``final/`` is without its model; a script that writes a page there has lost nothing."""
    homes = saves(tmp_path, FOLDERS[0], "model_config.yaml")
    for home in homes:
        (home / beside).write_text("{}\n")
    newest, last = homes[-1], tmp_path / "final"
    last.mkdir()
    (last / "README.md").write_text("# a model\n")
    assert not plan(tmp_path).warnings
    shutil.copy(newest / beside, last)
    assert [(f.code, f.path) for f in plan(tmp_path).warnings] == [("unfinished-save", str(last))]
    (last / "model.mlmodel").write_bytes(b"\x03\x9a\xb2\x7f" * 99)  # exported, to something else
    assert not plan(tmp_path).warnings


@pytest.mark.parametrize("folder", FOLDERS)
def test_several_saves_without_any_file_are_no_first_launch(folder: str, tmp_path: Path) -> None:
    first, second, third = saves(tmp_path, folder, BESIDE[2])
    for home in (first, second, third):
        emptied(home)
    with pytest.raises(NotRecognised):
        plan(tmp_path, Selection(allow_none=True))
    shutil.rmtree(second)
    shutil.rmtree(third)
    assert plan(tmp_path, Selection(allow_none=True)).checkpoint is None  # it died in its first save


@pytest.mark.parametrize("tree", ["dcp-set/automodel", "dcp-set/lm-engine"])
def test_a_directory_called_as_a_file_is_none(tree: str, tmp_path: Path) -> None:
    """Each save has a directory ``model``, which is also what files are called."""
    root = materialise(LAYOUT_TREES / tree / "expected.json", tmp_path)
    whole = plan(root).checkpoint
    assert whole is not None
    emptied(Path(whole.path))
    for path in (path for path in root.iterdir() if path.is_file()):
        path.unlink()  # the tracker
    made = plan(root)
    assert made.checkpoint is not None
    assert (whole.path, "unfinished-save") in {(f.path, f.code) for f in made.warnings}
    emptied(Path(made.checkpoint.path))
    (Path(made.checkpoint.path) / "config.yaml").write_text("a: 1\n")
    with pytest.raises(NotRecognised):
        plan(root, Selection(allow_none=True))


def test_empty_directories_of_ranks_are_a_first_launch(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / "session" / str(rank)).mkdir(parents=True)
    assert plan(tmp_path, Selection(allow_none=True)).checkpoint is None


@pytest.mark.parametrize("left", [(), ("config.json",)])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_save_that_is_gone_beside_a_model_of_no_step_is_told(
    folder: str, left: tuple[str, ...], tmp_path: Path
) -> None:
    """It may be the model that training began with."""
    (tmp_path / "model.safetensors").write_bytes(weights(1))
    (tmp_path / "config.json").write_text("{}")
    home = tmp_path / folder.format(20)
    home.mkdir()
    (home / "sample.png").write_bytes(b"\x89PNG")
    assert not plan(tmp_path).warnings
    (home / "sample.png").unlink()
    for name in left:
        (home / name).write_text("{}")
    made = plan(tmp_path)
    assert made.checkpoint is not None and made.checkpoint.path == str(tmp_path / "model.safetensors")
    assert [(f.path, f.code) for f in made.warnings] == [(str(home), "unfinished-save")]
    assert (str(home), "unfinished-save") in {(f.path, f.code) for f in verify(tmp_path).findings}
