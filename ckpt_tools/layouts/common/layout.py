"""What a layout is: a frozen value that says with path templates how a directory is arranged, and how its
framework is told what to resume.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from ckpt_tools.layouts.common.templates import Edges, compile_template, edges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.flaw import Flaw
from ckpt_tools.model.notes import Notes
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report, Scalar


class Piece(Struct, frozen=True, dict=True):
    """One kind of file in a layout.

    ``replicated_over`` names the axes along which ranks hold the same state; ``sharded`` says that no flag
    may ever make one rank's file stand in for another's. A ``shared`` file is loaded by every rank, as one of
    a set or alone. ``single``: of all files of this role one is enough (copies of each other); else each is
    loaded. ``required``: a checkpoint without any file of this role is not complete where the run's others
    have one;
    ``loaded``: resuming reads it.
    ``step_from`` "content" gives the piece a structure pass before grouping. A ``weak`` name (any ``x.ckpt``)
    makes the piece only when the content has one of ``formats`` (and ``proof`` among its metadata), and
    nothing else explains its directory.
    A ``companion`` is such a piece only beside other pieces of its layout: in its own directory, or in a
    sibling where no other layout claims its own; one from ``inside`` only in its own directory. One that
    ``follows`` is of the run of the files beside it whose names have a prefix, where all have the same.
    A ``generic`` name is such a piece only in a directory in which no other layout has a file.
    A ``counted`` name tells its rank by a number alone: it is such a piece only where the numbers count from
    0 without a gap, or are those of a lone directory, below the steps of their directories.
    ``unfinished``: the name is that of a save under way; ``finished``: a word such as tmp in it says how long
    a finished one is kept.
    A ``described`` file is data that an index beside it explains: verify and plan follow the index, so only a
    listing looks for its name, when no other fits, in the own directory of a checkpoint that has other
    pieces.
    A ``mark`` tells by being there: it may be empty. A ``constant`` file is the same in every save; of
    one that ``moves`` no two saves have the same.
    ``here``: the directory in which its template begins is one checkpoint, whatever it is called.
    ``apart``: a checkpoint has several such directories, of which none is its own.
    ``marks`` is the end of the path of a file that lies in a checkpoint's directory, or beside it and is
    called like it otherwise, and says that it is not finished.
    ``everyone_saves`` says that each rank writes its own file although replicas hold the same: then a set
    with ranks missing, or off the save interval, was written by a dying job.
    ``rolling``: each save writes over it, so it is of one save alone: of the one it was written with.
    ``survivable``: the framework goes on without the file (with other random numbers), so a rank without one
    is a warning, and its ranks are not those that a checkpoint needs.
    ``unasked``: the framework loads the file with ``weights_only=False``, so that whatever its pickle names
    is imported and called.
    ``state_word`` are bytes in the file of every save that can be trained on, and ``state_key`` is an entry
    of it where the file is all of a save; one without them is an export. Of ``state_told`` a file that is
    all of a save has one among its metadata; one beside it without, that has only some of its entries, is an
    export.
    ``whole_beside``: an index of shards, which is no checkpoint by itself beside the same model in one file.
    ``tensors_in`` are roles of files that hold the tensors of this one in a checkpoint that has such files.
    """

    name: str
    role: str
    template: str
    formats: tuple[str, ...] = ()
    kind: Kind = Kind.PERIODIC
    replicated_over: tuple[str, ...] = ()
    sharded: bool = False
    shared: bool = False
    single: bool = False
    required: bool = True
    loaded: bool = True
    step_from: str = "name"
    weak: bool = False
    proof: str = ""
    companion: bool = False
    inside: bool = False
    follows: bool = False
    generic: bool = False
    counted: bool = False
    described: bool = False
    unfinished: bool = False
    finished: bool = False
    mark: bool = False
    constant: bool = False
    moves: bool = False
    here: bool = False
    apart: bool = False
    marks: str = ""
    everyone_saves: bool = False
    survivable: bool = False
    whole_beside: bool = False
    rolling: bool = False
    unasked: bool = False
    state_word: bytes = b""
    state_key: str = ""
    state_told: tuple[str, ...] = ()
    tensors_in: tuple[str, ...] = ()

    # Each is itself: comparing fields costs a walk over all of them.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @cached_property
    def depth(self) -> int:
        """Directory components in the template."""
        return self.template.count("/")

    @cached_property
    def home(self) -> int:
        """How many of these components, from the first, lead to the checkpoint's own directory: up to the one
        that names a step or nothing but itself; 0 without one, and where a checkpoint has several.
        """
        if self.apart:
            return 0
        named = [
            re.search(r"\{(step|epoch|generation)\b", top) is not None for top in self.template.split("/")
        ]
        if not any(named):  # release/, cat-state/, or a directory whose name says nothing
            plain = re.compile(r".*\{name\}.*|(\{prefix\}-)?[^{<]*")
            named = [plain.fullmatch(top) is not None for top in self.template.split("/")]
        return next((i for i, says in enumerate(named[:-1], 1) if says), 0)

    @cached_property
    def directory(self) -> re.Pattern[str]:
        return re.compile(compile_template(self.template.rpartition("/")[0]))

    @cached_property
    def file_template(self) -> str:
        return self.template.rpartition("/")[2]

    @cached_property
    def file(self) -> re.Pattern[str]:
        return re.compile(compile_template(self.file_template))

    @cached_property
    def edges(self) -> Edges:
        """How the names of its files begin and end."""
        return edges(self.file_template)


Metadata = Mapping[str, Scalar]
Steps = tuple[int | None, int | None, int | None]  # step, epoch, step_in_epoch


def nothing_to_check(_parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """A layout whose content says nothing that its names could contradict."""
    return iter(())


def no_steps(part: Part, _metadata: Metadata) -> Steps:
    """A layout whose content tells no step."""
    return part.step, part.epoch, part.step_in_epoch


def named_step(checkpoint: Checkpoint) -> int | str | None:
    """What most trackers write: the step, or the word "release"."""
    return "release" if checkpoint.kind is Kind.RELEASE else checkpoint.step


def plain_tracker(said: int | str) -> bytes:
    """What most frameworks write: the number or the word, with nothing around it."""
    return str(said).encode("utf-8", "surrogateescape")


def nothing_beside(_checkpoint: Checkpoint) -> tuple[str, ...]:
    """A layout whose loader asks for no other files."""
    return ()


def nothing_unread(_checkpoint: Checkpoint) -> frozenset[str]:
    """A layout whose framework loads every file of a checkpoint."""
    return frozenset()


def nothing_noted(_checkpoints: Sequence[Checkpoint], _notes: Notes) -> Iterator[Flaw]:
    """A layout without other notes than its tracker."""
    return iter(())


def nothing_lacks(_checkpoint: Checkpoint, _others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """A layout whose checkpoints all hold a whole training state."""
    return iter(())


def no_place(_part: Part, _siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """A layout whose siblings tell nothing about a part's step."""
    return None


class Layout(Struct, frozen=True, dict=True):
    """How a directory is arranged.

    ``tracker`` is the file beside the checkpoints that names the latest, ``read_tracker`` turns its bytes
    into a step, a name, "release" or None (garbage), and ``tracked`` says what it holds when it names a
    checkpoint, and ``write_tracker`` turns that into bytes as its framework writes them. What is
    ``tracked_by_any`` may be named by each of a checkpoint's files. A tracker is
    ``always_tracked`` when its framework never saves without writing it, ``tracked_early`` when one rank
    writes it before the others have finished.
    ``other_trackers`` are those of other frameworks that save so, which are asked after that one: the path of
    each from the directory of the saves, and what reads the step or a name from its bytes for that directory
    ("" for any), None where it says nothing of it: a file that is called so is not always one.
    ``state_tracker`` is a copy of a file of the latest checkpoint that lies beside the checkpoints and tells
    its step, which the framework asks before the tracker.
    ``sized_by`` is the piece whose content tells how many ranks saved, where the model files do not.
    ``commit`` is the role of the file that is written last: without it a save is unfinished. Where no save of
    a run has that file, nor one of ``commit_beside``, another of the framework's writers made it, which
    writes ``commit_alone`` last. Files of a role that is ``first_saved`` are written before all others: an
    unfinished save without any has lost them. ``needs`` are roles without which nothing can be resumed,
    ``needs_any`` those of which one must be there, unless files that no piece explains lie in the
    checkpoint's own directory. ``saved_with`` are (piece, role): no save has a file of the piece without
    one of the role. ``one_of`` are groups of pieces: no save has files of more than one of a group.
    ``steps`` reads (step, epoch, step_in_epoch) from a part's metadata, ``place`` works a part's step out
    from its siblings' metadata, nearest in time first. ``check`` compares names with contents over the parts
    of one run and yields (path, finding). ``resume`` tells the framework. ``committed`` says that a
    checkpoint not marked unfinished has all the files its writer meant to write, so a rank without one needs
    a replica. ``limits`` says what cannot be seen.
    ``records`` are the names of other notes about the checkpoints beside them, ``write_record`` is what the
    first of them says when a part is the last one saved.
    ``beside`` names files next to a checkpoint's own that its loader may ask for, although no state is in
    them. ``lacks`` says what a checkpoint does not hold that others beside it do, without which training
    cannot go on; ``lost`` says which of its files are gone, beside the saves of its run before and after it
    (an error is a reason not to resume from it). ``unread`` gives the paths of its files that the framework
    passes over because of others that are there. The files of a ``last_resort`` are checkpoints only where no
    other layout has any.
    ``steps_by_epoch``: steps in names that tell an epoch as well may count from the start of each.
    ``counts_restarts``: the generation in its names counts the restarts of a run; it is the entry of its
    files that counts steps on over them.
    ``compared_by_role``: files of one role hold the same tensors, whatever piece they are. ``crosscheck``
    compares the finished checkpoints of one run with the framework's own notes beside them.
    ``traces`` fit paths to which its framework alone writes, for files that no piece explains where the rest
    of a checkpoint is gone.
    ``stateless`` are the ends of names of files that hold no state; ``unneeded`` are (ending, what follows in
    its place in the name of a file beside it) of those that hold none where that file is there, and that are
    sealed with it. ``rank_directories``: directories of its
    files that are called alike but for a number, from 0 without a gap, hold those of one rank each.
    ``own_files``: a rank asks for no file that only other ranks load, but for those of rank 0; else every
    node needs all of them. ``kept_by_ranks``: what names call a node is the rank that keeps the file, which
    looks for its own in no other directory. ``written`` fits the paths, below a checkpoint, of arrays of
    which each chunk is a file after the first step, whatever is in it. ``dated`` fits the name of a
    checkpoint's directory that tells when it was saved: its group is year, month, day, hour, minute and
    second, and sorts as the dates do.
    ``shares`` fits the name of a directory among the saves of a run in which a replica keeps what only it
    needs.
    ``best`` is the entry of its files' metadata that names the best save of the run, by its path.
    ``lists`` is (role, pattern): a file of that role tells which files and directories were saved beside it:
    the group in the keys of its metadata.
    ``keeps`` are layouts of what its framework keeps beside it, and never goes on from by itself.
    ``models_alone``: its files, but for companions, hold a model and never a state, so among the states of a
    run they are what its last save has exported. ``exports_models``: its framework saves models anywhere,
    under the names of its pieces.
    """

    name: str
    title: str
    pieces: tuple[Piece, ...]
    resume: Callable[[Checkpoint, str | None], Resume]
    reference: str
    limits: tuple[str, ...]
    steps: Callable[[Part, Metadata], Steps] = no_steps
    place: Callable[[Part, Sequence[tuple[Part, Metadata]]], int | None] = no_place
    check: Callable[[Sequence[tuple[Part, Report]]], Iterator[tuple[str, Flaw]]] = nothing_to_check
    tracker: str | None = None
    tracked: Callable[[Checkpoint], int | str | None] = named_step
    tracked_by_any: bool = False
    always_tracked: bool = True
    tracked_early: bool = False
    other_trackers: tuple[tuple[str, Callable[[bytes, str], int | str | None]], ...] = ()
    state_tracker: str = ""
    sized_by: str = ""
    commit: str = ""
    commit_beside: tuple[str, ...] = ()
    commit_alone: str = ""
    first_saved: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_any: tuple[str, ...] = ()
    saved_with: tuple[tuple[str, str], ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    read_tracker: Callable[[bytes], int | str | None] | None = None
    write_tracker: Callable[[int | str], bytes] = plain_tracker
    epoch_base: int | None = None
    committed: bool = False
    reshardable: bool = False
    compare_steps: bool = True
    records: tuple[str, ...] = ()
    write_record: Callable[[Part], bytes] | None = None
    beside: Callable[[Checkpoint], tuple[str, ...]] = nothing_beside
    lacks: Callable[[Checkpoint, Sequence[Checkpoint]], Iterator[Flaw]] = nothing_lacks
    lost: Callable[[Checkpoint, Sequence[Checkpoint]], Iterator[Flaw]] = nothing_lacks
    unread: Callable[[Checkpoint], frozenset[str]] = nothing_unread
    last_resort: bool = False
    steps_by_epoch: bool = False
    counts_restarts: str = ""
    compared_by_role: bool = False
    crosscheck: Callable[[Sequence[Checkpoint], Notes], Iterator[Flaw | Finding]] = nothing_noted
    stateless: tuple[str, ...] = ()
    unneeded: tuple[tuple[str, str], ...] = ()
    rank_directories: bool = False
    own_files: bool = False
    kept_by_ranks: bool = False
    written: re.Pattern[str] | None = None
    dated: re.Pattern[str] | None = None
    shares: re.Pattern[str] | None = None
    best: str = ""
    lists: tuple[str, re.Pattern[str]] | None = None
    keeps: tuple[str, ...] = ()
    models_alone: bool = False
    exports_models: bool = False
    traces: tuple[re.Pattern[str], ...] = ()

    __eq__ = object.__eq__  # as of pieces
    __hash__ = object.__hash__

    def piece(self, name: str) -> Piece:
        """The piece of that name. Raises KeyError."""
        return self._by_name[name]

    def is_tracked(self, checkpoint: Checkpoint, said: int | str | None) -> bool:
        """Whether what a tracker says is this checkpoint."""
        if said is None or self.tracked(checkpoint) == said:
            return said is not None
        return self.tracked_by_any and any(
            (p.home or p.path).rpartition("/")[2] == said for p in checkpoint.parts
        )

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
