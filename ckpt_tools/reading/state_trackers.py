"""Trackers that are a copy of a file of the latest checkpoint (Megatron-Bridge's latest_train_state.pt)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level

if TYPE_CHECKING:
    from ckpt_tools.reading.session import Session, Told


def told_by_state(s: Session, name: str, base: str) -> Told | None:
    """What the tracker of that name tells; None where there is none, or where the file holds arrays: then it
    is a state of somebody's own.
    """
    path = os.path.join(base, name)
    if path not in s.bare_paths:
        return None
    report, anatomy = s.inspect(path, Level.STRUCTURE)
    if any(t.shape for t in anatomy.tensors):
        return None
    if hidden := [f for f in report.findings if f.code in NOT_SEEN]:
        s.unread[path] = hidden[0].message
        return path, hidden[0]
    return path, None if report.verdict is Verdict.BROKEN else whole(report.metadata.get("step"))
