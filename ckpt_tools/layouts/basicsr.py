"""BasicSR: ``training_states/N.state`` with the optimizers, and each network as ``models/net_x_N.pth``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, resume_directory
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import Claim, Piece, Where, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind

TORCH = ("torch_zip", "torch_legacy")


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    for name in lost(c, beside, _networks):
        text = f"there is no {name}_{c.step}.pth, and the run's other saves have that network"
        yield Flaw("missing-part", text, path=c.path)


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """The networks once more, as they are at the end of a run: nothing to go on training from."""
    if c.kind is Kind.RELEASE and any((o.layout, o.run) == (c.layout, c.run) for o in others if o is not c):
        text = f"{c.parts[0].name} holds a network alone: the optimizers are in training_states"
        yield Flaw("missing-part", text, path=c.path, hint="a start from the networks alone needs --kind")


def _networks(c: Checkpoint) -> frozenset[str]:
    return frozenset(p.name.rpartition("_")[0] for p in c.parts if p.piece == "network")


_PIECES = (
    Piece("state", "state", "training_states/{step}.state", TORCH),
    Piece("network", "model", "models/net_{name}_{step}.pth", TORCH),
)
_LATEST = Piece("latest", "model", "models/net_{name}_latest.pth", TORCH, Kind.RELEASE, required=False)
LAYOUT = Layout(
    name="basicsr",
    title="BasicSR",
    pieces=tuple(
        nest("", (*_PIECES, replace(_LATEST, claim=Claim.COMPANION)), where=Where.APART, unasked=True)
    ),
    resume=resume_directory,  # the directory of the experiment
    check=partial(named_steps, read="iter"),
    lacks=_lacks,
    lost=_lost,
    complete=Complete(needs=("model",), saved_with=(("network", "state"),)),
    reshardable=True,
    reference=(
        "basicsr 1.4.2: models/base_model.py save_network(), save_training_state(); "
        "train.py load_resume_state(); utils/misc.py check_resume()"
    ),
    limits=(
        (
            "--auto_resume takes the highest N.state there is: where the choice is older, give it as"
            " path.resume_state"
        ),
        "a network tells no step: one of another save is not seen but by its name",
    ),
)
