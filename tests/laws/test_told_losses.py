"""Whatever file of the chosen save of a layout goes: the next plan takes another save or another file, or says
something of it; and a job of a size that may not load the whole save may not load what is left of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import TREES, materialise, selection

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.plan import LoadPlan

UNNEEDED = {"_sharding"}
"""Orbax restores without it."""
UNLISTED = {"dcp-hf/two"}
"""One save alone of which nothing lists the shards."""
SHRUNK = {"dlrover/flash", "nanochat/base", "rank-files/ray-train-v2"}
"""Without the file of its last rank it is the save of a job that has fewer ranks by now, as the launcher says."""
FILES = 4


def asked(root: Path, options: dict[str, Any]) -> LoadPlan | None:
    """None where nothing is started."""
    try:
        made = plan(str(root), selection(options))
    except CkptError:
        return None
    return made if made.checkpoint else None


def loaded(made: LoadPlan) -> list[Path]:
    return sorted({Path(f.path) for f in (*made.shared, *(f for r in made.by_rank for f in r.files))})


def told(made: LoadPlan, lost: bytes) -> bool:
    """Whether a plan says something, or loads something else in place of the lost file."""
    substituted = any(f.substituted for r in made.by_rank for f in r.files)
    return bool(made.warnings) or substituted or any(p.read_bytes() == lost for p in loaded(made))


def without_each(files: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Some of the files, each gone for a while."""
    for path in {*files[:: max(1, len(files) // FILES)], files[-1]}:
        if path.is_file() and not path.is_symlink() and path.name not in UNNEEDED:
            data, times = path.read_bytes(), path.stat()
            path.unlink()
            yield path, data
            path.write_bytes(data)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.share(120)
@pytest.mark.parametrize("case", TREES)
def test_a_lost_file_is_told_at_any_size_of_the_job(case: Path, tmp_path: Path) -> None:
    name = "/".join(case.parts[-3:-1])
    question = next((q for q in json.loads(case.read_text())["plans"] if "error" not in q), {})
    options, root = question.get("options", {}), materialise(case, tmp_path) / question.get("root", ".")
    good = asked(root, options)
    if good is None or good.checkpoint is None or name in UNLISTED:
        return
    world = good.world_size or len(good.by_rank) or 1
    sizes = [{}] if "world_size" in options else [{}, *({"world_size": w} for w in {1, world, 2 * world})]
    whole = [asked(root, options | size) for size in sizes]
    for path, data in without_each(loaded(good)):
        for size, before in zip(sizes, whole, strict=True):
            made = asked(root, options | size)
            if made is None or made.checkpoint is None or made.checkpoint.key != good.checkpoint.key:
                continue
            if before is None:
                assert name in SHRUNK, (path, size)
            elif path in loaded(before):
                assert told(made, data), (path, size)
