"""Plug-ins: formats, layouts, manifests, outputs and launchers that installed packages add (docs/plugins.md).

They are asked for where names are resolved, once in a process. One that cannot be used is ``broken``: that is
a warning in every answer that it may have changed, and never the end of a command.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import redirect_stdout
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding
from ckpt_tools.settings import installed, parsers
from ckpt_tools.settings.installed import GROUPS, EntryPoint, Package
from ckpt_tools.storage import ShortRead, Stopped

if TYPE_CHECKING:
    from msgspec.structs import FieldInfo

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
"""What the values of a group are: this room lies below theirs."""
HINT = "repair or remove that package, or set CKPT_NO_PLUGINS=1"


class Plugin(NamedTuple):
    """A value that a package adds under a ``name`` of its own."""

    name: str
    value: Any
    package: Package


class Broken(NamedTuple):
    """What cannot be used, and the group that it is of; "" where that is not known."""

    what: str
    why: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.what} cannot be used: {self.why}"


class Installed:
    """What the packages of this Python add. Each group is imported when somebody asks for it."""

    def __init__(self) -> None:
        self.entry_points, unlisted = installed.entry_points(installed.listed())
        self.broken = [Broken(f"plug-ins in {u.path}", u.why) for u in unlisted]
        self._groups: dict[str, dict[str, Plugin]] = {}
        for entry in self.entry_points:
            if entry.group not in GROUPS:
                self.broken.append(_broken(entry, f"there is no group {entry.group!r}, only {_list(GROUPS)}"))

    def group(self, name: str) -> Mapping[str, Plugin]:
        """What is added to one group, by name."""
        if name not in self._groups:
            self._groups[name] = dict[str, Plugin]()  # a plug-in that asks while it is imported gets nothing
            self._groups[name] = self._imported(name)
        return self._groups[name]

    def reject(self, group: str, name: str, why: str) -> None:
        """A value is of the right kind, and wrong all the same."""
        self._groups[group].pop(name)
        entry = next(e for e in self.entry_points if (e.group, e.name) == (group, name))
        self.broken.append(_broken(entry, why))

    def _imported(self, group: str) -> dict[str, Plugin]:
        found = dict[str, Plugin]()
        for entry in self.entry_points:
            if entry.group != group:
                continue
            if entry.name in found:
                _clash(entry, f"{found[entry.name].package} adds one of that name, too")
            try:
                found[entry.name] = Plugin(entry.name, _value(entry), entry.package)
            except _Unusable as e:
                self.broken.append(_broken(entry, str(e)))
        return found


class _Unusable(Exception):
    """Why a plug-in cannot be used."""


class _State:
    """Of this process: what was found, whether plug-ins are off, and who keeps what they add."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.found: Installed | None = None
        self.off: bool | None = None
        self.version: str | None = None
        self.keepers: list[Callable[[], None]] = []


_state = _State()


def switch(off: bool | None) -> None:
    """Leave plug-ins out, or not, for the rest of this process; None asks CKPT_NO_PLUGINS."""
    with _state.lock:
        before = _off()
        _state.off = off
        changed = _off() is not before
    if changed:
        forget()


def forget() -> None:
    """Look for plug-ins anew when they are needed next: some were installed, or switched off."""
    with _state.lock:
        _state.found, _state.version = None, None
    for keeper in _state.keepers:
        keeper()


def kept_by(keeper: Callable[[], None]) -> None:
    """What makes a module drop what it has made of plug-ins."""
    _state.keepers.append(keeper)


def _off() -> bool:
    if _state.off is not None:
        return _state.off
    raw = os.environ.get(VARIABLE)
    try:
        return bool(raw) and parsers.flag(raw, "")
    except ValueError as e:
        raise UsageError(f"{VARIABLE}: {e}", "say 1 to leave plug-ins out") from e


def added(group: str, taken: Collection[str] = ()) -> Mapping[str, Plugin]:
    """What packages add to a group, by name. Raises UsageError where a name is ``taken``: a plug-in does not
    exchange what ckpt itself does.
    """
    with _state.lock:
        if _off():
            return {}
        found = _found()
        for entry in found.entry_points:
            if entry.group == group and entry.name in taken:
                _clash(entry, "ckpt has one of that name, or another package adds it")
        return dict(found.group(group))


def _found() -> Installed:
    if _state.found is None:
        _state.found = Installed()
    return _state.found


def reject(group: str, name: str, why: str) -> None:
    """Say that a plug-in cannot be used, which only its own room can see."""
    with _state.lock:
        _found().reject(group, name, why)


def broken(groups: Collection[str] = GROUPS) -> list[Broken]:
    """What is installed for these groups and cannot be used; each group is imported for it."""
    with _state.lock:
        if _off():
            return []
        found = _found()
        for group in groups:
            found.group(group)
        wrong = [b for b in found.broken if b.group in groups or b.group not in GROUPS]
        return sorted(wrong, key=str)  # whatever was asked for first


def left_out() -> list[Package]:
    """The packages that would decide as well, had the caller not switched plug-ins off."""
    with _state.lock:
        entries = installed.entry_points(installed.listed())[0] if _off() else []
    return list(dict.fromkeys(e.package for e in entries if e.group in DECIDING))


def findings() -> Iterator[Finding]:
    """What an answer has to say: with a plug-in more it might be another one."""
    for one in broken(DECIDING):
        yield finding("broken-plugin", f"{one}; what only it knows was not recognised", hint=HINT)


def tool_version() -> str:
    """The version of ckpt with those of the packages that decide with it: two processes of one version give
    the same answer.
    """
    return f"{__version__}{packages()}"


def packages() -> str:
    """The same without that of ckpt, "" where no package decides anything."""
    if _state.version is None:
        with _state.lock:
            wrong = broken(DECIDING)
            entries = () if _off() else _found().entry_points
        names = dict.fromkeys(str(e.package) for e in entries if e.group in DECIDING)
        said = f" with {', '.join(names)}" if names else ""
        _state.version = f"{said} but without {', '.join(b.what for b in wrong)}" if wrong else said
    return _state.version


# ---- one plug-in


def _value(entry: EntryPoint) -> Any:
    """What an entry point leads to, so that whatever it raises names its package. Raises _Unusable."""
    module, _, attribute = entry.value.partition(":")
    try:
        with redirect_stdout(sys.stderr):  # stdout is for answers
            loaded: Any = import_module(module)
            value = loaded
            for name in filter(None, attribute.split(".")):
                value = getattr(value, name)
    except (Exception, SystemExit) as e:
        fields = isinstance(e, TypeError) and entry.group in OLDEST_API
        old = (
            f"; those of version {OLDEST_API[entry.group]} of the interface have other fields"
            if fields
            else ""
        )
        raise _Unusable(f"{type(e).__name__}: {e}{old}") from e
    top = sys.modules.get(module.partition(".")[0], loaded)
    _require_version(entry, getattr(loaded, "CKPT_API", getattr(top, "CKPT_API", None)))
    if _KINDS[entry.group] not in [(kind.__module__, kind.__qualname__) for kind in type(value).__mro__]:
        raise _Unusable(f"{entry.value} is a {type(value).__name__}, no {_KINDS[entry.group][1]}")
    if value.name != entry.name:
        raise _Unusable(f"it calls itself {value.name!r}, and its entry point says {entry.name!r}")
    return _guarded(value, entry)


def _require_version(entry: EntryPoint, api: object) -> None:
    """Raises _Unusable where a plug-in says that it is written for a version whose plug-ins do not work."""
    oldest = OLDEST_API.get(entry.group, 1)
    api = 1 if api is None else api
    if not isinstance(api, int) or not oldest <= api <= API_VERSION:
        text = f"it is written for version {api!r} of the interface, and ckpt {__version__} has {API_VERSION}"
        raise _Unusable(f"{text} (CKPT_API)")


def _guarded(value: Any, entry: EntryPoint) -> Any:
    """The same value, whose functions say whose they are when they fail."""
    from msgspec.structs import fields

    changed = dict[str, Any]()
    for f in fields(value):
        own = getattr(value, f.name)
        if f.name == "checks":
            changed[f.name] = {level: _checking(check, entry) for level, check in own.items()}
        elif f.name == "renders":
            changed[f.name] = {kind: _calling(_render(how), entry, kind) for kind, how in own.items()}
        elif isinstance(own, Struct) and own is not _default(f):
            changed[f.name] = _guarded(own, entry)
        elif callable(own) and own is not _default(f):
            changed[f.name] = _calling(own, entry, f.name)
    return replace(value, **changed)


def _render(how: Callable[..., Any] | str) -> Callable[..., Any]:
    """A function that is there, or the one of that name once it is called."""
    if not isinstance(how, str):
        return how
    module, _, name = how.partition(":")

    def render(*given: Any) -> Any:
        return getattr(import_module(module), name)(*given)

    return render


def _default(f: FieldInfo) -> object:
    from msgspec import NODEFAULT

    return f.default_factory() if f.default_factory is not NODEFAULT else f.default


def _calling(function: Callable[..., Any], entry: EntryPoint, name: str) -> Callable[..., Any]:
    def failed(e: Exception) -> CannotLook:
        return CannotLook(f"{_what(entry)} failed in {name!r}: {type(e).__name__}: {e}", HINT)

    def each(answer: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from answer
        except CkptError:
            raise
        except Exception as e:
            raise failed(e) from e

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            answer = function(*args, **named)
        except CkptError:
            raise
        except Exception as e:
            raise failed(e) from e
        return each(answer) if isinstance(answer, Iterator) else answer

    return call


def _checking(check: Callable[..., Iterator[Finding]], entry: EntryPoint) -> Callable[..., Iterator[Finding]]:
    """A check of one file: what it trips over is that file's finding, and nobody knows what is in it."""

    @wraps(check)
    def call(source: Any, anatomy: Any) -> Iterator[Finding]:
        try:
            yield from check(source, anatomy)
        except (CkptError, OSError, ShortRead, Stopped):
            raise
        except Exception as e:
            if isinstance(getattr(e, "finding", None), Finding):  # Damage, which lies above this room
                raise
            why = f"{_what(entry)} failed: {type(e).__name__}: {e}"
            yield finding("unreadable", why, hint=HINT)

    return call


def _what(entry: EntryPoint) -> str:
    return f"the {entry.group.rstrip('s')} plug-in {entry.name!r} of the package {entry.package}"


def _broken(entry: EntryPoint, why: str) -> Broken:
    return Broken(_what(entry), why, entry.group)


def _clash(entry: EntryPoint, why: str) -> None:
    raise UsageError(f"{_what(entry)} cannot have that name: {why}", HINT)


def _list(words: Collection[str]) -> str:
    return ", ".join(words)
