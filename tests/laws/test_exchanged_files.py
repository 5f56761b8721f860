"""A file in whose place lies that of an older save, as its own contents, the other files or the times tell: no
job resumes with it in silence. And what may stand still between two saves is no reason for a word.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from examples import examples
from fixture_trees import CASES, materialise
from hypothesis import given
from hypothesis import strategies as st
from memory import brief_directory
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level

_TELLS = ("last_epoch", "step", "global_step", "current_step", "optimizer_step", "iteration")
"""What files call the step that their name tells as well."""


class Pair(NamedTuple):
    """A file of the choice, and the same one of an older save."""

    mine: Path
    older: Path


def _told(root: Path) -> tuple[str | None, frozenset[tuple[str, str | None]], frozenset[str]]:
    """What is resumed from, what is said, and what is loaded; nothing where nobody is told to start."""
    try:
        made = plan(str(root))
    except CkptError:
        return None, frozenset(), frozenset()
    said = frozenset((f.code, f.path) for f in made.warnings)
    loaded = frozenset(f.path for f in (*made.shared, *(f for r in made.by_rank for f in r.files)))
    return made.checkpoint and made.checkpoint.path, said, loaded


def _pairs(root: Path, loaded: frozenset[str]) -> Iterator[Pair]:
    """Files that are loaded, and tell the step in their name, and those of the save before that do so."""
    tells = dict[str, bool]()
    for f in verify(str(root), level=Level.STRUCTURE).files:
        step = f.part and f.part.step
        name = f.report.path if f.part is None else f.part.home.rpartition("/")[2]
        numbers = [int(n) for n in re.findall(r"\d+", name)]
        told = [f.report.metadata.get(key) for key in _TELLS]
        tells[f.report.path] = bool(step) and step in numbers and step in told
    saves = sorted((c for c in scan(str(root)).checkpoints if c.kind is Kind.PERIODIC), key=lambda c: c.order)
    for older, newer in pairwise(saves):
        there = {(p.piece, p.rank, p.coords, p.path.removeprefix(p.home)): p for p in older.parts if p.home}
        for p in newer.parts:
            twin = there.get((p.piece, p.rank, p.coords, p.path.removeprefix(p.home)))
            if twin and p.path in loaded and tells.get(p.path) and tells.get(twin.path):
                yield Pair(Path(p.path), Path(twin.path))


def _exchanged(case: Path, most: int) -> tuple[int, list[str]]:
    """How many files of a case were exchanged, and of which nothing was said."""
    tried, silent = 0, list[str]()
    with brief_directory() as top:
        root = materialise(case, top)
        before = _told(root)
        seen = set[str]()
        for pair in list(_pairs(root, before[2])) if before[0] else ():
            if pair.mine.suffix in seen or tried >= most:
                continue
            seen.add(pair.mine.suffix)
            data, was = pair.mine.read_bytes(), pair.mine.stat()
            pair.mine.write_bytes(pair.older.read_bytes())
            os.utime(pair.mine, ns=(was.st_atime_ns, was.st_mtime_ns))
            after, tried = _told(root), tried + 1
            if str(pair.mine) in after[2] and after[0] == before[0] and after[1] <= before[1]:
                silent.append(str(pair.mine.relative_to(root)))
            pair.mine.write_bytes(data)
            os.utime(pair.mine, ns=(was.st_atime_ns, was.st_mtime_ns))
    return tried, silent


def _name(case: Path) -> str:
    return f"{case.parts[-3]}-{case.parts[-2]}"


@pytest.mark.share(2)
@pytest.mark.parametrize("case", [c for c in CASES if zlib.crc32(_name(c).encode()) % 16 == 3], ids=_name)
def test_a_file_that_tells_its_step_is_not_exchanged_in_silence(case: Path) -> None:
    assert not _exchanged(case, 2)[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_no_file_of_any_case_that_tells_its_step_is_exchanged_in_silence(case: Path) -> None:
    assert not _exchanged(case, 99)[1]


def _accelerate(root: Path, step: int, counted: int, drawn: int) -> None:
    """A save of Accelerate at a ``step``, whose schedule has ``counted`` so far; ten take half a second."""
    home = root / f"checkpoint-{step}"
    home.mkdir(parents=True)
    files = {
        "pytorch_model.bin": {"w": tensor(step)},
        "optimizer.bin": adam(step),
        "scheduler.bin": {"base_lrs": [0.1], "last_epoch": counted, "_step_count": counted + 1},
        "random_states_0.pkl": {"step": 0, "torch_manual_seed": tensor(drawn, 9)},
    }
    for at, (name, state) in enumerate(files.items()):
        (home / name).write_bytes(saved(state))
        os.utime(home / name, ns=(1_700_000_000_123_456_789 + (step * 10 + at) * 5_000_000,) * 2)


@examples(12)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 12), st.integers(2, 5))
def test_a_schedule_of_epochs_may_stand_still(epoch: int, apart: int, first: int, saves: int) -> None:
    with brief_directory() as root:
        for step in range(first, first + apart * saves, apart):
            _accelerate(root, step, step // epoch, step)
        assert not [f for f in plan(str(root)).warnings if f.code == "step-mismatch"]


@examples(8)
@given(st.integers(2, 20), st.integers(1, 4), st.integers(2, 4))
def test_a_schedule_of_steps_may_not(apart: int, processes: int, saves: int) -> None:
    with brief_directory() as root:
        steps = range(apart, apart * (saves + 1), apart)
        for step in steps:
            _accelerate(root, step, step * processes, step)
        newest, older = (root / f"checkpoint-{step}/scheduler.bin" for step in (steps[-1], steps[-2]))
        was = newest.stat()
        newest.write_bytes(older.read_bytes())
        os.utime(newest, ns=(was.st_atime_ns, was.st_mtime_ns))
        made = plan(str(root))
        told = [f for c in made.rejected for f in c.findings] or list(made.warnings)
        assert saves == 2 < processes + 1 or [f for f in told if f.code == "step-mismatch"]


def _counted(root: Path, steps: Sequence[int], file: str, holds: Callable[[int], dict[str, int]]) -> None:
    """Saves of Accelerate with one more file, whose numbers are a function of the step."""
    for step in steps:
        _accelerate(root, step, step, step)
        _put(root / f"checkpoint-{step}/{file}", saved(holds(step)), step)


def _put(path: Path, data: bytes, step: int) -> None:
    path.write_bytes(data)
    os.utime(path, ns=(1_700_000_000_123_456_789 + (step * 10 + 6) * 5_000_000,) * 2)


_COUNTS: dict[str, Callable[[int, int], Callable[[int], dict[str, int]]]] = {
    "samples": lambda batch, _: lambda step: {"seen": step * batch},
    "epochs": lambda _, epoch: lambda step: {"epoch": step // epoch},
    "position": lambda _, epoch: lambda step: {"_num_yielded": step % epoch},
    "both": lambda batch, epoch: lambda step: {"epoch": step // epoch, "seen": step % epoch * batch},
    "full": lambda batch, epoch: lambda step: {"size": batch, "none": 0},
}
"""What files count, by the samples of a step and the steps of an epoch."""


@examples(15)
@given(
    st.sampled_from(sorted(_COUNTS)),
    st.integers(2, 9),
    st.integers(2, 40),
    st.integers(1, 20),
    st.integers(3, 5),
)
def test_what_counts_may_stand_still_where_epochs_explain_it(
    what: str, batch: int, epoch: int, apart: int, saves: int
) -> None:
    with brief_directory() as root:
        steps = range(apart, apart * (saves + 1), apart)
        _counted(root, steps, "custom_checkpoint_0.pkl", _COUNTS[what](batch, epoch))
        assert not [f for f in plan(str(root)).warnings if f.code == "step-mismatch"]


@pytest.mark.parametrize(
    ("file", "holds"),
    [
        ("custom_checkpoint_0.pkl", lambda step: {"seen": 4 * step}),
        ("dl_state_dict.bin", lambda step: {"_num_yielded": step % 12, "_iterator_finished": False}),
    ],
)
@pytest.mark.parametrize("back", [10, 20])
def test_what_counts_steps_may_not(
    file: str, holds: Callable[[int], dict[str, int]], back: int, tmp_path: Path
) -> None:
    _counted(tmp_path, (10, 20, 30, 40), file, holds)
    assert not plan(str(tmp_path)).warnings
    _put(tmp_path / "checkpoint-40" / file, saved(holds(40 - back)), 40)
    assert [f.path for f in plan(str(tmp_path)).warnings] == [str(tmp_path / "checkpoint-40" / file)]


def test_how_often_a_store_was_committed_tells_no_step(tmp_path: Path) -> None:
    """TensorStore puts the writes of a save together as they happen to come."""
    commits = {10: 3, 20: 6, 30: 4, 40: 4}
    _counted(tmp_path, tuple(commits), "custom_checkpoint_0.pkl", lambda n: {"ocdbt_generation": commits[n]})
    assert not plan(str(tmp_path)).warnings


@pytest.mark.parametrize(
    ("tag", "as_tag"), [("global_step8", "global_step12"), ("global_step4", "global_step12")]
)
def test_a_tag_of_another_step_than_its_files_is_told(tag: str, as_tag: str, tmp_path: Path) -> None:
    """Engines call tags after their own count of steps; that of a copied or renamed one is another."""
    shutil.copytree(LAYOUT_TREES / "deepspeed/zero1/tree", tmp_path / "run")
    assert not _of_another_step(tmp_path / "run")
    (tmp_path / "run" / tag).rename(tmp_path / "run" / as_tag)
    assert _of_another_step(tmp_path / "run") == [as_tag]


def _of_another_step(run: Path) -> list[str]:
    """The directories in which files tell another step than their names."""
    files = verify(str(run)).files
    told = [f.report.path for f in files if any(x.code == "step-mismatch" for x in f.report.findings)]
    return [os.path.relpath(path, run).split("/")[0] for path in told]
