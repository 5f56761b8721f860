"""Saves in which each rank has a file: of training loops of one's own, torch_checkpointing, DLRover,
nvidia-resiliency-ext and nanochat; and Ray's, in which the files are the user's.
"""

from __future__ import annotations

import json
import re
from functools import partial
from math import prod

from ckpt_tools.layouts.common.counters import EPOCHS, STEPS, find_misnamed, read_count
from ckpt_tools.layouts.common.layout import Flaws, Metadata, Saves, Steps, Tracker, name_home, read_entry
from ckpt_tools.layouts.common.lost_files import compare_names, list_lost, list_paths, loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume

_SIZES = re.compile(r"world_size=[0-9]+_([0-9]{1,6})")


def _read_steps_of_loop(part: Part, metadata: Metadata) -> Steps:
    """Return the step and epoch in the name, and where it has none the file's."""
    step = read_count(metadata, STEPS) if part.step is None else part.step
    return step, read_count(metadata, EPOCHS) if part.epoch is None else part.epoch, None


def _find_incomplete(c: Checkpoint, others: Saves) -> Flaws:
    """Yield a lack of any model, of picotron's ranks (sizes in names count them), and of files of no role."""
    if not {"model", "state"} & {p.role for p in c.parts} and not c.parts[0].home:
        text = f"{c.label} has files of ranks without a model's: nothing tells which file beside them is that"
        hint = "call it model_STEP.pt, or describe all in ckpt.toml: docs/adding-a-layout.md"
        yield loss(text, c.parts[0].path, hint=hint)
    grid = [_SIZES.findall(p.name) for p in c.parts if p.piece == "place"]
    wanted = max((prod(map(int, sizes)) for sizes in grid), default=0)
    if len(grid) < wanted:
        yield loss(f"{wanted - len(grid)} of the {wanted} files of its grid are not there", c.path)

    def list_unknown(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.name for p in o.parts if p.role == "other")

    run = [o for o in others if o is not c and (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)]
    for name in list_lost(c, run, list_unknown) if len(run) > 1 else ():
        yield loss(f"{c.label} has no {name}, which the other checkpoints of the run have", c.path)


def _list_shared(c: Checkpoint) -> frozenset[str]:
    """Return files of a model or state that are saved once for all ranks, beside each rank's own file."""
    return frozenset(p.name for p in c.parts if p.piece.startswith(("shared_model", "shared_state")))


RANK_FILES = declare(
    "rank_files",
    "rank-files",
    steps=_read_steps_of_loop,
    lacks=_find_incomplete,
    lost=partial(compare_names, names=_list_shared),
    check=partial(find_misnamed, named_by=lambda p: (p.step, p.epoch, None)),
)


TORCH_CHECKPOINTING = declare(
    "rank_files",
    "torch-checkpointing",
    lost=partial(
        compare_names,
        names=lambda c: frozenset(p.name.rpartition("_")[0] for p in c.parts if p.rank is not None),
        text="there is no {}_RANK.pt, which the run's other checkpoints have",
    ),
)
DLROVER = declare("rank_files", "dlrover")
NVRX_LOCAL = declare("rank_files", "nvrx-local", resume=lambda _c, path: Resume(path))
NANOCHAT = declare("rank_files", "nanochat")


def _read_snapshot(data: bytes) -> str | None:
    """Return the directory that Train V2's manager has noted as the latest save; None for any other text."""
    name = read_entry(data, "latest_checkpoint_result", "checkpoint_dir_name")
    return name if isinstance(name, str) and name and "/" not in name else None


def _write_snapshot(name: int | str) -> bytes:
    """Return the note of a manager that keeps one checkpoint, in the directory of this name."""
    result = {"version": 0, "checkpoint_dir_name": str(name), "metrics": {}}
    note = {
        "ray_version": "2.60.0",
        "checkpoint_results": [result],
        "checkpoint_report_indices": [0],
        "latest_checkpoint_result": result,
        "pending_training_results": [],
        "pending_validation_specs": [],
        "current_report_index": 1,
    }
    return json.dumps(note).encode()


def _read_steps_in_file(_part: Part, metadata: Metadata) -> Steps:
    """Return the step and epoch in a file: Ray's names count the saves of a trial."""
    # RLlib's algorithms count this in algorithm_state.pkl
    return read_count(metadata, (*STEPS, "training_iteration")), read_count(metadata, EPOCHS), None


RAY = declare(
    "ray",
    "ray",
    steps=_read_steps_in_file,
    lost=partial(
        compare_names, names=list_paths, text="there is no {}, which the trial's other checkpoints have"
    ),
    tracker=Tracker(
        file="checkpoint_manager_snapshot.json",
        name=name_home,
        read=_read_snapshot,
        write=_write_snapshot,
        always=False,
    ),
)
