"""A byte that lifts the step of a checkpoint above ``--max-step`` never makes a plan older in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES, materialise, overwrite
from places import LAYOUT_TREES

from ckpt_tools import errors
from ckpt_tools.api import plan
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

_MOST = 1 << 17
"""Bytes at the beginning of a file in which its step is looked for."""
_PLACES = (4, pytest.param(16, marks=pytest.mark.exhaustive))
"""Places of each file at which a byte that may be of its step is changed: by day the first few, all by night."""
INSIDE = (
    "dcp/fabric",
    "easylm/streams",
    "keras-backup/double",
    "lightning/names",
    "mindspore/names",
    "speechbrain/stopped",
    "tensorflow/manager",
    "torchsnapshot/plain",
)
"""Trees in which the contents of a file tell, or may tell, of which step a checkpoint is. Of these a byte is
changed by day, of all others by night.
"""


def asked(case: Path) -> list[dict[str, Any]]:
    plans: list[dict[str, Any]] = json.loads(case.read_text())["plans"]
    return plans


def tells_a_step(question: dict[str, Any]) -> bool:
    """Whether the tree as it is answers with a step where nothing else is said."""
    return question["options"] == {} and "root" not in question and question.get("step") is not None


def cases() -> Iterator[object]:
    for case in CASES:
        if not any(tells_a_step(p) for p in asked(case)):
            continue  # nothing to lift, or nothing that is chosen without a word more
        name = os.path.relpath(case.parent, LAYOUT_TREES)
        yield pytest.param(case, id=name, marks=[] if name in INSIDE else [pytest.mark.exhaustive])


def planned(root: Path, selection: Selection) -> LoadPlan | None:
    """None where the answer is a question or a stop."""
    try:
        return plan(str(root), selection)
    except errors.CkptError:
        return None


def lifted(data: bytes, step: int, places: int) -> Iterator[bytes]:
    """Copies of a file in which a number that begins like the step is another one, mostly a higher one."""
    digits, low, held = str(step).encode(), step & 0xFF, data[:_MOST]
    found = [at for at, byte in enumerate(held) if byte == low or held.startswith(digits, at)]
    for at in found[:places]:
        changed = bytearray(data)
        if held.startswith(digits, at):
            changed[at] = ord("9")
        else:
            changed[at] ^= 0x80 if low & 0x40 else 0x40
        yield bytes(changed)


@pytest.mark.share(8)
@pytest.mark.parametrize("case", list(cases()))
@pytest.mark.parametrize("places", _PLACES)
def test_a_lifted_step_is_not_left_out_in_silence(case: Path, places: int, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    whole = planned(root, Selection())
    assert whole is not None and whole.checkpoint is not None and whole.resume_step is not None
    step, selection = whole.resume_step, Selection(max_step=whole.resume_step)
    for part in whole.checkpoint.parts:
        path = Path(part.path)
        data = path.read_bytes()
        for changed in lifted(data, step, places):
            overwrite(path, changed, part.mtime_ns)
            now = planned(root, selection)
            if now is not None and now.resume_step != step:
                said = [*now.warnings, *(f for r in now.rejected for f in r.findings)]
                assert said, f"{os.path.relpath(path, root)}: {now.resume_step} in silence"
        overwrite(path, data, part.mtime_ns)
