"""What was counted while a root was watched: what metrics are made of."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from ckpt_tools.guard.watch.answer import Answer

STATES = ("good", "suspect", "bad", "unknown", "waiting")


class Tally(Struct):
    """The counts of one root since this process began, and how things are. Times are seconds since the
    epoch; ``up``: the last listing worked.
    """

    root: str
    up: bool = False
    passed_at: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    verifications: Counter[str] = field(default_factory=Counter)
    hooks: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    seconds: float = 0.0
    good_step: int | None = None
    good_at: float | None = None
    interval: float | None = None
    answer: Answer | None = None
    again: int = 0
