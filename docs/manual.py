"""The manual pages, from what --help shows: docs/man/ckpt.1, and one for each command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import commands

from ckpt_tools.settings.declarations import BY_KEY, Variable

HERE = Path(__file__).resolve().parent
EXITS = """
0 good, or done
1 damage found, or a difference
2 usage, or a question that only you can answer
3 there is no checkpoint
4 checkpoints exist, and none is usable
5 something could not be looked at, so nothing is known about it
6 the newest is unusable, and \\-\\-no\\-fallback forbids an older one
70 a bug in ckpt, which says nothing about your files
130 interrupted
143 terminated
"""


def manual_pages() -> dict[Path, Callable[[], str]]:
    """Each page, and what makes it."""
    made: dict[Path, Callable[[], str]] = {HERE / "man/ckpt.1": top}
    for name in commands.COMMANDS:
        made[HERE / f"man/{_called(name)}.1"] = partial(page, name)
    return made


def top() -> str:
    """ckpt(1)."""
    about = _paragraphs(commands.line().help)
    lines = [
        *_head("ckpt", "find, verify and plan the loading of training checkpoints"),
        ".SH SYNOPSIS", ".B ckpt", ".I command", "[\\fIoptions\\fR] [\\fIarguments\\fR]",
        ".br", ".B ckpt \\-\\-version", ".br", ".B ckpt", ".I command", ".B \\-\\-help",
        ".SH DESCRIPTION", *_running(about),
    ]  # fmt: skip
    for title, rows in commands.GROUPS.items():
        lines += [f".SS {title}"]
        for name, sentence in rows.items():
            lines += [".TP", f".BR {_flag(_called(name))} (1)", _text(sentence)]
    return "\n".join([*lines, *_end([_called(name) for name in commands.COMMANDS])])


def page(name: str) -> str:
    """The page of one command."""
    command, panels = commands.command(name), dict(commands.panels(name))
    first, *rest = _paragraphs(command.help.replace("\\[", "["))
    arguments = panels.pop("Arguments", [])
    lines = [
        *_head(_called(name), _summary(name, first)),
        ".SH SYNOPSIS", f".B ckpt {name}", "[\\fIoptions\\fR]", *map(_usage, arguments),
        ".SH DESCRIPTION", *_running([first, *rest]),
    ]  # fmt: skip
    if arguments:
        lines += [".SH ARGUMENTS"]
        lines += [
            line
            for p in arguments
            for line in (".TP", f".I {_flag(_place(p))}", _text(commands.said(p.help)))
        ]
    lines += [".SH OPTIONS"]
    for title, rows in panels.items():
        lines += [f".SS {title}", *(line for p in rows for line in _option(p))]
    lines += [".TP", ".BR \\-h , \\ \\-\\-help", "Show this message and exit."]
    lines += [".SH EXAMPLES"]
    for at, (line, why) in enumerate(commands.examples(name)):
        lines += [".PP"] * bool(at) + [
            _text(f"{why[0].upper()}{why[1:]}:"),
            ".RS 4",
            ".nf",
            _literal(line),
            ".fi",
            ".RE",
        ]
    keys = [p.name.replace("_", "-") for p in command.params if p.hidden]
    alone = [v for key in keys if (v := BY_KEY.get(key)) and v.use and v.exported == v.name]
    return "\n".join([*lines, *_end(["ckpt"], any("[CKPT_" in p.help for p in command.params), alone)])


def _summary(name: str, first: str) -> str:
    """What a list of manual pages says of a command."""
    said = next((rows[name] for rows in commands.GROUPS.values() if name in rows), first)
    said = re.split(r"(?<=[a-z]): ", said)[0].rstrip(".")
    return f"{said[0].lower()}{said[1:]}"


def _called(name: str) -> str:
    return "-".join(["ckpt", *name.split()])


def _head(name: str, summary: str) -> list[str]:
    return [
        '.\\" Made by docs/make.py from what --help shows.',
        f'.TH {_flag(name.upper())} 1 "" "ckpt-tools" "User commands"',
        ".SH NAME",
        f"{_flag(name)} \\- {_text(summary)}",
    ]


def _place(param: Any) -> str:
    return str(param.metavar)


def _usage(param: Any) -> str:
    place = f"\\fI{_flag(_place(param))}\\fR{'...' if param.nargs == -1 else ''}"
    return place if param.required else f"[{place}]"


def _option(param: Any) -> Iterator[str]:
    names = ", ".join(f"\\fB{_flag(one)}\\fR" for one in sorted(param.opts, key=len))
    value = "" if getattr(param, "is_flag", False) else f" \\fI{_flag(param.metavar or '')}\\fR"
    yield from (".TP", f"{names}{value}", _text(commands.said(param.help)))


def _end(also: list[str], variables: bool = False, alone: Sequence[Variable] = ()) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for line in EXITS.strip().splitlines():
        code, _, meaning = line.partition(" ")
        yield from (".TP", f".B {code}", meaning)
    if variables:
        yield from (
            ".SH ENVIRONMENT",
            "What stands in brackets behind an option is a variable that means the same."
            + (" These have no option:" if alone else ""),
            *(line for v in alone for line in (".TP", f".B {_text(v.name)}", _text(f"{v.meaning}."))),
        )
    yield from (".SH SEE ALSO", *(f".BR {_flag(name)} (1){',' * (name != also[-1])}" for name in also), "")


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _running(paragraphs: list[str]) -> Iterator[str]:
    for at, one in enumerate(paragraphs):
        if at:
            yield ".PP"
        yield _text(one)


def _text(text: str) -> str:
    """Running text: flags in it keep their hyphens, and each sentence has its own line."""
    text = _escaped(text)
    text = re.sub(r"(?<![\w-])(--?[a-z][\w-]*)", lambda m: m[0].replace("-", "\\-"), text)
    return "\n".join(_safe(line) for line in re.split(r"(?<=[a-z)\]]\.) (?=[A-Z])", text))


def _literal(text: str) -> str:
    return _safe(_escaped(text).replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga"))


def _flag(text: str) -> str:
    return _escaped(text).replace("-", "\\-")


def _escaped(text: str) -> str:
    """Nothing in it is a request of roff, and every character one of ASCII."""
    text = text.replace("\\", "\\e").replace("…", "...").replace("–", "\\(en").replace("×", "\\(mu")
    assert text.isascii(), text
    return text


def _safe(line: str) -> str:
    return f"\\&{line}" if line.startswith((".", "'")) else line
