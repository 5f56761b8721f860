"""What a command that has no answer says instead of one, to whoever reads its output."""

from __future__ import annotations

from msgspec import Struct

from ckpt_tools.model.plan import LoadPlan


class Failure(Struct, frozen=True):
    """Why ``command`` has no answer: ``plan`` holds rejected candidates, ``rule`` is what asks or stops."""

    command: str
    code: str
    message: str
    hint: str
    exit_code: int
    plan: LoadPlan | None = None
    rule: str = ""


def code_of(name: str) -> str:
    """``NoneUsable`` -> ``none-usable``: the class of an error as answers name it."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
