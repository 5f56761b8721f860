"""What a checkpoint of somebody's own training loop lacks of a training state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.bare_names import PAIRS, SECOND_NETWORKS, bare_name_of
from ckpt_tools.layouts.common.held import BEGUN, ROLLING, Holds, held_by, holds_of
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part

_MORE = 1.5
"""A state of training has this many times the bytes of its weights, and more: optimizers keep a value or two
for each, all but SGD without momentum.
"""

_CALLED_A_STATE = re.compile(r"(?:train|optim)[a-z]*[-_]?states?(?![a-z])", re.IGNORECASE)


def lacks_of_state(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What a checkpoint does not hold of a training state although others of its run do.

    Half of a training state never is a checkpoint.
    """
    mine = holds_of(c)
    others = [_as_left(o, c) for o in others]
    siblings = list(same_run(c, others))
    if mine is None:
        yield from _lacks_what_is_unread(c, siblings)
        yield from _lost_beside_weights(c, others)
        return
    if not mine.weights:
        yield _lacking(c, "weights of a model", next((o for o, held in siblings if held.weights), None))
        return
    if gone := _half_of_two(c):
        yield _lacking(c, f"weights of the {gone}, whose optimizer it holds", None)
        return
    yield from _lacks_optimizer(c, mine, others, siblings)
    if not mine.counters and (o := next(_counting_peers(c, mine, siblings), None)):
        yield _lacking(c, "count of steps or epochs", o)
    alike = [o for o, _ in siblings if o.kind is c.kind]
    if mine.optimizer and len(c.parts) == 1:
        yield from _unwritten_beside_one(c, alike)
    else:
        yield from _unwritten(c, alike, () if mine.optimizer else ("optimizer",))


def _as_left(o: Checkpoint, c: Checkpoint) -> Checkpoint:
    """Another save as an older one could be: without what each save writes over, which is of the latest."""
    newer = len(o.parts) > 1 and o.order > c.order
    over = [p for p in o.parts if p.piece.startswith(ROLLING)] if newer else []
    if not over or len(over) == len(o.parts):
        return o
    return replace(o, parts=tuple(p for p in o.parts if p not in over))


def _half_of_two(c: Checkpoint) -> str:
    """Of two networks that are trained together the one that is gone, where the other and the optimizer of
    both are there; "" for none.
    """
    words: dict[bool, set[str]] = {True: set(), False: set()}
    for p in c.parts if len(c.parts) > 1 else ():
        held = held_by(p)
        if held and (held.weights or held.optimizer):
            words[held.weights].update(bare_name_of(p).words)
    weights, optimizers = words[True], words[False]
    for one, two, _ in PAIRS:
        for mine, other in ((one, two), (two, one)):
            gone = [word for word in other if word in optimizers]
            if gone and weights.intersection(mine) and weights.isdisjoint(other):
                return gone[0]
    return ""


def _lacks_what_is_unread(c: Checkpoint, siblings: Sequence[tuple[Checkpoint, Holds]]) -> Iterator[Finding]:
    """Weights alone never stand in for the state beside them that cannot be read."""
    weights = {p.role for p in _weights_alone(c)}
    unread = any(p.role in weights and held_by(p) is None for p in c.parts)
    if unread and (o := next((o for o, held in siblings if held.optimizer), None)):
        yield _lacking(c, "optimizer's state that can be read", o)


def _lacks_optimizer(
    c: Checkpoint, mine: Holds, others: Sequence[Checkpoint], siblings: Sequence[tuple[Checkpoint, Holds]]
) -> Iterator[Finding]:
    if not mine.optimizer and (o := next((o for o, held in siblings if held.optimizer), None)):
        yield _lacking(c, "optimizer's state", o)
    elif not mine.optimizer and "scheduler" in _roles(c):
        lacking = _lacking(c, "optimizer's state, with which a schedule is saved", None)
        hint = "bring it back; if the job never saves one, say --exclude GLOB for the file of the schedule"
        yield replace(lacking, hint=hint)
    elif unread := _unread_save(c, mine, others, siblings):
        text = f"{_name(c)} holds no optimizer's state, and what {_name(unread)} held cannot be read"
        hint = "bring it back; --kind KIND resumes from the model alone"
        yield finding("missing-part", text, path=c.parts[0].path, hint=hint)
    elif not mine.optimizer:
        yield from _lost_beside_weights(c, others)


def _lost_beside_weights(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """A file without a number that cannot be read and is too large for the weights alone that would stand in
    for it, or empty, or that began with more: a job would start with an empty optimizer, and nothing said.
    """
    weights = _weights_alone(c)
    if not weights:
        return
    size = sum(p.size for p in weights)
    run = [p for o in (c, *others) if _is_of_run(o, c) for p in o.parts]
    begun = min(p.mtime_ns for p in run if held_by(p) is not None)  # what is older was there before the run
    for p in filter(_is_unread, run):
        if (why := _held_more(p, size)) and p.mtime_ns >= begun:
            name = p.path.rpartition("/")[2]
            text = f"it holds no optimizer's state, and {name}, which cannot be read, may: {why}"
            hint = f"to start from the weights alone, move {name} away"
            yield finding("missing-part", text, path=weights[0].path, hint=hint)


def _held_more(p: Part, size: int) -> str:
    """Why a file that cannot be read may have held more than weights of so many bytes; "" for no reason."""
    if p.piece == BEGUN:
        return "what is left of it names one"
    if _CALLED_A_STATE.search(p.name):
        return "it is called one of training"
    return "it is empty" if p.size == 0 else "it is larger" if p.size > _MORE * size else ""


def _weights_alone(c: Checkpoint) -> list[Part]:
    """The files of a checkpoint that were read, where they hold weights and no optimizer's state."""
    read = [(p, held) for p in c.parts if (held := held_by(p))]
    has_optimizer = any(held.optimizer for _, held in read)
    return [p for p, _ in read] if any(held.weights for _, held in read) and not has_optimizer else []


def _is_of_run(o: Checkpoint, c: Checkpoint) -> bool:
    return (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)


def _is_unread(p: Part) -> bool:
    """Whether nothing is known of what a file without a number holds."""
    return held_by(p) is None and not bare_name_of(p).numbered


def _unread_save(
    c: Checkpoint, mine: Holds, others: Sequence[Checkpoint], siblings: Sequence[tuple[Checkpoint, Holds]]
) -> Checkpoint | None:
    """A damaged save of training that an export would stand in for: nothing left shows what the run's saves
    held. None where there is no such.
    """
    if mine.optimizer or c.kind is Kind.PERIODIC:
        return None
    if any(held.weights and o.kind is Kind.PERIODIC for o, held in siblings):
        return None
    of_run = (o for o in others if (o.layout, o.run, o.kind) == (c.layout, c.run, Kind.PERIODIC))
    return next((o for o in of_run if holds_of(o) is None), None)


def _counting_peers(
    c: Checkpoint, mine: Holds, siblings: Sequence[tuple[Checkpoint, Holds]]
) -> Iterator[Checkpoint]:
    """Checkpoints of the same files that say how far training was."""
    for o, held in siblings:
        like = held.optimizer >= mine.optimizer and _roles(o) == _roles(c)
        if held.counters and like and o.kind in (c.kind, Kind.PERIODIC):
            yield o


def _unwritten(c: Checkpoint, siblings: Sequence[Checkpoint], told: Sequence[str]) -> Iterator[Finding]:
    """Files that most saves of the run have: a job that died in the middle of one did not come to them.
    An average is no model where others have both.

    ``told``: roles that are told as missing already.
    """
    for role, n in _having(c, siblings).items():
        if role not in told and (role == "model" or 2 * n > len(siblings)):
            yield _lacking(c, f"{role} file", next(o for o in siblings if role in _roles(o)))


def _unwritten_beside_one(c: Checkpoint, siblings: Sequence[Checkpoint]) -> Iterator[Finding]:
    """The same for one file with an optimizer in it, which may be all of a state: but for the other one of
    two networks, and for what every save has beside such a file.
    """
    of_two = {*SECOND_NETWORKS, "model"} if _roles(c) & SECOND_NETWORKS else SECOND_NETWORKS
    alike = len(siblings) > 1 and all(_has_its_name(c, o) for o in siblings)
    for role, n in _having(c, siblings).items():
        most = role in of_two and (role == "model" or 2 * n > len(siblings))
        if most or (alike and n == len(siblings)):
            yield _lacking(c, f"{role} file", next(o for o in siblings if role in _roles(o)))


def _having(c: Checkpoint, siblings: Sequence[Checkpoint]) -> Counter[str]:
    """How many of them have a role that this one has not."""
    return Counter(role for o in siblings for role in _roles(o) - _roles(c))


def _has_its_name(c: Checkpoint, o: Checkpoint) -> bool:
    """Whether another save has a file of the name of this one's, but for its number."""
    return bare_name_of(c.parts[0]).pattern in {bare_name_of(p).pattern for p in o.parts}


def _roles(c: Checkpoint) -> set[str]:
    return {p.role for p in c.parts}


def _lacking(c: Checkpoint, what: str, who: Checkpoint | None) -> Finding:
    beside = f", which {_name(who)} beside it holds" if who else ""
    return finding("missing-part", f"{_name(c)} holds no {what}{beside}", path=c.parts[0].path)


def same_run(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint, Holds]]:
    """Other checkpoints of its run and what they hold, as far as they could be read."""
    for o in others:
        if o is not c and (o.layout, o.run) == (c.layout, c.run) and (held := holds_of(o)) is not None:
            yield o, held


def _name(c: Checkpoint) -> str:
    if c.parts[0].home:
        return c.path.rpartition("/")[2]
    names = [p.path.rpartition("/")[2] for p in c.parts]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more of its step"
