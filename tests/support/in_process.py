"""A command in the process of the test."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from ckpt_tools.cli import execute


def executed(words: Sequence[str]) -> tuple[int, str, str]:
    """Its exit code, and what it has written to stdout and to stderr, as bytes that are text where they can be."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", "") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = execute(list(words))
    out.seek(0)
    err.seek(0)
    return code, out.read(), err.read()
