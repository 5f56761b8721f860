"""Directories and names that keep the saves of one run apart: it goes on from the newest whole state of all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
import small_files
import timed
from places import LAYOUT_TREES
from small_files import lightning, saved, tensor
from timed import put

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.selection import Selection


@cache
def fairseq(updates: int, rank: int) -> bytes:
    """What a rank saves with --use-sharded-state."""
    state = {
        "model": {"w": tensor(updates, rank)},
        "optimizer_history": [{"num_updates": updates}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": updates}},
        "last_optimizer_state": {"state": {0: {"exp_avg": tensor(updates, rank, 1)}}},
    }
    return saved(state)


def nemo(home: str) -> Mapping[str, str]:
    return {"10": f"{home}/gpt--val_loss=3.10-step=10.ckpt", "20": f"{home}/gpt--val_loss=2.50-step=20.ckpt"}


RANKS = {
    "NeMo 1": [nemo("mp_rank_00"), nemo("mp_rank_01")],
    "NeMo 1 with a pipeline": [nemo("tp_rank_00_pp_rank_000"), nemo("tp_rank_00_pp_rank_001")],
    "fairseq": [{step: f"checkpoint_1_{step}-shard{rank}.pt" for step in ("10", "20")} for rank in (0, 1)],
    "fairseq with a name alone": [
        {"10": f"checkpoint1-shard{rank}.pt", "20": f"checkpoint_last-shard{rank}.pt"} for rank in (0, 1)
    ],
}
"""The names of each rank's files, by step."""


@pytest.mark.parametrize("which", RANKS)
def test_each_rank_loads_its_own_file_of_the_newest_whole_save(tmp_path: Path, which: str) -> None:
    ranks = [[tmp_path / names[step] for step in ("10", "20")] for names in RANKS[which]]
    for rank, files in enumerate(ranks):
        for step, file in zip((10, 20), files, strict=True):
            put(file, fairseq(step, rank) if which.startswith("fairseq") else lightning(0, step), 600 * step)
    for n in (1, 0):
        by_rank = plan(str(tmp_path)).by_rank
        assert [[file.path for file in rank.files] for rank in by_rank] == [
            [str(files[n])] for files in ranks
        ]
        ranks[1][1].unlink(missing_ok=True)


@cache
def composer(batch: int, rank: int) -> bytes:
    timestamp = {"Timestamp": {"epoch": 0, "batch": batch}}
    return saved({"state": {"model": {"w": tensor(batch, rank)}, "timestamp": timestamp}, "rng": []})


SHARDS = LAYOUT_TREES / "dcp-hf/two/tree/step-10"


def sharded(layout: str, step: int, rank: int) -> tuple[str, bytes]:
    """The name of a rank's file, and what it holds."""
    if layout == "composer":
        return f"ep0-ba{step}-rank{rank}.pt", composer(step, rank)
    file = SHARDS / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= step
    return f"step-{step}/{file.name}", bytes(data)


@pytest.mark.parametrize("layout", ["composer", "dcp-hf"])
@pytest.mark.parametrize("fewer", [False, True])
def test_a_save_without_a_rank_that_others_have_is_passed_over(
    layout: str, fewer: bool, tmp_path: Path
) -> None:
    """Saves of shards that nothing but their names tell from a whole one; as many bytes in one file are that
    of a job which has fewer ranks by now.
    """
    for step in (10, 20, 30):
        for rank in (0, 1):
            name, data = sharded(layout, step, rank)
            more = sharded(layout, step, 1)[1] if step == 30 and rank == 0 and fewer else b""
            file = put(tmp_path / name, data + more, 600 * step)
    file.unlink()
    saves = {c.step: c for c in scan(str(tmp_path)).checkpoints}
    seen = saves.pop(30)
    found = [f.code for f in BUILT_IN[seen.layout].lost(seen, [*saves.values()])]
    assert found == ([] if fewer else ["missing-part"])
    if not fewer:
        chosen = plan(str(tmp_path)).checkpoint
        assert chosen is not None and chosen.step == 20


# --- Prefixes of file names keep runs apart; a number behind one counts restarts only where the run it
# belongs to is there.


def lay_out(root: Path, names: Iterable[str]) -> None:
    """MindSpore files ``<name>-1_<step>.ckpt``, each ten minutes after the one before."""
    for i, name in enumerate(names):
        step = int(name.rpartition("_")[2])
        data = small_files.mindspore(True, i, epoch_num=1, step_num=step)
        timed.put(root / f"{name}.ckpt", data, 600 * i)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["bert-1_10", "bert_1-1_10", "bert_2-1_10"], {("bert", 0), ("bert", 1), ("bert", 2)}),
        (["bert_1-1_10", "bert_2-1_10"], {("bert", 1), ("bert", 2)}),
        (["bert_2-1_10", "bert_2-1_20"], {("bert_2", 0)}),
        (["bert_2-1_10", "bert_3-1_20"], {("bert_2", 0), ("bert_3", 0)}),
        (["bert_2-1_10", "bert_2_1-1_10"], {("bert_2", 0), ("bert_2", 1)}),
        # the rank in the name is none of it
        (["rank_4/net_rank_4-1_10", "rank_5/net_rank_5-1_20"], {("net", 0)}),
    ],
)
def test_a_number_behind_a_prefix_counts_restarts_only_beside_the_first(
    names: list[str], expected: set[tuple[str, int]], tmp_path: Path
) -> None:
    lay_out(tmp_path / "run", names)
    assert {(c.run, c.generation) for c in scan(tmp_path / "run").checkpoints} == expected


def chosen(root: Path, prefix: str) -> str:
    made = plan(str(root), Selection(prefix=prefix, world_size=1))
    assert made.checkpoint is not None
    return os.path.relpath(made.checkpoint.path, root)


@pytest.mark.slow
def test_a_prefix_is_what_file_names_start_with(tmp_path: Path) -> None:
    root = tmp_path / "run"
    lay_out(
        root, ["bert_2-1_10", "bert_2-1_20", "bert_large-1_10", "bert_large-1_30", "gpt-1_10", "gpt_1-1_12"]
    )
    assert chosen(root, "bert_2") == "bert_2-1_20.ckpt"
    assert chosen(root, "bert_large") == chosen(root, "bert_l") == "bert_large-1_30.ckpt"
    assert chosen(root, "gpt") == chosen(root, "gpt_1") == "gpt_1-1_12.ckpt"
    with pytest.raises(UsageError, match=r"bert_2.*bert_large"):
        plan(str(root), Selection(prefix="bert"))
    # so bert_2 is its second restart; the whole prefix of a run goes before a part of another's
    lay_out(root, ["bert-1_40"])
    made = plan(str(root), Selection(prefix="bert", world_size=1, order="step"))
    assert made.checkpoint is not None and made.checkpoint.run == "bert"


@pytest.mark.slow
def test_a_directory_of_rank_1_without_that_of_rank_0_is_said(tmp_path: Path) -> None:
    root, home = str(tmp_path / "out"), str(tmp_path / "out/ckpt_1")

    def told(found: Iterable[Finding]) -> list[tuple[str, Severity]]:
        return [(f.path, f.severity) for f in found if f.code == "lone-number"]

    lay_out(tmp_path / "out", ["ckpt_1/net-1_10", "ckpt_1/net-1_20"])
    for found in (plan(root).warnings, scan(root).findings, verify([root]).findings):
        assert told(found) == [(home, Severity.WARNING)]
    assert told(plan(home).warnings) == []  # nobody looked beside it
    lay_out(tmp_path / "out", ["ckpt_0/net-1_10", "ckpt_0/net-1_20"])
    lay_out(tmp_path / "exp", ["exp_3/net-1_10"])  # just a name
    assert told(plan(root).warnings) == told(plan(str(tmp_path / "exp")).warnings) == []
