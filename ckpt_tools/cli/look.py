"""``ckpt PATH``, and ``ckpt`` alone on a terminal: what is there, and the commands that are likely to come
next.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

from ckpt_tools.cli.ls import ls
from ckpt_tools.cli.output import Output
from ckpt_tools.errors import CannotLook
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.retry import is_file

OF_ROOT = (
    ("ckpt verify {}", "what is damaged"),
    ("ckpt plan {}", "what a job resumes from, and why"),
    ("ckpt report {} -o report.html", "all of it as a page with pictures"),
)
OF_FILE = (
    ("ckpt show {}", "what is in it"),
    ("ckpt verify {}", "whether it is damaged"),
    ("ckpt verify {} --explain-bytes", "what protects which of its bytes"),
)
OF_NOTHING = (
    ("ckpt layouts", "which arrangements are known"),
    ("ckpt --help", "all commands"),
)
OF_EMPTY = (("ckpt run {} --allow none -- COMMAND", "start the first job of a run"), *OF_NOTHING)


def look(path: str) -> int:
    """List the checkpoints at a path, then say three likely commands. Exit codes: those of ``ckpt ls``."""
    try:
        file = is_file(path)
    except OSError as e:
        raise CannotLook(f"cannot look at {path}: {e.strerror}") from e
    if file:
        return _next(OF_FILE, path, 0)
    code = ls(root=path)
    nothing = OF_NOTHING if code != 3 or _holds(path) else OF_EMPTY
    return _next(nothing if code else OF_ROOT, path, code)


def _holds(path: str) -> bool:
    with suppress(OSError):
        return bool(names_of(path))
    return True


def _next(commands: tuple[tuple[str, str], ...], path: str, code: int) -> int:
    from ckpt_tools.output.page import Page

    to = Output("table")
    page, word = Page(to.view), shlex.quote(path)
    said = [command.format(word) for command, _ in commands]
    width = max(map(len, said))
    page.text("")
    for command, (_, why) in zip(said, commands, strict=True):
        page.text(f"{command:<{width}}  # {why}", whole=True)
    to.out(page.done())
    return code
