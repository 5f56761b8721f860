"""Orbax: a directory for each save, of a manager (``N/``) or called as the script likes, with the files of
the saved tree in it, or with a directory for each item; ``….orbax-checkpoint-tmp`` while it is written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import (
    Beside,
    Complete,
    Flaws,
    Layout,
    Saves,
    loss,
    names_in,
    resume_directory,
)
from ckpt_tools.layouts.common.lost_files import without_names
from ckpt_tools.layouts.common.piece import JSON, Changes, Claim, Piece, Stage, nest
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint

_DEEPEST = 7
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


_KEYS = "<jax|np>_random_key"
"""Where the handlers of random keys keep their own item, below the one that the user has named."""
_ITERATOR = re.compile(r"process_(\d{1,6})-of-(\d{1,6})\.json")
"""Where Grain keeps the place of a process in its data."""
_MARK = "_CHECKPOINT_METADATA"
"""What Orbax writes about a checkpoint when it begins it, and again when it is done."""
_LISTED = re.compile(r"item_handlers\.(?!metrics$)(.+)")
"""Items of a save; training goes on without its metrics."""
_ITEMS = "tree", "manifest", "json"
"""Roles without which an item cannot be restored."""


def _find_lost(c: Checkpoint, beside: Saves) -> Flaws:
    """Files that the run's saves have in their items; and what commits a save to Google Cloud Storage, which
    Orbax does not restore without.
    """
    if c.path.startswith("gs://") and all(p.role != "commit" for p in c.parts):
        text = "there is no commit_success.txt, which is written last on Google Cloud Storage"
        yield loss(text, c.path)
    of_tree = list(_find_lost_trees(c))
    yield from of_tree
    if not of_tree:
        yield from without_names(c, beside, lambda o: names_in(o, *_ITEMS))
        yield from _find_lost_processes(c, beside)
        text = "there is no {}, which the run's other checkpoints have: arrays are restored only where "
        text += "Orbax is told their shardings"
        yield from without_names(c, beside, lambda o: names_in(o, "sharding"), text, sure=False)


def _find_lost_trees(c: Checkpoint) -> Flaws:
    """Items of which only the other files are left: nothing says which arrays they had. And trees of which
    only what processes wrote is left: before 0.12 nothing else tells of a manifest.
    """
    homes = defaultdict[str, set[str]](set)
    for p in c.parts:
        homes[p.role].add(p.folder.directory.rstrip("/"))
    described = homes["tree"] | homes["manifest"] | homes["sharding"]
    for directory in sorted(described - homes["tree"]) if homes["tree"] else ():
        yield loss("there is no _METADATA beside the other files of its tree", directory)
    files = {p.path for p in c.parts}
    parts = (p.path.rpartition("/ocdbt.process_") for p in c.parts if p.name == "manifest.ocdbt")
    for directory in sorted({directory for directory, of_process, _ in parts if of_process}):
        if f"{directory}/manifest.ocdbt" not in files:
            yield loss("there is no manifest.ocdbt, which leads to what each process wrote", directory)


def _find_lost_processes(c: Checkpoint, beside: Saves) -> Flaws:
    """Processes without their place in the data: which there are, the names of the others' files tell."""
    whole = {at for o in beside for at, seen in _places(o).items() if len(seen) == at[1]}
    for at, seen in _places(c).items():
        item, of = at
        if gone := ranges.gaps(seen, of):
            text = f"there is no {item}/process_{gone[0][0]}-of-{of}.json"
            yield loss(text, c.path, sure=at in whole)
    text = "there is no file in {}/, in which the run's other checkpoints have those of processes"
    yield from without_names(c, beside, lambda o: frozenset(item for item, _ in _places(o)), text)


def _places(c: Checkpoint) -> dict[tuple[str, int], set[int]]:
    """The processes whose places are there, by the item of Grain's and how many had places in its data."""
    found: dict[tuple[str, int], set[int]] = {}
    for p in c.parts:
        if p.role == "iterator" and (name := _ITERATOR.fullmatch(p.name)):
            item = p.folder.directory.rstrip("/").rpartition("/")[2]
            found.setdefault((item, int(name[2])), set()).add(int(name[1]))
    return found


_OPTIONAL = partial(Piece, required=False)
_BESIDE = partial(Piece, required=False, claim=Claim.COMPANION)


def _list_marks(home: _Home) -> Iterator[Piece]:
    """What is written about a whole checkpoint, and by each process of the tree in it."""
    yield Piece("metadata", "metadata", _MARK, JSON, loaded=False)
    yield Piece("commit", "commit", "commit_success.txt", loaded=False, claim=Claim.COMPANION)
    for name, item in (("process", ""), ("item_process", _item(home))):
        yield _BESIDE(name, "data", f"{item}ocdbt.process_{{node}}/manifest.ocdbt", ("ocdbt",), loaded=False)


def _list_marked_items(home: _Home) -> Iterator[Piece]:
    """What a Checkpointer writes about each item, where a script saves them one by one below a directory that
    is called after a step (``step_30/model``). What lies in one that is called by a number alone may be runs.
    """
    mark = _OPTIONAL(f"item{home.mark}", "metadata", f"{home.template}/{_MARK}", JSON, loaded=False)
    stage = Stage.MARKS if home.unfinished else Stage.ANY
    for above in (one for one in _NAMED if one.mark in ("_word", "_epoch")):
        yield from nest(above.template, [mark], above.mark, stage=stage)


def _list_tree(kind: str, item: str = "", claim: Claim = Claim.COMPANION) -> Iterator[Piece]:
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


def _list_items(home: _Home) -> Iterator[Piece]:
    """Directories of items: trees, and JSON such as the state of a data loader."""
    item = _item(home)
    yield from _list_tree("", item, Claim.SURE if home.managed else Claim.COMPANION)
    yield from _list_tree("inner_", item * 2)  # of random keys
    done = "commit_success.txt"
    yield Piece("item_commit", "item_commit", f"{item}{done}", loaded=False, claim=Claim.COMPANION)
    yield _BESIDE("json", "json", f"{item}metadata", JSON)
    yield _BESIDE("key_commit", "item_commit", f"{item}{_KEYS}[_metadata]/{done}", loaded=False)
    yield _BESIDE("key", "json", f"{item}{_KEYS}_metadata/metadata", JSON)
    yield _BESIDE("iterator", "iterator", f"{item}process_{{name}}-of-{{name}}.json", JSON)


def _list_data(home: _Home) -> Iterator[Piece]:
    """What the files above describe: OCDBT's d/, each process' own tree, the chunks of zarr arrays, items of
    other handlers.
    """
    paths = [_item(home) + "/".join(["{name}"] * depth) for depth in range(1, _DEEPEST)]
    if home.template.startswith(_NAMELESS.template):  # any file lies in a directory: so only OCDBT's
        paths = [f"{at}{process}d/{{name}}" for at in ("", _item(home)) for process in _PROCESSES]
    for depth, path in enumerate(paths, 1):
        yield _OPTIONAL(f"data{depth}", "data", path, loaded=False, claim=Claim.DESCRIBED)


_PROCESSES = "", "ocdbt.process_{node}/"


def _list_pieces() -> Iterator[Piece]:
    """The files of a checkpoint's own directory go to it where something else in there says that it is one:
    ``7/final/_METADATA`` may be that of an item, too.
    """
    bare = Piece("bare_tree", "tree", "_METADATA", ("orbax_tree",))
    for home in _HOMES:
        if home.template.startswith(_NAMELESS.template):
            yield from _list_marked_items(home)
        yield from home.nest(_list_marks(home))
    for home in _HOMES:
        yield from home.nest(_list_tree("own_"))
    for home in sorted(_HOMES, key=lambda home: not home.managed):
        yield from home.nest(_list_items(home))
    for home in _HOMES:
        yield from home.nest([bare])
    for home in _HOMES:
        yield from home.nest(_list_data(home))


ORBAX = Layout(
    name="orbax",
    title="Orbax",
    pieces=tuple(_list_pieces()),
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
    lost=_find_lost,
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
