"""What a piece of a layout is: one kind of file, and where, when and by whom it is read."""

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
    """Which ranks load a file when a job resumes: without any of these the one that its name tells."""

    shared: bool = False  # every rank, alone or as one of a set
    sharded: bool = False  # no flag may ever make one rank's file stand in for another's
    single: bool = False  # the files of this role are copies of each other, of which one is enough
    replicated_over: tuple[str, ...] = ()  # axes along which ranks hold the same state
    # each rank writes its own all the same: a set with ranks missing, or off the save interval, was written
    # by a dying job
    everyone_saves: bool = False
    # the framework goes on without the file (with other random numbers): a rank without one is a warning, and
    # its ranks are not those that a checkpoint needs
    survivable: bool = False


OWN = Readers()
SHARED = Readers(shared=True)
SHARDED = Readers(sharded=True)
COPIES = Readers(shared=True, single=True)


class Claim(Enum):
    """When a file whose name fits is such a piece."""

    SURE = auto()
    # beside other pieces of its layout: in its own directory, or in a sibling that no other layout claims
    COMPANION = auto()
    INSIDE = auto()  # beside other pieces of its layout in its own directory
    FOLLOWS = auto()  # the same; it is of the run of those whose names have a prefix, if all have the same
    INDEX = auto()  # of shards: no checkpoint by itself beside the same model in one file
    GENERIC = auto()  # in a directory in which no other layout has a file
    # the same, where a number alone tells the rank, and the numbers count from 0 without a gap or are those
    # of a lone directory, below the steps of their directories
    COUNTED = auto()
    # where its content has one of ``formats`` (and ``proof``), and nothing else explains its directory
    WEAK = auto()
    # data that an index beside it explains, which verify and plan follow: only a listing looks for its name,
    # when no other fits, in the own directory of a checkpoint that has other pieces
    DESCRIBED = auto()

    @property
    def needs_company(self) -> bool:
        return self in (Claim.COMPANION, Claim.INSIDE, Claim.FOLLOWS)

    @property
    def needs_no_other(self) -> bool:
        return self in (Claim.GENERIC, Claim.COUNTED)


class Stage(Enum):
    """What a name tells about whether the save is finished."""

    ANY = auto()  # nothing of its own; words such as tmp do
    UNDER_WAY = auto()  # it is that of a save under way
    # the file lies in a checkpoint's directory, or beside it and is called like it but for its end, and says
    # that the checkpoint is not finished
    MARKS = auto()
    FINISHED = auto()  # a word such as tmp in it says how long a finished one is kept


class Changes(Enum):
    """How a file differs from save to save."""

    PER_SAVE = auto()
    CONSTANT = auto()  # it is the same in every save
    MOVES = auto()  # no two saves have the same
    ROLLING = auto()  # each save writes over it, so it is of the one that it was written with
    MARK = auto()  # it tells by being there, and may be empty


class Where(Enum):
    """Which directory is the checkpoint's own."""

    NAMED = auto()  # the one that names a step, or nothing but itself
    HERE = auto()  # the one in which the template begins, whatever it is called
    APART = auto()  # none: a checkpoint has several such directories


class Content(Struct, frozen=True):
    """What only a file's content tells."""

    step: bool = False  # so the piece gets a structure pass before grouping
    proof: str = ""  # an entry of the metadata that a weak name needs
    state_word: bytes = b""  # it is in the file of every save that can be trained on; else it is an export
    state_key: str = ""  # the same of an entry, where the file is all of a save
    # of these a file that is all of a save has one among its metadata; one beside it without, that has only
    # some of its entries, is an export
    state_told: tuple[str, ...] = ()
    tensors_in: tuple[str, ...] = ()  # roles of files that hold its tensors in a save that has such files

    @property
    def tells_exports(self) -> bool:
        return bool(self.state_word or self.state_key or self.state_told)


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

    # Each is itself: comparing fields costs a walk over all of them.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @cached_property
    def depth(self) -> int:
        """Directory components in the template."""
        return self.template.count("/")

    @cached_property
    def home(self) -> int:
        """How many of these components lead to the checkpoint's own directory; 0 where none is."""
        if self.where is not Where.NAMED:
            return 0
        named = [
            re.search(r"\{(step|epoch|generation)\b", top) is not None for top in self.template.split("/")
        ]
        if not any(named):  # release/, cat-state/, or a directory whose name says nothing
            plain = re.compile(r".*\{name\}.*|(\{prefix\}-)?[^{<]*")
            named = [plain.fullmatch(top) is not None for top in self.template.split("/")]
        return next((i for i, says in enumerate(named[:-1], 1) if says), 0)

    @property
    def is_unfinished(self) -> bool:
        return self.stage in (Stage.UNDER_WAY, Stage.MARKS)

    @cached_property
    def end(self) -> str:
        """The text at the end of the template: of a file that marks a checkpoint what that is not called."""
        return re.split(r"[]}>]", self.template)[-1]

    @cached_property
    def file_template(self) -> str:
        return self.template.rpartition("/")[2]

    @property
    def file(self) -> re.Pattern[str]:
        return compile_name(self.file_template)
