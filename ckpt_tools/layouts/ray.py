"""Ray Train and Tune: ``checkpoint_000007/`` below the directory of a trial, whose saves the number counts;
with Train V2 ``checkpoint_2026-11-26_08-53-44.772248/``, called by its time. What is in it is the user's.
"""

from __future__ import annotations

import json
from functools import partial

from ckpt_tools.layouts.common.counters import EPOCHS, STEPS, read_count
from ckpt_tools.layouts.common.layout import Metadata, Steps, Tracker, list_paths, name_home
from ckpt_tools.layouts.common.lost_files import compare_names
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.part import Part

_SNAPSHOT = "checkpoint_manager_snapshot.json"


def _read_snapshot(data: bytes) -> str | None:
    """Return the directory that Train V2's manager has noted as the latest save; None for any other text."""
    try:
        name = json.loads(data)["latest_checkpoint_result"]["checkpoint_dir_name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return name if isinstance(name, str) and name and "/" not in name else None


def _write_snapshot(name: int | str) -> bytes:
    """Return the note of a manager that keeps one checkpoint, in the directory named ``said``."""
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
    __name__,
    "ray",
    steps=_read_steps_in_file,
    lost=partial(
        compare_names, names=list_paths, text="there is no {}, which the trial's other checkpoints have"
    ),
    tracker=Tracker(file=_SNAPSHOT, name=name_home, read=_read_snapshot, write=_write_snapshot, always=False),
)
