"""A node that takes part in an agreement by the rules, but for one thing that it says. As a script: the lie
as JSON, then a command line of ckpt.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt_tools.job import reported as said
from ckpt_tools.job.exchange import Meeting

GONE = "<gone>"
"""Instead of a value: take the field away."""


@dataclass(frozen=True)
class Lie:
    """In exchange ``round`` node ``who`` says (the first one, where ``told``: tells all) ``value`` at ``at``."""

    who: int
    round: int
    at: Sequence[str | int]
    value: Any
    told: bool = False

    def said(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The same with the lie in it."""
        answer = json.loads(json.dumps(answer))
        node: Any = answer
        for key in self.at[:-1]:
            node = node[key]
        last: Any = self.at[-1]
        if self.value == GONE:
            del node[last]
        elif last == "+":
            node.append(copy.deepcopy(self.value))
        else:
            node[last] = self.value
        return answer


def tell(lie: Lie, patch: Callable[[object, str, Any], None]) -> None:
    """Let the node lie from now on."""
    exchange, concluded = Meeting.exchange, Meeting._conclude

    def lying(self: Meeting, value: Any, conclude: Any, checks: said.Round = said.NOTHING) -> Any:
        if self.me == lie.who and self.round + 1 == lie.round and not lie.told:
            value = lie.said(value)
        return exchange(self, value, conclude, checks)

    def concluding(self: Meeting, answer: Any) -> None:
        concluded(
            self,
            (
                lie.said(answer)
                if self.me == lie.who and self.round == lie.round and lie.told and "error" not in answer
                else answer
            ),
        )

    patch(Meeting, "exchange", lying)
    patch(Meeting, "_conclude", concluding)


if __name__ == "__main__":
    from ckpt_tools.cli import main

    tell(Lie(**json.loads(sys.argv[1])), setattr)
    sys.argv = ["ckpt", *sys.argv[2:]]
    sys.exit(main())
