"""Names of layouts beyond those of the package: what installed plug-ins add, and the tables of the
configuration file.

A guess beside ``ckpt layouts``, which imports plug-ins, and asks whose file it is, before it believes either:
here both are only read, by names and lines.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST = 1 << 20
"""Bytes of a configuration file that are looked at."""

_TABLE = re.compile(r"^\s*\[\[\s*(?:tool\.ckpt\.)?layout\s*\]\](.*?)(?=^\s*\[|\Z)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"""^\s*name\s*=\s*(?:"([^"\\]+)"|'([^']+)')""", re.MULTILINE)


def layouts(environ: Mapping[str, str]) -> list[str]:
    """Their names, sorted."""
    return sorted({*_of_plugins(environ), *_of_configuration(environ)})


def _of_plugins(environ: Mapping[str, str]) -> Iterator[str]:
    if environ.get("CKPT_NO_PLUGINS", "").lower() in ("1", "true", "yes", "on"):
        return
    from ckpt_tools.settings import installed

    found, _ = installed.entry_points(installed.listed())
    yield from (entry.name for entry in found if entry.group == "layouts")


def _of_configuration(environ: Mapping[str, str]) -> Iterator[str]:
    """Of the file that is named, else of the nearest one."""
    named = environ.get("CKPT_CONFIG")
    for path in [named] if named else _nearest():
        if not os.path.isfile(path):  # nor a pipe, which nobody may write to
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(LARGEST)
        except OSError:
            continue
        if named or path.endswith("ckpt.toml") or "[tool.ckpt" in text:
            for table in _TABLE.finditer(text):
                if name := _NAME.search(table[1]):
                    yield name[1] or name[2]
            return


def _nearest() -> Iterator[str]:
    """Where it may lie, from the current directory upward."""
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        return
    while True:
        yield from (os.path.join(directory, name) for name in ("ckpt.toml", "pyproject.toml"))
        above = os.path.dirname(directory)
        if above == directory:
            return
        directory = above
