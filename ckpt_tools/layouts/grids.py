"""Trainers that cut a model along the axes of a grid, each piece in a file: ColossalAI's applications,
nanotron and fairseq2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod

from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves
from ckpt_tools.layouts.common.lost_files import check_index, compare_names, list_lost, list_paths, loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import ranges, words


def _resume_colossalai(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Return the argument with the directory: ColossalAI's examples call it otherwise than its trainers."""
    example = any(p.piece.endswith(("_sora", "_example")) for p in checkpoint.parts)
    return Resume(checkpoint.path, ("--load" if example else "--load_checkpoint", checkpoint.path))


COLOSSALAI = declare("grids", "colossalai", resume=_resume_colossalai, lost=check_index)
_RANKS = re.compile(r"(tp|pp|dp|exp)(?:-rank)?-(\d+)-of-(\d+)")


def _check_nanotron(parts: Rows) -> Found:
    """Yield ranks without a file of the model."""
    for path, text in _find_lost_ranks([part for part, _ in parts if part.role != "random"]):
        yield path, loss(text)


def _find_lost_of_nanotron(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield tensors of other saves, gaps in the numbers of blocks, and ranks without random numbers."""

    def list_tensors(o: Checkpoint) -> frozenset[str]:
        """Return the names of the model's tensors, whichever ranks hold them."""
        names = (p.path.removeprefix(f"{o.path}/model/") for p in o.parts if p.role == "model")
        return frozenset(_RANKS.sub("", name).removesuffix(".safetensors").rstrip("_") for name in names)

    for tensor in list_lost(c, beside, list_tensors):
        yield loss(f"there is no tensor {tensor!r}, which the run's other checkpoints have", c.path)
    found = (re.search(r"(?:^|/)decoder/([0-9]{1,5})/", name) for name in list_tensors(c))
    blocks = {int(m[1]) for m in found if m}
    if gone := set(range(max(blocks, default=0))) - blocks:
        missing = words(ranges(sorted(gone)))
        text = f"there is a block of number {max(blocks)}, and no tensor of block {missing}"
        yield loss(text, c.path)
    for path, text in _find_lost_ranks([part for part in c.parts if part.role == "random"]):
        yield loss(f"{text}: of random numbers, which nanotron does not load again", path, sure=False)


def _find_lost_ranks(parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each set of files that lacks ranks, as "-of-N" in the others' names tells."""
    sets = defaultdict[str, list[Part]](list)
    for part in parts:
        sets[_RANKS.sub(r"\1\3", part.path)].append(part)
    for files in sets.values():
        axes = _RANKS.findall(files[0].name)
        # a tensor lies in one pipeline stage only
        wanted = prod(int(n) for axis, _, n in axes if axis != "pp" or files[0].role != "model")
        if (gone := wanted - len(files)) > 0:
            text = f"{gone} of the {wanted} files of this name are not there, one for each rank"
            yield min(p.path for p in files), text


NANOTRON = declare("grids", "nanotron", check=_check_nanotron, lost=_find_lost_of_nanotron)


def _find_lost_of_fairseq2(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that the save's other files imply; if none, files that all saves ``beside`` it have."""
    gone = sorted(_list_implied(c) - list_paths(c))
    for name in gone:
        yield loss(f"there is no {name}, which the other files of the save belong to", c.path)
    if not gone:
        yield from compare_names(c, beside, list_paths)


def _list_implied(c: Checkpoint) -> set[str]:
    """Return the files that others imply: a place of the model has an optimizer's file, and a rank."""
    files = list_paths(c)
    if not any(name.startswith("trainer/") for name in files):  # an export
        return set()
    paths = {name.partition("/")[2] for name in files if name.startswith(("model/", "optimizer/"))}
    shards = len({path.rpartition("/")[2] for path in paths})
    implied = {f"{role}/{path}" for role in ("model", "optimizer") for path in paths}
    for role, name, least in (("trainer", "rank", len(paths)), ("data_reader", "dp", shards)):
        ranks = [n for p in c.parts if p.role == role for axis, n in p.coords if axis == "shard"]
        if ranks:
            implied |= {f"{role}/{name}_{rank:02d}.pt" for rank in range(max(least, *ranks))}
    return implied


FAIRSEQ2 = declare("grids", "fairseq2", lost=_find_lost_of_fairseq2)
