"""Where frameworks keep the count of steps inside a file, and what a bare file's name says against it."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.pickles.scalars import scalars
from ckpt_tools.layouts.common import counters
from ckpt_tools.layouts.common.counters import numbers


@pytest.mark.parametrize(
    ("value", "step"),
    [
        ({"iter_num": 7}, 7),
        ({"step_count": 7, "iter_num": 28}, 7),
        ({"meta": {"iter": 7, "epoch": 1}}, 7),
        ({"train_state": {"global_step": 7}}, 7),
        ({"optimizer_history": [{"num_updates": 3}, {"num_updates": 7}]}, 7),
        ({"state": {"timestamp": {"Timestamp": {"batch": 7}}}}, 7),
        ({"state": {"timestamp": {"batch": 7}}}, 7),
        ({"optimizer_history": [], "meta": "of another kind", "state": {"timestamp": 3}}, None),
        ({"step": -1, "iter_num": 7}, 7),
        ({"step": -1}, None),
        ({"meta": {"iter": True}, "train_state": [{"step": "7"}]}, None),
    ],
)
def test_the_step_is_found_where_a_framework_keeps_it(value: dict[str, Any], step: int | None) -> None:
    anatomy = Anatomy()
    scalars(value, anatomy)
    assert counters.number(anatomy.metadata, counters.STEPS) == step


def test_a_text_that_int_refuses_is_no_number() -> None:
    """Python calls a superscript a digit; safetensors keeps any text."""
    assert numbers({"step": "²", "iteration": "12"}, ("step", "iteration")) == (12,)
