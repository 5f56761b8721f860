"""What the pages that are made say of the commands: the same as typer shows."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ckpt_tools.cli.app import COMMANDS, GROUPS, command, examples, line

__all__ = ["COMMANDS", "GROUPS", "command", "examples", "line", "panels", "said"]


def panels(name: str) -> list[tuple[str, list[Any]]]:
    """The parameters of one command, panel by panel, as --help orders them."""
    shown = [p for p in command(name).params if not p.hidden]
    order = dict.fromkeys(["Arguments", "Options", *map(_panel, shown)])
    return [
        (title, list(rows))
        for title, rows in groupby(sorted(shown, key=lambda p: list(order).index(_panel(p))), key=_panel)
    ]


def _panel(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return param.rich_help_panel or "Options"


def said(text: str | None) -> str:
    """A text of help on one line, without what keeps rich from taking it for markup."""
    return " ".join((text or "").replace("\\[", "[").split())
