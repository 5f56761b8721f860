"""Saves in which each kind of state is a directory of PyTorch's Distributed Checkpoint of its own:
``global_step20/model`` and ``global_step20/optimizer``, with the files of ranks beside or below them. So do
lm-engine, prime-rl, XTuner, NeMo AutoModel, Oumi, LLaMA-Factory v1, ROLL and many loops of one's own; Cosmos
and OLMo-core.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import partial

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import check_steps, find_foreign
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, Tracker, as_int, loss
from ckpt_tools.layouts.common.lost_files import check_optimizer
from ckpt_tools.layouts.common.saved_by import MOST_RANKS
from ckpt_tools.layouts.declared import declare
from ckpt_tools.layouts.files import name_saved, read_tracker
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.ranges import ranges, words

_MODELS = ("model", "weights", "model_optimizer", "trainer", "policy", "actor", "dcp")
"""Directories that may hold the model: every save has at least one of them."""
_TRACKED = "latest_checkpointed_iteration"
_XTUNER = ("checkpoint_list", "snap_checkpoint_list")


def _check_counters(parts: Rows) -> Found:
    """Yield files of another step than their directory's name, and LLaMA-Factory's unfinished saves."""
    indexes = [row for row in parts if row[0].role.endswith("_index")]
    yield from check_steps(indexes, dcp.read_step, "step")
    counters = [row for row in parts if row[0].piece.startswith(("told", "single_counts"))]
    for key in ("global_step", "cur_step"):
        yield from check_steps(counters, key)
    # NeMo AutoModel names its saves after this step
    yield from check_steps([row for row in parts if row[0].name == "step_scheduler.pt"], "step")
    yield from find_foreign(parts, {p.piece: ("optimizer_step",) for p, _ in parts if p.role != "state"})
    finished = {part.home for part, _ in parts if part.role == "complete"}
    for part, report in counters:
        # LLaMA-Factory writes such a metadata.json first, and resumes only from a save with its last file
        if "num_training_steps" in report.metadata and part.home not in finished:
            yield part.path, loss("there is no CHECKPOINT_COMPLETE, which is written last")


def _read_iteration(data: bytes) -> int | None:
    """Return the iteration in lm-engine's tracker file (JSON); None if it has none."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return as_int(fields.get(_TRACKED)) if isinstance(fields, dict) else None


def _find_lost_files(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield a save without a model in any of the directories that may hold one, some together with the
    optimizer; files that the run's other saves have; and a lone save without an optimizer.
    """
    holding = {"safetensors", "worker_index", *(f"{name}_index" for name in _MODELS)}
    if holding.isdisjoint(p.role for p in c.parts):
        yield loss(f"none of its directories holds a model ({', '.join(_MODELS)})", c.path)
    yield from dcp.find_lost_beside(c, beside)
    yield from check_optimizer(c, beside, ("model_index", "weights_index", "safetensors"))


def _read_last_number(name: str) -> int | None:
    """Return the number at the end of a name; None if it has none of up to 18 digits."""
    found = re.search(r"(?<![0-9])[0-9]{1,18}$", name)
    return int(found[0]) if found else None


def _read_latest(data: bytes, _base: str) -> int | None:
    """Return the last number in ``LATEST.txt``, which NeMo AutoModel writes where it cannot make a link."""
    return _read_last_number(data[:255].decode(errors="replace").strip())


def _read_xtuner(data: bytes, base: str) -> int | None:
    """Return the higher step of a run's last regular save and its last snapshot, from XTuner's tracker."""
    run = base.rpartition("/")[0].rpartition("/")[2]
    try:
        runs = [exp for exp in json.loads(data)["exps"] if not base or exp["exp_dir"].endswith(f"/{run}")]
        last = [path for exp in runs for key in _XTUNER for path in exp[key][-1:]]
        return max((n for path in last if (n := _read_last_number(path)) is not None), default=None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


DCP_SET = declare(
    __name__,
    "dcp-set",
    check=_check_counters,
    lost=_find_lost_files,
    tracker=Tracker(
        file=f"{_TRACKED}.json",
        read=_read_iteration,
        write=lambda said: json.dumps({_TRACKED: said}).encode(),
        others=(("LATEST.txt", _read_latest), ("../../.xtuner", _read_xtuner)),
        always=False,
    ),
)
COSMOS = declare(
    __name__,
    "cosmos",
    check=partial(check_steps, read=dcp.read_step, what="iteration", role="trainer_index"),
    tracker=Tracker(file="latest_checkpoint.txt", read=read_tracker, name=name_saved, always=False),
)


def _check_ranks(parts: Rows) -> Found:
    """Yield files whose ``global_step`` differs from the directory's name; and ranks without a file, where
    another rank's ``world_size`` counts them: they would go on with the random numbers of rank 0.
    """
    yield from check_steps(parts, "global_step", "step", role="trainer")
    rows = [(part, report) for part, report in parts if part.role == "trainer"]
    saved = defaultdict[str, set[int]](set)
    for part, _ in rows:
        saved[part.home].add(part.rank or 0)
    for part, report in rows:
        size = as_int(report.metadata.get("world_size")) or 0
        ranks = saved.pop(part.home, None) if 0 < size <= MOST_RANKS else None
        if ranks is not None and (gone := sorted(set(range(size)) - ranks)):
            text = f"its world_size is {size}, but there is no file of rank {words(ranges(gone))}"
            yield part.path, Flaw("missing-rank", text, severity=Severity.WARNING)


def _find_lost_rank_0(c: Checkpoint, _beside: Saves) -> Flaws:
    """Yield a loss without the file of rank 0: OLMo-core takes the directory for no checkpoint then."""
    if not any(p.role == "trainer" and p.rank == 0 for p in c.parts):
        text = "there is no train/rank0.pt, without which OLMo-core does not take it for a checkpoint"
        yield loss(text, c.path)


OLMO_CORE = declare(__name__, "olmo-core", check=_check_ranks, lost=_find_lost_rank_0)
