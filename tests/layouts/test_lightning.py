"""What several ModelCheckpoint callbacks of one Trainer save into one directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from told_trees import Question, hold, table


def callbacks(often: str, other: str) -> tuple[str, str]:
    saves = [f"{often.format(e=e, s=s)}:lightning{s}@{s}" for e, s in enumerate((10, 20, 30), 1)]
    return "planted", " ".join([*saves, f"{other}:lightning40@40"])


OFTEN = "epoch={e}-step={s}.ckpt"
MADE = {
    "end": callbacks(OFTEN, "end-epoch=4.ckpt"),
    "best": callbacks(OFTEN, "best-epoch=4-step=40.ckpt"),
    "last": callbacks(OFTEN, "last.ckpt"),
    "run-end": callbacks(f"run-{OFTEN}", "end-epoch=4.ckpt"),
    "run-last": callbacks(f"run-{OFTEN}", "last.ckpt"),
    "part-best": callbacks("epoch={e}-part.ckpt", "best-val-epoch=4-step=40.ckpt"),
    "again": (
        "planted",
        "epoch=1-step=10.ckpt:lightning10@10 last.ckpt:lightning10= epoch=2-step=20.ckpt:lightning20@20 last-v1.ckpt:lightning20=",
    ),
}
TREES = table(
    """
    # Lightning's ModelCheckpoint, twice: by steps, and at the end of an epoch or for the best.
    end
        as it is -> end-epoch=4.ckpt => ok
        {cut,empty,rm} end-epoch=4.ckpt -> loads epoch=3-step=30.ckpt
        end-epoch=4.ckpt:lightmodel40= -> epoch=3-step=30.ckpt +passed-over
        then cut epoch=3-step=30.ckpt -> epoch=2-step=20.ckpt -truncated +passed-over
    best
        as it is -> best-epoch=4-step=40.ckpt => ok
        {cut,empty,rm} best-epoch=4-step=40.ckpt -> loads epoch=3-step=30.ckpt
        best-epoch=4-step=40.ckpt:lightmodel40= -> epoch=3-step=30.ckpt +passed-over
        then cut epoch=3-step=30.ckpt -> epoch=2-step=20.ckpt -truncated +passed-over
    last
        as it is -> last.ckpt => ok
        {cut,empty,rm} last.ckpt -> loads epoch=3-step=30.ckpt
        last.ckpt:lightmodel40= -> epoch=3-step=30.ckpt +passed-over
        then cut epoch=3-step=30.ckpt -> epoch=2-step=20.ckpt -truncated +passed-over
    run-end
        as it is -> end-epoch=4.ckpt => ok
        {cut,empty,rm} end-epoch=4.ckpt -> loads run-epoch=3-step=30.ckpt
    run-last
        as it is -> last.ckpt => ok
        {cut,empty,rm} last.ckpt -> loads run-epoch=3-step=30.ckpt
    part-best
        as it is -> best-val-epoch=4-step=40.ckpt => ok
        {cut,empty,rm} best-val-epoch=4-step=40.ckpt -> loads epoch=3-part.ckpt
    # A run that starts from scratch in a directory renews last-v1.ckpt; an old one that was put back is seen.
    again
        as it is -> epoch=2-step=20.ckpt => ok
        rm last-v1.ckpt; last.ckpt:lightning10@30 -> epoch=2-step=20.ckpt => suspect step-mismatch
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_callbacks_of_one_trainer_save_one_run(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
