"""Where a setting comes from: flags > CKPT_* > the nearest ckpt.toml > defaults. Every variable is declared once, in settings.ENV."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.question import Selection
from ckpt_tools.settings import BY_KEY, ENV, SIZES, Variable
from ckpt_tools.storage.retry import is_file

__all__ = ["BY_KEY", "ENV", "SIZES", "Settings", "Variable", "nearest", "resolve"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Values by key, only those that were given; ``origins`` says for each where. ``notes`` are to be shown to the user.

    ``layouts`` are the file's ``[[layout]]`` tables as they stand there.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    file: str | None = None
    notes: tuple[str, ...] = ()
    layouts: object = None

    @property
    def root(self) -> str:
        root: str = self.values.get("root", ".")
        return root

    def selection(self) -> Selection:
        """The question to ask; what was not given is as Selection has it."""
        given = {name: value for key, value in self.values.items() if (name := key.replace("-", "_")) in Selection.__dataclass_fields__}
        rank, world_size = given.get("rank"), given.get("world_size")
        if rank is not None and world_size is not None and rank >= world_size:
            raise UsageError(
                f"{self.origins['rank']} {rank} does not exist among {world_size} ranks ({self.origins['world-size']})",
                f"ranks count from 0: say --rank 0 to {world_size - 1}",
            )
        if "fault-file" in self.values:
            given["fault_ranks"] = given.get("fault_ranks", frozenset()) | self.values["fault-file"]
        if "resume_from" in given and "order" in given and given["resume_from"] != given["order"]:
            raise UsageError(
                f"{self.origins['resume-from']} {given['resume_from']} and {self.origins['order']} {given['order']} contradict each other",
                "say one of them",
            )
        sizes = {size: self.values[size] for size in SIZES if size in self.values}
        return Selection(**given, sizes=sizes, replicas_all=self.values.get("replicas") == "all")


def nearest(given: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant."""
    from difflib import get_close_matches  # only after a mistake: it costs start-up time

    return next(iter(get_close_matches(given, list(words), 1, 0.5)), None)


def _within(path: str, root: str) -> bool:
    path, root = os.path.realpath(path), os.path.realpath(root)
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _read(path: str) -> dict[str, Any] | None:
    """The table of a configuration file; None for a pyproject.toml without one."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as e:
        raise UsageError(f"configuration file {path!r} cannot be read: {e.strerror}", "make it readable, or say --config FILE") from e
    project = os.path.basename(path) == "pyproject.toml"
    if project and b"ckpt" not in data:
        return None  # most projects: spare them the TOML parser
    if sys.version_info >= (3, 11):  # imported here because most runs have no configuration file
        import tomllib as toml
    else:
        import tomli as toml
    try:
        table = toml.loads(data.decode())
    except ValueError as e:
        raise UsageError(f"configuration file {path!r} is not valid TOML: {e}", "correct it, or say --config FILE") from e
    if not project:
        return table
    tool = table.get("tool", {})
    found = tool.get("ckpt") if isinstance(tool, dict) else None
    return found if isinstance(found, dict) else None


def _find(cwd: str, roots: Sequence[str]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The nearest configuration file from ``cwd`` upward, its table, and notes on files that lie in a scanned tree and were not read."""
    notes: list[str] = []
    directory = cwd
    while True:
        for name in ("ckpt.toml", "pyproject.toml"):
            path = os.path.join(directory, name)
            if not _there(path):
                continue
            if any(_within(path, os.path.join(cwd, root)) for root in roots):
                if name == "ckpt.toml":  # a pyproject.toml is too common to talk about
                    notes.append(f"{path} is not read, because it lies in the tree that is scanned; say --config {name} if you trust it")
                continue
            table = _read(path)
            if table is not None:
                return path, table, tuple(notes)
        above = os.path.dirname(directory)
        if above == directory:
            return "", {}, tuple(notes)
        directory = above


def _there(path: str) -> bool:
    """Raises CannotLook when that cannot be seen: without its file a command would do something else than it was told. What lies in a directory that is closed to us is not for us."""
    try:
        return is_file(path)
    except PermissionError:
        return False
    except OSError as e:
        raise CannotLook(f"cannot look for the configuration file {path}: {e.strerror}", "run it in another directory, or mend this one") from e


def _check_keys(path: str, table: Mapping[str, object]) -> None:
    allowed = [v.key for v in ENV if v.parse and v.in_file]
    for key in table:
        if key in allowed or (key == "layout" and isinstance(table[key], list)):  # the tables [[layout]]; a text is the setting --layout
            continue
        if key in BY_KEY:
            raise UsageError(f"{path}: {key!r} cannot be set in a configuration file", f"say {BY_KEY[key].flag} or {BY_KEY[key].name}")
        meant = nearest(key, allowed)
        raise UsageError(f"{path}: unknown key {key!r}", f"did you mean {meant!r}?" if meant else f"known keys: {', '.join(allowed)}")


def resolve(
    flags: Mapping[str, object],
    roots: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Settings:
    """The settings named by the keys of ``flags``, each from the first place that gives it.

    A flag of None or False, an empty list and an empty variable count as not given. ``roots`` are scanned trees beside ROOT.
    """
    env = os.environ if env is None else env
    try:
        cwd = cwd or os.getcwd()
    except OSError as e:
        raise UsageError("the current directory does not exist any more", "change to another directory") from e
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(key: str, raw: object, origin: str, base: str = "") -> None:
        parse = BY_KEY[key].parse
        assert parse is not None  # noqa: S101 - BY_KEY holds settings only; for the type checker
        try:
            values[key], origins[key] = parse(raw, base), origin
        except ValueError as e:
            raise UsageError(f"{origin}: {e}", f"{BY_KEY[key].flag}: {BY_KEY[key].meaning}") from e

    for key, raw in flags.items():
        variable = BY_KEY[key]
        if not (raw is None or raw is False or raw == []):
            take(key, raw, variable.flag)
        elif env.get(variable.name):
            take(key, env[variable.name], variable.name)

    scanned = [*roots, *([values.get("root", ".")] if "root" in flags else [])]
    notes: tuple[str, ...] = ()
    table: dict[str, Any] | None
    if "config" in values:
        file = os.path.join(cwd, values["config"])
        table = _read(file)
        if table is None:
            raise UsageError(f"{origins['config']}: {file!r} has no table [tool.ckpt]", "add one, or name a ckpt.toml")
    else:
        file, table, notes = _find(cwd, scanned)
    _check_keys(file, table)
    own = table.pop("layout") if isinstance(table.get("layout"), list) else None
    for key, raw in table.items():
        if key in flags and key not in values:
            take(key, raw, f"{file}: {key}", os.path.dirname(file))
    if origins.get("root", "").startswith(file) and file and "config" not in values and _within(file, values["root"]):
        raise UsageError(
            f"{file}: root = {values['root']!r} contains the file itself, and no configuration is read from a scanned tree",
            "move the file above it, or name it with --config",
        )
    return Settings(values, origins, file or None, notes, own)
