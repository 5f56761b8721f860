"""MindIO TTP's dying-gasp checkpoints: ``tft_saved_checkpoints-step_G/rank_R/ttp_rank_R-E_S.ckpt``, one live member of each replica group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import Layout, Piece, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("mindspore_ckpt", "mindspore_encrypted")


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """``epoch_num`` and ``step_num`` against the path; directory step minus ``step_num`` is one non-negative constant."""
    homes: dict[str, list[tuple[Part, int]]] = defaultdict(list)
    for part, report in parts:
        m = report.metadata
        epoch_num, step_num, batch_num = (whole(m.get(k)) for k in ("epoch_num", "step_num", "batch_num"))
        if epoch_num is not None and epoch_num != part.epoch:
            yield (
                part.path,
                finding(
                    "epoch-mismatch", f"the name says epoch {part.epoch}, the file's epoch_num is {epoch_num}"
                ),
            )
        if step_num is None:
            continue
        if batch_num and part.epoch is not None and part.step_in_epoch is not None:
            named = (part.epoch - 1) * batch_num + part.step_in_epoch
            if named != step_num:
                yield (
                    part.path,
                    finding(
                        "step-mismatch",
                        f"the name says step {named} ({batch_num} steps per epoch), the file's step_num is {step_num}",
                    ),
                )
        homes[part.home].append((part, step_num))
    for rows in homes.values():
        offsets = [(part, (part.step or 0) - step_num) for part, step_num in rows]
        most = max({o for _, o in offsets}, key=lambda o: (o >= 0, [x for _, x in offsets].count(o)))
        for part, offset in offsets:
            if offset < 0 or offset != most:
                text = (
                    f"the directory says step {part.step}, the file's step_num is {(part.step or 0) - offset}"
                )
                yield (
                    part.path,
                    finding(
                        "step-mismatch",
                        text + ("" if offset == most else f"; the other ranks differ from it by {most}"),
                    ),
                )


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path)


def _pieces() -> Iterator[Piece]:
    for home in ("tft", "ttp"):
        template = (
            home
            + "_saved_checkpoints-step_{step}[{tmp}]/rank_{rank}/ttp_rank_{rank}-{epoch}_{step_in_epoch}.ckpt"
        )
        yield Piece(home, "model", template, FORMATS, kind=Kind.DYING_GASP)


LAYOUT = Layout(
    name="mindio-ttp",
    title="MindIO TTP dying gasp",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    epoch_base=1,
    committed=True,
    reference="mindspore/train/callback/_train_fault_tolerance.py _save_checkpoint_on_failure, _rename_save_result; MindIO TTP manual",
    limits=(
        "the directory's rename is the commit mark: nothing says which ranks were meant to save",
        "a user's own ckpt_save_fn may write other names, which are not recognised",
    ),
)
