"""What a command does to a tree, or would do."""

from __future__ import annotations

from msgspec import Struct

from ckpt_tools.model.finding import Finding


class Change(Struct, frozen=True):
    """One checkpoint, or one file. ``state`` is a word such as "moved" or "would-move"; "stays" for what was
    asked for and is left alone, ``why`` says the reason of either. ``to`` is where it goes, if it goes
    anywhere; ``size`` are the bytes of its ``files``.
    """

    path: str
    state: str
    why: str = ""
    to: str | None = None
    label: str = ""
    files: int = 1
    size: int = 0


class Changes(Struct, frozen=True):
    """What came of one command below ``root``. ``operation`` is its number in the journal, None where nothing
    was done; ``findings`` are what else is to be known.
    """

    command: str
    root: str
    applied: bool
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()
    operation: int | None = None

    @property
    def to_do(self) -> tuple[Change, ...]:
        """Those that are done, or would be."""
        return tuple(c for c in self.changes if c.state != "stays")
