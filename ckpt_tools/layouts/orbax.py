"""Orbax: a directory for each save, of a manager (``N/``) or called as the script likes, with the files of
the saved tree in it, or with a directory for each item; ``….orbax-checkpoint-tmp`` while it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, resume_directory
from ckpt_tools.layouts.common.lost_files import lost, without_names
from ckpt_tools.layouts.common.piece import Changes, Claim, Piece, Stage, nest
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity

JSON = ("json_member",)
DEEPEST = 7
"""Components below an item: those of a zarr v3 chunk of four dimensions are w/c/0/0/0/0."""


class _Home(NamedTuple):
    """A checkpoint's own directory, and how its pieces are told from those of other homes."""

    template: str
    mark: str
    unfinished: bool = False
    managed: bool = False
    """Whether the name is one that a manager gives. Others may be those of runs, too: of checkpoints in there
    nothing must become one.
    """

    def under_way(self) -> _Home:
        """What Orbax calls it until the save is finished."""
        template, mark = f"{self.template}.orbax-checkpoint-tmp[-{{name}}]", f"{self.mark}_tmp"
        return self._replace(template=template, mark=mark, unfinished=True)

    def nest(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces in this directory."""
        stage = Stage.UNDER_WAY if self.unfinished else Stage.ANY
        for p in nest(self.template, pieces, self.mark, stage=stage):
            inside = p.claim is Claim.COMPANION and not self.managed
            yield replace(p, claim=Claim.INSIDE) if inside else p


_MANAGED = _Home("<checkpoint_|step_|ckpt_|>{step}", "", managed=True)
_NAMELESS = _Home("{name}", "_any")
_NAMED = (
    _MANAGED,
    _Home("<checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}", "_word"),
    _Home("epoch<-|_|=|>{epoch}", "_epoch"),
    _Home("{prefix}_{step}", "_prefix"),  # a manager's step_prefix
    _NAMELESS,
)
_HOMES = (*(home.under_way() for home in _NAMED), *_NAMED)
"""Saves under way first: what they are called fits ``{name}``, too."""


def _lost(checkpoint: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Files that the run's saves have in their items; and what commits a save to Google Cloud Storage, which
    Orbax does not restore without.
    """
    if checkpoint.path.startswith("gs://") and all(p.role != "commit" for p in checkpoint.parts):
        text = "there is no commit_success.txt, which is written last on Google Cloud Storage"
        yield Flaw("missing-part", text, path=checkpoint.path)
    of_tree = [*_without_tree(checkpoint), *_unmerged(checkpoint)]
    yield from of_tree or _unlike(checkpoint, beside)


def _unlike(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Files that the saves ``beside`` it have, all of them."""
    yield from without_names(c, beside, _named(*_ITEMS))
    yield from _iterators(c, beside)
    for path in lost(c, beside, _named("sharding")):
        text = f"there is no {path}, which the run's other checkpoints have: arrays are restored only where "
        text += "Orbax is told their shardings"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def _iterators(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Processes without their place in the data: which there are, the names of the others' files tell."""
    whole = {at for o in beside for at, seen in _places(o).items() if len(seen) == at.of}
    for at, seen in _places(c).items():
        if gone := ranges.gaps(seen, at.of):
            text = f"there is no {at.item}/process_{gone[0][0]}-of-{at.of}.json"
            severity = Severity.ERROR if at in whole else Severity.WARNING
            yield Flaw("missing-part", text, path=c.path, severity=severity)
    for item in lost(c, beside, lambda o: frozenset(at.item for at in _places(o))):
        text = f"there is no file in {item}/, in which the run's other checkpoints have those of processes"
        yield Flaw("missing-part", text, path=c.path)


class _Item(NamedTuple):
    """An item of Grain's, and how many processes had their places in its data."""

    item: str
    of: int


def _places(c: Checkpoint) -> dict[_Item, set[int]]:
    """The processes whose places are there."""
    found: dict[_Item, set[int]] = {}
    for p in c.parts:
        if p.role == "iterator" and (name := _ITERATOR.fullmatch(p.name)):
            item = p.folder.directory.rstrip("/").rpartition("/")[2]
            found.setdefault(_Item(item, int(name[2])), set()).add(int(name[1]))
    return found


def _named(*roles: str) -> Callable[[Checkpoint], frozenset[str]]:
    """What reads the paths of files of these roles."""

    def names(c: Checkpoint) -> frozenset[str]:
        return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts if p.role in roles)

    return names


_KEYS = "<jax|np>_random_key"
"""Where the handlers of random keys keep their own item, below the one that the user has named."""
_ITERATOR = re.compile(r"process_(\d{1,6})-of-(\d{1,6})\.json")
"""Where Grain keeps the place of a process in its data."""
_MARK = "/_CHECKPOINT_METADATA"
"""What Orbax writes about a checkpoint when it begins it, and again when it is done."""
_LISTED = re.compile(r"item_handlers\.(?!metrics$)(.+)")
"""Items of a save; training goes on without its metrics."""
_ITEMS = "tree", "manifest", "json"
"""Roles without which an item cannot be restored."""


def _without_tree(checkpoint: Checkpoint) -> Iterator[Flaw]:
    """Items of which only the other files are left: nothing says which arrays they had."""
    of_trees = [p for p in checkpoint.parts if p.role in ("tree", "manifest", "sharding")]
    listed = {p.folder.directory.rstrip("/") for p in of_trees if p.role == "tree"}
    for directory in sorted({p.folder.directory.rstrip("/") for p in of_trees} - listed if listed else ()):
        yield Flaw("missing-part", "there is no _METADATA beside the other files of its tree", path=directory)


def _unmerged(checkpoint: Checkpoint) -> Iterator[Flaw]:
    """Trees of which only what processes wrote is left: before 0.12 nothing else tells of a manifest."""
    files = {p.path for p in checkpoint.parts}
    parts = (p.path.rpartition("/ocdbt.process_") for p in checkpoint.parts if p.name == "manifest.ocdbt")
    for directory in sorted({directory for directory, of_process, _ in parts if of_process}):
        if f"{directory}/manifest.ocdbt" not in files:
            text = "there is no manifest.ocdbt, which leads to what each process wrote"
            yield Flaw("missing-part", text, path=directory)


_OPTIONAL = partial(Piece, required=False)
_BESIDE = partial(Piece, required=False, claim=Claim.COMPANION)


def _marks(home: _Home) -> Iterator[Piece]:
    """What is written about a whole checkpoint, and by each process of the tree in it."""
    yield Piece("metadata", "metadata", "_CHECKPOINT_METADATA", JSON, loaded=False)
    yield Piece("commit", "commit", "commit_success.txt", loaded=False, claim=Claim.COMPANION)
    for name, item in (("process", ""), ("item_process", _item(home))):
        yield _BESIDE(name, "data", f"{item}ocdbt.process_{{node}}/manifest.ocdbt", ("ocdbt",), loaded=False)


def _marked_items(home: _Home) -> Iterator[Piece]:
    """What a Checkpointer writes about each item, where a script saves them one by one below a directory that
    is called after a step (``step_30/model``). What lies in one that is called by a number alone may be runs.
    """
    mark = _OPTIONAL(f"item{home.mark}", "metadata", f"{home.template}{_MARK}", JSON, loaded=False)
    stage = Stage.MARKS if home.unfinished else Stage.ANY
    for above in (one for one in _NAMED if one.mark in ("_word", "_epoch")):
        yield from nest(above.template, [mark], above.mark, stage=stage)


def _tree(kind: str, item: str = "", claim: Claim = Claim.COMPANION) -> Iterator[Piece]:
    """The files that describe one saved tree; ``SURE``: their names alone say so."""
    yield Piece(f"{kind}tree", "tree", f"{item}_METADATA", ("orbax_tree",), claim=claim)
    # it lists files under names that were drawn by lot
    manifest = _OPTIONAL(f"{kind}manifest", "manifest", f"{item}manifest.ocdbt", ("ocdbt",), claim=claim)
    yield replace(manifest, changes=Changes.MOVES)
    yield _BESIDE(f"{kind}sharding", "sharding", f"{item}_sharding", JSON)
    yield _BESIDE(f"{kind}strings", "json", f"{item}_strings.json", JSON)
    yield _BESIDE(f"{kind}arrays", "array_metadata", f"{item}array_metadatas/process_{{node}}", JSON)


def _item(home: _Home) -> str:
    """The directory of an item, with a slash behind it."""
    return "{name}[.orbax-checkpoint-tmp]/" if home.unfinished else "{name}/"


def _items(home: _Home) -> Iterator[Piece]:
    """Directories of items: trees, and JSON such as the state of a data loader."""
    item = _item(home)
    yield from _tree("", item, Claim.SURE if home.managed else Claim.COMPANION)
    yield from _tree("inner_", item * 2)  # of random keys
    done = "commit_success.txt"
    yield Piece("item_commit", "item_commit", f"{item}{done}", loaded=False, claim=Claim.COMPANION)
    yield _BESIDE("json", "json", f"{item}metadata", JSON)
    yield _BESIDE("key_commit", "item_commit", f"{item}{_KEYS}[_metadata]/{done}", loaded=False)
    yield _BESIDE("key", "json", f"{item}{_KEYS}_metadata/metadata", JSON)
    yield _BESIDE("iterator", "iterator", f"{item}process_{{name}}-of-{{name}}.json", JSON)


def _data(home: _Home) -> Iterator[Piece]:
    """What the files above describe: OCDBT's d/, each process' own tree, the chunks of zarr arrays, items of
    other handlers.
    """
    paths = [_item(home) + "/".join(["{name}"] * depth) for depth in range(1, DEEPEST)]
    if home.template.startswith(_NAMELESS.template):  # any file lies in a directory: so only OCDBT's
        paths = [f"{at}{process}d/{{name}}" for at in ("", _item(home)) for process in _PROCESSES]
    for depth, path in enumerate(paths, 1):
        yield _OPTIONAL(f"data{depth}", "data", path, loaded=False, claim=Claim.DESCRIBED)


_PROCESSES = "", "ocdbt.process_{node}/"


def _pieces() -> Iterator[Piece]:
    """The files of a checkpoint's own directory go to it where something else in there says that it is one:
    ``7/final/_METADATA`` may be that of an item, too.
    """
    bare = Piece("bare_tree", "tree", "_METADATA", ("orbax_tree",))
    for home in _HOMES:
        if home.template.startswith(_NAMELESS.template):
            yield from _marked_items(home)
        yield from home.nest(_marks(home))
    for home in _HOMES:
        yield from home.nest(_tree("own_"))
    for home in sorted(_HOMES, key=lambda home: not home.managed):
        yield from home.nest(_items(home))
    for home in _HOMES:
        yield from home.nest([bare])
    for home in _HOMES:
        yield from home.nest(_data(home))


LAYOUT = Layout(
    name="orbax",
    title="Orbax",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # CheckpointManager.restore(step), Checkpointer.restore(path)
    complete=Complete(needs=("tree",)),
    # traces: marks of a save that was finished, texts, OCDBT's own files, the chunks of zarr arrays
    beside=Beside(
        listed=("metadata", _LISTED),
        traces=(
            re.compile(r"(?:^|/)(?:[a-z]+_)?\d+/(?:[^/]+/){0,2}commit_success\.txt$"),
            re.compile(r"/(?:_sharding|array_metadatas/process_\d+)$"),
            re.compile(r"/(?:ocdbt\.process_\d+/)?d/[0-9a-f]{32}$"),
            re.compile(r"(?:^|/)(?:[a-z]+_)?\d+/(?:[^/]+/)?[^/]+/(?:\d+(?:\.\d+)*|c(?:/\d+)*)$"),
            re.compile(r"(?:^|/)(?:[a-z]+_)?\d+/[^/]+/(?:[^/]+_random_key_metadata/)?metadata$"),
            re.compile(r"(?:^|/)(?:[a-z]+_)?\d+/[^/]+/(?:process_\d+-of-\d+|(?:[^/]+/)?_strings)\.json$"),
        ),
    ),
    lost=_lost,
    reshardable=True,
    reference=(
        "orbax-checkpoint _src/path/atomicity.py, checkpoint_manager.py: a directory is renamed, or "
        "committed by commit_success.txt"
    ),
    limits=(
        (
            "before 0.12 a local checkpoint has no commit file, so its absence counts only where the run's "
            "other checkpoints have one, and on Google Cloud Storage (gs://), where every version writes it"
        ),
        (
            "before 0.10 nothing lists the items of a save: one of which every file is gone is missed only "
            "where the run's other checkpoints have it"
        ),
        (
            "old versions write no _CHECKPOINT_METADATA: without it every directory in one that is called"
            " like a manager's (7/5) is taken for an item of it"
        ),
    ),
)
