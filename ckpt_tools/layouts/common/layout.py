"""What a layout is: a frozen value that says with path templates how a directory is arranged, and how its
framework is told what to resume (docs/adding-a-layout.md has a table of all fields).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from itertools import chain
from typing import Never

from msgspec import Struct

from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Flaw, Notes, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report, Scalar

Metadata = Mapping[str, Scalar]
Rows = Sequence[tuple[Part, Report]]
Found = Iterator[tuple[str, Flaw]]  # by the path of a file
Saves = Sequence[Checkpoint]
Flaws = Iterator[Flaw]
Steps = tuple[int | None, int | None, int | None]  # step, epoch, step_in_epoch
Said = int | str | None
"""What a tracker says: a step, a name, "release", or None for garbage."""


def nothing(*_asked: object) -> Iterator[Never]:
    """A layout whose files, names or notes tell nothing of what is asked."""
    return iter(())


def check_all(*checks: Callable[[Rows], Found]) -> Callable[[Rows], Found]:
    """All of these checks, one after the other."""
    return lambda parts: chain.from_iterable(check(parts) for check in checks)


def no_steps(part: Part, _metadata: Metadata) -> Steps:
    """A layout whose content tells no step."""
    return part.step, part.epoch, part.step_in_epoch


def named_step(checkpoint: Checkpoint) -> Said:
    """What most trackers write: the step, or the word "release"."""
    return "release" if checkpoint.kind is Kind.RELEASE else checkpoint.step


def plain_tracker(said: int | str) -> bytes:
    """What most frameworks write: the number or the word, with nothing around it."""
    return str(said).encode("utf-8", "surrogateescape")


def no_place(_part: Part, _siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """A layout whose siblings tell nothing about a part's step."""
    return None


def resume_with(*arguments: str, file: bool = False) -> Callable[[Checkpoint, str | None], Resume]:
    """A framework that is given the directory of a checkpoint, or the ``file`` that all ranks load; in these
    arguments, in which it is ``{path}``.
    """

    def resume(checkpoint: Checkpoint, path: str | None) -> Resume:
        at = (path if file else None) or checkpoint.path
        return Resume(at, tuple(one.replace("{path}", at) for one in arguments))

    return resume


resume_file = resume_with(file=True)


def read_number(data: bytes) -> int | None:
    """A tracker that holds one number."""
    text = data.strip()
    return int(text) if text.isdigit() and len(text) <= 18 else None


def read_last_name(data: bytes) -> str | None:
    """A tracker that holds the path of a directory, of which the name counts."""
    text = data.decode("utf-8", "replace").strip().rstrip("/")
    return text.rpartition("/")[2] if text and "\n" not in text and len(text) <= 4096 else None


def name_home(checkpoint: Checkpoint) -> str:
    """The name of a checkpoint's own directory, or of its file."""
    return (checkpoint.parts[0].home or checkpoint.parts[0].path).rpartition("/")[2]


def names_in(c: Checkpoint, *roles: str) -> frozenset[str]:
    """The paths of a checkpoint's files below it; of these roles, if any are said."""
    return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts if not roles or p.role in roles)


def loss(text: str, path: str = "", *, sure: bool = True, hint: str = "") -> Flaw:
    """What a checkpoint has lost; a warning unless it is ``sure``."""
    severity = None if sure else Severity.WARNING
    return Flaw("missing-part", text, path=path, severity=severity, hint=hint)


class Tracker(Struct, frozen=True):
    """The ``file`` beside the checkpoints that names the latest; "" where there is none."""

    file: str = ""
    read: Callable[[bytes], Said] | None = None  # what its bytes say
    name: Callable[[Checkpoint], Said] = named_step  # what it says when it names a checkpoint
    write: Callable[[int | str], bytes] = plain_tracker  # that in bytes, as the framework writes them
    any_file: bool = False  # it may name any of a checkpoint's files
    always: bool = True  # the framework never saves without writing it
    early: bool = False  # one rank writes it before the others have finished
    # those of other frameworks that save so, asked after it: the path of each from the directory of the
    # saves, and what reads it for that directory ("" for any): a file that is called so is not always one
    others: tuple[tuple[str, Callable[[bytes, str], Said]], ...] = ()
    state_copy: str = ""  # a copy of a file of the latest save, which tells its step and is asked first

    def names(self, checkpoint: Checkpoint, said: Said) -> bool:
        """Return True if what it says is this checkpoint."""
        if said is None or self.name(checkpoint) == said:
            return said is not None
        return self.any_file and any((p.home or p.path).rpartition("/")[2] == said for p in checkpoint.parts)


class Complete(Struct, frozen=True):
    """Which files a finished save has."""

    commit: str = ""  # role of the file that is written last: without it a save is unfinished
    # where no save of a run has that file, nor one of these, another of the framework's writers made it
    commit_beside: tuple[str, ...] = ()
    commit_alone: str = ""  # what that one writes last
    first: tuple[str, ...] = ()  # roles written before all others: an unfinished save without has lost them
    needs: tuple[str, ...] = ()  # roles without which nothing can be resumed
    # one of these must be there, unless files that no piece explains lie in the checkpoint's own directory
    needs_any: tuple[str, ...] = ()
    saved_with: tuple[tuple[str, str], ...] = ()  # (piece, role): no save has the piece without the role
    one_of: tuple[tuple[str, ...], ...] = ()  # groups of pieces: no save has more than one of a group
    # one that is not marked unfinished has all that its writer meant to write: a rank without needs a replica
    by_name: bool = False


class Counting(Struct, frozen=True):
    """How names and files count."""

    first_epoch: int | None = None  # 0 or 1
    by_epoch: bool = False  # steps in names that tell an epoch as well may count from the start of each
    # a part's step from its siblings' metadata, nearest in time first
    place: Callable[[Part, Sequence[tuple[Part, Metadata]]], int | None] = no_place
    # the generation in names counts restarts: the entry of its files that counts steps on over them
    restarts: str = ""
    # fits a checkpoint's directory whose name tells when it was saved: its group, year to second, sorts so
    dated: re.Pattern[str] | None = None


class Records(Struct, frozen=True):
    """Other notes about the checkpoints beside them."""

    names: tuple[str, ...] = ()
    write: Callable[[Part], bytes] | None = None  # what the first says when a part is the last one saved
    # how they contradict the finished checkpoints of one run
    check: Callable[[Sequence[Checkpoint], Notes], Iterator[Flaw | Finding]] = nothing


class Ranks(Struct, frozen=True):
    """What each rank has."""

    # a rank asks for no file that only other ranks load, but for those of rank 0; else nodes need all of them
    own_files: bool = False
    # what names call a node is the rank that keeps the file, which looks for its own in no other directory
    keepers: bool = False
    directories: bool = False  # called alike but for a number, from 0 without a gap, they are of a rank each
    told_by: str = ""  # the piece whose content tells how many ranks saved, where the model files do not


class Beside(Struct, frozen=True):
    """Files that are no pieces, and what tells of them."""

    stateless: tuple[str, ...] = ()  # ends of names of files that hold no state
    # (ending, what follows in its place in the name of a file beside it) of files that hold none where that
    # one is there, and that are sealed with it
    unneeded: tuple[tuple[str, str], ...] = ()
    asked: Callable[[Checkpoint], Iterable[str]] = nothing  # names that its loader may ask for
    # fit paths to which its framework alone writes, where the rest of a checkpoint is gone
    traces: tuple[re.Pattern[str] | str, ...] = ()
    # fits the paths, below a checkpoint, of arrays of which each chunk is a file after the first step
    written: re.Pattern[str] | None = None
    shares: re.Pattern[str] | None = None  # fits a directory in which a replica keeps what only it needs
    layouts: tuple[str, ...] = ()  # of what its framework keeps beside it, and never goes on from by itself
    best: str = ""  # the entry of its files' metadata that names the best save of the run, by its path
    # (role, pattern): such a file lists what was saved beside it: the group in the keys of its metadata
    listed: tuple[str, re.Pattern[str]] | None = None


class Compared(Enum):
    """Which files of a run's saves hold the same tensors."""

    BY_PIECE = auto()
    BY_ROLE = auto()  # those of one role, whatever piece they are
    NONE = auto()


class Purpose(Enum):
    """What the files of a layout are."""

    STATES = auto()
    # but for companions never a state: among the states of a run they are what its last save has exported
    MODELS = auto()
    EXPORTS = auto()  # states; and its framework saves models anywhere, under the names of its pieces
    ANYTHING = auto()  # they are checkpoints only where no other layout has any


class Layout(Struct, frozen=True, dict=True):
    """How a directory is arranged."""

    name: str
    title: str
    pieces: tuple[Piece, ...]
    resume: Callable[[Checkpoint, str | None], Resume]  # tells the framework
    reference: str
    limits: tuple[str, ...]  # what cannot be seen
    steps: Callable[[Part, Metadata], Steps] = no_steps  # from a part's metadata
    # names against contents over the parts of one run, by path
    check: Callable[[Sequence[tuple[Part, Report]]], Iterator[tuple[str, Flaw]]] = nothing
    # what a checkpoint does not hold that others beside it do, without which training cannot go on
    lacks: Callable[[Checkpoint, Sequence[Checkpoint]], Iterator[Flaw]] = nothing
    # which of its files are gone, beside the saves of its run before and after it
    lost: Callable[[Checkpoint, Sequence[Checkpoint]], Iterator[Flaw]] = nothing
    # paths of its files that the framework passes over because of others that are there
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
        """The piece of that name. Raises KeyError."""
        return self._by_name[name]

    @property
    def same_tensors(self) -> Compared:
        return self.compared or (Compared.NONE if self.reshardable else Compared.BY_PIECE)

    @property
    def is_last_resort(self) -> bool:
        return self.purpose is Purpose.ANYTHING

    @cached_property
    def of_exports(self) -> bool:
        """Whether nothing that it describes is a state to go on training from."""
        return all(p.kind is Kind.RELEASE for p in self.pieces)

    @cached_property
    def _by_name(self) -> dict[str, Piece]:
        return {p.name: p for p in self.pieces}


def whole(value: Scalar) -> int | None:
    """A metadata scalar as an int when it is one (True is not)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
