"""OLMo-core's Checkpointer: ``stepN/`` with a distributed checkpoint in ``model_and_optim/``, a file of each
rank in ``train/``, and ``.metadata.json``, which is written last; ``stepN-tmp/`` until the tensors are saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, Metadata, Steps, resume_directory, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Piece, Readers, Stage, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.ranges import ranges, words
from ckpt_tools.model.report import Report

TORCH, JSON = ("torch_zip", "torch_legacy"), ("json_member",)
_WORLD = 1 << 20
"""No job has more ranks."""


def _steps(part: Part, metadata: Metadata) -> Steps:
    """By the directory's name; of one that was renamed each rank tells it."""
    return whole(metadata.get("global_step")) if part.step is None else part.step, None, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """What each rank counted against the directory's name."""
    ranks = [row for row in parts if row[0].role == "trainer"]
    yield from named_steps(ranks, "global_step", "step")
    yield from _fewer_ranks(ranks)


def _fewer_ranks(rows: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Ranks without a file of their own, where the others tell how many ranks there were: each would go on
    with the random numbers of rank 0.
    """
    saved = defaultdict[str, set[int]](set)
    for part, _ in rows:
        saved[part.home].add(part.rank or 0)
    for part, report in rows:
        size = whole(report.metadata.get("world_size")) or 0
        held = saved.pop(part.home, None) if 0 < size <= _WORLD else None
        if held is not None and (gone := sorted(set(range(size)) - held)):
            text = f"its world_size is {size}, but there is no file of rank {words(ranges(gone))}"
            yield part.path, Flaw("missing-rank", text, severity=Severity.WARNING)


def _lost(c: Checkpoint, _beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Without the file of rank 0 the directory is no checkpoint for OLMo-core, whatever else is in it."""
    if not any(p.role == "trainer" and p.rank == 0 for p in c.parts):
        text = "there is no train/rank0.pt, without which OLMo-core does not take it for a checkpoint"
        yield Flaw("missing-part", text, path=c.path)


_MODEL = tuple(nest("model_and_optim", dcp.of_role("model", "index")))
_OF_RANKS = Readers(shared=True, sharded=True, survivable=True)
"""A rank without a file loads that of rank 0."""
_TRAINER = Piece("trainer", "trainer", "train/rank{rank}.pt", TORCH, readers=_OF_RANKS, unasked=True)
_BESIDE = replace(_TRAINER, claim=Claim.COMPANION)
"""Where nothing else is there, the ranks' files are those of some other loop: OLMo's own, before OLMo-core,
had them beside ``model/rank0.pt``.
"""
_DONE = Piece("done", "done", ".metadata.json", JSON)
_CONFIG = Piece("config", "config", "config.json", JSON, required=False, loaded=False, claim=Claim.INSIDE)
"""What a callback adds; of a directory of any name it would be anybody's."""
LAYOUT = Layout(
    name="olmo-core",
    title="OLMo-core",
    pieces=(
        *nest("step{step}", (*_MODEL, _BESIDE, _DONE, _CONFIG)),
        *nest("step{step}-tmp", (*_MODEL, _TRAINER, _DONE, _CONFIG), "_tmp", stage=Stage.UNDER_WAY),
        # one that was renamed
        *nest("{name}", (*_MODEL, replace(_BESIDE, content=TELLS_STEP), _DONE), "_any"),
    ),
    resume=resume_directory,  # Trainer.load_checkpoint(dir)
    steps=_steps,
    check=_check,
    lost=_lost,
    complete=Complete(commit="done", needs=("index",)),
    reshardable=True,
    reference=(
        "ai2-olmo-core 3.0.0: olmo_core/train/checkpoint.py Checkpointer.save(), load(), "
        "dir_is_checkpoint(), latest_checkpoint(); train/trainer.py Trainer.state_dict()"
    ),
    limits=(
        "latest_checkpoint() takes the highest stepN there is: move a damaged one away, or name the choice",
        "model_and_optim tells no step: one of another save with the same sizes is not seen",
    ),
)
