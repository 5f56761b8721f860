"""Which installed packages add something to ckpt: their entry points, from the metadata that pip wrote.

``importlib.metadata`` says the same, but importing it takes longer than a short command may. Here each place
of Python's path is listed once, and of each package one small file is looked for. Where there was nothing for
ckpt, that is kept beside the verdicts, so that the files need not be looked for until something is installed.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Untrusted

GROUPS = ("formats", "layouts", "manifests", "outputs", "launchers")
"""What a package can add; the entry points are called ``ckpt_tools.formats`` and so on."""
_PREFIX = "ckpt_tools."
_ENDS = (".dist-info", ".egg-info")
_FILE, KEPT = "entry_points.txt", "nothing-installed"
_STATES, _SETTLED = 32, 2 * 10**9
"""States that are kept, and nanoseconds after which any change of a directory shows in its time."""
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
    """The places of Python's path, with the names of the metadata in each, and what could not be listed.

    ``line`` is another one when packages have come or gone, "" where nothing tells that; ``newest_ns`` is
    when one of the places was changed last.
    """

    names: dict[str, list[str]]
    unlisted: list[Unlisted]
    line: str
    newest_ns: int


def listed(paths: Sequence[str] | None = None) -> Places:
    """Each place once; the working directory counts for nothing."""
    names, unlisted, line, newest = dict[str, list[str]](), list[Unlisted](), list[str](), 0
    for place in dict.fromkeys(sys.path if paths is None else paths):
        if not os.path.isabs(place):  # "" is the working directory, which may be anybody's
            continue
        try:
            info = os.stat(place)
            found = [n for n in os.listdir(place) if n.endswith(_ENDS) and not n.startswith("~")]
            # where a package is developed its metadata is written anew, and its place does not change
            eggs = [_changed(os.path.join(place, name)) for name in found if name.endswith(_ENDS[1])]
        except OSError as e:
            if e.errno not in _NOTHING_THERE:
                unlisted.append(Unlisted(place, e.strerror or str(e)))
            line.append(f"{place} -")
            continue
        names[place] = sorted(found)
        newest = max(newest, info.st_mtime_ns, *eggs, 0)
        line.append(f"{place} {info.st_dev} {info.st_ino} {info.st_mtime_ns} {sorted(eggs)}")
    text = "\t".join(line)
    return Places(names, unlisted, "" if unlisted or "\n" in text else text, newest)


def _changed(metadata: str) -> int:
    """When its entry points were written, 0 where it has none. Raises OSError."""
    try:
        return os.stat(os.path.join(metadata, _FILE)).st_mtime_ns
    except FileNotFoundError:
        return 0


def kept(directory: str) -> list[str]:
    """The states in which there was nothing for ckpt, as far as nobody else could have written that."""
    try:
        data = trust.read(os.path.join(directory, KEPT), _MOST) if directory else b""
    except (OSError, Untrusted):
        return []
    return data.decode("utf-8", "surrogateescape").splitlines()


def keep(directory: str, found: Places) -> None:
    """Keep a state in which there was nothing, unless it is so young that a change might leave no trace.
    Raises OSError.
    """
    if not found.line or time.time_ns() - found.newest_ns < _SETTLED:
        return
    lines = [*kept(directory)[1 - _STATES :], found.line]
    aside = os.path.join(directory, f"{KEPT}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(aside, flags, 0o600), "wb") as f:
        f.write("\n".join(lines).encode("utf-8", "surrogateescape"))
    os.replace(aside, os.path.join(directory, KEPT))


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
