"""The files that a save has lost, as other saves or its own files show; and kinds of states. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from ckpt_tools.layouts.common.counters import as_int
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part

_Shard = tuple[str, tuple[tuple[str, int], ...]]
"""The name of a piece, and the coordinates of one of its shards."""
_SHARD = re.compile(r"(.+?)-[0-9]{5}(?:-of-([0-9]{5}))?\.(safetensors|bin)")
"""Names of shards that transformers, PaddleNLP and ColossalAI load by their index alone."""
_OF_TRAINER = re.compile(r"/checkpoint-[0-9]+/[^/]+$")
"""Paths of files of transformers' Trainer and of Accelerate: the model, then the state of training."""


class Holds(NamedTuple):
    """What a checkpoint holds of a training state."""

    weights: bool = False
    optimizer: bool = False
    counters: bool = False  # its content, not only its name, says how far training was


PIECES = {
    "state": Holds(True, True, True),
    "uncounted": Holds(True, True, False),
    "counted": Holds(True, False, True),
    "weights": Holds(True, False, False),
    "optimizer": Holds(False, True, False),
    "optimizer_counted": Holds(False, True, True),
    "progress": Holds(False, False, True),
    "other": Holds(),
}
"""What one file of somebody's own training loop may hold, by the name of its piece. A file that could not be
read has a piece that its name tells: ``torch``, ``ckpt`` …
"""
ROLLING = "rolling_"
"""Begins the names of pieces whose files are written over at every save: such a file only stands in for one
that is not.
"""


def find_piece(holds: Holds, rolling: bool) -> str:
    """Return the name of the piece of a file that ``holds`` this; ``rolling``: each save writes over it."""
    name = next(name for name, contents in PIECES.items() if contents == holds)
    return f"{ROLLING}{name}" if rolling else name


def get_holds(p: Part) -> Holds | None:
    """Return what a file of the layout ``files`` holds; None if it could not be read."""
    return PIECES.get(p.piece.removeprefix(ROLLING))


def is_weights_alone(c: Checkpoint) -> bool:
    """Return True if a checkpoint's files hold weights and nothing else, as far as their pieces tell."""
    contents, roles = {get_holds(p) for p in c.parts}, {p.role for p in c.parts}
    return contents == {Holds(weights=True)} or (contents == {None} and roles == {"model", "index"})


def weights_of_a_trainer(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield a lone save of weights alone in a Trainer's directory; a loop may save no more, so a warning."""
    if not beside and all(_OF_TRAINER.search(p.path) for p in c.parts) and is_weights_alone(c):
        text = "it holds weights alone, and no state of training (optimizer, trainer_state.json)"
        text += ": Hugging Face's Trainer and Accelerate cannot go on from it"
        yield loss(text, c.path, sure=False)


class Lack(Struct, frozen=True, forbid_unknown_fields=True):
    """Says ``text`` of a save that ``has`` files of these pieces or roles, and none that it ``lacks``."""

    lacks: tuple[str, ...]
    text: str
    has: tuple[str, ...] = ()
    alone: bool = False  # only of a lone save: others show what one has lost
    sure: bool = True


def find_lacks(lacks: Iterable[Lack], c: Checkpoint, beside: Saves) -> Flaws:
    """Yield what a save has lost, as some of its own files tell of others."""
    present = {name for p in c.parts for name in (p.piece, p.role)}
    for lack in lacks:
        shown = present.issuperset(lack.has) and present.isdisjoint(lack.lacks)
        if shown and not (lack.alone and beside):
            yield loss(lack.text, c.path, sure=lack.sure)


def list_paths(c: Checkpoint, *roles: str) -> frozenset[str]:
    """Return the paths of a checkpoint's files below it; only files of these ``roles``, if any are given."""
    return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts if not roles or p.role in roles)


def loss(text: str, path: str = "", *, sure: bool = True, hint: str = "") -> Flaw:
    """Return the flaw of a checkpoint that has lost a file; a warning unless it is ``sure``."""
    severity = None if sure else Severity.WARNING
    return Flaw("missing-part", text, path=path, severity=severity, hint=hint)


def list_lost(c: Checkpoint, beside: Saves, names: Callable[[Checkpoint], frozenset[str]]) -> list[str]:
    """Return the ``names`` of files that all saves ``beside`` this one have, and this one has not."""
    siblings = [names(o) for o in beside]
    return sorted(frozenset.intersection(*siblings) - names(c)) if siblings else []


def compare_names(
    c: Checkpoint,
    beside: Saves,
    names: Callable[[Checkpoint], frozenset[str]],
    text: str = "there is no {}, which the run's other checkpoints have",
    *,
    sure: bool = True,
) -> Flaws:
    """Yield the ``names`` of files that all saves ``beside`` this one have; each fills {} in ``text``."""
    for name in list_lost(c, beside, names):
        yield loss(text.format(name), c.path, sure=sure)


def check_optimizer(c: Checkpoint, beside: Saves, models: Collection[str]) -> Flaws:
    """Yield a lone save with ``models`` (roles) but no optimizer; a job may save none, so a warning."""
    roles = {p.role for p in c.parts}
    if beside or c.kind is not Kind.PERIODIC or roles.isdisjoint(models) or any("optim" in r for r in roles):
        return
    text = "no file holds an optimizer's state, and no other save tells whether there was one"
    yield loss(f"{text}: it would start from scratch", c.path, sure=False)


def check_index(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield shards of a lone save without an index that says what they hold: no loader finds them then."""
    paths = {p.path for p in c.parts}
    for p in () if beside else c.parts:
        shard = _SHARD.fullmatch(p.name)
        if shard and shard[2] != "00001":  # one of one
            index = f"{shard[1]}.{shard[3]}.index.json"
            if f"{p.path.removesuffix(p.name)}{index}" not in paths:
                text = f"there is no {index}, without which {p.name} and the like are not loaded"
                yield loss(text, c.path)
                return


def warn_of_stale_index(path: str, whole: str) -> Flaw:
    """Return the warning about an index beside a file that holds the whole model."""
    text = f"none of its shards is there, and {whole} is taken: from_pretrained may ask for them"
    return loss(text, path, sure=False, hint=f"remove this index if {whole} is the model")


def find_lost_shards(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield unlisted shards that all saves ``beside`` it have, unless it has as many bytes without them."""
    own, others = _map_shards(c), [shards for o in beside if (shards := _map_shards(o))]
    gone = sorted(set.intersection(*map(set, others)) - own.keys()) if own and others else []
    if gone:
        smallest = min(shards[shard].size for shards in others for shard in gone)
        least = min(sum(p.size for p in shards.values()) for shards in others)
        if sum(p.size for p in own.values()) + smallest // 2 < least:
            text = f"there is no file like {others[-1][gone[0]].name}, as the saves beside it have one"
            yield loss(text, c.path)


def _map_shards(c: Checkpoint) -> Mapping[_Shard, Part]:
    """Return the files of the model's shards by piece and coordinates; files without coordinates are none."""
    return {(p.piece, p.coords): p for p in c.parts if p.coords and p.role == "model"}


def is_array(piece: Piece) -> bool:
    """Return True if a piece describes an array, whose chunks are files beside it."""
    return "zarr" in piece.formats


def check_array_count(parts: Rows) -> Found:
    """Yield indexes that list more arrays than are there: the loader opens each of them."""
    present = Counter(p.home for p, _ in parts if p.role == "array")
    for part, report in parts:
        listed = as_int(report.metadata.get("stored_arrays")) or 0
        if part.role == "index" and present[part.home] < listed:
            gone = listed - present[part.home]
            text = f"{gone} of the {listed} arrays that it says were saved with it are not there"
            yield part.path, loss(text)


def find_lost_arrays(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield arrays, and lists of arrays, that all the saves ``beside`` it have."""

    def list_arrays(o: Checkpoint) -> frozenset[str]:
        arrays = (p for p in o.parts if p.role == "list" or p.name == ".zarray")
        return frozenset(p.path.removeprefix(f"{o.path}/") for p in arrays)

    for path in list_lost(c, beside, list_arrays):
        name = path.removesuffix("/.zarray")
        lost_file = path if name == path else f"array {name!r}"
        yield loss(f"there is no {lost_file}, which the run's other checkpoints have", c.path)
