"""Ray Train and Tune: ``checkpoint_000007/`` below the directory of a trial, whose saves the number counts;
with Train V2 ``checkpoint_2026-11-26_08-53-44.772248/``, called by its time. What is in it is the user's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import product

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import EPOCHS, STEPS, number
from ckpt_tools.layouts.common.layout import (
    Counting,
    Layout,
    Metadata,
    Steps,
    Tracker,
    name_home,
    names_in,
    resume_directory,
)
from ckpt_tools.layouts.common.lost_files import without_names
from ckpt_tools.layouts.common.piece import (
    JSON,
    SAFETENSORS,
    TELLS_STEP,
    Changes,
    Claim,
    Content,
    Piece,
    Readers,
    nest,
)
from ckpt_tools.layouts.files import OBJECTS, TORCH
from ckpt_tools.layouts.rank_files import DATE, DATED
from ckpt_tools.model.part import Part

_HOMES = (("checkpoint_{generation:06d}", ""), (DATED, "_dated"))
_SNAPSHOT = "checkpoint_manager_snapshot.json"
_COMPONENTS = ("env_runner", "learner_group/learner", "learner_group/learner/rl_module/{name}")
"""Directories of an RLlib algorithm in which it keeps what it trains."""
_ITERATION = "training_iteration"
"""What RLlib's algorithms count in algorithm_state.pkl."""
_DEEP = 5
"""Directories below it in which RLlib keeps the states of its components."""


def _read_snapshot(data: bytes) -> str | None:
    """The directory that the manager of Train V2 has noted as the latest, from which a run of the same name
    goes on; None where it is no such note.
    """
    try:
        said = json.loads(data)["latest_checkpoint_result"]["checkpoint_dir_name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return said if isinstance(said, str) and said and "/" not in said else None


def _write_snapshot(said: int | str) -> bytes:
    """The note of a manager that keeps this one checkpoint."""
    kept = {"version": 0, "checkpoint_dir_name": str(said), "metrics": {}}
    note = {
        "ray_version": "2.60.0",
        "checkpoint_results": [kept],
        "checkpoint_report_indices": [0],
        "latest_checkpoint_result": kept,
        "pending_training_results": [],
        "pending_validation_specs": [],
        "current_report_index": 1,
    }
    return json.dumps(note).encode()


def _read_steps(_part: Part, metadata: Metadata) -> Steps:
    return number(metadata, (*STEPS, _ITERATION)), number(metadata, EPOCHS), None


def _list_files() -> Iterator[Piece]:
    file = Piece("", "model", "", claim=Claim.GENERIC)
    for name, suffixes, formats in (
        ("torch", "<pt|pth|pth.tar|ckpt|bin>", TORCH),
        ("pickle", "pkl", (*OBJECTS, *TORCH)),
        ("tensors", "safetensors", SAFETENSORS),
        ("numpy", "npz", ("npz",)),
    ):
        for (home, mark), depth in product(_HOMES, range(_DEEP + 1)):
            where = "/".join((home, *["{name}"] * depth, f"{{name}}.{suffixes}"))
            below = f"{name}_{depth}{mark}" if depth else f"{name}{mark}"
            if name == "pickle":
                constant = replace(file, role="maker", formats=formats, changes=Changes.CONSTANT)
                maker = where.replace("{name}.pkl", "class_and_ctor_args.pkl")
                yield replace(constant, name=f"{below}_maker", template=maker)
            content = Content(step=bool(mark))  # nothing but its contents counts a save that has a date
            yield replace(file, name=below, template=where, formats=formats, content=content)


def _list_trainer() -> Iterator[Piece]:
    """What RayTrainReportCallback copies of a checkpoint of the Trainer, where it is not a model."""
    yield Piece("trainer_state", "state", "trainer_state.json", JSON, claim=Claim.COMPANION)
    for end in ("", "_{rank}"):
        readers = Readers(shared=True, sharded=bool(end), survivable=True)
        yield Piece(f"rng{end}", "rng", f"rng_state{end}.pth", TORCH, readers=readers, claim=Claim.GENERIC)


def _list_algorithm() -> Iterator[Piece]:
    """What Algorithm.save_to_path() of RLlib writes into a directory of any name: a file of each component,
    below directories that are called after it.
    """
    top = Piece("rllib", "metadata", "rllib_checkpoint.json", JSON, claim=Claim.INSIDE)
    of_policy = replace(top, name="rllib_policy", template="policies/{name}/rllib_checkpoint.json")
    for home, mark in (*_HOMES, ("{name}", "_any")):
        yield from nest(home, [of_policy], mark)
    for home, mark in _HOMES:
        yield from nest(home, [replace(top, name="rllib_in")], mark)
    yield from nest("{name}", [top], claim=Claim.GENERIC)
    # of either of the two the other one is missed; a save that has lost both is one all the same
    told = partial(Piece, formats=OBJECTS, claim=Claim.GENERIC, content=TELLS_STEP)
    yield told("rllib_state", "model", "{name}/algorithm_state.pkl")
    for i, component in enumerate(_COMPONENTS):
        yield told(f"rllib_component_{i}", "model", f"{{name}}/{component}/<state|module_state>.pkl")
    inside = partial(Piece, formats=(*OBJECTS, *TORCH), claim=Claim.INSIDE)
    state = inside("", "model", "<state|module_state|policy_state>.pkl")
    maker = inside("_maker", "maker", "class_and_ctor_args.pkl", changes=Changes.CONSTANT)
    for depth in range(_DEEP + 1):
        for p in nest("/".join(["{name}"] * (depth + 1)), [state, maker]):
            yield replace(p, name=f"rllib_{depth}{p.name}")


RAY = Layout(
    name="ray",
    title="Ray Train and Tune",
    pieces=(
        *(p for home, mark in _HOMES for p in nest(f"{home}/checkpoint", _list_trainer(), mark)),
        *_list_files(),
        *_list_algorithm(),
    ),
    resume=resume_directory,  # ray.train.Checkpoint(path), which get_checkpoint() gives a restored trial
    steps=_read_steps,
    lost=partial(
        without_names, names=names_in, text="there is no {}, which the trial's other checkpoints have"
    ),
    tracker=Tracker(
        file=_SNAPSHOT,
        name=name_home,
        read=_read_snapshot,
        write=_write_snapshot,
        always=False,
    ),
    counting=Counting(dated=DATE),
    reshardable=True,
    reference=(
        "ray 2.60: train/_internal/storage.py StorageContext._make_checkpoint_dir_name(), "
        "train/_internal/checkpoint_manager.py; train/v2/_internal/execution/storage.py, "
        "checkpoint/checkpoint_manager.py; rllib/utils/checkpoints.py Checkpointable.save_to_path()"
    ),
    limits=(
        "the number counts saves of a trial, each of which is a run of its own",
        "which checkpoint was the best, as Ray's experiment state says it, is not read",
        (
            "Tune has RLlib pickle code (class_and_ctor_args.pkl), which is unsafe-pickle;"
            " where a job resumes by Tuner.restore, which does not read it: --exclude"
            " '**/class_and_ctor_args.pkl'"
        ),
    ),
)
