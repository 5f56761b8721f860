"""Where a setting comes from: flags > CKPT_* > the nearest ckpt.toml > defaults. Every variable is declared once, in ENV."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ckpt_tools.errors import UsageError
from ckpt_tools.model import Kind, Level, Selection

Parse = Callable[[object, str], object]
"""A raw value (text of a flag or variable, or a TOML value) and the directory its relative paths start from -> the setting's value.

Raises ValueError with a message that says what would be right.
"""

MAX_RANK = 1 << 24
"""No job has more ranks; a typing error such as 0-99999999999 must not fill the memory."""

_BETWEEN = re.compile(r"\s*,\s*|\s+")  # "1,,2" has an empty rank, which is an error: some script forgot one

Groups = dict[str, tuple[tuple[int, ...], ...]]


# -- values ------------------------------------------------------------------------------------------------------------------------


def _whole(minimum: int, maximum: int | None = None) -> Parse:
    def parse(value: object, base: str) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004 - resolve() waits for ValueError
        if value < minimum:
            raise ValueError(f"{value} is below {minimum}")
        if maximum is not None and value > maximum:
            raise ValueError(f"{value} is above {maximum}")
        return value

    return parse


def _text(value: object, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a text")
    return value


def _path(value: object, base: str) -> str:
    return os.path.join(base, os.path.expanduser(_text(value, base)) if base else _text(value, base))


def _flag(value: object, base: str) -> bool:
    if isinstance(value, str):
        answer = value.strip().lower()
        if answer in ("1", "true", "yes", "on"):
            return True
        if answer in ("0", "false", "no", "off"):
            return False
    if isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is neither true nor false: say 1 or 0")


def word(value: object, words: Sequence[str]) -> str:
    """``value`` when it is one of ``words``."""
    if value not in words:
        raise ValueError(f"{value!r} is not one of {', '.join(words)}")
    return str(value)


def _one_of(*words: str) -> Parse:
    def parse(value: object, base: str) -> str:
        return word(value, words)

    return parse


def _level(value: object, base: str) -> Level:
    return Level[word(value, [str(level) for level in Level]).upper()]


def _kind(value: object, base: str) -> Kind:
    return Kind(word(value, [str(kind) for kind in Kind]))


def duration(value: object, base: str = "") -> float:
    """Seconds from a number, or from texts such as ``120``, ``2m`` and ``1h30m``."""
    units = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    pieces = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", value) if isinstance(value, str) else []
    # Joined again they must give the text, so that nothing was skipped; a bare number may only stand alone.
    if not pieces or "".join(n + u for n, u in pieces) != str(value).strip() or (len(pieces) > 1 and any(not u for _, u in pieces)):
        raise ValueError(f"{value!r} is not a duration: say seconds (120) or a unit (90s, 2m, 1h30m)")
    return sum(float(n) * units[u] for n, u in pieces)


def _ranks(texts: Iterable[str]) -> list[int]:
    ranks: list[int] = []
    for text in texts:
        m = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
        first, last = (int(m[1]), int(m[2] or m[1])) if m else (1, 0)
        if first > last:
            raise ValueError(f"{text!r} is not a rank or a range of ranks: say 1,3-5")
        if last > MAX_RANK:
            raise ValueError(f"rank {last} is above {MAX_RANK}")
        ranks.extend(range(first, last + 1))
    return ranks


def rank_set(value: object, base: str = "") -> frozenset[int]:
    """Ranks from ``1,3-5`` or a list of numbers."""
    words = re.split(_BETWEEN, value.strip()) if isinstance(value, str) else value
    if isinstance(words, int):
        words = [words]
    if not isinstance(words, list) or any(isinstance(w, bool) for w in words):
        raise ValueError(f"{value!r} is not a list of ranks: say 1,3-5")
    return frozenset(_ranks(str(w) for w in words))


def _group_list(value: object, where: str) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(g, list) and g for g in value):
        raise ValueError(f"{where}: {value!r} is not a list of lists of ranks such as [[0, 4], [1, 5]]")
    groups = tuple(tuple(_ranks(str(r) for r in group)) for group in value)
    seen: set[int] = set()
    for group in groups:
        for rank in group:
            if rank in seen:
                raise ValueError(f"{where}: rank {rank} occurs twice; each rank belongs to one group of a role")
            seen.add(rank)
    return groups


def _group_text(text: str, where: str) -> tuple[tuple[int, ...], ...]:
    lines = (line.partition("#")[0].strip() for line in re.split(r"[;\n]", text))
    groups = _group_list([re.split(_BETWEEN, line) for line in lines if line], where)
    if not groups:
        raise ValueError(f"{where} names no group: write one group per line, such as 0,4")
    return groups


def _group_file(path: str) -> Groups:
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except (OSError, ValueError) as e:
        raise ValueError(f"{path!r} cannot be read ({e}): say groups such as '0,4;1,5', or a file of them") from e
    if text.lstrip()[:1] not in ("[", "{"):
        return {"": _group_text(text, path)}
    import json  # only for such a file: it costs start-up time

    try:
        value = json.loads(text)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from e
    return {role: _group_list(groups, path) for role, groups in (value.items() if isinstance(value, dict) else [("", value)])}


def _group_entries(value: object, base: str) -> Iterator[Groups]:
    if isinstance(value, dict):
        for role, given in value.items():
            if isinstance(given, list):
                yield {role: _group_list(given, role)}
            else:
                yield _group_entry(f"{role}={given}", base)
    elif isinstance(value, list) and value and all(isinstance(v, list) for v in value):
        yield {"": _group_list(value, "replica-groups")}
    else:
        for entry in value if isinstance(value, list) else _text(value, base).strip().splitlines():
            yield _group_entry(_text(entry, base).strip(), base)


def _group_entry(entry: str, base: str) -> Groups:
    m = re.fullmatch(r"(?:([A-Za-z_][\w-]*)=)?(.+)", entry)
    if not m:
        raise ValueError(f"{entry!r} is neither groups such as '0,4;1,5' nor a file of them")
    role, rest = m[1] or "", m[2]
    if re.fullmatch(r"[0-9,;\s-]+", rest):
        return {role: _group_text(rest, repr(rest))}
    found = _group_file(_path(rest, base))
    if role and set(found) != {""}:
        raise ValueError(f"{rest} names the roles itself: drop '{role}='")
    return {role: found[""]} if role else found


def replica_groups(value: object, base: str = "") -> Groups:
    """Groups by role ("" for every role) from ``0,4;1,5``, ``model=0,2;1,3``, ``FILE`` or ``role=FILE``, or a list or table of such.

    A file holds one group per line, or JSON: a list of lists of ranks, or an object with one such list per role.
    """
    groups: Groups = {}
    for found in _group_entries(value, base):
        for role, members in found.items():
            if role in groups:
                raise ValueError(f"groups of {f'role {role}' if role else 'every role'} are given twice")
            groups[role] = members
    return groups


def _names(value: object, base: str) -> tuple[str, ...]:
    words = [w.strip() for w in value.split(",")] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(w, str) and w for w in words):
        raise ValueError(f"{value!r} is not a list of names: say epoch_num,state_dict")
    return tuple(words)


def _rank_order(value: object, base: str) -> str:
    axes = _text(value, base).split("-")
    known = ("tp", "cp", "ep", "dp", "pp")
    if len(set(axes)) != len(axes) or not set(axes) <= set(known):
        raise ValueError(f"{value!r} is not an order of {', '.join(known)} such as tp-cp-ep-dp-pp, fastest first")
    return "-".join(axes)


# -- the table ---------------------------------------------------------------------------------------------------------------------


class Variable(NamedTuple):
    """One setting: its variable, its flag (whose name without dashes is its key in ckpt.toml), what it means, how it is read.

    ``parse`` is None for variables that are no setting. ``in_file`` is False where one value for all processes would be wrong.
    """

    name: str
    flag: str
    meaning: str
    parse: Parse | None
    since: str = "0.1.0"
    in_file: bool = True

    @property
    def key(self) -> str:
        return self.flag.lstrip("-") if self.flag.startswith("--") else "root" if self.parse else ""


_SIZE = _whole(1, MAX_RANK)

# fmt: off
ENV: tuple[Variable, ...] = (
    Variable("CKPT_ROOT", "[ROOT]", "directory of the checkpoints, or a prefix of several; default: the current directory", _path),
    Variable("CKPT_RANK", "--rank", "rank whose files are asked for", _whole(0, MAX_RANK), in_file=False),
    Variable("CKPT_WORLD_SIZE", "--world-size", "number of ranks of the job that will load", _SIZE),
    Variable("CKPT_LEVEL", "--level", "how deep to look: presence, structure, content, values, load; default: content", _level),
    Variable("CKPT_JOBS", "--jobs", "threads that read; default: chosen from the number of CPUs", _whole(0, 1024)),
    Variable("CKPT_ORDER", "--order", "what newest means: mtime (the default: the live timeline after a rollback) or step", _one_of("mtime", "step")),
    Variable("CKPT_KIND", "--kind", "only checkpoints of this kind: periodic, dying-gasp, release, best", _kind),
    Variable("CKPT_LAYOUT", "--layout", "only checkpoints of this layout ('ckpt layouts' lists them)", _text),
    Variable("CKPT_RUN", "--run", "only checkpoints of this run ('ckpt ls' shows the runs)", _text),
    Variable("CKPT_PREFIX", "--prefix", "only checkpoints whose file names start with this prefix", _text),
    Variable("CKPT_MAX_STEP", "--max-step", "only checkpoints at or below this step", _whole(0)),
    Variable("CKPT_SAVE_INTERVAL", "--save-interval", "steps between periodic saves: an unusable dying-gasp checkpoint rolls back to a multiple of it", _whole(1)),
    Variable("CKPT_FAULT_RANKS", "--fault-ranks", "ranks whose device failed, such as 1,3-5: their dying-gasp files are not used", rank_set),
    Variable("CKPT_REPLICA_GROUPS", "--replica-groups", "ranks that hold the same state: [ROLE=]0,4;1,5 or [ROLE=]FILE; repeat the flag (or give one per line) for more roles", replica_groups),
    Variable("CKPT_REPLICAS", "--replicas", "'all': pure data parallelism, every rank holds the same state", _one_of("all")),
    Variable("CKPT_TP", "--tp", "tensor parallel size", _SIZE),
    Variable("CKPT_PP", "--pp", "pipeline parallel size", _SIZE),
    Variable("CKPT_CP", "--cp", "context parallel size", _SIZE),
    Variable("CKPT_DP", "--dp", "data parallel size", _SIZE),
    Variable("CKPT_EP", "--ep", "expert parallel size", _SIZE),
    Variable("CKPT_ETP", "--etp", "tensor parallel size of the experts", _SIZE),
    Variable("CKPT_RANK_ORDER", "--rank-order", "order of the parallel axes over the ranks, fastest first; default: tp-cp-ep-dp-pp", _rank_order),
    Variable("CKPT_REQUIRE", "--require", "entries that a file must hold to be resumed from, such as epoch_num,optimizer", _names),
    Variable("CKPT_MAX_ATTEMPTS", "--max-attempts", "checkpoints whose content is read before giving up; default: 5", _whole(1)),
    Variable("CKPT_SETTLE", "--settle", "an incomplete newest checkpoint younger than this is still being written; default: 2m", duration),
    Variable("CKPT_STRICT", "--strict", "treat warnings as errors, and what could not be looked at as unknown", _flag),
    Variable("CKPT_ALLOW_NONE", "--allow-none", "exit 0 with an empty answer when no checkpoint exists (a first launch)", _flag),
    Variable("CKPT_NO_FALLBACK", "--no-fallback", "exit 6 instead of choosing an older checkpoint when the newest is unusable", _flag),
    Variable("CKPT_SKIP_UNREADABLE", "--skip-unreadable", "pass over a checkpoint that could not be read instead of exit 5", _flag),
    Variable("CKPT_CONFIG", "--config", "configuration file; default: the nearest ckpt.toml, or pyproject.toml with [tool.ckpt], upward from the current directory", _path, in_file=False),
    Variable("CKPT_DEBUG", "", "1: print the traceback of an internal error", None),
    Variable("NO_COLOR", "", "any value: no colour (no-color.org)", None),
    Variable("FORCE_COLOR", "", "any value: colour even when the output is no terminal", None),
)
# fmt: on

BY_KEY: dict[str, Variable] = {v.key: v for v in ENV if v.parse}
SIZES = ("tp", "pp", "cp", "dp", "ep", "etp")


# -- from everywhere to one value --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """Values by key, only those that were given; ``origins`` says for each where. ``notes`` are to be shown to the user."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    file: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        root: str = self.values.get("root", ".")
        return root

    def selection(self) -> Selection:
        """The question to ask; what was not given is as Selection has it."""
        given = {key.replace("-", "_"): value for key, value in self.values.items() if key not in ("root", "config", "replicas", *SIZES)}
        rank, world_size = given.get("rank"), given.get("world_size")
        if rank is not None and world_size is not None and rank >= world_size:
            raise UsageError(
                f"{self.origins['rank']} {rank} does not exist among {world_size} ranks ({self.origins['world-size']})",
                f"ranks count from 0: say --rank 0 to {world_size - 1}",
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
            if not os.path.isfile(path):
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


def _check_keys(path: str, table: Mapping[str, object]) -> None:
    allowed = [v.key for v in ENV if v.parse and v.in_file]
    for key in table:
        if key in allowed:
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
    for key, raw in table.items():
        if key in flags and key not in values:
            take(key, raw, f"{file}: {key}", os.path.dirname(file))
    if origins.get("root", "").startswith(file) and file and "config" not in values and _within(file, values["root"]):
        raise UsageError(
            f"{file}: root = {values['root']!r} contains the file itself, and no configuration is read from a scanned tree",
            "move the file above it, or name it with --config",
        )
    return Settings(values, origins, file or None, notes)
