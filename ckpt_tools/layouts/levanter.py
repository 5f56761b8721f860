"""Levanter: ``step-N/`` with a directory for each array, and ``metadata.json``, which is written last.
EasyDeL calls it ``run-N/``, and lists the arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from ckpt_tools.layouts.common.arrays import LIST, ROLE, array, lost_arrays
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, resume_directory
from ckpt_tools.layouts.common.piece import Claim, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity

_HOME = "<step|run>-{step}"
_ARRAYS = "opt_state|model|_step|training_key|tx"
"""What every TrainerState has, and EasyDeL's."""
_OPTIMIZERS = "opt_state", "tx"
_DEEPEST = 9
"""Components of an array's path: opt_state/inner_state/1/mu/transformer/layers/attn/q_proj/weight."""


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Arrays that the saves beside it have; of a lone save its model, or the state of an optimizer, which may
    be one without any.
    """
    yield from lost_arrays(c, beside)
    held = {p.path.removeprefix(f"{c.path}/").partition("/")[0] for p in c.parts}
    if not beside and "model" not in held:
        yield Flaw("missing-part", "there is no array in model/", path=c.path)
    elif not beside and held.isdisjoint(_OPTIMIZERS):
        text = "there is no array in opt_state/, and no other save tells whether there was one"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def _pieces() -> Iterator[Piece]:
    # of every TrainerState; Orbax keeps arrays of an item called model right in it
    for name, path in (("_step", "_step"), ("key", "training_key"), ("model", "model/{name}/{name}")):
        yield array(name, f"{_HOME}/{path}", sure=True)
    for depth in range(1, _DEEPEST + 1):
        yield array(f"array{depth}", "/".join([_HOME, *["{name}"] * depth]), sure=False)
    told = partial(Piece, formats=("json_member",), claim=Claim.INSIDE)
    yield told("metadata", "metadata", f"{_HOME}/metadata.json")
    yield told("index", LIST, f"{_HOME}/tensorstore_index.json", required=False)
    yield told("structure", LIST, f"{_HOME}/{{name}}_structure.json", required=False)


LAYOUT = Layout(
    name="levanter",
    title="Levanter",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # trainer.load_checkpoint_path
    check=partial(named_steps, read="step", role="metadata"),
    complete=Complete(commit="metadata", needs=(ROLE,)),
    beside=Beside(
        written=re.compile("_step"),
        traces=(
            re.compile(r"(?:^|/)step-\d+/metadata\.json$"),
            re.compile(rf"(?:^|/)(?:step|run)-\d+/(?:{_ARRAYS})/(?:.+/)?\d+(?:\.\d+)*$"),
        ),
    ),
    lost=_lost,
    reshardable=True,
    reference=(
        "levanter/checkpoint.py save_checkpoint(), discover_latest_checkpoint(); "
        "levanter/tensorstore_serialization.py; levanter/trainer_state.py TrainerState; EasyDeL 0.3: "
        "eformer/serialization/checkpointer.py, easydel/infra/base_state.py save_state()"
    ),
    limits=(
        "no list of the arrays is read: one that is lost is missed where the run has another checkpoint",
        "a chunk that is not there may be one of zeros: it is missed where other checkpoints have it",
        "the framework takes the latest timestamp in metadata.json, and not the highest step",
    ),
)
