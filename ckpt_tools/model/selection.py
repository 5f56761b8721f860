"""What is asked, as frozen values: whom to believe, how to read, which checkpoint to choose. Standard library
only, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.model.stores import StoreOptions

if TYPE_CHECKING:
    from ckpt_tools.layouts import Layouts


@frozen
class Trust:
    """Whom this user believes beside root and themselves: groups that may write, owners by uid, directories
    with all below them.

    It says whose orders count (trust.py): decisions, configuration, keys, lists of ranks. It says nothing of
    checkpoints.
    """

    group: bool = False
    owners: frozenset[int] = frozenset()
    directories: tuple[str, ...] = ()


@frozen
class ReadOptions:
    """How files are read, whatever the question.

    ``jobs`` is how many threads or processes read at once, 0 for one per CPU; ``io`` says how contents are
    read (auto, pread, mmap, direct), ``limit_rate`` how many bytes per second at most. No contents are read
    after ``budget`` seconds.
    With ``cache`` verdicts are kept for later runs, and those not older than ``max_age`` seconds are used;
    ``note`` is told in one sentence why they cannot be.
    ``exclude`` are patterns, relative to the root, of what is not there as far as we are concerned; a torn
    file younger than ``settle`` seconds may still be written.
    ``require`` names entries that must be in every file, with ``require_seal`` a seal must name each
    (``seal_dir`` has those of read-only trees), and with ``verify_key`` a signature that fits it;
    ``key_file`` holds the key of encrypted ones, and
    pickles may name what ``trust_global`` has patterns of.
    ``layouts`` are those that names are compared with, None for those that are built in. ``stores`` are the
    options of stores, None for those that this process has been told already.
    With ``by_store`` the checksums that stores keep stand for bytes that are not read.
    ``explain`` asks for a map of each file's bytes. ``trust`` says whose key file and cache count beside this
    user's own.
    ``progress`` is called with (bytes read so far, bytes to read as far as known), from any thread; where it
    has a method ``file``, that is called with the path of each file that is opened, as often as it is, and
    with how many files there are (None: unknown).
    """

    jobs: int = 0
    io: str = "auto"
    limit_rate: float | None = None
    budget: float | None = None
    cache: bool = False
    max_age: float = 0.0
    exclude: tuple[str, ...] = ()
    settle: float = 120.0
    require: tuple[str, ...] = ()
    require_seal: bool = False
    seal_dir: str | None = None
    verify_key: str | None = None
    trust_global: tuple[str, ...] = ()
    key_file: str | None = None
    by_store: bool = False
    explain: bool = False
    trust: Trust = Trust()
    progress: Callable[[int, int], None] | None = None
    note: Callable[[str], object] | None = None
    layouts: Layouts | None = None
    stores: StoreOptions | None = None


@frozen
class Selection:
    """The question of ``latest`` and ``plan`` (docs/design.md sections 5 and 7); the defaults are the
    command's.

    ``replica_groups`` maps a role ("" for every role) to groups of ranks; ``sizes`` holds parallel sizes such
    as {"tp": 2, "pp": 4};
    ``exclude`` are patterns, relative to the root, of what is neither looked at nor a reason for anything.
    ``strategy_dir`` is a directory of MindSpore strategy files; ``settle`` is in seconds. ``resume_from``
    "tracker" starts at the checkpoint that the tracker names, "mtime" and "step" are what ``order`` means;
    ``prefer`` puts checkpoints of one kind before all others.
    ``world_from`` says who gave ``world_size``. Without ``order`` the newest is that by mtime as far as times
    can be believed, and else a question.
    ``ranks`` are those whose files lie on this machine, where each has a disk of its own.
    With ``cache`` a verdict that an earlier run came to is used for files that have not changed since, if it
    is not older than ``max_age`` seconds;
    after ``budget`` seconds no more contents are read, and the plan says of what.
    ``io`` says how contents are read (auto, pread, mmap, direct), ``limit_rate`` how many bytes per second at
    most.
    ``allow_none`` answers "there is none" without an error, with ``allow_missing`` also where ``run`` is not
    there, or ``root`` itself but not its parent.
    ``allow_fresh`` starts from nothing although something is there that cannot be used, or an earlier start
    had a checkpoint; ``plan_dir`` holds the log of those starts (None: this user's own).
    ``same_save`` holds paths of checkpoints (their directory, or one of their files) whose files the caller
    declares to be of one save, whatever their times say.
    ``trust_global`` holds patterns of dotted names (``mycompany.*``) that pickles may name although no list
    of what frameworks write has them.
    ``prove_replicas`` compares the tensors of a substitute with those of another good member of its group.
    ``trust`` says whose directory of decisions, key file and lists count beside this user's own.
    ``layouts`` are those that names are compared with, None for those that are built in. ``stores`` are the
    options of stores, None for those that this process has been told already.
    """

    rank: int | None = None
    world_size: int | None = None
    kind: Kind | None = None
    layout: str | None = None
    run: str | None = None
    prefix: str | None = None
    exclude: tuple[str, ...] = ()
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
    require: tuple[str, ...] = ()
    require_seal: bool = False
    seal_dir: str | None = None
    verify_key: str | None = None
    settle: float = 120.0
    level: Level = Level.CONTENT
    key_file: str | None = None
    allow_none: bool = False
    allow_missing: bool = False
    allow_fresh: bool = False
    plan_dir: str | None = None
    same_save: tuple[str, ...] = ()
    trust_global: tuple[str, ...] = ()
    no_fallback: bool = False
    skip_unreadable: bool = False
    strict: bool = False
    jobs: int = 0
    cache: bool = False
    max_age: float = 86400.0
    budget: float | None = None
    io: str = "auto"
    limit_rate: float | None = None
    world_from: str = "--world-size"
    ranks: range | None = None
    trust: Trust = Trust()
    layouts: Layouts | None = None
    stores: StoreOptions | None = None

    def read_options(
        self,
        progress: Callable[[int, int], None] | None = None,
        note: Callable[[str], object] | None = None,
    ) -> ReadOptions:
        """How the files are read that the choice rests on."""
        return ReadOptions(
            jobs=self.jobs,
            io=self.io,
            limit_rate=self.limit_rate,
            budget=self.budget,
            cache=self.cache,
            max_age=self.max_age,
            exclude=self.exclude,
            settle=self.settle,
            require=self.require,
            require_seal=self.require_seal,
            seal_dir=self.seal_dir,
            verify_key=self.verify_key,
            trust_global=self.trust_global,
            key_file=self.key_file,
            trust=self.trust,
            progress=progress,
            note=note,
            layouts=self.layouts,
            stores=self.stores,
        )
