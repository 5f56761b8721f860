"""What the files of a save hold, and which it has lost, as the saves beside it or its own other files tell.
Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, loss, whole
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part

_Place = tuple[str, tuple[tuple[str, int], ...]]
"""A piece, and where in it a shard belongs."""
_SHARD = re.compile(r"(.+?)-[0-9]{5}(?:-of-([0-9]{5}))?\.(safetensors|bin)")
"""A shard of a set that transformers, PaddleNLP and ColossalAI load by its index alone."""
_OF_TRAINER = re.compile(r"/checkpoint-[0-9]+/[^/]+$")
"""Where the Trainer of transformers and Accelerate save: a model, and then the state of training."""


class Holds(NamedTuple):
    """What a checkpoint holds of a training state.
    ``counters``: something in it, not only its name, says how far training was.
    """

    weights: bool = False
    optimizer: bool = False
    counters: bool = False


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
"""What one file of somebody's own training loop may hold, by the name of its piece.
One that could not be read is what its name says: ``torch``, ``ckpt`` …
"""
ROLLING = "rolling_"
"""Before the name of a piece: a file that is written over at every save,
and so only stands in for one that is not.
"""


def piece_for(holds: Holds, rolling: bool) -> str:
    name = next(name for name, held in PIECES.items() if held == holds)
    return f"{ROLLING}{name}" if rolling else name


def held_by(p: Part) -> Holds | None:
    """What a file holds; None where it could not be read."""
    return PIECES.get(p.piece.removeprefix(ROLLING))


def holds_of(c: Checkpoint) -> Holds | None:
    """What its files hold together; None where one of them could not be read."""
    if len(c.parts) == 1:  # each save is asked about each other one: a run of thousands of files feels it
        return held_by(c.parts[0])
    held = [held_by(p) for p in c.parts]
    known = [h for h in held if h is not None]
    return Holds(*map(any, zip(*known, strict=True))) if len(known) == len(held) else None


def is_weights_alone(c: Checkpoint) -> bool:
    """Whether its files hold weights and nothing else, as far as their pieces tell."""
    held = {held_by(p) for p in c.parts}
    return held == {Holds(weights=True)} or (
        held == {None} and {p.role for p in c.parts} == {"model", "index"}
    )


def weights_of_a_trainer(c: Checkpoint, beside: Saves) -> Flaws:
    """Weights alone in such a directory, whatever they are called, of a lone save: others tell by themselves.
    A loop may save no more than that, so a warning.
    """
    if not beside and all(_OF_TRAINER.search(p.path) for p in c.parts) and is_weights_alone(c):
        text = "it holds weights alone, and no state of training (optimizer, trainer_state.json)"
        text += ": Hugging Face's Trainer and Accelerate cannot go on from it"
        yield loss(text, c.path, sure=False)


def lost(c: Checkpoint, beside: Saves, names: Callable[[Checkpoint], frozenset[str]]) -> list[str]:
    """Those of the ``names`` in all the saves ``beside`` it that this one has not."""
    siblings = [names(o) for o in beside]
    return sorted(frozenset.intersection(*siblings) - names(c)) if siblings else []


def without_names(
    c: Checkpoint,
    beside: Saves,
    names: Callable[[Checkpoint], frozenset[str]],
    text: str = "there is no {}, which the run's other checkpoints have",
    *,
    sure: bool = True,
) -> Flaws:
    """What is missing of these ``names``."""
    for name in lost(c, beside, names):
        yield loss(text.format(name), c.path, sure=sure)


def without_optimizer(c: Checkpoint, beside: Saves, models: Collection[str]) -> Flaws:
    """A lone save with one of these ``models``, of a framework that keeps optimizers in other files than
    models, and without one. It may have been told to save none, so a warning.
    """
    roles = {p.role for p in c.parts}
    if beside or c.kind is not Kind.PERIODIC or roles.isdisjoint(models) or any("optim" in r for r in roles):
        return
    text = "no file holds an optimizer's state, and no other save tells whether there was one"
    yield loss(f"{text}: it would start from scratch", c.path, sure=False)


def without_index(c: Checkpoint, beside: Saves) -> Flaws:
    """Shards of which no index says what they hold: their loader finds no model then. Other saves beside it
    show that by themselves.
    """
    there = {p.path for p in c.parts}
    for p in () if beside else c.parts:
        shard = _SHARD.fullmatch(p.name)
        if shard and shard[2] != "00001":  # one of one
            index = f"{shard[1]}.{shard[3]}.index.json"
            if f"{p.path.removesuffix(p.name)}{index}" not in there:
                text = f"there is no {index}, without which {p.name} and the like are not loaded"
                yield loss(text, c.path)
                return


def stale_index(path: str, whole: str) -> Flaw:
    """Return what to say of an index beside a file that holds the model whole."""
    text = f"none of its shards is there, and {whole} is taken: from_pretrained may ask for them"
    return loss(text, path, sure=False, hint=f"remove this index if {whole} is the model")


def lost_shards(c: Checkpoint, beside: Saves) -> Flaws:
    """Shards that no index lists, and that all the saves ``beside`` it have. A save that holds as many bytes
    without them is that of a job which has fewer ranks by now.
    """
    mine, others = _shards(c), [shards for o in beside if (shards := _shards(o))]
    gone = sorted(set.intersection(*map(set, others)) - mine.keys()) if mine and others else []
    if gone:
        smallest = min(shards[at].size for shards in others for at in gone)
        least = min(sum(p.size for p in shards.values()) for shards in others)
        if sum(p.size for p in mine.values()) + smallest // 2 < least:
            text = f"there is no file like {others[-1][gone[0]].name}, as the saves beside it have one"
            yield loss(text, c.path)


def _shards(c: Checkpoint) -> Mapping[_Place, Part]:
    """Of a copy of the newest save, or a link to it, there is one for all saves."""
    return {(p.piece, p.coords): p for p in c.parts if p.coords and p.role == "model"}


def is_array(piece: Piece) -> bool:
    """Return True if a piece describes an array, whose chunks are files beside it."""
    return "zarr" in piece.formats


def fewer_than_listed(parts: Rows) -> Found:
    """Fewer arrays than a checkpoint's index says that it was saved with: its loader opens each of them."""
    beside = Counter(p.home for p, _ in parts if p.role == "array")
    for part, report in parts:
        said = whole(report.metadata.get("stored_arrays")) or 0
        if part.role == "index" and beside[part.home] < said:
            gone = said - beside[part.home]
            text = f"{gone} of the {said} arrays that it says were saved with it are not there"
            yield part.path, loss(text)


def lost_arrays(c: Checkpoint, beside: Saves) -> Flaws:
    """Arrays, and lists of them, that all the saves ``beside`` it have."""

    def names(o: Checkpoint) -> frozenset[str]:
        told = (p for p in o.parts if p.role == "list" or p.name == ".zarray")
        return frozenset(p.path.removeprefix(f"{o.path}/") for p in told)

    for path in lost(c, beside, names):
        name = path.removesuffix("/.zarray")
        what = path if name == path else f"array {name!r}"
        yield loss(f"there is no {what}, which the run's other checkpoints have", c.path)
