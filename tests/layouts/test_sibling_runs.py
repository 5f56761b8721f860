"""Directories and names that keep the saves of one run apart: it goes on from the newest whole state of all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from places import LAYOUT_TREES
from small_files import lightning, saved, tensor
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan, scan
from ckpt_tools.layouts import BUILT_IN


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


def versions(kind: str) -> tuple[str, str]:
    files = [f"v{n}/model.ckpt:{kind}{10 * n}" for n in (2, 9, 10)]
    return "planted", ";".join([*files, *(f"mv v{n} model:v{n}" for n in (2, 9, 10))])


TREES = table(
    """
    dcp/two slow
        # torchtitan with torchft saves at every step where replicas are in their data, and the state less often.
        cp step-10 ft-replicat-0/step-10; cp step-10 ft-replicat-0/step-101; cp step-20 ft-replicat-0/step-20
            -> step-20 +passed-over
        then cp step-10 ft-replicat-1/step-10; cp step-20 ft-replicat-1/step-20; cp step-20 ft-replicat-1/step-201
            -> step-20 +passed-over
        then rm step-10; rm step-20 -> exit 4 choice/none-usable
    # Directories of versions, as Weights & Biases' clients download them: one run of saves.
    lightnings
        as it is -> model:v10 => ok
        cut model:v10/model.ckpt -> model:v9 -truncated
        rm model:v10/model.ckpt -> model:v9 +unfinished-save
        mv model:v9 other:v9 -> exit 2 tree/several-runs
    states
        as it is -> model:v10 => ok
        cut model:v10/model.ckpt -> model:v9 -truncated
        rm model:v10/model.ckpt -> model:v9 +unfinished-save
        mv model:v9 other:v9 -> exit 2 tree/several-runs
    weights
        as it is -> model:v10 => ok
        cut model:v10/model.ckpt -> model:v9 -truncated
        mv model:v9 artifacts/model:v9; mv model:v10 artifacts/model:v10; mv model:v2 artifacts/model:v2
            -> artifacts/model:v10
    """,
    lightnings=versions("lightning"),
    states=versions("state"),
    weights=versions("model"),
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_is_one_run_and_what_are_several(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
