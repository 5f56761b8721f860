"""Checkpoint files of no known arrangement:
what somebody's own training loop saves, told apart by names and by what is in the files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.bare_names import SECOND_NETWORKS, SUFFIXES, bare_name_of, read_bare_name
from ckpt_tools.layouts.common.counters import borrowed
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps
from ckpt_tools.layouts.common.loop_counters import EPOCHS, STEPS, number, told_otherwise
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy", "torch_tar")
MAY_BE_DATA = ("npz", "npy")
ARRAYS = ("safetensors", *MAY_BE_DATA)
"""Formats of arrays under names, and nothing else."""
OBJECTS = ("pickle_plain", "joblib")
FORMATS = (*TORCH, "mindspore_ckpt", "safetensors", *MAY_BE_DATA, "eqx")
PADDLE = ("pickle_plain", "paddle_tensors")


def _ending(*endings: str) -> str:
    """The template of any name with one of these endings, which some file systems keep in capitals."""
    return f"{{name}}.<{'|'.join(e for ending in endings for e in (ending, ending.upper()))}>"


_NAMES = {
    "torch": (_ending("pt", "pth", "pth.tar", "pyth", "th", "torch", "bin"), TORCH),
    "ckpt": (_ending("ckpt"), (*TORCH, "mindspore_ckpt")),
    "safetensors": (_ending("safetensors"), ("safetensors",)),
    "numpy": (_ending("npz", "npy"), MAY_BE_DATA),
    "equinox": (_ending("eqx"), ("eqx",)),
    "paddle": (_ending("pdparams", "pdopt", "pdema", "pdstates", "states"), PADDLE),
    "joblib": (_ending("joblib"), OBJECTS),
    "pickle": (_ending("pkl"), (*TORCH, *OBJECTS)),
}
"""The names of files, and the formats that each may have, by the name of its piece."""


_LONGEST = 255
"""Characters of a file's name."""
_MORE = 1.5
"""A state of training has this many times the bytes of its weights, and more: optimizers keep a value or two
for each, all but SGD without momentum.
"""
_PARTS = re.compile(r"(?<![a-z])(rank|shard|part|gpu|worker|tp|pp|mp|dp)[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""What a name says of which part of a state it is."""


class Holds(NamedTuple):
    """What a checkpoint holds of a training state.
    ``counters``: something in it, not only its name, says how far training was.
    """

    weights: bool = False
    optimizer: bool = False
    counters: bool = False


_PIECES = {
    "state": Holds(True, True, True),
    "uncounted": Holds(True, True, False),
    "counted": Holds(True, False, True),
    "weights": Holds(True, False, False),
    "optimizer": Holds(False, True, False),
    "optimizer_counted": Holds(False, True, True),
    "progress": Holds(False, False, True),
    "other": Holds(),
}
"""What one file may hold, by the name of its piece.
One that could not be read is what its name says: ``torch``, ``ckpt`` …
"""
BEGUN = "begun_state"
"""The piece of a file that was cut, of which what is left tells that it held an optimizer's state as well."""
_UNREAD = (*_NAMES, BEGUN)
_ROLLING = "rolling_"
"""Before the name of a piece: a file that is written over at every save,
and so only stands in for one that is not.
"""


def piece_for(holds: Holds, rolling: bool) -> str:
    name = next(name for name, held in _PIECES.items() if held == holds)
    return f"{_ROLLING}{name}" if rolling else name


def holds_of(c: Checkpoint) -> Holds | None:
    """What its files hold together; None where one of them could not be read."""
    held = [_PIECES.get(p.piece.removeprefix(_ROLLING)) for p in c.parts]
    known = [h for h in held if h is not None]
    return Holds(*map(any, zip(*known, strict=True))) if len(known) == len(held) else None


def _steps(part: Part, metadata: Metadata) -> Steps:
    named = (part.step, part.epoch) != (None, None)
    return (
        (part.step if named else number(metadata, STEPS)),
        (part.epoch if part.epoch is not None else number(metadata, EPOCHS)),
        None,
    )


def _same_run(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint, Holds]]:
    """Other checkpoints of its run and what they hold, as far as they could be read."""
    for o in others:
        if o is not c and (o.layout, o.run) == (c.layout, c.run) and (held := holds_of(o)) is not None:
            yield o, held


def _placed(c: Checkpoint) -> bool:
    return (c.step, c.epoch) != (None, None)


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What a checkpoint does not hold of a training state although others of its run do.

    Half of a training state never is a checkpoint.
    """
    yield from _of_ranks(c, others)
    mine = holds_of(c)
    siblings = list(_same_run(c, others))
    if mine is None:
        yield from _lacks_what_is_unread(c, siblings)
        yield from _lost_beside_weights(c, others)
        return
    if not mine.weights:
        yield _lacking(c, "weights of a model", next((o for o, held in siblings if held.weights), None))
        return
    yield from _lacks_optimizer(c, mine, others, siblings)
    if not mine.counters and (o := next(_counting_peers(c, mine, siblings), None)):
        yield _lacking(c, "count of steps or epochs", o)
    alike = [o for o, _ in siblings if o.kind is c.kind]
    if mine.optimizer and len(c.parts) == 1:
        yield from _unwritten_beside_one(c, alike)
    else:
        yield from _unwritten(c, alike, () if mine.optimizer else ("optimizer",))


def _lacks_what_is_unread(c: Checkpoint, siblings: Sequence[tuple[Checkpoint, Holds]]) -> Iterator[Finding]:
    """Weights alone never stand in for the state beside them that cannot be read."""
    weights = {p.role for p in _weights_alone(c)}
    unread = any(p.role in weights and p.piece in _UNREAD for p in c.parts)
    if unread and (o := next((o for o, held in siblings if held.optimizer), None)):
        yield _lacking(c, "optimizer's state that can be read", o)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """The same where a training loop saves all of it each time, as far as the saves on both sides tell: a
    file that is written over may hold an optimizer's state although those that are kept never do.
    """
    like = [o for o in beside if not _holds_more(o, c)]
    if c.kind is Kind.PERIODIC and len(like) > 1:
        yield from (replace(f, severity=Severity.WARNING) for f in _lacks(c, like))


def _holds_more(rolling: Checkpoint, c: Checkpoint) -> bool:
    mine, its = holds_of(c), holds_of(rolling)
    over = any(p.piece.startswith(_ROLLING) for p in rolling.parts)
    return over and mine is not None and its is not None and its.optimizer and not mine.optimizer


def _of_ranks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Files of several ranks, or parts of one state, of which each would load the first: outside the
    arrangement of rank-files.
    """
    mine = {pattern: word for p in c.parts for word, _, pattern in _told_parts(p)}
    if not mine:
        return
    numbers: dict[str, set[int]] = {pattern: set() for pattern in mine}
    for p in (p for o in (c, *others) if o.layout == c.layout for p in o.parts):
        for _, which, pattern in _told_parts(p):
            numbers.get(pattern, set()).add(which)
    for pattern, found in numbers.items():
        if len(found) > 1:
            what = f"{mine[pattern].lower()}s"
            text = f"files are called after {len(found)} {what}, and nothing tells which make a checkpoint"
            hint = "call their directory after its step (step_N), or describe it: ckpt layouts --guess"
            yield finding("missing-part", text, path=c.parts[0].path, hint=hint)


def are_parts(runs: Iterable[str]) -> bool:
    """Whether names of runs read like those of parts of one state: ``part0_shard0``, ``part0_shard1``."""
    names = list(runs)
    same = {re.sub(r"[0-9]+", "", name) for name in names}
    return len(same) == 1 and all(map(_PARTS.search, names))


def _told_parts(p: Part) -> Iterator[tuple[str, int, str]]:
    """Each word for a part in a name, its number, and its directory and name without any number."""
    for told in _PARTS.finditer(p.name):
        yield told[1], int(told[2]), f"{p.base}/{re.sub(r'[0-9]+', '', p.name)} {told[1]}"


def _lacks_optimizer(
    c: Checkpoint, mine: Holds, others: Sequence[Checkpoint], siblings: Sequence[tuple[Checkpoint, Holds]]
) -> Iterator[Finding]:
    if not mine.optimizer and (o := next((o for o, held in siblings if held.optimizer), None)):
        yield _lacking(c, "optimizer's state", o)
    elif unread := _unread_save(c, mine, others, siblings):
        text = f"{_name(c)} holds no optimizer's state, and what {_name(unread)} held cannot be read"
        hint = f"--kind {c.kind} resumes from the model alone"
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
    begun = min(p.mtime_ns for p in run if p.piece not in _UNREAD)  # what is older was there before the run
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
    return "it is empty" if p.size == 0 else "it is larger" if p.size > _MORE * size else ""


def _weights_alone(c: Checkpoint) -> list[Part]:
    """The files of a checkpoint that were read, where they hold weights and no optimizer's state."""
    read = [(p, held) for p in c.parts if (held := _PIECES.get(p.piece.removeprefix(_ROLLING)))]
    has_optimizer = any(held.optimizer for _, held in read)
    return [p for p, _ in read] if any(held.weights for _, held in read) and not has_optimizer else []


def _is_of_run(o: Checkpoint, c: Checkpoint) -> bool:
    return (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)


def _is_unread(p: Part) -> bool:
    """Whether nothing is known of what a file without a number holds."""
    return p.piece in _UNREAD and not bare_name_of(p).numbered


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


def _name(c: Checkpoint) -> str:
    if c.parts[0].home:
        return c.path.rpartition("/")[2]
    names = [p.path.rpartition("/")[2] for p in c.parts]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more of its step"


def _later(c: Checkpoint, others: Sequence[Checkpoint]) -> bool:
    """Exports, what is not in the order of training,
    and the best so far where a later step or more of a training state is there.
    """
    mine = holds_of(c)
    if c.kind is Kind.RELEASE:
        return True
    if mine is None:
        return False  # damaged: nobody knows what it was
    periodic = [(o, held) for o, held in _same_run(c, others) if o.kind is Kind.PERIODIC]
    if c.kind is Kind.BEST:
        return any(o.order > c.order or held.optimizer > mine.optimizer for o, held in periodic)
    return not _placed(c) and any(_placed(o) and held.weights for o, held in periodic)


def _unclear(c: Checkpoint, others: Sequence[Checkpoint]) -> bool:
    """Whether a checkpoint that nothing places in the order of training may be newer than all that have a
    place.

    It is as good as they are, and was written no earlier.
    """
    mine = holds_of(c)
    if mine is None or not mine.weights or c.kind is not Kind.PERIODIC or _placed(c):
        return False
    if next(_lacks(c, others), None) is not None:
        return False
    placed = [o for o, held in _same_run(c, others) if held.weights and _placed(o)]
    periodic = [o for o in placed if o.kind is Kind.PERIODIC]
    return bool(periodic) and all(o.mtime_ns <= c.mtime_ns for o in periodic)


def _named(p: Part) -> Steps:
    """The step or epoch that a part's own name tells, where it is what the part is taken for."""
    told = bare_name_of(p)
    step, epoch = told.step, told.epoch
    if step is None and told.number == p.step:
        step = told.number
    if epoch is None and step is None and told.number == p.epoch:
        epoch = told.number
    return step, epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """A file that was saved at the step or epoch of another file, as the names tell;
    two files of one checkpoint that were saved at two steps.
    """
    yield from told_otherwise(parts, _named)
    yield from _torn(
        [(p, said) for p, r in parts if _placed_part(p) and (said := number(r.metadata, STEPS)) is not None]
    )
    yield from borrowed(parts, {"optimizer": ("optimizer_step",)})


def _placed_part(p: Part) -> bool:
    return (p.step, p.epoch) != (None, None)


def _torn(rows: Sequence[tuple[Part, int]]) -> Iterator[tuple[str, Finding]]:
    """Files that are written over at every save, one of which was when the job died."""
    together: dict[object, dict[int, Part]] = {}
    for p, said in rows:
        together.setdefault((p.run, p.kind, p.step, p.epoch), {})[said] = p
    for by_step in together.values():
        low, high = min(by_step), max(by_step)
        if high - low > 1:
            text = f"it is of step {low}, {by_step[high].path.rpartition('/')[2]} of step {high}"
            yield by_step[low].path, finding("step-mismatch", text)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path or checkpoint.path)


def _pieces() -> Iterator[Piece]:
    for name, (template, formats) in _NAMES.items():
        yield Piece(
            name,
            "model",
            template,
            formats,
            shared=True,
            single=True,
            step_from="content" if name == "ckpt" else "name",
            weak=True,
            required=False,
        )
    yield Piece(
        BEGUN,
        "model",
        _NAMES["torch"][0],
        TORCH,
        shared=True,
        single=True,
        weak=True,
        required=False,
    )
    for name in _PIECES:  # the first good one of several is loaded: what holds most goes first
        for mark in ("", _ROLLING):
            yield Piece(
                f"{mark}{name}",
                "model",
                _NAMES["torch"][0],
                (*FORMATS, *OBJECTS, PADDLE[1]),
                shared=True,
                single=True,
                weak=True,
                required=False,
            )


def read_tracker(data: bytes) -> str | None:
    """The name of the checkpoint that a text names, whose path may be that of another machine; None for any
    other text.
    """
    name = data.decode("utf-8", "surrogateescape").strip().rstrip("/").rpartition("/")[2]
    is_name = 0 < len(name) <= _LONGEST and name.isprintable() and not name.isdigit()
    return name if is_name and (SUFFIXES.search(name) or read_bare_name(name).numbered) else None


def named(checkpoint: Checkpoint) -> str:
    """What such a text holds: of several files the model's, which comes first."""
    return (checkpoint.parts[0].home or checkpoint.parts[0].path).rpartition("/")[2]


LAYOUT = Layout(
    name="files",
    title="Files of no known arrangement",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    lacks=_lacks,
    lost=_lost,
    later=_later,
    unclear=_unclear,
    tracker="latest_checkpoint.txt",
    read_tracker=read_tracker,
    tracked=named,
    always_tracked=False,
    reshardable=True,
    compare_steps=False,
    last_resort=True,
    reference=(
        "the files' own formats, and the names that training loops give; the sample that this replaces "
        "sorts them by modification time and tries the newest five"
    ),
    limits=(
        (
            "a number in a name is a step unless the content makes it an epoch; other words in it name a run "
            "of its own"
        ),
        (
            "a directory is one save where its name counts steps, epochs or saves (step_100, ckpt-100), and"
            " its files count nothing else"
        ),
        (
            "a .npz, .npy or .pkl is a checkpoint where its name says so: of others nobody knows whether they"
            " are data"
        ),
        "what joblib keeps, or a pickle of no arrays, is taken for a model, whatever its classes are",
        "of two optimizers' states in one save, or of two other files, each has its name as its role",
        (
            "files of one step that hold different models are two runs: say how they belong together with"
            " [[layout]]; generator and discriminator, actor and critic, encoder and decoder are one"
        ),
    ),
)
