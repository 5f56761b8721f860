"""States without a model that are written over at every save (``optimizer.pt``), beside models that are kept
(``lora_000000500.safetensors``) or are only the best so far: which save they are of, by their times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.reading.bare_file import Bare

_TOGETHER_NS = 2_000_000_000
_RATE = 20_000_000
"""Bytes that a slow file system takes in a second: so long may lie between two files of one save."""


def beside_the_newest(bare: Sequence[Bare]) -> list[Bare]:
    """Those of the newest model, where it was written together with them, no other model was, and none has an
    optimizer's state.
    """
    over = {b.part.path: b for b in bare if _is_written_over(b)}
    models = [b for b in bare if b.role == "model" and b.kind is not Kind.RELEASE]
    optimizer = any(b.role == "optimizer" for b in over.values())
    if not (models and optimizer) or any(map(_is_trained, bare)):
        return list(bare)
    newest = max(models, key=lambda b: (b.part.mtime_ns, _order(b)))
    if not _are_of(newest, list(over.values()), [b for b in models if b is not newest]):
        return list(bare)
    return [_of_its_save(b, newest) if b.part.path in over else b for b in bare]


def _are_of(newest: Bare, over: Sequence[Bare], others: Sequence[Bare]) -> bool:
    """Whether all were written with it, and with none of the other models, as their times are in a copy."""
    if newest.holds is None or not _is_the_last(newest, others):
        return False
    alike = [o for o in others if o.kind is newest.kind]
    return all(_are_together(b, newest) and not any(_are_together(b, o) for o in alike) for b in over)


def _is_written_over(b: Bare) -> bool:
    plain = b.rolling and not (b.part.home or b.name.alias or b.name.words)
    return plain and b.role != "model" and b.kind is Kind.PERIODIC


def _is_trained(b: Bare) -> bool:
    """Whether it has an optimizer's state beside a model of its own, or its number says whose it is."""
    return b.is_state or (b.role == "optimizer" and not _is_written_over(b))


def _is_the_last(newest: Bare, others: Sequence[Bare]) -> bool:
    """Whether it is the one with the highest number of a run, or the only one that is called the best."""
    if newest.name.numbered and newest.kind is Kind.PERIODIC:
        regular = [o for o in others if o.kind is Kind.PERIODIC]
        return all(o.run == newest.run and _order(o) < _order(newest) for o in regular)
    return newest.kind is Kind.BEST and not others


def _order(b: Bare) -> tuple[int, int]:
    return (-1 if b.name.epoch is None else b.name.epoch, -1 if b.name.step is None else b.name.step)


def _are_together(b: Bare, model: Bare) -> bool:
    apart = abs(b.part.mtime_ns - model.part.mtime_ns)
    return apart <= _TOGETHER_NS + max(b.part.size, model.part.size) * 1_000_000_000 // _RATE


def _of_its_save(b: Bare, model: Bare) -> Bare:
    said = model.name
    name = b.name._replace(step=said.step, epoch=said.epoch, alias=said.alias, words=said.words)
    return replace(b, name=name, run=model.run, kind=model.kind)
