"""Who decides what it is told, for tests of what becomes of decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckpt_tools.job import Options
from ckpt_tools.job.decider import Decider
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.membership import Membership
from ckpt_tools.model.selection import Selection


class Told(Decider):
    """It makes this decision."""

    told: Callable[[], Any] = dict

    def make(self, decisions: Decisions) -> Any:
        return self.told()


def told(
    key: str, member: str, make: Callable[[], Any], *, saves: str = "", timeout: float = 1000
) -> Decider:
    """A member of a job whose key is of one start alone."""
    of, options = Membership(key, member, True), Options(timeout=timeout)
    return Told("/", Selection(), of, options, None, {}, saves=saves, told=make)
