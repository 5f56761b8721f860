"""Prefixes of file names keep runs apart; a number behind one counts restarts only where the run it belongs
to is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import small_files
import timed

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.selection import Selection


def put(root: Path, names: Iterable[str]) -> None:
    """MindSpore files ``<name>-1_<step>.ckpt``, each ten minutes after the one before."""
    for i, name in enumerate(names):
        step = int(name.rpartition("_")[2])
        data = small_files.mindspore(True, i, epoch_num=1, step_num=step)
        timed.put(root / f"{name}.ckpt", data, 600 * i)


def runs(root: Path) -> set[tuple[str, int | None]]:
    return {(c.run, c.generation) for c in scan(str(root)).checkpoints}


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
    put(tmp_path / "run", names)
    assert runs(tmp_path / "run") == expected


def chosen(root: Path, prefix: str) -> str:
    made = plan(str(root), Selection(prefix=prefix, world_size=1))
    assert made.checkpoint is not None
    return os.path.relpath(made.checkpoint.path, root)


@pytest.mark.slow
def test_a_prefix_is_what_file_names_start_with(tmp_path: Path) -> None:
    root = tmp_path / "run"
    put(root, ["bert_2-1_10", "bert_2-1_20", "bert_large-1_10", "bert_large-1_30", "gpt-1_10", "gpt_1-1_12"])
    assert chosen(root, "bert_2") == "bert_2-1_20.ckpt"
    assert chosen(root, "bert_large") == chosen(root, "bert_l") == "bert_large-1_30.ckpt"
    assert chosen(root, "gpt") == chosen(root, "gpt_1") == "gpt_1-1_12.ckpt"
    with pytest.raises(UsageError, match=r"bert_2.*bert_large"):
        plan(str(root), Selection(prefix="bert"))
    # so bert_2 is its second restart; the whole prefix of a run goes before a part of another's
    put(root, ["bert-1_40"])
    made = plan(str(root), Selection(prefix="bert", world_size=1, order="step"))
    assert made.checkpoint is not None and made.checkpoint.run == "bert"


@pytest.mark.slow
def test_a_directory_of_rank_1_without_that_of_rank_0_is_said(tmp_path: Path) -> None:
    root, home = str(tmp_path / "out"), str(tmp_path / "out/ckpt_1")

    def told(found: Iterable[Finding]) -> list[tuple[str, Severity]]:
        return [(f.path, f.severity) for f in found if f.code == "lone-number"]

    put(tmp_path / "out", ["ckpt_1/net-1_10", "ckpt_1/net-1_20"])
    for found in (plan(root).warnings, scan(root).findings, verify([root]).findings):
        assert told(found) == [(home, Severity.WARNING)]
    assert told(plan(home).warnings) == []  # nobody looked beside it
    put(tmp_path / "out", ["ckpt_0/net-1_10", "ckpt_0/net-1_20"])
    put(tmp_path / "exp", ["exp_3/net-1_10"])  # just a name
    assert told(plan(root).warnings) == told(plan(str(tmp_path / "exp")).warnings) == []
