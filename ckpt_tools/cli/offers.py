"""What a shell offers for the value of a flag when Tab is pressed (typer's ``autocompletion``)."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

import typer

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level

Offer = Callable[[], list[str]]
SAFE = re.compile(r"[\w@%+=,./-]+", re.ASCII)
"""Names of files that are offered. A shell may read any other one as more than a word."""
SECONDS = 5.0
"""How long a shell waits for an answer: a file system may hang."""


def complete() -> None:
    """Answer a shell that asks, and leave."""
    from ckpt_tools.cli.app import line

    late = threading.Timer(SECONDS, os._exit, (0,))
    late.daemon = True
    late.start()
    os.environ["COLUMNS"] = "9999"  # rich would break what a flag means into several lines, and so into words
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it would appear in the middle of what is typed
    line().main(prog_name="ckpt")


def words(*choices: str) -> Offer:
    return lambda: list(choices)


levels = words(*map(str, Level))
kinds = words(*map(str, Kind))


def layouts(ctx: typer.Context) -> list[str]:
    from ckpt_tools.cli.output import Output, read_settings
    from ckpt_tools.layouts import BUILT_IN

    found = read_settings({"layout": None, "config": ctx.params.get("config")}, Output("", quiet=True))
    return [layout.name for layout in found.layouts or BUILT_IN]


def runs(ctx: typer.Context) -> list[str]:
    return sorted({c.run for c in _checkpoints(ctx) if SAFE.fullmatch(c.run)})


def steps(ctx: typer.Context) -> list[str]:
    found = {c.step for c in _checkpoints(ctx) if c.step is not None}
    return [str(step) for step in sorted(found, reverse=True)]


def _checkpoints(ctx: typer.Context) -> tuple[Checkpoint, ...]:
    from ckpt_tools import api
    from ckpt_tools.cli.output import Output, read_settings

    said = {name: ctx.params.get(name) for name in ("root", "store_option", "config")}
    said["root"] = said["root"] or next(iter(ctx.args), None)  # typer stops at the flag that has no value yet
    if said["root"]:  # the shell has expanded nothing
        said["root"] = os.path.expandvars(os.path.expanduser(said["root"]))
    found = read_settings(said, Output("", quiet=True))
    return api.scan(found.root, found.selection()).checkpoints


def formats() -> list[str]:
    from ckpt_tools.formats import FORMATS

    return [one.name for one in FORMATS]
