"""What docs/make.py knows of the commands: their parameters, as typer has them, and the words that a shell offers."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

from ckpt_tools import guard
from ckpt_tools.cli import candidates, dispatch, pages
from ckpt_tools.cli.hook_install import snippets
from ckpt_tools.cli.typer_app import parser
from ckpt_tools.cli.words import COMMANDS
from ckpt_tools.findings import CODES
from ckpt_tools.formats.named import NAMED
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.catalogue import RULES

LINES = {" ".join(words): module for words, module in dispatch.WITHIN.items()}
NAMES = (*COMMANDS, *LINES)
"""All commands, those of two words last."""

LISTS: dict[str, dict[str, str]] = {
    "LEVEL": {str(level): "" for level in Level},
    "KIND": {str(kind): "" for kind in Kind},
    "LAYOUT": {layout.name: "" for layout in BUILT_IN},
    "FORMAT": {one.name: "" for one in NAMED},
    "CODE": {code.id: code.title for code in sorted(CODES.values())} | dict.fromkeys(sorted(RULES), ""),
    "[WHAT]": {one.name: one.about for one in snippets().values()},
    "SHELL": dict.fromkeys(candidates.SHELLS, ""),
    "DIGEST": dict.fromkeys(guard.ALGORITHMS, ""),
}
"""What a value may be, by what it is called."""
CALLED = {
    "--layout": "LAYOUT",
    "--max-step": "STEP",
    "--prefer": "KIND",
    "--digest": "DIGEST",
    "--run": "RUN",
}
"""Flags whose values a shell can offer although --help calls them by a common name."""


def parsed(name: str) -> Any:
    """The command as typer parses it."""
    return parser(LINES.get(name, name))


def words() -> str:
    """ckpt_tools/cli/candidates/words.txt."""
    sentences = {name: said for rows in pages.GROUPS.values() for name, said in rows.items()}
    blocks = [
        "Made by docs/make.py.",
        "\n".join(["commands", *(f"{name}\t\t{sentences[name]}" for name in COMMANDS)]),
        "\n".join(
            [
                "ckpt",
                *(
                    f"{flag}\t\t"
                    for flag in ("--help", "--version", "--install-completion", "--show-completion")
                ),
            ]
        ),
        *("\n".join([name, *_rows(name)]) for name in NAMES),
        *(
            "\n".join([f"={name}", *(f"{one}\t\t{_short(said)}" for one, said in rows.items())])
            for name, rows in LISTS.items()
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _rows(name: str) -> Iterator[str]:
    """The parameters of one command: what it is, what its value is called, what it does."""
    command = parsed(name)
    for param in command.params:
        value = "" if getattr(param, "is_flag", False) else (param.metavar or "")
        if param.param_type_name == "argument":
            yield f"argument\t{value.rstrip('.…')}\t"
            continue
        if param.name == "format":
            value = "|".join(formats(name, command))
        for flag in param.opts:
            yield f"{flag}\t{CALLED.get(flag, value)}\t{_short(param.help)}"
    yield "--help\t\tShow this message and exit."


def formats(name: str, command: Any) -> list[str]:
    """The output formats of a command, the default first, as it says itself when asked for another one."""
    needed = [p.metavar for p in command.params if p.param_type_name == "argument" and p.required]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        dispatch.execute([*name.split(), *needed, "--format", "nonsense"])
    found = re.search(r"is not one of ([^;\n]*)", said.getvalue())
    assert found, said.getvalue()
    return found[1].split(", ")


def _short(text: str) -> str:
    """The first sentence, without the variable behind it."""
    text = " ".join(re.sub(r" ?\[CKPT_\w+\]", "", text or "").split())
    return re.split(r"(?<=[a-z)])[.;] ", text)[0].rstrip(".")
