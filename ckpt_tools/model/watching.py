"""What ``ckpt watch`` says: one event after the other."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from ckpt_tools.model.finding import Finding

TYPES = ("started", "checkpoint", "gone", "pass", "restart", "hook", "pruned", "problem", "stopped")


class Event(Struct, frozen=True):
    """One thing that was seen. ``time`` in seconds since the epoch, ``root`` is None where it is about no
    directory alone; ``fields`` depend on the ``type`` (docs/json.md).
    """

    type: str
    time: float
    root: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
