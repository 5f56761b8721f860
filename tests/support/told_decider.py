"""Who decides what it is told, for tests of what becomes of decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckpt_tools.job import Options
from ckpt_tools.job.decider import Decider
from ckpt_tools.job.membership import Membership
from ckpt_tools.model.selection import Selection


class Told(Decider):
    """It makes this decision, from saves of this digest."""

    told: Callable[[], Any] = dict
    seen: str = ""

    def make_body(self) -> Any:
        return self.told()

    def digest_saves(self) -> str:
        return self.seen


class Decisions:
    """The decisions about one root."""

    def __init__(self, plan_dir: str, root: str) -> None:
        self.plan_dir, self.root = plan_dir, root

    @property
    def directory(self) -> str:
        return self.told("", "", dict).directory

    def told(
        self, key: str, member: str, make: Callable[[], Any], *, saves: str = "", timeout: float = 1000
    ) -> Decider:
        """A member of a job whose key is of one start alone."""
        of, options = Membership(key, member, True), Options(timeout=timeout, plan_dir=self.plan_dir)
        return Told(self.root, Selection(), of, options, None, {}, told=make, seen=saves)
