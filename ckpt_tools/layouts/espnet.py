"""ESPnet 2: ``checkpoint.pth``, all that training goes on from, written over after each epoch; beside it
``Nepoch.pth``, the weights alone, and links and averages of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ckpt_tools.layouts.common.layout import Counting, Layout, Metadata, Steps, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, Changes, Claim, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
STATE = "checkpoint"
TRAINING = frozenset({STATE, "weights", "latest"})
CRITERION = "<train|valid>.{name}"
"""A phase and what it measured: each run has a link to its best weights by one, and no other loop does so."""


def _steps(part: Part, metadata: Metadata) -> Steps:
    epoch = whole(metadata.get("reporter.epoch"))
    return None, part.epoch if epoch is None else epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Whether what ESPnet resumes from is a state of training: weights copied over it are none."""
    for part, report in parts:
        if part.piece == STATE and report.verdict is Verdict.OK and "reporter.epoch" not in report.metadata:
            text = f"{part.name} holds no reporter that tells its epoch, which ESPnet needs to resume"
            yield part.path, Flaw("missing-key", text)


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Weights are no state of training, and never stand in for it; without a trace of training they are an
    export.
    """
    run = {p.piece for o in (c, *others) if (o.layout, o.run) == (c.layout, c.run) for p in o.parts}
    for part in c.parts:
        if part.piece != STATE and run & TRAINING:
            text = f"{part.name} holds the weights alone: ESPnet resumes from checkpoint.pth and nothing else"
            hint = "restore checkpoint.pth; a job that shall start from weights takes them by --init_param"
            yield Flaw("missing-part", text, path=part.path, hint=hint)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path or checkpoint.path, ("--resume", "true"))


_OPTIONAL = partial(Piece, formats=TORCH, kind=Kind.RELEASE, required=False)
LAYOUT = Layout(
    name="espnet",
    title="ESPnet 2",
    pieces=(
        _OPTIONAL("best", "model", f"{CRITERION}.best.pth", kind=Kind.BEST),
        _OPTIONAL("average", "model", f"{CRITERION}.ave.pth"),
        _OPTIONAL("averaged", "model", f"{CRITERION}.ave_{{shard}}best[.{{name}}].pth"),
        _OPTIONAL("weights", "model", "{epoch}epoch.pth", claim=Claim.INSIDE),
        # a link to Nepoch.pth, or its copy
        _OPTIONAL("latest", "model", "latest.pth", claim=Claim.INSIDE, changes=Changes.CONSTANT),
        Piece(STATE, "model", "checkpoint.pth", TORCH, claim=Claim.INSIDE, content=TELLS_STEP),
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    lacks=_lacks,
    counting=Counting(first_epoch=1),  # Nepoch.pth is written after epoch N
    reshardable=True,
    reference=(
        "espnet2/train/trainer.py Trainer.run(), resume(); train/reporter.py Reporter.state_dict(); "
        "main_funcs/average_nbest_models.py"
    ),
    limits=(
        "ESPnet has one checkpoint.pth, so that there is no older one: where it is damaged a person must say",
        "a directory without a link to the best weights (valid.acc.best.pth) is one of bare files",
    ),
)
