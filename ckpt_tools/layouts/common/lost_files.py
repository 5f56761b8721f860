"""Files that a save has lost, as the saves beside it or its own other files tell. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from ckpt_tools.layouts.common.held import Holds, held_by
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part

_Place = tuple[str, tuple[tuple[str, int], ...]]
"""A piece, and where in it a shard belongs."""
_Shards = Mapping[_Place, Part]
_Name = TypeVar("_Name", str, _Place)
_SHARD = re.compile(r"(.+?)-[0-9]{5}(?:-of-([0-9]{5}))?\.(safetensors|bin)")
"""A shard of a set that transformers, PaddleNLP and ColossalAI load by its index alone."""
_OF_TRAINER = re.compile(r"/checkpoint-[0-9]+/[^/]+$")
"""Where the Trainer of transformers and Accelerate save: a model, and then the state of training."""


def lost(
    c: Checkpoint, beside: Sequence[Checkpoint], names: Callable[[Checkpoint], frozenset[_Name]]
) -> list[_Name]:
    """Those of the ``names`` in all the saves ``beside`` it that this one has not."""
    siblings = [names(o) for o in beside]
    return sorted(frozenset.intersection(*siblings) - names(c)) if siblings else []


def without_names(
    c: Checkpoint, beside: Sequence[Checkpoint], names: Callable[[Checkpoint], frozenset[str]]
) -> Iterator[Flaw]:
    """What is missing of these ``names``, by itself an error."""
    for name in lost(c, beside, names):
        text = f"there is no {name}, which the run's other checkpoints have"
        yield Flaw("missing-part", text, path=c.path)


def without_optimizer(c: Checkpoint, beside: Sequence[Checkpoint], models: Collection[str]) -> Iterator[Flaw]:
    """A lone save with one of these ``models``, of a framework that keeps optimizers in other files than
    models, and without one. It may have been told to save none, so a warning.
    """
    roles = {p.role for p in c.parts}
    if beside or c.kind is not Kind.PERIODIC or roles.isdisjoint(models) or any("optim" in r for r in roles):
        return
    text = "no file holds an optimizer's state, and no other save tells whether there was one"
    yield Flaw("missing-part", f"{text}: it would begin anew", path=c.path, severity=Severity.WARNING)


def weights_of_a_trainer(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Weights alone in such a directory, whatever they are called, of a lone save: others tell by themselves.
    A loop may save no more than that, so a warning.
    """
    if not beside and all(_OF_TRAINER.search(p.path) for p in c.parts) and is_weights_alone(c):
        text = "it holds weights alone, and no state of training (optimizer, trainer_state.json)"
        text += ": Hugging Face's Trainer and Accelerate cannot go on from it"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def is_weights_alone(c: Checkpoint) -> bool:
    """Whether its files hold weights and nothing else, as far as their pieces tell."""
    held = {held_by(p) for p in c.parts}
    return held == {Holds(weights=True)} or (
        held == {None} and {p.role for p in c.parts} == {"model", "index"}
    )


def without_index(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
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
                yield Flaw("missing-part", text, path=c.path)
                return


def stale_index(path: str, whole: str) -> Flaw:
    """Return what to say of an index beside a file that holds the model whole."""
    text = f"none of its shards is there, and {whole} is taken: from_pretrained may ask for them"
    hint = f"remove this index if {whole} is the model"
    return Flaw("missing-part", text, path=path, severity=Severity.WARNING, hint=hint)


def lost_shards(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Shards that no index lists, and that all the saves ``beside`` it have. A save that holds as many bytes
    without them is that of a job which has fewer ranks by now.
    """
    sharded = [o for o in beside if _shards(o)]
    gone = lost(c, sharded, lambda o: frozenset(_shards(o))) if _shards(c) else []
    if not gone:
        return
    others = list(map(_shards, sharded))
    smallest = min(shards[at].size for shards in others for at in gone)
    if _size(_shards(c)) + smallest // 2 < min(map(_size, others)):
        text = f"there is no file like {others[-1][gone[0]].name}, as the saves beside it have one"
        yield Flaw("missing-part", text, path=c.path)


def _shards(c: Checkpoint) -> _Shards:
    """Of a copy of the newest save, or a link to it, there is one for all saves."""
    return {(p.piece, p.coords): p for p in c.parts if p.coords and p.role == "model"}


def _size(shards: _Shards) -> int:
    return sum(p.size for p in shards.values())
