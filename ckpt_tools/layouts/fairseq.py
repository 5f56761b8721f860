"""Checkpoints of fairseq: ``checkpoint_E_U.pt`` within epoch E after U updates, ``checkpointE.pt`` after it,
``checkpoint_last.pt`` a copy of the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_epochs, named_steps
from ckpt_tools.layouts.common.layout import Counting, Layout, Metadata, Steps, whole
from ckpt_tools.layouts.common.piece import Piece, Readers
from ckpt_tools.layouts.common.whole_files import proven
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_UPDATES = "optimizer_history.num_updates"
_ITERATOR = "extra_state.train_iterator"


def _updates(metadata: Metadata) -> int | None:
    return whole(metadata.get(_UPDATES))


def _epoch(metadata: Metadata) -> int | None:
    """The epoch of the last update: at the end of one the iterator stands before the first of the next."""
    epoch = whole(metadata.get(f"{_ITERATOR}.epoch"))
    at_start = metadata.get(f"{_ITERATOR}.iterations_in_epoch") == 0 and _updates(metadata)
    return epoch - 1 if epoch and at_start else epoch


def _steps(part: Part, metadata: Metadata) -> Steps:
    step = _updates(metadata) if part.step is None else part.step
    return step, _epoch(metadata) if part.epoch is None else part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    named = [(p, r) for p, r in parts if p.piece.removesuffix("_shard") in ("update", "epoch")]
    yield from named_steps(named, _updates, "num_updates")
    yield from named_epochs(named, _epoch, "train iterator")
    newest = max((n for _, r in named if (n := _updates(r.metadata)) is not None), default=0)
    for part, report in parts:
        said = _updates(report.metadata)
        if part.piece in ("last", "last_shard") and said is not None and said < newest:
            text = f"it is of update {said}, but one of update {newest} lies beside it: every save renews it"
            yield part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    path = path or checkpoint.path
    return Resume(path, ("--restore-file", path))


def _shards(saved: Piece) -> Iterator[Piece]:
    """With --use-sharded-state each data parallel rank saves its own, and loads that alone."""
    shard = replace(saved, readers=Readers(sharded=True, single=True))
    for name, template in (
        ("update", "checkpoint_{epoch}_{step}"),
        ("epoch", "checkpoint{epoch}"),
        ("last", "checkpoint_last"),
        ("best", "checkpoint_best"),
        ("best_of", "checkpoint.best_{name}"),
    ):
        kind = Kind.BEST if name.startswith("best") else Kind.PERIODIC
        yield replace(shard, name=f"{name}_shard", template=f"{template}-shard{{rank}}.pt", kind=kind)


def _pieces() -> Iterator[Piece]:
    saved = proven(_UPDATES, unasked=True)
    yield from _shards(saved)
    yield replace(saved, name="update", template="checkpoint_{epoch}_{step}.pt")
    yield replace(saved, name="epoch", template="checkpoint{epoch}.pt")
    yield replace(saved, name="last", template="checkpoint_last.pt")
    yield replace(saved, name="best", template="checkpoint_best.pt", kind=Kind.BEST)
    yield replace(saved, name="best_of", template="checkpoint.best_{name}.pt", kind=Kind.BEST)


LAYOUT = Layout(
    name="fairseq",
    title="fairseq",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    counting=Counting(first_epoch=1),
    reshardable=True,
    reference=(
        "fairseq/checkpoint_utils.py save_checkpoint(), trainer.py state_dict(), "
        "data/iterators.py EpochBatchIterator.state_dict()"
    ),
    limits=(
        "the step of a checkpointE.pt is in it alone: a damaged one has no place in the order of steps",
        "as many ranks as have saved with --use-sharded-state load that again, each its own file",
        "checkpoint_last.pt is a copy: one that is whole stands in for a broken original",
    ),
)
