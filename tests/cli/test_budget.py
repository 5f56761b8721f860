"""Time given for reading contents: what counts when it is over, what is said about the rest, and that it
never makes anything of damage.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_helpers
import torch
import warm
from large_runs import BIG, flip, megatron, part, settle
from msgspec.structs import replace
from shards import copy, optimizer, shard

from ckpt_tools import errors
from ckpt_tools.api import plan, verify
from ckpt_tools.checksum import BUFFER, Extent, Sum, mismatches
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.storage import BytesSource, LocalSource, Stopped

pytestmark = pytest.mark.slow

MiB = 1 << 20
ASKED = Selection(world_size=2, sizes={"tp": 2}, settle=0.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))


def levels(made: LoadPlan) -> list[Level]:
    return [f.level for r in made.by_rank for f in r.files]


def codes(made: LoadPlan) -> set[str]:
    return {f.code for f in made.warnings}


def test_without_time_the_headers_must_do(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    made = plan(str(root), replace(ASKED, budget=0.0))
    assert made.resume_step == 20 and levels(made) == [Level.STRUCTURE] * 2
    assert made.below_level == 2 and made.budget == 0.0 and made.bytes_read < BIG / 2
    size = sum(part(root, rank).stat().st_size for rank in (0, 1))
    (said,) = [f for f in made.warnings if f.code == "budget-spent"]
    assert said.severity is Severity.WARNING
    assert f"2 of the 2 files to load, {size:,} bytes" in said.message
    assert "below-level" not in codes(made)  # it would say the same again


def test_what_is_known_from_earlier_costs_no_time(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    settle()
    verify([str(root)], cache=True)
    made = plan(str(root), replace(ASKED, budget=0.0, cache=True))
    assert levels(made) == [Level.CONTENT] * 2
    assert made.below_level == 0
    assert codes(made) == codes(plan(str(root), ASKED))


def test_when_it_ends_between_two_files(tmp_path: Path, enough_for: Callable[[int], Any]) -> None:
    root = megatron(tmp_path / "run")
    made = plan(str(root), replace(ASKED, budget=60.0), progress=enough_for(part(root).stat().st_size))
    assert levels(made) == [Level.CONTENT, Level.STRUCTURE]
    (said,) = [f for f in made.warnings if f.code == "budget-spent"]
    assert f"1 of the 2 files to load, {part(root, 1).stat().st_size:,} bytes" in said.message


@pytest.mark.parametrize("jobs", [1, 2])
def test_when_it_ends_inside_a_file(tmp_path: Path, enough_for: Callable[[int], Any], jobs: int) -> None:
    root = megatron(tmp_path / "run", size=8 * MiB)
    settle()
    asked = replace(ASKED, budget=60.0, jobs=jobs, cache=True)
    threads = threading.active_count()
    made = plan(str(root), asked, progress=enough_for(2 * MiB))
    assert threading.active_count() == threads
    assert 2 * MiB <= made.bytes_read < 6 * MiB
    assert levels(made) == [Level.STRUCTURE] * 2
    assert made.below_level == 2 and "budget-spent" in codes(made)
    # half a look is not kept
    whole = plan(str(root), replace(asked, budget=None))
    assert whole.bytes_read > 16 * MiB and levels(whole) == [Level.CONTENT] * 2


def test_damage_that_structure_shows_is_damage_whatever_the_budget(tmp_path: Path) -> None:
    """And a flipped bit that nobody had time to read is said."""
    root = megatron(tmp_path / "run")
    flip(part(root))
    assert plan(str(root), ASKED).resume_step == 10
    made = plan(str(root), replace(ASKED, budget=0.0))
    assert made.resume_step == 20 and "budget-spent" in codes(made)
    os.truncate(part(root), 500_000)
    made = plan(str(root), replace(ASKED, budget=0.0))
    assert made.resume_step == 10 and len(made.rejected) == 1
    os.truncate(part(root, step=10), 500_000)
    with pytest.raises(errors.NoneUsable):
        plan(str(root), replace(ASKED, budget=0.0))


def test_damage_that_was_found_before_the_end_counts(
    tmp_path: Path, enough_for: Callable[[int], Any]
) -> None:
    """Of two records the first is damaged, and the reading stops in the second."""
    root = megatron(tmp_path / "run")
    was = part(root).stat()
    torch.save({"iteration": 20, "model": {name: torch.randn(MiB) for name in ("one", "two")}}, part(root))
    run_helpers.flip(part(root), 2 * MiB)
    os.utime(part(root), ns=(was.st_atime_ns, was.st_mtime_ns))
    asked = replace(ASKED, budget=60.0, jobs=1)
    made = plan(str(root), asked, progress=enough_for(6 * MiB))
    assert made.resume_step == 10
    assert "crc-mismatch" in {f.code for f in made.rejected[0].findings}
    assert levels(made) == [Level.STRUCTURE] * 2 and "budget-spent" in codes(made)
    # the first record was not read to its end
    assert plan(str(root), asked, progress=enough_for(2 * MiB)).resume_step == 20


@pytest.mark.parametrize("jobs", [1, 5])
@pytest.mark.parametrize("after", [3 * MiB, 70 * MiB])
def test_a_stop_yields_what_is_certain_and_leaves_no_thread(jobs: int, after: int) -> None:
    data = bytes(96 * MiB)
    extents, right = [Extent(4 * MiB * i, 4 * MiB) for i in range(24)], zlib.crc32(data[: 4 * MiB])
    sums = [Sum(f"record {i}", right ^ (i == 0), (extent,), 0) for i, extent in enumerate(extents)]
    lock, read, threads = threading.Lock(), [0], threading.active_count()

    def progress(n: int) -> None:
        with lock:
            read[0] += n
            if read[0] > after:
                raise Stopped

    mismatch, found = mismatches(BytesSource(data), sums, jobs=jobs, progress=progress), list[str]()
    with pytest.raises(Stopped):
        found += iter(lambda: next(mismatch)[0].what, None)
    # two other threads may have read their 32 MiB before
    certain = after > (64 * MiB if jobs > 1 else 0) + 4 * MiB
    assert found in ([["record 0"]] if certain else [["record 0"], []])
    assert threading.active_count() == threads
    assert read[0] <= after + (2 * jobs + 1) * BUFFER  # a block of each piece of work under way or waiting


def test_a_copy_that_is_not_compared_to_its_end_counts_as_unread(tmp_path: Path) -> None:
    root = shard(tmp_path / "run", (10, 20, 30))
    copy(root, optimizer(20, 1), optimizer(30, 1), "now")
    settle()
    verify([str(root)], cache=True)
    with pytest.raises(errors.UsageError, match="byte for byte the same"):
        plan(str(root), Selection(cache=True))
    # the contents that would have told were not compared
    made = plan(str(root), Selection(cache=True, budget=0.0))
    assert set(levels(made)) == {Level.CONTENT}
    (said,) = [f for f in made.warnings if f.code == "budget-spent"]
    assert made.resume_step == 30 and "before 1 of the 4 files" in said.message


def test_bytes_read_are_those_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads a file is counted: the looks, the indexes, the trackers, the pages that are compared."""
    root, read = megatron(tmp_path / "run"), [0]
    real = LocalSource.close

    def close(self: LocalSource) -> None:
        read[0] += self.bytes_read
        real(self)

    monkeypatch.setattr(LocalSource, "close", close)
    made = plan(str(root), ASKED)
    assert made.bytes_read == read[0] > made.bytes_verified > 2 * BIG


def test_the_command_line(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    argv = ["plan", str(root), "--tp", "2", "--world-size", "2", "--no-cache", "--json"]
    for more, env, told in (
        (("--budget", "0s"), {}, (0.0, 2)), ((), {"CKPT_BUDGET": "1h"}, (3600.0, 0)), ((), {}, (None, 0)),
    ):  # fmt: skip
        done = warm.completed([*argv, *more], {**os.environ, **env})
        value = json.loads(done.stdout)
        assert (value["budget"], value["below_level"]) == told
        assert ("budget-spent" in done.stderr) == bool(more)


def test_waiting_for_another_reader_ends_with_the_budget(tmp_path: Path) -> None:
    from ckpt_tools.cache import turn
    from ckpt_tools.settings.resolve import verdicts as directory

    root = megatron(tmp_path / "run")
    os.makedirs(directory(os.environ), 0o700)
    with turn(directory(os.environ), str(part(root)), True) as ours:
        assert ours()
        started = time.monotonic()
        made = plan(str(root), replace(ASKED, budget=0.3, cache=True))
        assert time.monotonic() >= started + 0.3
    assert levels(made)[0] is Level.STRUCTURE and "budget-spent" in codes(made)
