"""Files of no known arrangement: which of them make up one checkpoint, of which run and step, by their names and by what is in them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.layouts import files
from ckpt_tools.layouts.common.bare_names import BareName, read_bare_name, stem_of
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.tensor import Tensor

if TYPE_CHECKING:
    from ckpt_tools.reading.session import Session

_MOST = 512
"""Files of a directory that are looked into, the newest ones: who keeps thousands beside each other keeps data there."""
_OTHER_STATE = re.compile(r"optim|sched|rng|random|scaler", re.IGNORECASE)
_SCHEDULER = frozenset({"base_lrs", "last_epoch", "_step_count", "_last_lr"})
_EXPORTS = frozenset({"model", "models", "weights", "pytorch_model", "net", "state_dict", "model_weights"})


@frozen
class _Bare:
    """One file: what its name and its content say. ``holds`` is None where it could not be read; ``count`` is its optimizer's."""

    part: Part
    name: BareName
    holds: files.Holds | None = None
    step: int | None = None
    epoch: int | None = None
    count: int | None = None
    role: str = "model"
    run: tuple[str, ...] = ()
    kind: Kind = Kind.PERIODIC

    @property
    def rolling(self) -> bool:
        return not self.name.numbered


def settle_bare_files(s: Session) -> None:
    """Give the parts of the files' layout their roles, kinds, runs and steps; what is no checkpoint's is none of them."""
    by_home: dict[str, list[Part]] = defaultdict(list)
    for p in s.found.parts:
        by_home[p.base].append(p)
    kept: list[Part] = []
    for parts in by_home.values():
        newest = {p.path for p in sorted(parts, key=lambda p: -p.mtime_ns)[:_MOST]}
        bare = [b for p in parts if (b := _read(p, s, p.path in newest)) is not None]
        kept += (part for same in _sets(_units(_runs(bare))).values() for part in _parts(same))
    s.found.parts = kept


# --- what one file is


def _read(p: Part, s: Session, inside: bool) -> _Bare | None:
    """The file by its name and content; None where neither is that of a checkpoint."""
    name = read_bare_name(p.path.rpartition("/")[2])
    if not inside or p.size <= 0:
        return _Bare(p, name, role=name.role or "model")
    report, anatomy = s.examine(p.path, Level.STRUCTURE, p.findings)
    s.reports[p.path] = report
    if report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN) and report.format not in files.FORMATS:
        if name.says_something and report.format is None:
            return _Bare(p, name, role=name.role or "model")
        s.bare(p)
        return None
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or report.format is None:
        return _Bare(p, name, role=name.role or "model")
    return _content(p, name, report, anatomy)


def _content(p: Part, name: BareName, report: Report, anatomy: Anatomy) -> _Bare:
    step, epoch = files.number(report.metadata, files.STEPS), files.number(report.metadata, files.EPOCHS)
    alone = "param_groups" in anatomy.keys
    optimizer = (
        alone
        or any(is_optimizer_state(t.name) for t in anatomy.tensors)
        or any(map(_optimizer, _present(report, anatomy)))
    )
    scheduler = not anatomy.tensors and not anatomy.keys.isdisjoint(_SCHEDULER)
    weights = not alone and any(map(_weight, anatomy.tensors)) and not (name.role == "rng" and not optimizer)
    counters = not scheduler and (step, epoch) != (None, None)
    named = name.role or ("scheduler" if scheduler else "other")
    role = (
        "ema"
        if weights and name.role == "ema"
        else "model"
        if weights
        else "optimizer"
        if optimizer
        else named
    )
    count = report.metadata.get("optimizer_step")
    return _Bare(
        p,
        name,
        files.Holds(weights, optimizer, counters),
        step,
        epoch,
        count if isinstance(count, int) else None,
        role,
    )


def _present(report: Report, anatomy: Anatomy) -> Iterator[str]:
    """Top-level names that stand for something."""
    yield from (k for k in anatomy.keys if report.metadata.get(k, k) is not None)


def _optimizer(key: str) -> bool:
    return "optim" in key.lower()


def _weight(t: Tensor) -> bool:
    """Whether a tensor is a model's: no optimizer's, no counter, and no generator's state, which is a row of bytes."""
    other = (
        _OTHER_STATE.search(t.name.partition(".")[0])
        or is_optimizer_state(t.name)
        or t.name.endswith(".step")
    )
    return t.nbytes > 0 and not other and not (t.dtype == "uint8" and len(t.shape) == 1)


# --- which run


def _runs(bare: Sequence[_Bare]) -> list[_Bare]:
    """Words in numbered names that mean nothing keep runs apart; what has no number, and what is no model, belongs to the one run that there is."""
    bare, apart = _apart(bare)
    numbered = [b for b in bare if b.name.numbered and b.name.kind is Kind.PERIODIC and b.role == "model"]
    runs = apart | ({b.name.words for b in numbered} or {b.name.words for b in bare if b.name.numbered})
    trained = {b.name.words for b in numbered if b.holds and b.holds.optimizer} or {
        b.name.words for b in bare if b.role == "optimizer"
    } & runs
    if len(runs) > 1 and len(trained) == 1:  # the others are exports of one part of it
        one = next(iter(trained))
        return [
            _in(b, one, Kind.RELEASE if _export(b) and b.name.words != one else b.name.kind) for b in bare
        ]
    lone = next(iter(runs)) if len(runs) == 1 else ()
    return [_in(b, b.name.words if b.name.words in runs else lone, b.name.kind) for b in bare]


def _in(b: _Bare, run: tuple[str, ...], kind: Kind) -> _Bare:
    return replace(b, run=run, kind=kind)


def _export(b: _Bare) -> bool:
    return b.holds is not None and b.holds.weights and not b.holds.optimizer


def _apart(bare: Sequence[_Bare]) -> tuple[list[_Bare], set[tuple[str, ...]]]:
    """Two models of one number, kind and content under two names (``model_200``, ``ckpt_200``) are of two runs, which are then called by these."""
    patterns: dict[object, set[str]] = defaultdict(set)
    for b in bare:
        n = b.name
        if b.holds and n.numbered and b.role == "model":
            patterns[n.words, n.kind, n.step, n.epoch, n.number, b.holds.optimizer].add(n.pattern.lower())
        elif b.holds and n.words and not n.says_something and (b.step, b.epoch) != (None, None):
            patterns[b.step, b.epoch, b.role, b.holds.optimizer].add(n.pattern.lower())
    clash = {pattern for several in patterns.values() if len(several) > 1 for pattern in several}
    named = [
        replace(b, name=b.name._replace(words=(b.name.pattern,))) if b.name.pattern.lower() in clash else b
        for b in bare
    ]
    return named, {b.name.words for b in named if b.name.pattern.lower() in clash}


# --- which step


def _units(bare: Sequence[_Bare]) -> list[_Bare]:
    """A number in a name is the step unless the contents of the run's files make it an epoch."""
    out: list[_Bare] = []
    for run in dict.fromkeys(b.run for b in bare):
        mine = [b for b in bare if b.run == run]
        rows = [(b, n) for b in mine if (n := b.name.number) is not None]
        steps = any(n in (b.step, b.count) for b, n in rows)
        epochs = any(b.epoch is not None and abs(b.epoch - n) <= 1 for b, n in rows) or any(
            b.step is not None for b, n in rows
        )
        mine = [
            b if b.name.number is None else replace(b, name=_with_unit(b.name, epochs and not steps))
            for b in mine
        ]
        counted = [(b.name.step, b.count) for b in mine if b.name.step is not None and b.count is not None]
        by_count = bool(counted) and all(a == n for a, n in counted)  # one update is one step
        out += [
            replace(b, step=b.count) if by_count and b.step is None and not b.name.numbered else b
            for b in mine
        ]
    return out


def _with_unit(name: BareName, epoch: bool) -> BareName:
    return (
        name._replace(number=None, epoch=name.number)
        if epoch
        else name._replace(number=None, step=name.number)
    )


# --- which checkpoint


def _sets(bare: Iterable[_Bare]) -> dict[object, list[_Bare]]:
    """Files that are saved together: of one number, or written over under the same word."""
    out: dict[object, list[_Bare]] = defaultdict(list)
    for b in bare:
        number = (
            (b.name.step, b.name.epoch)
            if b.name.numbered
            else (b.name.alias, b.name.words if b.name.words != b.run else ())
        )
        out[b.run, b.kind, b.rolling, number].append(b)
    for key, same in list(out.items()):
        if same[0].rolling and max(Counter(b.role for b in same).values()) > 1:
            del out[key]
            out.update({(key, b.part.path): [b] for b in same})
    return out


def _parts(same: Sequence[_Bare]) -> Iterator[Part]:
    """The files of one checkpoint, with what they tell together."""
    first = sorted(same, key=lambda b: (b.role != "model", b.part.path))
    step = next((n for b in first if (n := b.name.step) is not None), None)
    step = step if step is not None else next((n for b in first if (n := b.step) is not None), None)
    epoch = next((n for b in first if (n := b.name.epoch) is not None), None)
    epoch = epoch if epoch is not None else next((n for b in first if (n := b.epoch) is not None), None)
    kind = Kind.RELEASE if _exported(same) else first[0].kind
    for b in same:
        p = b.part
        words = "_".join(b.run)
        run = p.run if not words else words if p.run == "." else f"{p.run}/{words}"
        prefix = stem_of(first[0].part.path.rpartition("/")[2]) if b.rolling else words
        piece = files.piece_for(b.holds, b.rolling) if b.holds else p.piece
        yield p._replace(piece=piece, role=b.role, kind=kind, run=run, prefix=prefix, step=step, epoch=epoch)


def _exported(same: Sequence[_Bare]) -> bool:
    """Weights of no step under a name that only says that it is a model."""
    if not same[0].rolling or same[0].name.alias or same[0].kind is not Kind.PERIODIC:
        return False
    if not all(_export(b) and b.holds and not b.holds.counters for b in same):
        return False
    return all(
        b.name.shard or b.role == "ema" or stem_of(b.part.path.rpartition("/")[2]).lower() in _EXPORTS
        for b in same
    )
