"""A command in the process of the test."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest

from ckpt_tools.cli import execute
from ckpt_tools.job import command


def executed(words: Sequence[str]) -> tuple[int, str, str]:
    """Its exit code, and what it has written to stdout and to stderr, as bytes that are text where they can be."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", "") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = execute(list(words))
    out.seek(0)
    err.seek(0)
    return code, out.read(), err.read()


def run(*words: str) -> tuple[int, str, str]:
    """The same of a line whose words are given one by one."""
    return executed(words)


class Start(NamedTuple):
    """What ``ckpt run`` did: its exit code, what it said, and the words and variables of the command that it became,
    None where it started nothing.
    """

    code: int
    said: str
    words: list[str] | None
    env: Mapping[str, str]


def started(options: Sequence[object], words: Sequence[str]) -> Start:
    """``ckpt run`` with these options and this command, which is not really started."""
    begun: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "become", lambda *told: begun.append(told))
        line = ["run", *map(str, options), "--", *words]
        patch.setattr(sys, "argv", ["ckpt", *line])  # of which messages say what else to start
        code, _, said = executed(line)
    return Start(code or 0, said, *(begun[0] if begun else (None, {})))
