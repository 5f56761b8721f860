"""What a rule is: a named reason to lower the trust in a tree, a save or a choice, with its page."""

from __future__ import annotations

from enum import Enum, IntEnum

from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.report import Level


class Scope(str, Enum):
    """What a rule looks at."""

    TREE = "tree"
    ORDER = "order"
    SAVE = "save"
    PAIR = "pair"
    CHOICE = "choice"

    def __str__(self) -> str:
        return self.value


MEANING = {
    Scope.TREE: "what is said of ROOT as a whole",
    Scope.ORDER: "which save is the newest",
    Scope.SAVE: "what is said of one save",
    Scope.PAIR: "what is said of two saves",
    Scope.CHOICE: "what is said beside the save that was chosen",
}
"""What the rules of a scope are about."""


class Effect(IntEnum):
    """What a hit does, at most: rules only lower trust, and none cancels another."""

    NOTE = 0
    WARN = 1
    REJECT = 2
    """The next candidate is tried."""
    ASK = 3
    """Exit 2."""
    STOP = 4
    """Exit 3, 4, 5 or 6."""

    def __str__(self) -> str:
        return self.name.lower()


@frozen
class Rule:
    """``id`` is ``scope/name``, stable, and the path of its file below planning/rules; ``code`` is the code
    of its findings, "" where it only asks or stops, and ``more`` are further ones. ``needs`` is how deep the
    files must have been read for it. ``answer`` is the flag or the lines of ckpt.toml that settle it, ``why``
    its page: what it says, and the incident or line of a framework's source that it exists for, in at most
    ten lines.
    """

    id: str
    code: str
    effect: Effect
    answer: str
    why: str
    needs: Level = Level.PRESENCE
    more: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        return Scope(self.id.partition("/")[0])
