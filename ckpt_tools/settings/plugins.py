"""Plug-ins: formats, layouts, manifests, outputs and launchers that installed packages add (docs/plugins.md).

They are imported when a name is looked up, once in a process. A plug-in that cannot be used is ``broken``: an
answer that it might have changed has a warning, and no command ends because of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache, wraps
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
"""Raised if a feature that docs/plugins.md promises is removed, and never for added features."""
OLDEST_API = {"layouts": 2}
"""By group the oldest API version whose plug-ins still work, else 1, the version of one without CKPT_API.
Version 2 has other fields of a Layout and a Piece.
"""
VARIABLE = "CKPT_NO_PLUGINS"
DECIDING = ("formats", "layouts", "manifests", "launchers")
"""Groups whose plug-ins can change which checkpoints are found and chosen."""
_KINDS = {
    "formats": ("ckpt_tools.formats.common.format", "Format"),
    "layouts": ("ckpt_tools.layouts.common.layout", "Layout"),
    "manifests": ("ckpt_tools.formats.common.format", "Format"),
    "outputs": ("ckpt_tools.output.registry", "Output"),
    "launchers": ("ckpt_tools.launchers.launcher", "Launcher"),
}
"""By group the module and class of its values; entry points are in ``ckpt_tools.GROUP``. Texts, because this
package lies below these modules and must not import them.
"""
HINT = "repair or remove that package, or set CKPT_NO_PLUGINS=1"


class Entry(NamedTuple):
    """One entry point: its group, its name, ``module:attribute``, and its package with the version."""

    group: str
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"the {self.group.rstrip('s')} plug-in {self.name!r} of the package {self.package}"


class Plugin(NamedTuple):
    """One imported plug-in: a Format, Layout, Output or Launcher, with its ``name`` and package."""

    name: str
    value: Any
    package: str


class Broken(NamedTuple):
    """One plug-in (or all of a package) that cannot be used, and its group; "" if the group is not known."""

    what: str
    why: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.what} cannot be used: {self.why}"


class _Found(Struct):
    """One search for plug-ins: entry points, broken plug-ins, and imported plug-ins by group and name."""

    entries: list[Entry] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    groups: dict[str, dict[str, Plugin]] = field(default_factory=dict)


_lock = threading.RLock()
_switched: list[bool | None] = [None]
"""Whether plug-ins are off for the rest of this process; None: as the variable says."""
_keepers: list[Callable[[], None]] = []
"""Functions that clear caches of values made from plug-ins."""


def switch(off: bool | None) -> None:
    """Switch plug-ins off or on for the rest of this process; None: as the variable CKPT_NO_PLUGINS says."""
    with _lock:
        before, _switched[0] = _is_off(), off
        changed = _is_off() is not before
    if changed:
        forget()


def forget() -> None:
    """Drop all found plug-ins and the caches made from them: some were installed, or switched off."""
    with _lock:
        _find.cache_clear()
    for clear_cache in _keepers:
        clear_cache()


def register_cache(keeper: Callable[[], None]) -> None:
    """Register ``keeper``, which clears a module's cache of values made from plug-ins; forget() calls it."""
    _keepers.append(keeper)


def _is_off() -> bool:
    """Return whether plug-ins are switched off, by ``switch`` or else by the variable. Raise UsageError."""
    if _switched[0] is not None:
        return _switched[0]
    raw = os.environ.get(VARIABLE)
    try:
        return bool(raw) and parsers.flag(raw, "")
    except ValueError as e:
        raise UsageError(f"{VARIABLE}: {e}", "use 1 to leave plug-ins out") from e


def list_added(group: str, taken: Collection[str] = ()) -> Mapping[str, Plugin]:
    """Return a group's plug-ins by name. Raise UsageError if a plug-in has a name that is ``taken``."""
    with _lock:
        if _is_off():
            return {}
        for entry in _find().entries:
            if entry.group == group and entry.name in taken:
                why = "ckpt has one of that name, or another package adds it"
                raise UsageError(f"{entry} cannot have that name: {why}", HINT)
        return dict(_import_group(_find(), group))


def reject(group: str, name: str, why: str) -> None:
    """Remove an imported plug-in from its group, and list it as broken."""
    with _lock:
        found = _find()
        found.groups[group].pop(name)
        entry = next(e for e in found.entries if (e.group, e.name) == (group, name))
        found.broken.append(Broken(str(entry), why, group))


def list_broken(groups: Collection[str] = tuple(_KINDS)) -> list[Broken]:
    """Return the installed plug-ins of these groups that cannot be used; imports each group to find them."""
    with _lock:
        if _is_off():
            return []
        for group in groups:
            _import_group(_find(), group)
        wrong = [b for b in _find().broken if b.group in groups or b.group not in _KINDS]
        return sorted(wrong, key=str)  # in one order, whichever group was imported first


def list_left_out() -> list[str]:
    """Return the packages whose deciding plug-ins are switched off; [] if plug-ins are on."""
    return _list_deciding_packages(_read_entries()) if _is_off() else []


def _list_deciding_packages(found: _Found) -> list[str]:
    """Return the packages with entry points in DECIDING groups, each with its version."""
    return list(dict.fromkeys(e.package for e in found.entries if e.group in DECIDING))


def findings() -> Iterator[Finding]:
    """Yield a finding per broken plug-in that decides: with this plug-in the answer might be another."""
    for one in list_broken(DECIDING):
        yield finding("broken-plugin", f"{one}; what only it knows was not recognised", hint=HINT)


def tool_version() -> str:
    """Return ckpt's version and the packages of DECIDING groups: processes of one version answer alike."""
    return f"{__version__}{packages()}"


def packages() -> str:
    """Return the packages of DECIDING groups, and what is broken of them, as a text; "" without any."""
    with _lock:
        names, wrong = ([], []) if _is_off() else (_list_deciding_packages(_find()), list_broken(DECIDING))
        installed = f" with {', '.join(names)}" if names else ""
        return f"{installed} but without {', '.join(b.what for b in wrong)}" if wrong else installed


@cache
def _find() -> _Found:
    """Return the one search of this process for plug-ins, until ``forget``."""
    return _read_entries()


def _read_entries() -> _Found:
    """Read the entry points of packages: the first of a name on sys.path, none of the working directory."""
    found, firsts = _Found(), dict[str, object]()
    for dist in metadata.distributions(path=[path for path in sys.path if os.path.isabs(path)]):
        try:
            rows = [e for e in dist.entry_points if e.group.startswith("ckpt_tools.")]
            if not rows or firsts.setdefault(dist.metadata["Name"], dist) is not dist:
                continue
            package = f"{dist.metadata['Name']} {dist.version}"
        except Exception as e:  # metadata may be broken in any way
            found.broken.append(Broken(f"plug-ins of {dist.locate_file('')}", f"{type(e).__name__}: {e}"))
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
    """Return a group's plug-ins by name, imported once; add broken ones to ``found``. Raise UsageError."""
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
        except ImportError as e:
            found.broken.append(Broken(str(entry), str(e), group))
    found.groups[group] = imported
    return imported


def _load(entry: Entry) -> Any:
    """Return the value of an entry point, guarded: its errors name its package. Raise ImportError."""
    module, oldest = entry.value.partition(":")[0], OLDEST_API.get(entry.group, 1)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for answers
            value: Any = metadata.EntryPoint(entry.name, entry.value, entry.group).load()
    except (Exception, SystemExit) as e:
        is_old = isinstance(e, TypeError) and oldest > 1
        old = f"; those of version {oldest} of the interface have other fields" if is_old else ""
        raise ImportError(f"{type(e).__name__}: {e}{old}") from e
    homes: list[Any] = [sys.modules.get(name) for name in (module, module.partition(".")[0])]
    api = next((home.CKPT_API for home in homes if hasattr(home, "CKPT_API")), 1)
    if not isinstance(api, int) or not oldest <= api <= API_VERSION:
        text = f"it is written for version {api!r} of the interface, and ckpt {__version__} has {API_VERSION}"
        raise ImportError(f"{text} (CKPT_API)")
    if _KINDS[entry.group] not in [(kind.__module__, kind.__qualname__) for kind in type(value).__mro__]:
        raise ImportError(f"{entry.value} is a {type(value).__name__}, no {_KINDS[entry.group][1]}")
    if value.name != entry.name:
        raise ImportError(f"it calls itself {value.name!r}, and its entry point says {entry.name!r}")
    return _guard(value, entry)


def _guard(value: Any, entry: Entry) -> Any:
    """Return a copy of a plug-in's Struct whose functions, at every depth, name the plug-in if they fail."""
    changed = dict[str, Any]()
    for f in fields(value):
        own = getattr(value, f.name)
        if f.name == "checks":
            changed[f.name] = {level: _guard_check(check, entry) for level, check in own.items()}
        elif f.name == "renders":
            changed[f.name] = {k: _guard_call(find_function(how), entry, k) for k, how in own.items()}
        elif isinstance(own, Struct):
            changed[f.name] = _guard(own, entry)
        elif callable(own) and own is not f.default:
            changed[f.name] = _guard_call(own, entry, f.name)
    return replace(value, **changed)


def find_function(how: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return ``how`` if it is a function, else a function that imports ``module:function`` when called."""
    if not isinstance(how, str):
        return how
    module, _, name = how.partition(":")

    def call(*given: Any) -> Any:
        return getattr(import_module(module), name)(*given)

    return call


def _guard_call(function: Callable[..., Any], entry: Entry, name: str) -> Callable[..., Any]:
    """Return a function of a plug-in whose errors, also those of an iterator it returns, name the plug-in."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            answer = function(*args, **named)
            return iter(list(answer)) if isinstance(answer, Iterator) else answer
        except CkptError:
            raise
        except Exception as e:
            raise CannotLook(f"{entry} failed in {name!r}: {type(e).__name__}: {e}", HINT) from e

    return call


def _guard_check(check: Callable[..., Iterator[Finding]], entry: Entry) -> Callable[..., Iterator[Finding]]:
    """Return a check of one file that yields its own errors as findings: the file's contents stay unknown."""

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
