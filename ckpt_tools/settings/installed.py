"""Which installed packages add something to ckpt: their entry points, from the metadata that pip wrote.

``importlib.metadata`` says nothing of a place that cannot be listed, where a package may be that decides.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

GROUPS = ("formats", "layouts", "manifests", "outputs", "launchers")
"""What a package can add; the entry points are called ``ckpt_tools.formats`` and so on."""
_PREFIX = "ckpt_tools."
_ENDS = (".dist-info", ".egg-info")
_FILE = "entry_points.txt"
_MOST = 1 << 20
"""Bytes of metadata that are looked at, of each file."""
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
"""Errors after which Python imports nothing from a place either."""


class Package(NamedTuple):
    """A package as pip knows it."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class EntryPoint(NamedTuple):
    """One thing that a package adds: its name in a group, and where it is (``module:attribute``)."""

    group: str
    name: str
    value: str
    package: Package


class Unlisted(NamedTuple):
    """A place of Python's path, or the metadata of a package, that could not be read."""

    path: str
    why: str


class Places(NamedTuple):
    """The places of Python's path, with the names of the metadata in each, and what could not be listed."""

    names: dict[str, list[str]]
    unlisted: list[Unlisted]


def listed(paths: Sequence[str] | None = None) -> Places:
    """Each place once; the working directory counts for nothing."""
    names, unlisted = dict[str, list[str]](), list[Unlisted]()
    for place in dict.fromkeys(sys.path if paths is None else paths):
        if not os.path.isabs(place):  # "" is the working directory, which may be anybody's
            continue
        try:
            names[place] = sorted(n for n in os.listdir(place) if n.endswith(_ENDS) and not n.startswith("~"))
        except OSError as e:
            if e.errno not in _NOTHING_THERE:
                unlisted.append(Unlisted(place, e.strerror or str(e)))
    return Places(names, unlisted)


def entry_points(places: Places) -> tuple[list[EntryPoint], list[Unlisted]]:
    """All of them, in the order of Python's path, and what could not be read. Of a package that is installed
    twice the first counts, as for Python.
    """
    found, unlisted, seen = list[EntryPoint](), list(places.unlisted), set[str]()
    for place, name in ((place, name) for place, names in places.names.items() for name in names):
        key = _normal(name.rpartition(".")[0].partition("-")[0])
        if key in seen:
            continue
        seen.add(key)
        try:
            found += _added(os.path.join(place, name))
        except OSError as e:
            unlisted.append(Unlisted(os.path.join(place, name), e.strerror or str(e)))
    return found, unlisted


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _added(metadata: str) -> Iterator[EntryPoint]:
    """What one package adds. Raises OSError."""
    text = _read(os.path.join(metadata, _FILE))
    if _PREFIX not in text:
        return
    headers = _read(os.path.join(metadata, "METADATA")) or _read(os.path.join(metadata, "PKG-INFO"))
    stem = os.path.basename(metadata).rpartition(".")[0]
    package = Package(
        _header(headers, "Name") or stem.partition("-")[0],
        _header(headers, "Version") or stem.partition("-")[2] or "without a version",
    )
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group.startswith(_PREFIX) and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            value = value.partition("[")[0]  # extras mean nothing any more
            yield EntryPoint(group.removeprefix(_PREFIX), name.strip(), value.strip(), package)


def _header(text: str, key: str) -> str:
    found = re.search(rf"^{key}: *(.+)$", text.partition("\n\n")[0], re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found else ""


def _read(path: str) -> str:
    """A file's text, "" where there is none. Raises OSError."""
    try:
        with open(path, "rb") as f:
            return f.read(_MOST).decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError as e:
        if e.errno in _NOTHING_THERE:
            return ""
        raise
