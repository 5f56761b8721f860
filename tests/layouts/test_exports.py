"""A save of a model alone is none to train on, whatever its name and wherever it lies among the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan, verify
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection

MODEL_ONLY = LAYOUT_TREES / "dcp/model_only/expected.json"


@pytest.mark.parametrize("step", [1, 3, 5, 6, 700])
def test_a_model_alone_is_passed_over_among_whole_states(step: int, tmp_path: Path) -> None:
    root = materialise(MODEL_ONLY, tmp_path)
    (root / "step-6").rename(root / f"step-{step}")
    for whole in (4, 2):
        made = plan(str(root))
        assert made.resume_step == whole
        assert made.checkpoint is not None and made.checkpoint.kind is Kind.PERIODIC
        (root / f"step-{whole}/__0_0.distcp").write_bytes(b"")
    assert verify([str(root / f"step-{step}")]).verdict is Verdict.OK


def test_it_is_resumed_from_where_it_is_asked_for_or_alone(tmp_path: Path) -> None:
    root = materialise(MODEL_ONLY, tmp_path)
    assert plan(str(root), Selection(kind=Kind.RELEASE)).resume_step == 6
    for whole in (2, 4):
        (root / f"step-{whole}").rename(tmp_path / f"step-{whole}")
    assert plan(str(root)).resume_step == 6
