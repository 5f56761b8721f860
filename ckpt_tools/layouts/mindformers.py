"""MindFormers from 1.7 on: ``iteration_N/`` with ``model-R-W.safetensors`` and ``opt-R-W.safetensors``,
``common.json`` and, where several ranks saved, ``metadata.json``, which says what each of the files holds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Layout,
    Tracker,
    resume_directory,
)
from ckpt_tools.layouts.common.lost_files import without_optimizer
from ckpt_tools.layouts.common.piece import Claim, Piece
from ckpt_tools.layouts.dcp import read_number
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.ranges import gaps, words

_HOME = "iteration_{step:08d}"


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Files that the names of the others count, of each kind by itself: a model may be in more files than its
    optimizer is. Of several files only ``metadata.json`` tells which tensors are whose.
    """
    kinds = defaultdict[str, list[dict[str, int]]](list)
    for part in c.parts:
        if part.coords:
            kinds[part.role].append(dict(part.coords))
    for role, files in kinds.items():
        of = max(at["of"] for at in files)
        if gone := gaps((at["shard"] for at in files if at["of"] == of), of):
            text = f"of the {of} files of the {role} number {words(gone)} (from 0) are not there"
            yield Flaw("missing-part", text, path=c.path)
    if max(map(len, kinds.values()), default=1) > 1 and "index" not in {p.role for p in c.parts}:
        text = "there is no metadata.json, without which files of several ranks are not loaded"
        yield Flaw("missing-part", text, path=c.path)
    yield from without_optimizer(c, beside, ("model",))


def _pieces() -> Iterator[Piece]:
    saved = Piece("", "", "", ("safetensors",))
    for role, word in (("model", "model"), ("optimizer", "opt")):
        for mark, prefix in (("", ""), ("_prefixed", "{name}-")):
            template = f"{_HOME}/{prefix}{word}-{{shard:07d}}-{{of:07d}}.safetensors"
            yield replace(saved, name=f"{role}{mark}", role=role, template=template)
    for role, name in (("common", "common.json"), ("index", "metadata.json")):
        told = replace(saved, name=role, role=role, formats=("json_member",), template=f"{_HOME}/{name}")
        yield replace(told, claim=Claim.INSIDE)


LAYOUT = Layout(
    name="mindformers",
    title="MindFormers, a file for each rank",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # load_checkpoint: PATH, resume_training: True
    lost=_lost,
    check=partial(named_steps, read="global_step", role="common"),
    tracker=Tracker(file="latest_checkpointed_iteration.txt", read=read_number),
    beside=Beside(listed=("index", re.compile(r"storage_data\.(.+)"))),
    complete=Complete(commit="index", commit_alone="common", needs=("model", "common")),
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference=(
        "mindformers 2.1: checkpoint/checkpoint.py save_checkpoint(), load_checkpoint() and "
        "get_checkpoint_path(), checkpoint/utils.py verify_ckpt_valid() and get_checkpoint_name()"
    ),
    limits=(
        "what metadata.json says of the tensors in each file is not compared with them",
        "with async_save the tracker is written after all files: names alone tell whether all are there",
    ),
)
