"""Checkpoints that have no file of any of the roles that their layout needs."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery import completeness
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.reading.session import Session


def without_model(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Nothing where other files lie in its directory: a script's own hooks save models under any name."""
    layout, home = s.layouts.of(c), c.parts[0].home
    if c.unfinished or not home or not layout.needs_any:
        return
    if any(p.role in layout.needs_any for p in c.parts) or _holds_others(s, c):
        return
    text = f"{completeness.label(c)} has no {layout.needs_any[0]} file"
    yield finding("missing-part", text, path=home)


def _holds_others(s: Session, c: Checkpoint) -> bool:
    """Whether files that are none of its own lie in its directory."""
    home = c.parts[0].home
    mine, above = {p.path for p in c.parts}, f"{home}/"
    others = [p.path for p in s.parts] + [file.path for file in s.found.bare]
    return home in s.found.strange or any(path.startswith(above) and path not in mine for path in others)
