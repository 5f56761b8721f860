"""A layout: a frozen value whose path templates say how a directory is arranged, and which tells its
framework what to resume from (docs/adding-a-layout.md has a table of all fields).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from itertools import chain
from typing import Any, Never, TypeVar

from msgspec import Struct

from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Flaw, Notes
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report, Scalar

_T = TypeVar("_T")
Metadata = Mapping[str, Scalar]
Rows = Sequence[tuple[Part, Report]]
Found = Iterator[tuple[str, Flaw]]  # by the path of a file
Saves = Sequence[Checkpoint]
Flaws = Iterator[Flaw]
Steps = tuple[int | None, int | None, int | None]  # step, epoch, step_in_epoch
Said = int | str | None
"""The content of a tracker: a step, a name, "release", or None for garbage."""


def nothing(*_asked: object) -> Iterator[Never]:
    """Yield nothing: the default of a layout whose files, names or notes tell nothing here."""
    return iter(())


def find_all(*finders: Callable[..., Iterator[_T]]) -> Callable[..., Iterator[_T]]:
    """Return one function that yields what all of these yield, one after the other."""
    return lambda *asked: chain.from_iterable(find(*asked) for find in finders)


def read_name(part: Part, _metadata: Metadata) -> Steps:
    """Return the numbers in a part's name: the default of a layout whose content tells no step."""
    return part.step, part.epoch, part.step_in_epoch


def name_step(checkpoint: Checkpoint) -> Said:
    """Return what most trackers say of a checkpoint: its step, or "release"."""
    return "release" if checkpoint.kind is Kind.RELEASE else checkpoint.step


def write_plain_tracker(content: int | str) -> bytes:
    """Return a tracker's bytes as most frameworks write them: the number or word with nothing around it."""
    return str(content).encode("utf-8", "surrogateescape")


def compute_no_step(_part: Part, _siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """Return None: the default of a layout whose siblings tell nothing about a part's step."""
    return None


def make_resume(*arguments: str, file: bool = False) -> Callable[[Checkpoint, str | None], Resume]:
    """Return how to resume: from a checkpoint's directory, or the ``file`` of all ranks, as ``{path}``."""

    def resume(checkpoint: Checkpoint, path: str | None) -> Resume:
        at = (path if file else None) or checkpoint.path
        return Resume(at, tuple(word.replace("{path}", at) for word in arguments))

    return resume


def read_number(data: bytes) -> int | None:
    """Return the number in a tracker; None if it holds anything else."""
    text = data.strip()
    return int(text) if text.isdigit() and len(text) <= 18 else None


def read_last_name(data: bytes) -> str | None:
    """Return the last name of the path in a tracker; None if it holds no path of one line."""
    text = data.decode("utf-8", "replace").strip().rstrip("/")
    return text.rpartition("/")[2] if text and "\n" not in text and len(text) <= 4096 else None


def read_fitting(pattern: str, data: bytes) -> str | None:
    """Return the last name of the path in a tracker; None if it does not fit the pattern."""
    name = read_last_name(data)
    return name if name is not None and re.fullmatch(pattern, name) else None


def read_entry(data: bytes, *keys: str) -> Any:
    """Return the value in JSON's bytes at these keys, one within the other; None without such a value."""
    try:
        value = json.loads(data)
        for key in keys:
            value = value[key]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return value


def name_home(checkpoint: Checkpoint) -> str:
    """Return the name of a checkpoint's own directory, or of its file if it has none."""
    return (checkpoint.parts[0].home or checkpoint.parts[0].path).rpartition("/")[2]


class Tracker(Struct, frozen=True):
    """The ``file`` beside the checkpoints that names the latest; "" where there is none."""

    file: str = ""
    read: Callable[[bytes], Said] | None = None  # returns the content of its bytes
    name: Callable[[Checkpoint], Said] = name_step  # returns the content that names a checkpoint
    write: Callable[[int | str], bytes] = write_plain_tracker  # returns that content in bytes
    any_file: bool = False  # it may name any of a checkpoint's files
    always: bool = True  # the framework never saves without writing it
    early: bool = False  # one rank writes it before the others have finished
    # trackers of other frameworks with this layout, read after it: (path from the directory of the saves,
    # function of its bytes and that directory, "" for any): a file of this name is not always a tracker
    others: tuple[tuple[str, Callable[[bytes, str], Said]], ...] = ()
    state_copy: str = ""  # name of a copy of a file of the latest save; it tells the step and is read first

    def names(self, checkpoint: Checkpoint, said: Said) -> bool:
        """Return True if the content ``said`` names this checkpoint."""
        if said is None or self.name(checkpoint) == said:
            return said is not None
        return self.any_file and any((p.home or p.path).rpartition("/")[2] == said for p in checkpoint.parts)


class Complete(Struct, frozen=True):
    """The files that a finished save has."""

    commit: str = ""  # role of the file that is written last: without it a save is unfinished
    # if no save of a run has the commit file or one of these roles, another of the framework's writers saved
    commit_beside: tuple[str, ...] = ()
    commit_alone: str = ""  # role of the file that this other writer writes last
    first: tuple[str, ...] = ()  # roles written first: an unfinished save without them has lost them
    needs: tuple[str, ...] = ()  # roles without which nothing can be resumed
    # one of these must be there, unless files that no piece explains lie in the checkpoint's own directory
    needs_any: tuple[str, ...] = ()
    saved_with: tuple[tuple[str, str], ...] = ()  # (piece, role): no save has the piece without the role
    one_of: tuple[tuple[str, ...], ...] = ()  # groups of pieces: no save has more than one of a group
    # a save not marked unfinished has all that its writer meant to write: a rank without a file has a replica
    by_name: bool = False


class Counting(Struct, frozen=True):
    """How the numbers in names and files count."""

    first_epoch: int | None = None  # 0 or 1
    by_epoch: bool = False  # steps in names with an epoch may count from the start of the epoch
    # returns a part's step, computed from its siblings' metadata, nearest in time first
    place: Callable[[Part, Sequence[tuple[Part, Metadata]]], int | None] = compute_no_step
    # if the generation in names counts restarts: the entry of files whose steps go on over restarts
    restarts: str = ""
    # fits a checkpoint's directory named by the time of the save: its group, year to second, sorts by time
    dated: re.Pattern[str] | None = None


class Records(Struct, frozen=True):
    """Other notes about the checkpoints beside them."""

    names: tuple[str, ...] = ()
    write: Callable[[Part], bytes] | None = None  # returns the first note for a part that was saved last
    # yields how the notes contradict the finished checkpoints of one run
    check: Callable[[Sequence[Checkpoint], Notes], Iterator[Flaw | Finding]] = nothing


class Ranks(Struct, frozen=True):
    """The files that each rank has."""

    # a rank asks for its own files and rank 0's alone; otherwise each node needs the files of all ranks
    own_files: bool = False
    # the "node" in names is the rank that keeps the file: a rank looks for files in its own directory alone
    keepers: bool = False
    directories: bool = False  # directories named alike but for a number, 0, 1, 2 …, are of one rank each
    told_by: str = ""  # the piece whose content tells how many ranks saved, where the model files do not


class Beside(Struct, frozen=True):
    """Files that are no pieces, and how to know them."""

    stateless: tuple[str, ...] = ()  # endings of the names of files that hold no state
    # (ending, start): NAME+ending holds no state if a file beside it begins with NAME+start; a file that is
    # called so, as TensorFlow's NAME.index, is named in its seal
    unneeded: tuple[tuple[str, str], ...] = ()
    asked: Callable[[Checkpoint], Iterable[str]] = nothing  # names of files that its loader may ask for
    # fit paths to which this framework alone writes, for a checkpoint whose other files are gone
    traces: tuple[re.Pattern[str] | str, ...] = ()
    # fits the paths, below a checkpoint, of arrays that have a file for each chunk after the first step
    written: re.Pattern[str] | None = None
    shares: re.Pattern[str] | None = None  # fits a directory in which a replica keeps what only it needs
    layouts: tuple[str, ...] = ()  # of saves that its framework keeps beside it, and never resumes from
    best: str = ""  # the metadata entry of its files that holds the path of the run's best save
    # (role, pattern): a file of this role lists the files saved with it, as the group in its metadata's keys
    listed: tuple[str, re.Pattern[str]] | None = None


class Compared(Enum):
    """Which files of a run's saves hold the same tensors."""

    BY_PIECE = auto()
    BY_ROLE = auto()  # all files of one role, whatever piece they are
    NONE = auto()


class Purpose(Enum):
    """What the files of a layout are."""

    STATES = auto()
    # never a state, but for companions: among the states of a run, models that its last save has exported
    MODELS = auto()
    EXPORTS = auto()  # states; but the framework also saves models anywhere, under the same names
    ANYTHING = auto()  # checkpoints only in a directory in which no other layout has one


class Layout(Struct, frozen=True, dict=True):
    """How one framework arranges the directories of its checkpoints."""

    name: str
    title: str
    pieces: tuple[Piece, ...]
    resume: Callable[[Checkpoint, str | None], Resume]  # returns how the framework is told to resume
    reference: str  # the source code or documentation with the facts
    limits: tuple[str, ...]  # damage that checks of this layout cannot see
    steps: Callable[[Part, Metadata], Steps] = read_name  # returns a part's numbers, from its metadata too
    # yields (path, flaw) of parts of one run whose names and contents contradict each other
    check: Callable[[Sequence[tuple[Part, Report]]], Iterator[tuple[str, Flaw]]] = nothing
    # yields what a checkpoint lacks and others beside it hold, without which training cannot go on
    lacks: Callable[[Checkpoint, Sequence[Checkpoint]], Iterator[Flaw]] = nothing
    # yields files of a checkpoint that are gone, given the saves of its run before and after it
    lost: Callable[[Checkpoint, Sequence[Checkpoint]], Iterator[Flaw]] = nothing
    # returns paths of a checkpoint's files that the framework ignores because others are there
    unread: Callable[[Checkpoint], Iterable[str]] = nothing
    tracker: Tracker = Tracker()
    complete: Complete = Complete()
    counting: Counting = Counting()
    records: Records = Records()
    ranks: Ranks = Ranks()
    beside: Beside = Beside()
    reshardable: bool = False  # any number of ranks can load a save
    compared: Compared | None = None  # by piece, unless it is reshardable
    purpose: Purpose = Purpose.STATES

    __eq__ = object.__eq__  # as of pieces
    __hash__ = object.__hash__

    def piece(self, name: str) -> Piece:
        """Return the piece of that name. Raise KeyError for an unknown name."""
        return self._by_name[name]

    @property
    def same_tensors(self) -> Compared:
        """Which files of a run's saves hold the same tensors; none if any number of ranks can load a save."""
        return self.compared or (Compared.NONE if self.reshardable else Compared.BY_PIECE)

    @property
    def is_last_resort(self) -> bool:
        """Whether it has checkpoints only in a directory in which no other layout has one."""
        return self.purpose is Purpose.ANYTHING

    @cached_property
    def of_exports(self) -> bool:
        """True if no piece is a state to go on training from."""
        return all(p.kind is Kind.RELEASE for p in self.pieces)

    @cached_property
    def _by_name(self) -> dict[str, Piece]:
        return {p.name: p for p in self.pieces}
