"""What trainers with JAX save without Orbax: AXLearn, big_vision, Levanter, T5X, flax and EasyLM."""

from __future__ import annotations

import re
from functools import partial

from ckpt_tools.layouts.common.counters import check_steps
from ckpt_tools.layouts.common.layout import Flaws, Saves, Tracker, check_all, list_paths, loss
from ckpt_tools.layouts.common.lost_files import check_array_count, find_lost_arrays
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint

AXLEARN = declare(
    __name__,
    "axlearn",
    check=check_all(partial(check_steps, read="step", role="index"), check_array_count),
    lost=find_lost_arrays,
)
_SAVES = "checkpoint.bv-"


def _read_latest(data: bytes) -> str | None:
    """Return the number behind ``checkpoint.bv-`` in the latest save's name; None for any other text."""
    text = data.decode("ascii", "replace").strip()
    return text if re.fullmatch("[0-9]{9,18}(?:-tmp)?", text) else None


BIG_VISION = declare(
    __name__,
    "big-vision",
    tracker=Tracker(
        file=f"{_SAVES}LAST", read=_read_latest, name=lambda c: c.path.rpartition("/")[2].removeprefix(_SAVES)
    ),
    lost=find_lost_arrays,
)


def _find_lost_of_levanter(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield arrays of the saves ``beside`` it; of a lone save a missing model, or (a warning) optimizer."""
    yield from find_lost_arrays(c, beside)
    directories = {name.partition("/")[0] for name in list_paths(c)}
    if not beside and "model" not in directories:
        yield loss("there is no array in model/", c.path)
    elif not beside and directories.isdisjoint(("opt_state", "tx")):
        text = "there is no array in opt_state/, and no other save tells whether there was one"
        yield loss(text, c.path, sure=False)


LEVANTER = declare(__name__, "levanter", lost=_find_lost_of_levanter)
T5X = declare(
    __name__,
    "t5x",
    check=check_all(partial(check_steps, read="optimizer.state.step"), check_array_count),
    lost=find_lost_arrays,
)
FLAX = declare(__name__, "flax")
EASYLM = declare(__name__, "easylm")
