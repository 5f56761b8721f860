"""Pages of the site that are made from code: the commands as --help shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import commands


def commands_page() -> str:
    """All commands with their flags and examples."""
    out = [
        "# Commands\n",
        "Made from what `ckpt COMMAND --help` shows, which the manual pages (`man ckpt-verify`) say as well.\n",
    ]
    for title, rows in commands.GROUPS.items():
        out += [f"**{title}**\n", "| command | says |", "|---|---|"]
        out += [
            f"| [`ckpt {name}`](#ckpt-{name.replace(' ', '-')}) | {_cell(said)} |"
            for name, said in rows.items()
        ]
        out.append("")
    for name in commands.COMMANDS:
        out += _command(name)
    return "\n".join(out)


def _command(name: str) -> Iterator[str]:
    yield f"## ckpt {name}\n"
    yield _text(commands.command(name).help.replace("\\[", "[")) + "\n"
    yield "| | | |\n|---|---|---|"
    for title, panel in commands.panels(name):
        for at, param in enumerate(panel):
            yield f"| {'' if at else _cell(title)} | {_names(param)} | {_cell(commands.said(param.help))} |"
    examples = "\n".join(f"{line}  # {why}" for line, why in commands.examples(name))
    yield f"\n```sh\n{examples}\n```\n"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_cell(str(param.metavar))}`"
    names = ", ".join(f"`{one}`" for one in param.opts)
    return names if getattr(param, "is_flag", False) else f"{names} `{_cell(str(param.metavar))}`"


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("[[", "\\[\\[").replace("]]", "\\]\\]")
