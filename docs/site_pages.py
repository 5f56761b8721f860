"""Pages of the site that are made from code: the commands as --help shows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import commands

from ckpt_tools.cli import pages


def commands_page() -> str:
    """All commands with their flags and examples."""
    out = [
        "# Commands\n",
        "Made from what `ckpt COMMAND --help` shows, which the manual pages (`man ckpt-verify`) say as well.\n",
    ]
    for title, rows in pages.GROUPS.items():
        out += [f"**{title}**\n", "| command | says |", "|---|---|"]
        out += [f"| [`ckpt {name}`](#ckpt-{name}) | {_cell(said)} |" for name, said in rows.items()]
        out.append("")
    for name in commands.NAMES:
        out += _command(name)
    return "\n".join(out)


def _command(name: str) -> Iterator[str]:
    command = commands.parsed(name)
    yield f"## ckpt {name}\n"
    yield f"{_text(inspect.cleandoc(command.help))}\n"
    order = ["Arguments", *pages.PANELS, ""]
    params = sorted(command.params, key=lambda p: order.index(pages.panel_of(p)))
    yield "| | | |\n|---|---|---|"
    for title, panel in groupby(params, key=pages.panel_of):
        for at, param in enumerate(panel):
            yield f"| {'' if at else _cell(title)} | {_names(param)} | {_cell(' '.join(param.help.split()))} |"
    examples = "\n".join(f"{line}  # {why}" for line, why in pages.EXAMPLES.get(name, ()))
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
