"""What a command that has no answer says instead, to whoever reads its output."""

from __future__ import annotations

from msgspec import Struct

from ckpt_tools.model.plan import LoadPlan


class Failure(Struct, frozen=True):
    """Why ``command`` has no answer: ``plan`` has rejected candidates, ``rule`` is the rule that stops it."""

    command: str
    code: str
    message: str
    hint: str
    exit_code: int
    plan: LoadPlan | None = None
    rule: str = ""


def make_code(name: str) -> str:
    """Return the code of an error class for answers: ``NoneUsable`` -> ``none-usable``."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
