"""States without a model that are written over at every save (``optimizer.pt``), beside models that are kept
(``lora_000000500.safetensors``) or are only the best so far: which save they are of, by their times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.reading.bare_file import Bare
from ckpt_tools.reading.companions import were_written_together


def beside_their_models(bare: Sequence[Bare]) -> list[Bare]:
    """Those of the model that they were written with, where no other model was, and none has an optimizer's
    state: of the newest, or of the one before it where the newest was saved and they were not yet.
    """
    over = {b.part.path: b for b in bare if _is_written_over(b)}
    models = [b for b in bare if b.role == "model" and b.kind is not Kind.RELEASE]
    optimizer = any(b.role == "optimizer" for b in over.values())
    if not (models and optimizer) or any(map(_is_trained, bare)):
        return list(bare)
    owner = _find_owner(models, list(over.values()))
    if owner is None:
        return list(bare)
    return [_of_its_save(b, owner) if b.part.path in over else b for b in bare]


def _find_owner(models: Sequence[Bare], states: Sequence[Bare]) -> Bare | None:
    """Return the model that all states were written with, if it is one of the last and the only such one."""
    with_them = [m for m in models if all(were_written_together(b.part, m.part) for b in states)]
    owner = max(with_them, key=lambda b: (b.part.mtime_ns, _order(b)), default=None)
    if owner is None or owner.holds is None or not _is_one_of_the_last(owner, models):
        return None
    alike = any(o.kind is owner.kind for o in with_them if o is not owner)
    return None if alike else owner


def _is_written_over(b: Bare) -> bool:
    plain = b.rolling and not (b.part.home or b.name.alias or b.name.words)
    return plain and b.role != "model" and b.kind is Kind.PERIODIC


def _is_trained(b: Bare) -> bool:
    """Whether it has an optimizer's state beside a model of its own, or its number says whose it is."""
    return b.is_state or (b.role == "optimizer" and not _is_written_over(b))


def _is_one_of_the_last(owner: Bare, models: Sequence[Bare]) -> bool:
    """Whether it has the highest number but one of a run, or the highest, or is the only one that is called
    the best. Of two later models each save does not write the states over.
    """
    if owner.name.numbered and owner.kind is Kind.PERIODIC:
        regular = [o for o in models if o.kind is Kind.PERIODIC and o is not owner]
        later = [o for o in regular if _order(o) >= _order(owner)]
        return len(later) < 2 and all(o.run == owner.run for o in regular)
    return owner.kind is Kind.BEST and len(models) == 1


def _order(b: Bare) -> tuple[int, int]:
    return (-1 if b.name.epoch is None else b.name.epoch, -1 if b.name.step is None else b.name.step)


def _of_its_save(b: Bare, model: Bare) -> Bare:
    said = model.name
    name = b.name._replace(step=said.step, epoch=said.epoch, alias=said.alias, words=said.words)
    return replace(b, name=name, run=model.run, kind=model.kind)
