"""Requests as frozen values: whom to trust, how to read, which checkpoint to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level

if TYPE_CHECKING:
    from ckpt_tools.layouts import Layouts
else:
    Layouts = Any  # for signatures, and no import of what imports this

# ---- Options of object stores and other file systems with a URL, as they were given: never credentials.


Pairs = tuple[tuple[str, str], ...]
"""Options as (key, value), each a text as the library of the store has it."""


class StoreOptions(Struct, frozen=True):
    """Options: ``flags`` for every store, ``tables`` (prefix, options) for URLs at or below a prefix."""

    flags: Pairs = ()
    tables: tuple[tuple[str, Pairs], ...] = ()

    def of(self, url: str) -> dict[str, str]:
        """Return the options of a URL: for each key the flag, else the table of the longest prefix."""
        merged: dict[str, str] = {}
        for prefix, pairs in sorted(self.tables, key=lambda table: len(table[0])):
            if url == prefix or url.startswith(f"{prefix.removesuffix('/')}/"):
                merged.update(pairs)
        return {**merged, **dict(self.flags)}

    def __repr__(self) -> str:
        """Return the keys alone: a log shows no value that ought to be secret."""
        keys = [key for key, _ in self.flags]
        tables = {prefix: [key for key, _ in pairs] for prefix, pairs in self.tables}
        return f"StoreOptions(flags={keys}, tables={tables})"


class Trust(Struct, frozen=True):
    """Whose files this user trusts besides their own and root's: files that a group may write, files of
    owners by uid, and everything below some directories.

    It says whose decisions, configuration, keys and lists of ranks count (trust.py), not whose checkpoints.
    """

    group: bool = False
    owners: frozenset[int] = frozenset()
    directories: tuple[str, ...] = ()


class Reading(Struct, frozen=True, kw_only=True):
    """How files are read, for every request."""

    jobs: int = 0  # how many threads or processes read at once; 0 for one per CPU
    io: str = "auto"  # how contents are read: auto, direct
    limit_rate: float | None = None  # bytes per second at most
    budget: float | None = None  # seconds after which no contents are read
    cache: bool = False  # keep verdicts for later runs, and use those that are not too old
    exclude: tuple[str, ...] = ()  # patterns, relative to the root, of entries that are treated as absent
    settle: float = 120.0  # a torn file younger than these seconds may still be being written
    require: tuple[str, ...] = ()  # entries that must be in every file
    require_seal: bool = False  # a seal must name each file
    seal_dir: str | None = None  # has the seals of read-only trees
    verify_key: str | None = None  # a signature of each file must fit this public key
    trust_global: tuple[str, ...] = ()  # patterns of globals that pickles may name
    key_file: str | None = None  # holds the key of encrypted files
    trust: Trust = Trust()  # whose key file and cache count besides this user's own
    layouts: Layouts | None = None  # None: the built-in ones
    stores: StoreOptions | None = None  # None: those that this process was given before


class ReadOptions(Reading, frozen=True, kw_only=True):
    """How files are read for one answer: ``Reading``, and what is not asked of a choice."""

    max_age: float = 0.0  # seconds; older verdicts are not used
    by_store: bool = False  # use the checksums that stores keep in place of bytes that are not read
    explain: bool = False  # make a map of each file's bytes
    # called with (bytes read so far, bytes to read as far as known), from any thread; its method ``file``, if
    # it has one, with each path that is opened and the number of files (None: unknown)
    progress: Callable[[int, int], None] | None = None
    note: Callable[[str], object] | None = None  # called with a sentence if kept verdicts cannot be used


_KINDS = (None, *map(str, Kind))
_ALLOWED: Mapping[str, tuple[object, ...]] = {
    "order": (None, "mtime", "step", "tracker"),
    "resume_from": (None, "mtime", "step", "tracker"),
    "kind": _KINDS,
    "prefer": _KINDS,
    "level": (*map(str, Level), *Level),
    "io": ("auto", "direct"),
}


class Selection(Reading, frozen=True):
    """The request of ``latest`` and ``plan`` (docs/design.md sections 5 and 7); defaults are those of the
    commands.

    ``replica_groups`` maps a role ("" for every role) to groups of ranks; ``sizes`` holds parallel sizes such
    as {"tp": 2, "pp": 4}. ``strategy_dir`` is a directory of MindSpore strategy files. ``resume_from``
    "tracker" starts at the checkpoint that the tracker names; "mtime" and "step" are the same as for
    ``order``. ``prefer`` puts checkpoints of one kind before all others. ``world_from`` says where
    ``world_size`` comes from. Without ``order`` the newest checkpoint is found by mtime as far as times can
    be trusted; otherwise a question is raised. ``ranks`` are the ranks with files on this machine, if each
    node has a disk of its own.

    ``allow_none`` makes "there is none" an answer and not an error; with ``allow_missing`` also if ``run``
    does not exist, or if ``root`` does not exist but its parent does. ``allow_fresh`` starts from nothing
    even though something unusable is there, or an earlier start had a checkpoint. ``plan_dir`` holds the log
    of earlier starts (None: this user's own). ``same_save`` has no effect: times of a save's files are no
    question. ``prove_replicas`` compares the tensors of a substitute with those of another good member of its
    group. With ``compare_only`` files are held against others as at level content, and no contents are read:
    whoever fetches them verifies them. ``trust`` says whose directory of decisions, key file and lists count
    besides this user's own.
    """

    rank: int | None = None
    world_size: int | None = None
    kind: Kind | None = None
    layout: str | None = None
    run: str | None = None
    prefix: str | None = None
    max_step: int | None = None
    order: str | None = None
    resume_from: str | None = None
    prefer: Kind | None = None
    prove_replicas: bool = False
    max_attempts: int = 5
    fault_ranks: frozenset[int] = frozenset()
    replica_groups: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    replicas_all: bool = False
    strategy_dir: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    rank_order: str = "tp-cp-ep-dp-pp"
    save_interval: int | None = None
    level: Level = Level.CONTENT
    compare_only: bool = False
    allow_none: bool = False
    allow_missing: bool = False
    allow_fresh: bool = False
    plan_dir: str | None = None
    same_save: tuple[str, ...] = ()
    no_fallback: bool = False
    skip_unreadable: bool = False
    strict: bool = False
    max_age: float = 86400.0
    world_from: str = "--world-size"
    ranks: range | None = None

    def __post_init__(self) -> None:
        """Turn words into kinds and levels. Raise ValueError for a wrong value, and say what is allowed."""
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                words = ", ".join(repr(one) for one in dict.fromkeys(map(str, allowed)) if one != "None")
                raise ValueError(f"{name}={value!r}: allowed are {words}")
        if self.order == "tracker":
            force_setattr(self, "resume_from", "tracker")
            force_setattr(self, "order", None)
        for name in ("exclude", "require", "trust_global"):
            if isinstance(value := getattr(self, name), str):
                force_setattr(self, name, (value,))
        for name in ("kind", "prefer"):
            if (value := getattr(self, name)) is not None:
                force_setattr(self, name, Kind(value))
        level: Any = self.level
        force_setattr(self, "level", Level[level.upper()] if isinstance(level, str) else Level(level))
        if self.max_step is not None and (type(self.max_step) is not int or self.max_step < 0):
            raise ValueError(f"max_step={self.max_step!r}: allowed are integers from 0")

    def read_options(self, progress: Callable[[int, int], None] | None = None) -> ReadOptions:
        """Return the options for reading the files that the choice depends on."""
        shared = {name: getattr(self, name) for name in (*Reading.__struct_fields__, "max_age")}
        return ReadOptions(**shared, progress=progress)
