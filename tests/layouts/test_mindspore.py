"""MindSpore files that a training loop calls as it likes, and that count nothing inside."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from fixture_trees import overwrite, tree_of
from mindspore_writer import record
from small_files import mindspore
from timed import put

from ckpt_tools import Selection, plan, verify

START = 1_760_000_000


def saved(root: Path, home: str, steps: Sequence[int]) -> None:
    """One after the other, in one directory or in those of two ranks."""
    for i, step in enumerate(steps):
        for rank in range(2 if home else 1):
            path = root / (home and f"rank_{rank}") / f"model_{step}.ckpt"
            put(
                path, record("weight", (4,), "Float32", struct.pack("<4f", *[step / 7 + rank] * 4)), START + i
            )


@pytest.mark.parametrize("steps", [(9, 10), (998, 999, 1000)])
@pytest.mark.parametrize("home", ["", "rank"])
def test_no_older_step_is_the_newest_after_a_copy_in_the_order_of_names(
    home: str, steps: tuple[int, ...], tmp_path: Path
) -> None:
    """``cp -r`` writes model_10.ckpt before model_9.ckpt."""
    saved(tmp_path, home, sorted(steps, key=str))
    made = plan(str(tmp_path))
    assert made.resume_step == max(steps) and "mtime-not-kept" in {f.code for f in made.warnings}
    saved(tmp_path, home, steps)
    assert plan(str(tmp_path)).resume_step == max(steps)


@pytest.mark.parametrize("later", ["train_resume.ckpt", "unet-3.ckpt", "unet-2.ckpt"])
@pytest.mark.parametrize("home", ["", "rank"])
def test_weights_beside_a_state_are_an_export(home: str, later: str, tmp_path: Path) -> None:
    """MindOne writes both; ``cp -r`` writes them in any order, and weights alone lose the optimizer."""
    saved(tmp_path, home, [2, 3])
    for path in list(tmp_path.rglob("model_*.ckpt")):
        weights = path.rename(path.with_name(path.name.replace("model_", "unet-")))
        state = weights.read_bytes() + record("adam_m.weight", (4,), "Float32", bytes(range(16)))
        state += record("global_step", (1,), "Int32", struct.pack("<i", 30))
        (path.parent / "train_resume.ckpt").write_bytes(state)
    for path in tmp_path.rglob("*.ckpt"):
        os.utime(path, (START, START + 10 * (path.name == later)))
    chosen = plan(str(tmp_path)).checkpoint
    assert chosen and {p.name for p in chosen.parts} == {"train_resume.ckpt"}


def test_other_weights_are_none_of_it(tmp_path: Path) -> None:
    """A state of another model says nothing about them."""
    saved(tmp_path, "", [2, 3])
    state = record("bias", (4,), "Float32", bytes(16)) + record("global_step", (1,), "Int32", bytes(4))
    put(tmp_path / "train_resume.ckpt", state, START - 100)
    chosen = plan(str(tmp_path)).checkpoint
    assert chosen and chosen.parts[0].name == "model_3.ckpt"


def mindformers(root: Path, kept: str, restarted: bool) -> None:
    """Two ranks' saves of steps 2 and 4, and the weights alone beside each. ``restarted`` between the two."""
    for i, (step, rank) in enumerate((step, rank) for step in (2, 4) for rank in (0, 1)):
        prefix = f"llama_rank_{rank}" + "_1" * (restarted and step == 4)
        weights = record("weight", (4,), "Float32", struct.pack("<4f", *[step / 7 + rank] * 4))
        state = weights + record("step_num", (), "Int64", struct.pack("<q", step))
        for home, word, data in (("checkpoint", "", state), (f"checkpoint_{kept[:9]}", f"-{kept}", weights)):
            put(root / home / f"rank_{rank}" / f"{prefix}{word}-1_{step}.ckpt", data, START + i)


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_mindformers_saves_are_one_run_and_its_weights_are_exports(restarted: bool, tmp_path: Path) -> None:
    """The prefix holds the rank and the restarts; ``checkpoint_network`` was asked about (exit 2)."""
    mindformers(tmp_path, "network" if restarted else "trainable_params", restarted)
    made = plan(str(tmp_path))
    assert (made.resume_step, made.world_size, made.rejected) == (4, 2, ())
    assert made.checkpoint and made.checkpoint.path == str(tmp_path / "checkpoint")
    (tmp_path / "checkpoint/rank_1" / f"llama_rank_1{'_1' * restarted}-1_4.ckpt").unlink()
    assert plan(str(tmp_path)).resume_step == 2


def test_no_restarts_are_mixed_where_only_ranks_are_numbered(tmp_path: Path) -> None:
    mindformers(tmp_path, "network", restarted=False)
    assert "generation-mismatch" not in {f.code for f in verify([str(tmp_path)]).findings}


def borders(data: bytes) -> list[int]:
    """Where the records of a file end: Checkpoint messages of 0x0A, a varint length and the record."""
    ends, at = list[int](), 0
    while at < len(data):
        size, shift, i = 0, 0, at + 1
        while True:
            size |= (data[i] & 0x7F) << shift
            shift, i = shift + 7, i + 1
            if data[i - 1] < 0x80:
                break
        at = i + size
        ends.append(at)
    return ends


def changed(root: Path) -> bool:
    seen = verify([str(root)])
    return "signature-changed" in {f.code for row in seen.files for f in row.report.findings if f.severity}


@pytest.mark.slow
def test_a_file_cut_at_any_border_of_records_shows_against_its_siblings(tmp_path: Path) -> None:
    """No byte of it is wrong, with or without a CRC trailer: only the other files of its rank can tell."""
    root = tree_of("mindspore/flat", tmp_path)
    newest = root / "resnet-2_5.ckpt"
    whole = newest.read_bytes()
    for border in borders(whole)[:-1]:
        overwrite(newest, whole[:border], 0)
        assert changed(root), border
        made = plan(str(root))
        assert made.checkpoint is not None and made.checkpoint.step_in_epoch == 4


def test_a_lost_crc_trailer_shows_against_its_siblings(tmp_path: Path) -> None:
    for step in range(1, 5):
        data = mindspore(True, 0, epoch_num=1, step_num=step)
        put(tmp_path / f"net-1_{step}.ckpt", data, START + step)
    assert not changed(tmp_path)
    put(tmp_path / "net-1_4.ckpt", data[:-17], START + 4)
    assert changed(tmp_path)


def test_a_replica_group_shows_a_file_cut_between_two_records(tmp_path: Path) -> None:
    """Alone of its step and rank, and whole in itself: nothing else can show it."""
    whole = mindspore(False, 0, step_num=10)
    cut = whole[: borders(whole)[-2]]

    def sources(*files: bytes, **asked: bool) -> list[int | None]:
        for rank, data in enumerate(files):
            put(tmp_path / f"rank_{rank}/net-1_10.ckpt", data, START)
        return [r.files[0].source_rank for r in plan(str(tmp_path), Selection(**asked)).by_rank]

    assert sources(whole, cut) == [0, 1]
    assert sources(whole, cut, replicas_all=True) == [0, 0]
    assert sources(cut, cut, replicas_all=True) == [0, 1]  # now they agree, and nobody knows
