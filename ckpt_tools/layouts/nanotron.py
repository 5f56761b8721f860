"""Checkpoints of nanotron: ``<step>/`` with a file for each tensor or each rank's slice of it, optimizer and
scheduler of each rank, ``checkpoint_metadata.json`` and, last, ``model_config.json``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, Tracker, resume_directory
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import Changes, Claim, Piece, nest
from ckpt_tools.layouts.dcp import read_number
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.ranges import ranges, words
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
_DEEPEST = 10
"""Directories of a tensor: model/model/decoder/0/pp_block/mlp/experts/0/up_proj."""
_RANKS = re.compile(r"(tp|pp|dp|exp)(?:-rank)?-(\d+)-of-(\d+)")
_BLOCK = re.compile(r"(?:^|/)decoder/([0-9]{1,5})/")


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, "metas.last_train_step", "last_train_step")
    yield from _missing_ranks([part for part, _ in parts if part.role != "random"])


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    for tensor in lost(c, beside, _tensors):
        text = f"there is no tensor {tensor!r}, which the run's other checkpoints have"
        yield Flaw("missing-part", text, path=c.path)
    blocks = {int(m[1]) for m in map(_BLOCK.search, _tensors(c)) if m}
    if gone := set(range(max(blocks, default=0))) - blocks:
        text = (
            f"there is a block of number {max(blocks)}, and no tensor of block {words(ranges(sorted(gone)))}"
        )
        yield Flaw("missing-part", text, path=c.path)
    for path, f in _missing_ranks([part for part in c.parts if part.role == "random"]):
        text = f"{f.message}: of random numbers, which nanotron does not load again"
        yield replace(f, message=text, path=path, severity=Severity.WARNING)


def _tensors(c: Checkpoint) -> frozenset[str]:
    """The names of the model's tensors, whoever holds them."""
    names = (p.path.removeprefix(f"{c.path}/model/") for p in c.parts if p.role == "model")
    return frozenset(_RANKS.sub("", name).removesuffix(".safetensors").rstrip("_") for name in names)


def _missing_ranks(parts: Sequence[Part]) -> Iterator[tuple[str, Flaw]]:
    """Ranks whose files are gone, as the names of the others tell. A tensor is of one pipeline stage."""
    sets = defaultdict[str, list[Part]](list)
    for part in parts:
        sets[_RANKS.sub(r"\1\3", part.path)].append(part)
    for files in sets.values():
        axes = _RANKS.findall(files[0].name)
        wanted = prod(int(n) for axis, _, n in axes if axis != "pp" or files[0].role != "model")
        if len(files) < wanted:
            text = (
                f"{wanted - len(files)} of the {wanted} files of this name are not there, one for each rank"
            )
            yield min(p.path for p in files), Flaw("missing-part", text)


def _pieces() -> Iterator[Piece]:
    for depth in range(_DEEPEST + 1):
        path = "/".join(["model", *["{name}"] * depth, "model_{name}.safetensors"])
        yield Piece(f"model{depth}", "model", path, ("safetensors",))
    yield Piece("optimizer", "optimizer", "optimizer/optimizer_{name}.pt", TORCH, unasked=True)
    yield Piece("lr_scheduler", "lr_scheduler", "lr_scheduler/lr_scheduler_{name}.pt", TORCH, unasked=True)
    yield Piece("random", "random", "random/tp-{name}.pt", TORCH, loaded=False, required=False)
    config = partial(Piece, formats=("json_member",), claim=Claim.COMPANION)
    yield config("metadata", "metadata", "checkpoint_metadata.json")
    yield config("optimizer_config", "optimizer_config", "optimizer/optimizer_config.json")
    yield config("model_config", "model_config", "model_config.json")
    mark = Piece("config", "config", "config.yaml", claim=Claim.COMPANION, changes=Changes.MARK)
    yield replace(mark, required=False, loaded=False)


LAYOUT = Layout(
    name="nanotron",
    title="nanotron",
    pieces=tuple(nest("{step}", _pieces())),
    resume=resume_directory,  # checkpoints.resume_checkpoint_path of the YAML file
    check=_check,
    lost=_lost,
    tracker=Tracker(file="latest.txt", read=read_number),
    complete=Complete(
        commit="model_config", needs=("model", "metadata", "optimizer", "optimizer_config", "lr_scheduler")
    ),
    reshardable=True,
    reference=(
        "nanotron/trainer.py save_checkpoint(); nanotron/serialize/main.py save(), parse_ckpt_path(); "
        "weights.py, optimizer.py, random.py, metadata.py there"
    ),
    limits=(
        "a tensor whose files are all lost is missed where the run has another checkpoint",
        "random numbers are saved, and not loaded again",
        "whether the optimizer can be loaded on other numbers of ranks is for nanotron to say",
        "nothing but its directory tells of which save a tensor or an optimizer is",
    ),
)
