"""Cosmos and others on Imaginaire: ``iter_N/`` with a DCP directory each for ``model``, ``optim``,
``scheduler`` and ``trainer``; ``latest_checkpoint.txt``, written last, names the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, Tracker, resume_directory
from ckpt_tools.layouts.common.piece import Piece, nest
from ckpt_tools.layouts.files import named, read_tracker

_HOME = "iter_{step:09d}"
_ROLES = ("model", "optim", "scheduler", "trainer")


def _pieces() -> Iterator[Piece]:
    """Jobs with several networks have an optimizer and a scheduler for each: ``optim_net`` …"""
    for role in _ROLES:
        several = "" if role in ("model", "trainer") else "[_{name}]"
        yield from nest(f"{_HOME}/{role}{several}", dcp.of_role(role), f"_{role}")


LAYOUT = Layout(
    name="cosmos",
    title="Cosmos (Imaginaire)",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # checkpoint.load_path, with load_training_state
    check=partial(named_steps, read=dcp.step_of, what="iteration", role="trainer_index"),
    complete=Complete(needs=("model_index", "optim_index", "trainer_index")),
    tracker=Tracker(file="latest_checkpoint.txt", read=read_tracker, name=named, always=False),
    reshardable=True,
    reference=(
        "cosmos-predict2 imaginaire/checkpointer/dcp.py DistributedCheckpointer.save(), "
        "_write_latest_checkpoint_file(), keys_to_resume_during_load()"
    ),
    limits=(
        "a job that finds latest_checkpoint.txt resumes from what it names, and not from the plan",
        "of iter_N.pt, which its other checkpointers write, see the layout files",
    ),
)
