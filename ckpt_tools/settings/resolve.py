"""Settings (flags > CKPT_* > the nearest ckpt.toml > defaults), and the directories of what ckpt keeps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import DecodeError, Struct, toml
from msgspec.structs import replace

from ckpt_tools.errors import UsageError, explain_refusal
from ckpt_tools.model.selection import Pairs, ReadOptions, Selection, StoreOptions
from ckpt_tools.settings import declarations
from ckpt_tools.settings.declarations import BY_KEY, ENV, REPEATED, SIZES, WORDS, RawValue, Variable
from ckpt_tools.settings.parsers import EVERYONE, nearest
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import exists, is_file
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.urls import is_url, to_absolute

if TYPE_CHECKING:
    from ckpt_tools.layouts import Layouts

_UNREAD = "{} is not read, because it lies in the tree that is scanned; add --config {} if you trust it"
_HINT = 'such as [store."s3://bucket"] with region = "eu-west-1" (docs/stores.md)'


def store_tables(file: str, tables: Mapping[str, Any]) -> tuple[tuple[str, Pairs], ...]:
    """Return (URL, options) of each table ``[store."s3://…"]``. Raise UsageError, also for a secret."""
    if not tables:
        return ()
    from ckpt_tools.storage.signed import strip_query  # only for a file with such tables

    out: dict[str, Pairs] = {}
    for url, table in tables.items():
        if "://" not in url or not isinstance(table, dict):
            raise UsageError(f"{file}: [store] {url.partition('?')[0]!r} is not a table for a URL", _HINT)
        prefix = to_absolute(strip_query(url))
        where = f'{file}: [store."{prefix}"]'
        if prefix in out:
            raise UsageError(f"{where} is there twice", _HINT)
        try:
            out[prefix] = tuple(_read_options(table))
        except ValueError as e:
            raise UsageError(f"{where}: {e}", _HINT) from None
    return tuple(out.items())


def _read_options(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of a table's options; those of tables within it have names with dots."""
    from ckpt_tools.storage.stores.options import check_option

    for key, value in table.items():
        if isinstance(value, dict):
            yield from _read_options(value, f"{prefix}{key}.")
        elif isinstance(value, str | int | float):
            yield check_option(
                f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)
            )
        else:
            raise ValueError("an option is a text, a number, true or false")  # noqa: TRY004


__all__ = ["BY_KEY", "ENV", "SIZES", "WORDS", "Settings", "Variable", "nearest", "require_known", "resolve"]


class Settings(Struct, frozen=True):
    """The given settings by key, and what else a configuration file says."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]  # the flag, variable or file of each
    file: str | None = None
    notes: tuple[str, ...] = ()  # for the user
    layout_tables: object = None  # [[layout]] of the file, unparsed
    refused: Untrusted | None = None  # the error of a file that was refused, for the user
    trust: Trust = OURS  # whose files count
    layouts: Layouts | None = None  # what the caller parsed from the tables
    store_tables: tuple[tuple[str, Pairs], ...] = ()  # [store."URL"], parsed
    going: tuple[tuple[str, str], ...] = ()  # each deprecated variable that was used, and its replacement

    @property
    def stores(self) -> StoreOptions | None:
        """Return how to open stores: CKPT_STORE_OPTION, then tables ``[store."URL"]``; None if not given."""
        flags: Pairs = self.values.get("store-option", ())
        return StoreOptions(flags, self.store_tables) if flags or self.store_tables else None

    @property
    def root(self) -> str:
        return str(self.values.get("root", "."))

    def select(self, names: Container[str]) -> dict[str, Any]:
        """Return the given settings whose key, with _ for -, is in ``names``."""
        by_name = {key.replace("-", "_"): value for key, value in self.values.items()}
        return {name: value for name, value in by_name.items() if name in names}

    def reading(self, *more: str, names: Iterable[str] = ReadOptions.__struct_fields__) -> dict[str, Any]:
        """Return the given settings of ``names`` (of ReadOptions) and ``more``, with trust and layouts."""
        given = self.select({*names, *more})
        return {**given, "trust": self.trust, "layouts": self.layouts}

    def selection(self, *, cache: bool = False) -> Selection:
        """Return which checkpoint to choose; settings that were not given have Selection's defaults.

        Raise UsageError if two settings contradict each other.
        """
        given = self.select(Selection.__struct_fields__)
        rank, world_size = given.get("rank"), given.get("world_size")
        if rank is not None and world_size is not None and rank >= world_size:
            count = f"{world_size} ranks ({self.origins['world-size']})"
            text = f"{self.origins['rank']} {rank} does not exist among {count}"
            raise UsageError(text, f"ranks count from 0: add --rank 0 to {world_size - 1}")
        if "fault-file" in self.values:
            given["fault_ranks"] = given.get("fault_ranks", frozenset()) | self.values["fault-file"]
        start, order = given.get("resume_from"), given.get("order")
        if None not in (start, order) and start != order:
            text = f"{self.origins['resume-from']} {start} contradicts {self.origins['order']} {order}"
            raise UsageError(text, "use one of them")
        groups = dict(self.values.get("replica-groups", {}))
        everyone = groups.pop(EVERYONE, None) is not None or self.values.get("replicas") == "all"
        given["replica_groups"] = groups
        sizes = {size: self.values[size] for size in SIZES if size in self.values}
        return Selection(
            **given,
            sizes=sizes,
            replicas_all=everyone,
            trust=self.trust,
            layouts=self.layouts,
            stores=self.stores,
            cache=cache and not self.values.get("no-cache", False),
        )


def require_known(name: str, words: Iterable[str], what: str, hint: str) -> None:
    """Raise UsageError for a name that is not in ``words``, with the word probably meant, else ``hint``."""
    if name not in (names := list(words)):
        meant = nearest(name, names)
        raise UsageError(f"there is no {what} {name!r}", f"did you mean {meant!r}?" if meant else hint)


_MOST = 16 << 20
"""The most bytes of a configuration file."""
_ELSEWHERE = "run it in another directory, or repair this one"


def _is_within(path: str, root: str) -> bool:
    """Return True if ``path``, with its links followed, is ``root`` or lies below it."""
    path, root = os.path.realpath(path), os.path.realpath(root)
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _read(path: str, trusted: Trust) -> dict[str, Any] | None:
    """Return the table of a ckpt.toml, or [tool.ckpt] of a pyproject.toml, None without. Raise CkptError."""
    try:
        data = trust.read(path, _MOST, trusted)
    except OSError as e:
        text = f"configuration file {path!r} cannot be read: {e.strerror}"
        raise UsageError(text, "make it readable, or add --config FILE") from e
    is_project = os.path.basename(path) == "pyproject.toml"
    if is_project and b"ckpt" not in data:
        return None  # most projects: spare them the TOML parser
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
        table: dict[str, Any] = toml.decode(text)
    except (DecodeError, ValueError, RecursionError) as e:  # of msgspec 0.19 the one is not the other
        text = f"configuration file {path!r} is not valid TOML: {e}"
        raise UsageError(text, "correct it, or add --config FILE") from e
    if not is_project:
        return table
    tool = table.get("tool", {})
    own = tool.get("ckpt") if isinstance(tool, dict) else None
    return own if isinstance(own, dict) else None


class _Config(NamedTuple):
    """One found file ("": none). ``notes`` name files that were not read; ``refused`` ended the search."""

    file: str
    table: dict[str, Any]
    notes: tuple[str, ...] = ()
    refused: Untrusted | None = None


def _search_upward(cwd: str, roots: Sequence[str], trusted: Trust) -> _Config:
    """Return the nearest file from ``cwd`` upward. Raise UsageError if a trusted file cannot be read."""
    directory, passed, notes = cwd, list[str](), tuple[str, ...]()
    while directory not in passed:
        for name in ("ckpt.toml", "pyproject.toml"):
            path = os.path.join(directory, name)
            if not _config_exists(path):
                continue
            if any(_is_within(path, os.path.join(cwd, root)) for root in roots):
                if name == "ckpt.toml":  # a pyproject.toml is too common to talk about
                    notes += (_UNREAD.format(path, shlex.quote(path)),)
                continue
            try:
                for closer in passed:  # checked only now that a file is found: most starts have none
                    with explain_refusal(f"cannot look for a configuration file in {closer}", _ELSEWHERE):
                        trust.check(closer, trusted)
                table = _read(path, trusted)
            except Untrusted as e:
                if e.unfit:
                    text = f"configuration file {path!r} cannot be read: {e}"
                    raise UsageError(text, "put a regular file in its place, or add --config FILE") from e
                if not _may_configure(path):
                    continue
                hint = f"add --config {shlex.quote(path)} once it is; {e.hint}"
                text = f"{path} is not read, because others could have written it: {e}"
                return _Config("", {}, notes, Untrusted(text, hint))
            if table is not None:
                return _Config(path, table, notes)
        passed.append(directory)
        directory = os.path.dirname(directory)
    return _Config("", {}, notes)


def _find_config(
    values: Mapping[str, Any], origins: Mapping[str, str], scanned: Sequence[str], cwd: str, trusted: Trust
) -> _Config:
    """Return the file of --config or CKPT_CONFIG, else the nearest one. Raise UsageError and Untrusted."""
    if "config" not in values:
        found = _search_upward(cwd, scanned, trusted)
        notes = list(found.notes)
        for root in scanned:  # a ckpt.toml in a scanned tree is not read, because its author is not known
            path = os.path.normpath(os.path.join(cwd, root, "ckpt.toml"))
            if not is_url(root) and os.path.lexists(os.path.join(cwd, root, "ckpt.toml")):
                notes.append(_UNREAD.format(path, shlex.quote(path)))
        return found._replace(notes=tuple(dict.fromkeys(notes)))
    file, origin = os.path.join(cwd, values["config"]), origins["config"]
    with trust.label(origin):
        table = _read(file, trusted)
    if table is None:
        raise UsageError(f"{origin}: {file!r} has no table [tool.ckpt]", "add one, or name a ckpt.toml")
    return _Config(file, table)


def _may_configure(path: str) -> bool:
    """Return True if a file that is not trusted may configure ckpt, or cannot be read: a warning is due."""
    if os.path.basename(path) == "ckpt.toml":
        return True
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            return b"tool.ckpt" in f.read(_MOST)
    except OSError:
        return True


def _config_exists(path: str) -> bool:
    """Return True for a file; for a ckpt.toml also if it is a broken link or a directory. Raise CannotLook if
    the file system does not say: the command would ignore settings that the user made.
    """
    with explain_refusal(f"cannot look for the configuration file {path}", _ELSEWHERE):
        try:
            return exists(path) if os.path.basename(path) == "ckpt.toml" else is_file(path)
        except PermissionError:
            return False


def _check_keys(path: str, table: dict[str, object]) -> None:
    """Raise UsageError for a key that a configuration file cannot have; rename resume_args in ``table``."""
    if "resume_args" in table:  # the spelling of [[layout]]
        table["resume-args"] = table.pop("resume_args")
    allowed = [v.key for v in ENV if v.parse and v.in_file]
    for key, value in table.items():
        # [[layout]] and [store."URL"] are tables; "layout" with a text is the setting --layout.
        is_table = isinstance(value, {"layout": list, "store": dict}.get(key, ()))
        if key in allowed or is_table:
            continue
        if key in BY_KEY:
            hint = f"use {BY_KEY[key].said} or {BY_KEY[key].exported}".replace("={}", "")
            raise UsageError(f"{path}: {key!r} cannot be set in a configuration file", hint)
        meant = nearest(key, allowed)
        hint = f"did you mean {meant!r}?" if meant else f"known keys: {', '.join(allowed)}"
        raise UsageError(f"{path}: unknown key {key!r}", hint)


def resolve(
    flags: Mapping[str, object],
    roots: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Settings:
    """Return the settings whose keys are in ``flags``, each from its flag, else its variable, else the file.

    A flag of None or False, an empty list and an empty variable count as not given. ``roots`` are scanned
    trees besides ROOT. Raise UsageError and Untrusted.
    """
    env = os.environ if env is None else env
    cwd = cwd or _find_current_directory()
    trusted = declarations.trusted(flags, env)
    raw_values = declarations.find_raw_values(flags, env)
    values: dict[str, Any] = {
        key: BY_KEY[key].value(raw, origin, "", trusted) for key, (raw, origin) in raw_values.items()
    }
    origins = {key: origin for key, (_, origin) in raw_values.items()}
    going = tuple(_list_deprecated(raw_values, values))
    scanned = [*roots, *([values.get("root", ".")] if "root" in flags else [])]
    config = _find_config(values, origins, scanned, cwd, trusted)
    file, table = config.file, config.table
    _check_keys(file, table)
    layout_tables = table.pop("layout") if isinstance(table.get("layout"), list) else None
    stores = store_tables(file, table.pop("store", {}))
    file_keys = [key for key in table if key in flags and key not in values]
    for key in file_keys:
        origins[key] = f"{file}: {key}"
        values[key] = BY_KEY[key].value(table[key], origins[key], os.path.dirname(file), trusted)
    if "root" in file_keys and "config" not in values and _is_within(file, values["root"]):
        text = f"{file}: root = {values['root']!r} contains the file itself: no tree may configure its scan"
        raise UsageError(text, "move the file above it, or name it with --config")
    settings = Settings(values, origins, file or None, config.notes, layout_tables, config.refused, trusted)
    return replace(settings, store_tables=stores, going=going)


def _list_deprecated(given: Mapping[str, RawValue], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each deprecated variable that was used, with its replacement."""
    for key, (raw, origin) in given.items():
        variable = BY_KEY[key]
        if variable.set and origin == variable.name:
            off = f"{key} = false in ckpt.toml" if values[key] is False else ""
            many = str(raw).splitlines() if variable.parse in REPEATED else [str(raw)]
            yield origin, off or declarations.fill(variable.set, many)


def _find_current_directory() -> str:
    """Return the current directory. Raise UsageError if it is gone."""
    try:
        return os.getcwd()
    except OSError as e:
        is_gone = isinstance(e, FileNotFoundError)
        what = "does not exist any more" if is_gone else f"is not available: {e.strerror}"
        raise UsageError(f"the current directory {what}", "change to another directory") from e


def decisions(env: Mapping[str, str] | None = None) -> str:
    """Return the log of decisions; it survives a reboot, else a lost mount looks like a first launch."""
    env = os.environ if env is None else env
    home = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "ckpt-tools", "decisions")


def verdicts(env: Mapping[str, str]) -> str:
    """Return the directory of cached verdicts of this user and host; "" if there is no home directory."""
    shared = env.get("XDG_CACHE_HOME", "")
    default = os.path.join(shared if os.path.isabs(shared) else os.path.expanduser("~/.cache"), "ckpt-tools")
    cache = env.get("CKPT_CACHE_DIR", "") or default
    if cache.startswith("~"):
        return ""
    return os.path.join(os.path.abspath(cache), os.uname().nodename.replace("/", "_").lstrip(".") or "host")


def find_watched(env: Mapping[str, str] | None = None) -> str:
    """Return the directory of the state of ``ckpt watch``."""
    return os.path.join(os.path.dirname(decisions(env)), "watched")
