"""A piece of a layout: one kind of file, and where, when and by which ranks it is read."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import cached_property

from msgspec import Struct

from ckpt_tools.layouts.common.templates import compile_name
from ckpt_tools.model.part import Kind

TORCH = ("torch_zip", "torch_legacy")
JSON = ("json_member",)
SAFETENSORS = ("safetensors",)


class Readers(Struct, frozen=True):
    """Which ranks load a file when a job resumes: if no field is set, the one rank that its name tells."""

    shared: bool = False  # every rank loads the file, alone or as one of a set
    sharded: bool = False  # no flag may ever make one rank's file stand in for another rank's
    single: bool = False  # the files of this role are copies of each other: one is enough
    replicated_over: tuple[str, ...] = ()  # axes along which ranks hold the same state
    # each rank writes its file, even if its state is replicated: a set with ranks missing, or off the save
    # interval, was written by a dying job
    everyone_saves: bool = False
    # the framework resumes without the file (with other random numbers): a rank without one is a warning, and
    # such files do not tell which ranks a checkpoint needs
    survivable: bool = False


OWN = Readers()
SHARED = Readers(shared=True)
SHARDED = Readers(sharded=True)
COPIES = Readers(shared=True, single=True)


class Claim(Enum):
    """When a file whose name fits a piece's template is taken for that piece."""

    SURE = auto()
    # beside other pieces of its layout: in its own directory, or in a sibling that no other layout claims
    COMPANION = auto()
    INSIDE = auto()  # beside other pieces of its layout in its own directory
    FOLLOWS = auto()  # like INSIDE; its run is that of the pieces with a prefix, if all have the same prefix
    INDEX = auto()  # an index of shards: no checkpoint by itself beside the same model in one file
    GENERIC = auto()  # in a directory in which no other layout has a file
    # like GENERIC, if only a number tells the rank, and the numbers are 0, 1, 2 … without a gap, or are those
    # of a lone directory and below the steps of their directories
    COUNTED = auto()
    # if its content has one of ``formats`` (and ``proof``), and nothing else explains its directory
    WEAK = auto()
    # data that an index beside it lists; verify and plan follow the index. Only a listing looks for the name,
    # if it fits no other piece, in the own directory of a checkpoint that has other pieces
    DESCRIBED = auto()

    @property
    def needs_company(self) -> bool:
        """Whether other pieces of its layout must be in its directory or, for a companion, in a sibling."""
        return self in (Claim.COMPANION, Claim.INSIDE, Claim.FOLLOWS)

    @property
    def needs_no_other(self) -> bool:
        """Whether no other layout may have a file in its directory."""
        return self in (Claim.GENERIC, Claim.COUNTED)


class Stage(Enum):
    """What a file's name tells about whether its save is finished."""

    ANY = auto()  # nothing, but for words such as tmp in it
    UNDER_WAY = auto()  # the save is under way
    # a checkpoint is not finished: the file lies in its directory, or beside it with the checkpoint's name
    # and another ending
    MARKS = auto()
    FINISHED = auto()  # the save is finished: a word such as tmp says how long it is kept


class Changes(Enum):
    """How a file differs from save to save."""

    PER_SAVE = auto()
    CONSTANT = auto()  # it is the same in every save
    MOVES = auto()  # no two saves have the same content
    ROLLING = auto()  # each save writes over the file, so it belongs to the last save that wrote it
    MARK = auto()  # its presence alone tells something: it may be empty


class Where(Enum):
    """Which directory of a file's path is the checkpoint's own."""

    NAMED = auto()  # the directory whose name has a step, or else one with a plain name
    HERE = auto()  # the directory in which the template begins, whatever its name
    APART = auto()  # none: the files of a checkpoint lie in several directories


class Content(Struct, frozen=True):
    """What only a file's content tells, not its name."""

    step: bool = False  # the content tells the step, so its structure is read before grouping
    proof: str = ""  # a metadata entry that the file needs if its name is weak (Claim.WEAK)
    state_word: bytes = b""  # bytes in the file of each save that can be trained on; without them, an export
    # metadata entries of which a file that is a whole save has at least one; a file without these and
    # without an optimizer's state, beside such a one, is an export
    state_told: tuple[str, ...] = ()
    tensors_in: tuple[str, ...] = ()  # roles of files that hold its tensors in a save that has such files

    @property
    def tells_exports(self) -> bool:
        """Whether the content tells a state to train on from an exported model."""
        return bool(self.state_word or self.state_told)


UNTOLD = Content()
TELLS_STEP = Content(step=True)  # for plug-ins (docs/plugins.md)


class Piece(Struct, frozen=True, dict=True):
    """One kind of file in a layout."""

    name: str
    role: str
    template: str
    formats: tuple[str, ...] = ()
    kind: Kind = Kind.PERIODIC
    readers: Readers = SHARED
    required: bool = True  # a save without any file of this role lacks it where the run's others have one
    loaded: bool = True  # resuming reads it
    unasked: bool = False  # with weights_only=False: whatever its pickle names is imported and called
    claim: Claim = Claim.SURE
    stage: Stage = Stage.ANY
    changes: Changes = Changes.PER_SAVE
    where: Where = Where.NAMED
    content: Content = UNTOLD

    # Pieces are compared by identity: comparing fields costs a walk over all of them.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @cached_property
    def depth(self) -> int:
        """How many names of directories the template has."""
        return self.template.count("/")

    @cached_property
    def home(self) -> int:
        """How many of these names lead to the checkpoint's own directory; 0 if none does."""
        if self.where is not Where.NAMED:
            return 0
        tops = self.template.split("/")
        is_home = [re.search(r"\{(step|epoch|generation)\b", top) is not None for top in tops]
        if not any(is_home):  # release/, cat-state/, or a directory whose name says nothing
            plain = re.compile(r".*\{name\}.*|(\{prefix\}-)?[^{<]*")
            is_home = [plain.fullmatch(top) is not None for top in tops]
        return next((i for i, says in enumerate(is_home[:-1], 1) if says), 0)

    @property
    def is_unfinished(self) -> bool:
        return self.stage in (Stage.UNDER_WAY, Stage.MARKS)

    @cached_property
    def end(self) -> str:
        """The text behind the last field: for a mark, the ending that its checkpoint's name does not have."""
        return re.split(r"[]}>]", self.template)[-1]

    @cached_property
    def file_template(self) -> str:
        return self.template.rpartition("/")[2]

    @property
    def file(self) -> re.Pattern[str]:
        return compile_name(self.file_template)
