"""Directories of NumPy's arrays, one for each save: ``step_N/w.npy``, one file for each parameter, or
``step_N/params.npz`` with ``step_N/opt_state.npz``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.dcp import EPOCH, STEP
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import Resume

_HOMES = ((STEP.replace("|>", ">"), ""), (EPOCH, "_epoch"))
"""Directories of one save each: a number alone may be that of a class of a data set."""


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)


def _names(c: Checkpoint) -> set[str]:
    return {p.path.rpartition("/")[2] for p in c.parts}


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Files that another save of the run has; or one save, where the files are called after several."""
    mine = _names(c)
    told = (read_bare_name(name) for name in mine if name.endswith(".npz"))
    saves = {t.number if t.step is None else t.step for t in told if t.noun}
    if len(saves - {None}) > 1:
        text = "its files are called after several saves: nothing says that they are one checkpoint"
        yield finding("missing-part", text, path=c.path)
    if all(read_bare_name(name).role == "optimizer" for name in mine):
        yield finding("missing-part", "it holds an optimizer's state, and no model", path=c.path)
    for o in beside:
        if lost := _names(o) - mine:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            text = f"{min(lost)}{more}, which {o.path.rpartition('/')[2]} has, is not there"
            yield finding("missing-part", text, path=c.path)
            return


def _pieces() -> Iterator[Piece]:
    for home, mark in _HOMES:
        for suffix in ("npy", "npz"):
            template = f"{home}/{{name}}.{suffix}"
            yield Piece(f"{suffix}{mark}", "model", template, (suffix,), shared=True, weak=True)


LAYOUT = Layout(
    name="numpy",
    title="Directories of NumPy arrays",
    pieces=tuple(_pieces()),
    resume=_resume,
    lost=_lost,
    reshardable=True,
    compare_steps=False,
    reference="what numpy.save, numpy.savez and mlx.core.savez write, under names that training loops give",
    limits=(
        "a file that every save of the run lacks is not missed",
        "nothing but the directory's name tells the step or the epoch",
    ),
)
