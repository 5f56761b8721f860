"""MindIO TTP's dying-gasp checkpoints: ``tft_saved_checkpoints-step_G/rank_R/ttp_rank_R-E_S.ckpt``,
one live member of each replica group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.layout import Complete, Counting, Layout, Metadata, whole
from ckpt_tools.layouts.common.piece import OWN, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("mindspore_ckpt", "mindspore_encrypted")


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """``epoch_num`` and ``step_num`` against the names of files and of their directories."""
    homes: dict[str, list[tuple[Part, int]]] = defaultdict(list)
    for part, report in parts:
        yield from _misnamed(part, report.metadata)
        if (step_num := whole(report.metadata.get("step_num"))) is not None:
            homes[part.home].append((part, step_num))
    for rows in homes.values():
        yield from _misplaced(rows)


def _misnamed(part: Part, metadata: Metadata) -> Iterator[tuple[str, Flaw]]:
    """A file whose epoch or step is not that of its name."""
    epoch_num, step_num, batch_num = (whole(metadata.get(k)) for k in ("epoch_num", "step_num", "batch_num"))
    if epoch_num is not None and epoch_num != part.epoch:
        text = f"the name says epoch {part.epoch}, the file's epoch_num is {epoch_num}"
        yield part.path, Flaw("epoch-mismatch", text)
    if step_num is None or not batch_num or part.epoch is None or part.step_in_epoch is None:
        return
    named = (part.epoch - 1) * batch_num + part.step_in_epoch
    if named != step_num:
        name = f"step {named} ({batch_num} steps per epoch)"
        text = f"the name says {name}, the file's step_num is {step_num}"
        yield part.path, Flaw("step-mismatch", text)


def _misplaced(rows: Sequence[tuple[Part, int]]) -> Iterator[tuple[str, Flaw]]:
    """Files of one directory whose ``step_num`` is not its step less one non-negative constant."""
    offsets = [(part.step or 0) - step_num for part, step_num in rows]
    usual = max(set(offsets), key=lambda offset: (offset >= 0, offsets.count(offset)))
    for (part, step_num), offset in zip(rows, offsets, strict=True):
        if offset < 0 or offset != usual:
            text = f"the directory says step {part.step}, the file's step_num is {step_num}"
            rest = "" if offset == usual else f"; the other ranks differ from it by {usual}"
            yield part.path, Flaw("step-mismatch", text + rest)


def _resume(_checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path)


def _pieces() -> Iterator[Piece]:
    for home in ("tft", "ttp"):
        template = (
            home
            + "_saved_checkpoints-step_{step}[{tmp}]/rank_{rank}/ttp_rank_{rank}-{epoch}_{step_in_epoch}.ckpt"
        )
        yield Piece(home, "model", template, FORMATS, kind=Kind.DYING_GASP, readers=OWN)


LAYOUT = Layout(
    name="mindio-ttp",
    title="MindIO TTP dying gasp",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    counting=Counting(first_epoch=1),
    complete=Complete(by_name=True),
    reference=(
        "mindspore/train/callback/_train_fault_tolerance.py _save_checkpoint_on_failure, "
        "_rename_save_result; MindIO TTP manual"
    ),
    limits=(
        "the directory's rename is the commit mark: nothing says which ranks were meant to save",
        "a user's own ckpt_save_fn may write other names, which are not recognised",
    ),
)
