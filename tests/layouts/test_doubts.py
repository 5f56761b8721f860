"""Saves that never finished beside the checkpoint that a plan chooses: what the plan, its story and its JSON
say about them. On real files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import run_helpers
from small_files import dcp, megatron, mindspore
from timed import put
from told_trees import Question, hold, table

from ckpt_tools import cli
from ckpt_tools.api import plan
from ckpt_tools.errors import NoCheckpoint, NoneUsable, NotRecognised
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.selection import Selection
from ckpt_tools.output.plan import render


def save(root: Path, step: int, at: int, *, whole: bool = True) -> None:
    """A checkpoint as torch.distributed.checkpoint leaves it; without its .metadata the save was cut off."""
    for name, data in dcp(step).items():
        if whole or name != ".metadata":
            put(root / f"step-{step}" / name, data, at)


def said(findings: Sequence[Finding], root: Path) -> list[tuple[str, str]]:
    return [(f.message, os.path.relpath(f.path, root)) for f in findings if f.code == "unfinished-save"]


def beyond(step: int) -> tuple[str, str]:
    return (
        (
            f"the checkpoint of step {step} is newer than the choice, but has no metadata file,"
            " which is written last"
        ),
        f"step-{step}",
    )


@pytest.mark.slow
def test_a_newer_unfinished_save_is_a_warning_and_an_older_one_is_not(tmp_path: Path) -> None:
    for at, (step, whole) in enumerate(((10, False), (20, True), (30, False), (40, False))):
        save(tmp_path, step, at, whole=whole)
    made = plan(str(tmp_path))
    assert made.resume_step == 20
    assert said(made.warnings, tmp_path) == [beyond(40), beyond(30)]
    told = render(made)
    assert all(
        f"warning: {where}\n  {text} [unfinished-save]\n" in told for text, where in (beyond(40), beyond(30))
    )


TREES = table(
    """
    planted
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata | max_step=20 -> step-20
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata | max_step=30 -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata | kind=periodic -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@1; rm step-30/.metadata -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@1; rm step-30/.metadata | order=step -> step-20 +unfinished-save
        step-20/:dcp@5 step-10/:dcp@9; rm step-10/.metadata -> step-20 +unfinished-save
        step-20/:dcp@5 step-10/:dcp@9; rm step-10/.metadata | order=step -> step-20
        step-20/:dcp@5 step-10/:dcp@1; rm step-10/.metadata -> step-20
        a/step-20/:dcp@5 b/step-30/:dcp@9; rm b/step-30/.metadata -> a/step-20
        a/step-20/:dcp@5 b/step-30/:dcp@9; rm b/step-30/.metadata | run=a -> a/step-20
        iter_0000010/:megatron -> iter_0000010 +missing-tracker
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_newer_by_time_or_by_step(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.slow
def test_many_are_counted(tmp_path: Path) -> None:
    save(tmp_path, 10, 0)
    for step in range(20, 100, 10):
        save(tmp_path, step, step, whole=False)
    told = said(plan(str(tmp_path)).warnings, tmp_path)
    assert told == [
        *(beyond(step) for step in (90, 80, 70, 60, 50)),
        ("3 more saves like these never finished: step {20, 30, 40}", "."),
    ]


@pytest.mark.slow
def test_a_failure_names_all_of_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for at, step in enumerate((10, 20, 30)):
        save(tmp_path, step, at, whole=step == 20)
    victim = next(p for p in (tmp_path / "step-20").glob("*.distcp"))
    put(victim, victim.read_bytes()[:-40], 1)
    all_of_them = [
        (f"the checkpoint of step {n} has no metadata file, which is written last", f"step-{n}")
        for n in (30, 10)
    ]
    with pytest.raises(NoneUsable) as caught:
        plan(str(tmp_path))
    assert caught.value.plan is not None and said(caught.value.plan.warnings, tmp_path) == all_of_them
    assert cli.execute(["plan", str(tmp_path), "--json"]) == 4
    answer = json.loads(capfd.readouterr().out)
    assert [f["message"] for f in answer["warnings"] if f["code"] == "unfinished-save"] == [
        text for text, _ in all_of_them
    ]
    assert cli.execute(["plan", str(tmp_path), "--explain"]) == 4
    assert f": step-30\n  {all_of_them[0][0]} [unfinished-save" in capfd.readouterr().out


def test_nothing_but_unfinished_saves(tmp_path: Path) -> None:
    save(tmp_path, 10, 0, whole=False)
    wanted = [("the checkpoint of step 10 has no metadata file, which is written last", "step-10")]
    with pytest.raises(NoCheckpoint) as caught:
        plan(str(tmp_path))
    assert caught.value.plan is not None and said(caught.value.plan.warnings, tmp_path) == wanted
    assert said(plan(str(tmp_path), Selection(allow_none=True)).warnings, tmp_path) == wanted


def test_a_dying_gasp_that_never_finished_belongs_to_the_run_beside_it(tmp_path: Path) -> None:
    """MindIO TTP renames its directory last; it may lie beside the run, which is then the one that died."""
    put(tmp_path / "run/net-1_10.ckpt", mindspore(True, 0, epoch_num=1, step_num=10), 0)
    put(
        tmp_path / "gasps/tft_saved_checkpoints-step_17_tmp/rank_0/ttp_rank_0-2_7.ckpt",
        mindspore(True, 0, epoch_num=2, step_num=17),
        9,
    )
    told = said(plan(str(tmp_path)).warnings, tmp_path)
    assert told == [
        (
            (
                "the emergency checkpoint of step 17 is newer than the choice, but never reached its commit"
                " rename"
            ),
            "gasps/tft_saved_checkpoints-step_17_tmp",
        )
    ]
    put(
        tmp_path / "other/ttp_saved_checkpoints-step_18_tmp/rank_0/ttp_rank_0-2_8.ckpt",
        mindspore(True, 0, epoch_num=2, step_num=18),
        9,
    )
    assert said(plan(str(tmp_path)).warnings, tmp_path) == []  # of two it is not known whose they are


# -- saves that may still be written -------------------------------------------------------------------------


def written_now(root: Path, ranks: int, step: int = 30) -> None:
    """A save under way: some ranks' files of a job of four are there, the last one only begun."""
    for rank in range(ranks):
        path = root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt"
        put(path, megatron(step, rank, 4, 1, 4)[: 200 if rank == ranks - 1 else None], 0)
        os.utime(path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_a_save_of_seconds_ago_is_said_to_look_unfinished(
    ranks: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_helpers.megatron(tmp_path, (10, 20), world=4)
    written_now(tmp_path, ranks)
    made = plan(str(tmp_path), Selection(settle=1e9))
    assert made.resume_step == 20
    ((text, where),) = said(made.warnings, tmp_path)
    expected = (
        rf"the checkpoint of step 30 looks unfinished: {ranks} files?, the last written \d+"
        r" s ago"
    )
    assert re.fullmatch(expected, text) and where == "iter_0000030"
    assert said(plan(str(tmp_path), Selection(settle=0)).warnings, tmp_path) == []  # long ago
    assert cli.execute(["latest", str(tmp_path), "--rank", "0", "--settle", "99d"]) == 0
    assert re.search(f"unfinished-save: {expected}\n", capfd.readouterr().err)


@pytest.mark.slow
def test_what_is_damaged_otherwise_does_not_look_unfinished(tmp_path: Path) -> None:
    run_helpers.megatron(tmp_path, (10, 20), world=4)
    written_now(tmp_path, 4)
    put(tmp_path / "iter_0000030/mp_rank_00/model_optim_rng.pt", b"\0" * 64 + b"else", 0)
    assert said(plan(str(tmp_path), Selection(settle=1e9)).warnings, tmp_path) == []


def test_a_save_without_its_commit_says_how_far_it_is(tmp_path: Path) -> None:
    save(tmp_path, 10, 0)
    save(tmp_path, 20, 0, whole=False)
    for path in (tmp_path / "step-20").iterdir():
        os.utime(path)
    ((text, _),) = said(plan(str(tmp_path), Selection(settle=1e9)).warnings, tmp_path)
    assert re.fullmatch(rf"{beyond(20)[0]}: 2 files, the last written \d+ s ago", text)
    (tmp_path / "step-10/.metadata").unlink()
    with pytest.raises(NotRecognised) as caught:
        plan(str(tmp_path), Selection(settle=1e9))
    assert caught.value.plan is not None
    assert any(
        re.search(r"written last: 2 files, the last written \d+ s ago", text)
        for text, _ in said(caught.value.plan.warnings, tmp_path)
    )
