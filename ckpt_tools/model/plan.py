"""The load plan: the chosen checkpoint, why better-ranked ones lost, and the files that every rank loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain

from msgspec import Struct, field

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level


class Known(Struct, frozen=True):
    """A number of the topology and its source ("--world-size", "args in the file", …)."""

    value: int
    provenance: str


OPENED_BY_RANKS = frozenset({"rng"})
"""Roles whose files each rank finds by itself, because its framework looks for the whole set."""


class FileLoad(Struct, frozen=True):
    """One file that a rank loads. ``source_rank`` is the rank that it belongs to; ``reason`` says why a
    substitute is used and what proves it equal. ``etag`` and ``version`` are those of the verified object, ""
    if the store has none.
    """

    role: str
    path: str
    size: int
    mtime_ns: int
    level: Level
    coverage: float
    source_rank: int | None
    substituted: bool = False
    node: str | None = None
    reason: str = ""
    etag: str = ""
    version: str = ""


class Load(Struct, frozen=True):
    """A part that is chosen for a rank, before its verification has an outcome."""

    part: Part
    substituted: bool = False
    reason: str = ""


class Assignment(Struct, frozen=True):
    """Which parts each rank would load."""

    loads: Mapping[int, Sequence[Load]] = field(default_factory=dict)  # by rank
    shared: Sequence[Load] = ()  # what all ranks load
    findings: tuple[Finding, ...] = ()  # errors make the candidate unusable
    groupless: tuple[int, ...] = ()  # ranks with neither a file nor a group

    @property
    def parts(self) -> list[Part]:
        """Every part that some rank loads, once."""
        loads = chain(self.shared, *self.loads.values())
        return list({load.part.path: load.part for load in loads}.values())


class RankLoad(Struct, frozen=True):
    """The files of one rank: in ``LoadPlan.ranks`` all that it loads, in ``LoadPlan.by_rank`` its own."""

    rank: int
    files: tuple[FileLoad, ...]


class Resume(Struct, frozen=True):
    """The arguments for the layout's own framework: ``path`` is None if ranks load different files."""

    path: str | None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


RESUME_VARIABLES = frozenset({"CKPT_LOAD_DIR", "CKPT_TAG"})
"""Variables that ``Resume.env`` of any layout may set."""


RESUME_WORDS = frozenset(
    {
        "--load",
        "--ckpt-step",
        "--load_checkpoint",
        "--resume",
        "--resume_from_checkpoint",
        "--ckpt_path",
        "--load_dir",
        "--tag",
        "--universal-checkpoint",
        "--restore-file",
    }
)
"""Flags that ``Resume.args`` of our own layouts may hold."""


class Rollback(Struct, frozen=True):
    """The emergency save of step ``origin`` is not usable; training resumes at step ``target`` or before."""

    origin: int
    target: int
    save_interval: int
    why: str


class Rejected(Struct, frozen=True):
    """A better-ranked candidate and why it lost."""

    checkpoint: Checkpoint
    findings: tuple[Finding, ...]


class Choice(Struct, frozen=True):
    """The chosen checkpoint (None if every candidate lost) and, in order, why each better-ranked one lost.

    ``assignment`` is what each rank would load. ``left_out``: earlier regular saves that the save interval
    leaves out.
    """

    checkpoint: Checkpoint | None
    rejected: tuple[Rejected, ...] = ()
    attempts: int = 0
    exhausted: bool = False
    rollback: Rollback | None = None
    assignment: Assignment | None = None
    left_out: tuple[Checkpoint, ...] = ()


class LoadPlan(Struct, frozen=True):
    """The files that each rank loads, which rank they belong to, and why (docs/json.md has the JSON form).
    ``by_rank`` has the files that not all ranks load, ``shared`` the others, ``ranks`` both. ``candidates``
    are in the order in which they were considered.

    ``bytes_verified`` is what the answer is based on, ``bytes_read`` what was read for it this time; the rest
    was known from earlier runs. ``below_level`` counts files to load that were not looked at as deeply as
    asked; ``budget`` is in seconds. ``excluded`` counts the entries that the caller has hidden. ``state`` is
    ``resumable`` if an optimizer's state is among the files, ``weights-only`` if they hold only a model's
    weights, "" if the files do not tell.
    """

    root: str
    checkpoint: Checkpoint | None
    resume: Resume
    by_rank: tuple[RankLoad, ...] = ()
    shared: tuple[FileLoad, ...] = ()
    world_size: int | None = None
    saved_world_size: int | None = None
    topology: Mapping[str, Known] = field(default_factory=dict)
    rollback: Rollback | None = None
    rejected: tuple[Rejected, ...] = ()
    ahead: tuple[Checkpoint, ...] = ()
    attempts: int = 0
    bytes_verified: int = 0
    warnings: tuple[Finding, ...] = ()
    fingerprint: str = ""
    candidates: tuple[Checkpoint, ...] = ()
    bytes_read: int = 0
    budget: float | None = None
    below_level: int = 0
    excluded: int = 0
    state: str = ""

    @property
    def ranks(self) -> tuple[RankLoad, ...]:
        """All files that each rank loads; of rank 0 alone if all load the same, in unknown number."""
        if not self.by_rank and self.shared:
            return tuple(RankLoad(rank, self.shared) for rank in range(self.world_size or 1))
        return tuple(RankLoad(r.rank, (*self.shared, *r.files)) for r in self.by_rank)

    @property
    def loads(self) -> list[tuple[int | None, FileLoad]]:
        """Each file to load with its rank, None for one that all ranks load."""
        own = ((r.rank, f) for r in self.by_rank for f in r.files)
        return [*((None, f) for f in self.shared), *own]

    @property
    def path(self) -> str | None:
        """The path for the framework; None if ranks load different files, or there is no checkpoint."""
        only = {f.path for _, f in self.loads}
        return self.resume.path or (only.pop() if len(only) == 1 else None)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words for the framework's command line, such as ``--load DIR``."""
        return self.resume.args

    def files(self, rank: int | None = None) -> list[str]:
        """Return the paths that a rank loads; of all ranks without one. Raises KeyError for no such rank."""
        loads = {r.rank: r.files for r in self.ranks}
        if rank is not None and self.by_rank:
            return [f.path for f in loads[rank]]
        return list({f.path: None for files in loads.values() for f in files})

    def __repr__(self) -> str:
        step, skipped = self.resume_step, len(self.rejected)
        return f"LoadPlan(step={step}, path={self.path!r}, world_size={self.world_size}, skipped={skipped})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the choice, and what was skipped."""
        rows = [("resume from", self.checkpoint.label if self.checkpoint else "nothing", self.path or "")]
        rows += (("skipped", r.checkpoint.label, r.checkpoint.path) for r in self.rejected)
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    @property
    def resume_step(self) -> int | None:
        """The step to resume from: training continues at the next one."""
        return self.checkpoint.step if self.checkpoint else None
