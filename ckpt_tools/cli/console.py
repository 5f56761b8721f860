"""The two streams: results go to stdout, byte for byte; everything else to stderr, escaped for a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from shutil import get_terminal_size
from typing import TextIO

from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import fill_hint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.output.words import printable, wrap_line
from ckpt_tools.storage import signed
from ckpt_tools.storage.writes import write_whole


def out(text: str, file: str | None = None) -> None:
    """Write a result. Raise CannotLook if that fails; a closed pipe is fine: the exit code tells enough."""
    if file is not None:
        write_whole(file, encode(text, "utf-8"))
        return
    stream = sys.stdout
    if stream is None:  # started with a closed stdout
        raise CannotLook("there is no standard output to write the result to", "redirect it somewhere")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    data = encode(text, encoding)
    try:
        raw = getattr(stream, "buffer", None)
        if raw is None:  # a stream of text only, as in tests and notebooks
            stream.write(data.decode(encoding, "replace"))
        else:
            raw.write(data)
        stream.flush()
    except OSError as e:
        with suppress(OSError, ValueError):  # the interpreter's own flush at exit would complain again
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        if not isinstance(e, BrokenPipeError):
            text = f"the result could not be written to standard output: {e.strerror}"
            raise CannotLook(text, "make room, or redirect it elsewhere") from e


def encode(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding, "surrogateescape")  # file names come back as the bytes they were
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace")


def err(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def problem(word: str, message: str, hint: str = "") -> None:
    """Print ``ckpt: word: message`` and ``hint`` to stderr, each on one line: a line break in a
    name must not start a line that looks like a message of ckpt.
    """
    texts = [f"ckpt: {word}: {message}", *([f"hint: {hint}"] if hint else [])]
    lines = [*map(printable, texts)]
    if terminal(sys.stderr):  # wrapped here, between words; in a log each line stays whole
        with suppress(OSError, ValueError):
            columns = max(40, os.get_terminal_size(sys.stderr.fileno()).columns)
            lines = [part for line in lines for part in wrap_line(line, columns, rest="  ") or [""]]
    err("".join(f"{line}\n" for line in lines))


def warn_deprecated(name: str, use: str) -> None:
    """Warn that the flag or variable ``name`` is deprecated; ``use`` replaces it."""
    hint = f"use {use}" if use.startswith(("--", "CKPT_")) else use
    problem("warning", f"{name} is accepted until the next release", hint)


def findings(found: Iterable[Finding], root: str = "") -> None:
    """Print each finding as a line on stderr; a hint that several findings share stands below the last."""
    listed = list(found)
    hints = ["" if f.severity is Severity.NOTE else fill_hint(f.hint, f.path, root) for f in listed]
    last = {hint: i for i, hint in enumerate(hints)}
    for i, f in enumerate(listed):
        where = f"{f.path}: " if f.path else ""
        problem(str(f.severity), f"{where}{f.code}: {f.message}", hints[i] if last[hints[i]] == i else "")


def flush() -> None:
    """Flush stdout and stderr, for an exit that skips the interpreter's own flush."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def name_urls(argv: Sequence[str]) -> list[str]:
    """Return a command line with presigned URLs cut to their names. Raise UsageError for other secrets."""
    if any("://" in word for word in argv):
        return signed.words(argv)
    return list(argv)


def terminal(stream: TextIO | None) -> bool:
    """Return True if a person reads the stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed stream
        return False


def is_colored(choice: str | None, stream: TextIO | None) -> bool:
    """Return True for colours: --color decides, then NO_COLOR, then FORCE_COLOR, then the terminal."""
    if choice in ("always", "never"):
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return terminal(stream) and os.environ.get("TERM") != "dumb"


def width() -> int | None:
    """Return the columns of the terminal, at least 40; None if stdout is no terminal."""
    return max(40, get_terminal_size().columns) if terminal(sys.stdout) else None
