"""Whatever file of the chosen save goes: the next plan takes another save or another file, or says something of
it; and a job of a size that may not load the whole save may not load what is left of it.
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
BARE = {"flax/gda", "levanter/steps", "t5x/steps", "torchsnapshot/plain"}
"""What is left where all but one piece of an array is gone looks like a file of anybody's."""
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


def without_some(files: list[Path]) -> Iterator[list[Path]]:
    """Some of the files gone for a while: each, and all but one."""
    own = [p for p in files if p.is_file() and not p.is_symlink() and p.name not in UNNEEDED]
    chosen = own[:: max(1, len(own) // FILES)]
    for gone in [*([p] for p in chosen), *([p for p in own if p != kept] for kept in chosen)]:
        held = {p: (p.read_bytes(), p.stat()) for p in gone}
        for path in gone:
            path.unlink()
        yield gone
        for path, (data, times) in held.items():
            path.write_bytes(data)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.share(45)
@pytest.mark.parametrize("case", TREES)
def test_an_older_save_has_a_reason_where_no_time_tells(case: Path, tmp_path: Path) -> None:
    """As after a copy that keeps no times: a save that has lost what counts its steps has no place any more."""
    question = next((q for q in json.loads(case.read_text())["plans"] if "error" not in q), {})
    options, root = question.get("options", {}), materialise(case, tmp_path) / question.get("root", ".")
    for path in root.rglob("*"):
        os.utime(path, (1_735_700_000,) * 2, follow_symlinks=False)
    good = asked(root, options)
    if good is None or good.checkpoint is None or len(loaded(good)) == 1:  # of a single file nothing is left
        return
    for gone in without_some(loaded(good)):
        if len(gone) > 1 and "/".join(case.parts[-3:-1]) in BARE:
            continue
        made = asked(root, options)
        same = made is None or made.checkpoint is None or made.checkpoint.path == good.checkpoint.path
        assert same or made.rejected or made.warnings, gone  # type: ignore[union-attr]


@pytest.mark.share(20)
@pytest.mark.parametrize("case", TREES)
def test_an_emptied_save_is_told_although_an_older_one_was_touched_since(case: Path, tmp_path: Path) -> None:
    """Nothing tells its step any more where its files did, and its time is the older one."""
    question = next((q for q in json.loads(case.read_text())["plans"] if "error" not in q), {})
    options, root = question.get("options", {}), materialise(case, tmp_path) / question.get("root", ".")
    good = asked(root, options)
    if good is None or good.checkpoint is None or len(good.candidates) == 1:
        return
    for path in {p.path for p in good.checkpoint.parts}:
        times = os.lstat(path)
        Path(path).unlink()
        Path(path).touch()
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for p in good.candidates[-1].parts:
        if os.stat(p.path).st_size:  # no file of both
            os.utime(p.path)
    made = asked(root, options)
    if made is not None and made.checkpoint is not None and made.checkpoint.path != good.checkpoint.path:
        lost = good.checkpoint.path
        told = [f.path for f in (*made.warnings, *(f for r in made.rejected for f in r.findings))]
        of_its_step = made.checkpoint.order == good.checkpoint.order
        doubted = "mtime-disagrees-with-step" in {f.code for f in made.warnings}
        assert of_its_step or doubted or any(path and path.startswith(lost) for path in told), told
