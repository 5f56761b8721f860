"""Plug-ins: formats, layouts, manifests, outputs and launchers that installed packages add (docs/plugins.md).

They are asked for where names are resolved, once in a process. One that cannot be used is ``broken``: that is
a warning in every answer that it may have changed, and never the end of a command.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module, metadata
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import fields, replace

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding
from ckpt_tools.settings import parsers
from ckpt_tools.storage import ShortRead, Stopped

API_VERSION = 2
"""Raised when something is taken away that docs/plugins.md promises, and never for what is added."""
OLDEST_API = {"layouts": 2}
"""By group the oldest version whose plug-ins still work, elsewhere 1, which is that of one that says none:
version 2 has other fields of a Layout and a Piece.
"""
VARIABLE = "CKPT_NO_PLUGINS"
DECIDING = ("formats", "layouts", "manifests", "launchers")
"""Groups without which an answer may be another one."""
_KINDS = {
    "formats": ("ckpt_tools.formats.common.format", "Format"),
    "layouts": ("ckpt_tools.layouts.common.layout", "Layout"),
    "manifests": ("ckpt_tools.formats.common.format", "Format"),
    "outputs": ("ckpt_tools.output.registry", "Output"),
    "launchers": ("ckpt_tools.launchers.launcher", "Launcher"),
}
"""What the values of a group are (this room lies below theirs); entry points are in ``ckpt_tools.NAME``."""
HINT = "repair or remove that package, or set CKPT_NO_PLUGINS=1"


class Entry(NamedTuple):
    """One thing that a package adds: its name in a group, where it is (``module:attribute``), and whose."""

    group: str
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"the {self.group.rstrip('s')} plug-in {self.name!r} of the package {self.package}"


class Plugin(NamedTuple):
    """A value that a package adds under a ``name`` of its own."""

    name: str
    value: Any
    package: str


class Broken(NamedTuple):
    """What cannot be used, and the group that it is of; "" where that is not known."""

    what: str
    why: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.what} cannot be used: {self.why}"


class _Found(Struct):
    """What packages add, what of it is broken, and what was imported so far: plug-ins by group and name."""

    entries: list[Entry] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    groups: dict[str, dict[str, Plugin]] = field(default_factory=dict)
    version: str | None = None


class _State:
    """Of this process: what was found, whether plug-ins are off, and who keeps what they add."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.found: _Found | None = None
        self.off: bool | None = None
        self.keepers: list[Callable[[], None]] = []


_state = _State()


def switch(off: bool | None) -> None:
    """Leave plug-ins out, or not, for the rest of this process; None asks CKPT_NO_PLUGINS."""
    with _state.lock:
        before = _is_off()
        _state.off = off
        changed = _is_off() is not before
    if changed:
        forget()


def forget() -> None:
    """Look for plug-ins anew when they are needed next: some were installed, or switched off."""
    with _state.lock:
        _state.found = None
    for keeper in _state.keepers:
        keeper()


def kept_by(keeper: Callable[[], None]) -> None:
    """What makes a module drop what it has made of plug-ins."""
    _state.keepers.append(keeper)


def _is_off() -> bool:
    if _state.off is not None:
        return _state.off
    raw = os.environ.get(VARIABLE)
    try:
        return bool(raw) and parsers.flag(raw, "")
    except ValueError as e:
        raise UsageError(f"{VARIABLE}: {e}", "use 1 to leave plug-ins out") from e


def added(group: str, taken: Collection[str] = ()) -> Mapping[str, Plugin]:
    """What packages add to a group, by name. Raises UsageError for a name that is ``taken``."""
    with _state.lock:
        if _is_off():
            return {}
        found = _find()
        for entry in found.entries:
            if entry.group == group and entry.name in taken:
                why = "ckpt has one of that name, or another package adds it"
                raise UsageError(f"{entry} cannot have that name: {why}", HINT)
        return dict(_import_group(found, group))


def reject(group: str, name: str, why: str) -> None:
    with _state.lock:
        found = _find()
        found.groups[group].pop(name)
        entry = next(e for e in found.entries if (e.group, e.name) == (group, name))
        found.broken.append(Broken(str(entry), why, group))


def broken(groups: Collection[str] = tuple(_KINDS)) -> list[Broken]:
    """What is installed for these groups and cannot be used; each group is imported for it."""
    with _state.lock:
        if _is_off():
            return []
        found = _find()
        for group in groups:
            _import_group(found, group)
        wrong = [b for b in found.broken if b.group in groups or b.group not in _KINDS]
        return sorted(wrong, key=str)  # whatever was asked for first


def left_out() -> list[str]:
    with _state.lock:
        entries = _read_entries().entries if _is_off() else []
    return list(dict.fromkeys(e.package for e in entries if e.group in DECIDING))


def findings() -> Iterator[Finding]:
    """What an answer has to say: with a plug-in more it might be another one."""
    for one in broken(DECIDING):
        yield finding("broken-plugin", f"{one}; what only it knows was not recognised", hint=HINT)


def tool_version() -> str:
    """Return ckpt's version with the packages that decide: two processes of one version answer the same."""
    return f"{__version__}{packages()}"


def packages() -> str:
    """The same without that of ckpt, "" where no package decides anything."""
    with _state.lock:
        if _is_off():
            return ""
        found = _find()
        if found.version is None:
            names = dict.fromkeys(e.package for e in found.entries if e.group in DECIDING)
            said = f" with {', '.join(names)}" if names else ""
            wrong = ", ".join(b.what for b in broken(DECIDING))
            found.version = f"{said} but without {wrong}" if wrong else said
        return found.version


def _find() -> _Found:
    if _state.found is None:
        _state.found = _read_entries()
    return _state.found


def _read_entries() -> _Found:
    """Read what packages add: of one that is there twice the first, and nothing in the working directory."""
    found, places = _Found(), dict[str, object]()
    for one in metadata.distributions(path=[place for place in sys.path if os.path.isabs(place)]):
        try:
            rows = [e for e in one.entry_points if e.group.startswith("ckpt_tools.")]
            if not rows or places.setdefault(one.metadata["Name"], one) is not one:
                continue
            package = f"{one.metadata['Name']} {one.version}"
        except Exception as e:  # whatever its metadata hold
            found.broken.append(Broken(f"plug-ins of {one.locate_file('')}", f"{type(e).__name__}: {e}"))
            continue
        for row in rows:
            entry = Entry(row.group.partition(".")[2], row.name, row.value.partition("[")[0].strip(), package)
            if entry.group in _KINDS:
                found.entries.append(entry)
            else:
                why = f"there is no group {entry.group!r}, only {', '.join(_KINDS)}"
                found.broken.append(Broken(str(entry), why, entry.group))
    return found


def _import_group(found: _Found, group: str) -> Mapping[str, Plugin]:
    if group in found.groups:
        return found.groups[group]
    found.groups[group] = {}  # a plug-in that asks while it is imported gets nothing
    imported: dict[str, Plugin] = {}
    for entry in (e for e in found.entries if e.group == group):
        if entry.name in imported:
            why = f"{imported[entry.name].package} adds one of that name, too"
            raise UsageError(f"{entry} cannot have that name: {why}", HINT)
        try:
            imported[entry.name] = Plugin(entry.name, _load(entry), entry.package)
        except _Unusable as e:
            found.broken.append(Broken(str(entry), str(e), group))
    found.groups[group] = imported
    return imported


class _Unusable(Exception):
    """Why a plug-in cannot be used."""


def _load(entry: Entry) -> Any:
    """Return what an entry point leads to, so that whatever it raises names its package. Raise _Unusable."""
    module, _, attribute = entry.value.partition(":")
    oldest = OLDEST_API.get(entry.group, 1)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for answers
            loaded: Any = import_module(module)
            value = loaded
            for name in filter(None, attribute.split(".")):
                value = getattr(value, name)
    except (Exception, SystemExit) as e:
        is_old = isinstance(e, TypeError) and oldest > 1
        old = f"; those of version {oldest} of the interface have other fields" if is_old else ""
        raise _Unusable(f"{type(e).__name__}: {e}{old}") from e
    top = sys.modules.get(module.partition(".")[0], loaded)
    api = getattr(loaded, "CKPT_API", getattr(top, "CKPT_API", None))
    api = 1 if api is None else api
    if not isinstance(api, int) or not oldest <= api <= API_VERSION:
        text = f"it is written for version {api!r} of the interface, and ckpt {__version__} has {API_VERSION}"
        raise _Unusable(f"{text} (CKPT_API)")
    if _KINDS[entry.group] not in [(kind.__module__, kind.__qualname__) for kind in type(value).__mro__]:
        raise _Unusable(f"{entry.value} is a {type(value).__name__}, no {_KINDS[entry.group][1]}")
    if value.name != entry.name:
        raise _Unusable(f"it calls itself {value.name!r}, and its entry point says {entry.name!r}")
    return _guard(value, entry)


def _guard(value: Any, entry: Entry) -> Any:
    changed = dict[str, Any]()
    for f in fields(value):
        own = getattr(value, f.name)
        if f.name == "checks":
            changed[f.name] = {level: _guard_check(check, entry) for level, check in own.items()}
        elif f.name == "renders":
            changed[f.name] = {
                kind: _guard_call(find_function(how), entry, kind) for kind, how in own.items()
            }
        elif isinstance(own, Struct):
            changed[f.name] = _guard(own, entry)
        elif callable(own) and own is not f.default:
            changed[f.name] = _guard_call(own, entry, f.name)
    return replace(value, **changed)


def find_function(how: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function that is there, or one that imports ``module:function`` once it is called."""
    if not isinstance(how, str):
        return how
    module, _, name = how.partition(":")

    def call(*given: Any) -> Any:
        return getattr(import_module(module), name)(*given)

    return call


@contextmanager
def _blame(entry: Entry, name: str) -> Iterator[None]:
    try:
        yield
    except CkptError:
        raise
    except Exception as e:
        raise CannotLook(f"{entry} failed in {name!r}: {type(e).__name__}: {e}", HINT) from e


def _guard_call(function: Callable[..., Any], entry: Entry, name: str) -> Callable[..., Any]:
    def each(answer: Iterator[Any]) -> Iterator[Any]:
        with _blame(entry, name):
            yield from answer

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with _blame(entry, name):
            answer = function(*args, **named)
        return each(answer) if isinstance(answer, Iterator) else answer

    return call


def _guard_check(check: Callable[..., Iterator[Finding]], entry: Entry) -> Callable[..., Iterator[Finding]]:
    """Return a check of one file: what it trips over is that file's finding: nobody knows what is in it."""

    @wraps(check)
    def call(source: Any, anatomy: Any) -> Iterator[Finding]:
        try:
            yield from check(source, anatomy)
        except (CkptError, OSError, ShortRead, Stopped):
            raise
        except Exception as e:
            if isinstance(getattr(e, "finding", None), Finding):  # Damage, which lies above this room
                raise
            yield finding("unreadable", f"{entry} failed: {type(e).__name__}: {e}", hint=HINT)

    return call
