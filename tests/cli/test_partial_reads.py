"""``ckpt verify --sample`` and ``--budget`` of every command: what is read, what is remembered and said of the rest, and
that time that is over never makes anything of damage.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import run_helpers
import torch
import warm
from in_process import executed
from large_runs import BIG, flip, megatron, part, settle
from msgspec.structs import replace
from places import FIXTURES
from shards import copy, optimizer, shard

from ckpt_tools import errors
from ckpt_tools.api import plan, verify
from ckpt_tools.checksum import Extent, Sum, mismatches
from ckpt_tools.model.answers import Sample, Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as emit
from ckpt_tools.reading.engines import Engine
from ckpt_tools.storage import BytesSource, Identity, Stopped
from ckpt_tools.storage.local import BUFFER

pytestmark = pytest.mark.slow

ROOTS = [*sorted((FIXTURES / "formats").iterdir()), *sorted((FIXTURES / "layouts").glob("*/*/tree"))[::6]]
MiB = 1 << 20


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))


def one(path: Path, tensors: int = 12, size: int = MiB) -> Path:
    """A file of ``tensors`` records of ``size`` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(tensors)
    weights = {f"layer{i}": torch.randn(size // 4, generator=generator) for i in range(tensors)}
    torch.save({"step": 3, "model": weights}, path)
    return path


def several(root: Path, names: Iterable[object], tensors: int = 1) -> Path:
    for name in names:
        one(root / f"{name}.pt", tensors)
    return root


def flip_middle(path: Path) -> None:
    """A bit in the middle of the third record; the modification time is set back."""
    run_helpers.flip(path, 5 * MiB // 2)


def asked(root: Path, **more: Any) -> Verification:
    return verify([str(root)], cache=True, **more)


def sampled(root: Path, **more: Any) -> Sample:
    sample = asked(root, **more).sample
    assert sample is not None
    return sample


def findings(*results: Verification) -> set[tuple[str, str, str]]:
    return {(f.report.path, x.code, x.message) for r in results for f in r.files for x in f.report.findings}


@pytest.mark.share(36)
@pytest.mark.parametrize("root", ROOTS, ids=lambda p: str(p.relative_to(FIXTURES)))
def test_the_parts_of_every_fixture_find_what_the_whole_shows(root: Path) -> None:
    """Good and damaged files of every format: what structure shows in every part, damage of contents in the
    part that has it.
    """
    whole, parts = verify([str(root)]), [verify([str(root)], sample=f"{n}/3") for n in (1, 2, 3)]
    # whole files are compared only when all is read
    copies = {row for row in findings(whole) if row[1] == "same-content"}
    assert findings(*parts) == findings(whole) - copies
    samples = [p.sample for p in parts if p.sample]
    assert sum(s.bytes_read for s in samples) == samples[0].bytes
    assert sum(s.files_read for s in samples) == samples[0].files
    broken = {f.report.path for f in whole.files if f.report.verdict is Verdict.BROKEN and not copies}
    assert {f.report.path for p in parts for f in p.files if f.report.verdict is Verdict.BROKEN} >= broken
    assert all(p.summary.below_level == whole.summary.below_level for p in parts)


def test_all_of_it_is_the_ordinary_answer(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    settle()
    plain = json.loads(emit.render(asked(root)))
    for more in ({"sample": "1/1"}, {"sample": "1GiB"}, {"max_duration": 3600.0}):
        answer = json.loads(emit.render(asked(root, **more)))
        sample = answer.pop("sample")
        assert sample["bytes_read"] == sample["bytes"] > 4 * MiB and not sample["stopped"]
        assert sample["files_read"] == sample["files"] == 4 and sample["never"] == 0
        # where bytes are counted, the structure may have been read twice
        answer["summary"] |= {key: plain["summary"][key] for key in ("seconds", "bytes_read")}
        assert answer == plain
    assert asked(root, max_age=1000.0).summary.bytes_read < MiB  # so it is kept


def test_the_parts_of_a_file_stay_when_others_come_and_go(tmp_path: Path) -> None:
    file = one(tmp_path / "run/a.pt")
    flip_middle(file)

    def hit() -> list[int]:
        parts = [verify([str(tmp_path / "run")], sample=f"{n}/3") for n in (1, 2, 3)]
        return [n for n, part in enumerate(parts, 1) if "crc-mismatch" in {row[1] for row in findings(part)}]

    first = hit()
    assert len(first) == 1
    one(tmp_path / "run/0.pt", 3)
    one(tmp_path / "run/zz/b.pt", 3)
    os.rename(tmp_path / "run", tmp_path / "elsewhere")
    (tmp_path / "run").symlink_to("elsewhere")
    assert hit() == first


@pytest.mark.parametrize(("share", "files"), [("25%", 3), ("3MB", 3), ("1", 1), ("0.001%", 1)])
def test_at_least_what_was_asked_and_no_more_than_a_file_over(tmp_path: Path, share: str, files: int) -> None:
    s = sampled(several(tmp_path / "run", range(12)), sample=share)
    assert s.files == 12 and s.files_read in (files, files + 1)


def test_the_least_recently_checked_come_first(tmp_path: Path) -> None:
    several(tmp_path / "run", "abcd", 3)
    settle()
    runs = [sampled(tmp_path / "run", sample="25%") for _ in range(8)]
    left = [s.never for s in runs]
    assert left == sorted(left, reverse=True) and left[0] > 0 and left[4] == 0
    assert [s.oldest_ns is None for s in runs[:2]] == [True, True]
    times = [s.oldest_ns for s in runs[4:]]  # each run takes what is oldest: it gets younger every time
    assert all(times) and times == sorted(set(times))


def test_without_a_cache_each_run_takes_others(tmp_path: Path) -> None:
    several(tmp_path / "run", "abcdefgh")
    runs = [verify([str(tmp_path / "run")], sample="1") for _ in range(30)]
    assert {run.sample and run.sample.never for run in runs} == {7}
    assert len({f.report.path for run in runs for f in run.files if f.report.level is Level.CONTENT}) > 3


def test_damage_found_in_a_part_ends_an_earlier_verdict_and_comes_first_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A medium that decays: nothing about the file changes but its bytes."""
    monkeypatch.setattr(Identity, "settled", lambda self, opened_ns: True)
    same = classmethod(lambda cls, s: cls(s.st_size, s.st_mtime_ns, 1, s.st_ino, s.st_dev))
    monkeypatch.setattr(Identity, "of", same)
    root = several(tmp_path / "run", "abc", 12)
    asked(root)
    flip_middle(root / "b.pt")
    assert asked(root, max_age=1000.0).verdict is Verdict.OK  # the verdict from before
    assert sorted(asked(root, sample=f"{n}/2").verdict for n in (1, 2)) == ["broken", "ok"]
    assert asked(root, max_age=1000.0).verdict is Verdict.BROKEN
    for _ in range(3):  # a file at a time is read
        again = asked(root, sample="1")
        assert again.verdict is Verdict.BROKEN and again.sample is not None and again.sample.files_read == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_next_run_goes_on_where_it_ended(
    tmp_path: Path, jobs: int, enough_for: Callable[[int], Any]
) -> None:
    root = several(tmp_path / "run", range(8), 2)
    settle()
    runs = []
    while not runs or runs[-1].never:
        runs.append(sampled(root, max_duration=60.0, jobs=jobs, progress=enough_for(5 * MiB)))
        assert runs[-1].stopped and 0 < runs[-1].files_read <= 3 and len(runs) < 8
    # none twice before all had a turn
    assert [8 - s.never for s in runs[:-1]] == [*accumulate(s.files_read for s in runs[:-1])]


def test_a_slow_file_is_not_in_the_way_of_others(tmp_path: Path, enough_for: Callable[[int], Any]) -> None:
    notes, root = list[str](), several(tmp_path / "run", "abc", 2)
    one(root / "huge.pt", 1, 8 * MiB)
    settle()
    runs = list[Sample]()
    while sum(s.never == 1 for s in runs) < 6:
        runs.append(sampled(root, max_duration=60.0, jobs=1, progress=enough_for(3 * MiB), note=notes.append))
        assert len(runs) < 20
    # the others are checked again, although it never was
    assert sum(s.files_read > 0 for s in runs[-5:]) > 1
    assert len(notes) == sum(s.files_read == 0 for s in runs) > 0
    assert all("give more time" in n for n in notes)


def test_what_was_read_before_ctrl_c_is_remembered(tmp_path: Path) -> None:
    root = several(tmp_path / "run", range(12))
    settle()

    def interrupt(done: int, total: int) -> None:
        if done > 5 * MiB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(root, max_duration=60.0, jobs=1, progress=interrupt)
    # the files before the one in which it came, and the one that is read now
    assert sampled(root, sample="1").never in (12 - 4 - 1, 12 - 5 - 1)


def ckpt(*words: str, **env: str) -> tuple[int, str, str]:
    done = warm.completed(["verify", *words], {**os.environ, **env})
    return done.returncode, done.stdout, done.stderr


def test_the_command(tmp_path: Path) -> None:
    root = tmp_path / "run"
    flip_middle(one(root / "a.pt"))
    one(root / "b.pt", 2)
    settle()
    done = [ckpt(str(root), "--json", "--strict", "--sample", f"{n}/5") for n in (1, 2, 3, 4, 5)]
    answers = {code: json.loads(out) for code, out, _ in done}
    assert set(answers) == {0, 1} and answers[0]["summary"]["below_level"] == 0
    sample = answers[0]["sample"]
    assert sample["asked"].endswith("/5") and sample["max_duration"] is None and sample["files"] == 2
    told = {"CKPT_SAMPLE": "1%", "CKPT_MAX_DURATION": "1h", "CKPT_CACHE_DIR": str(tmp_path / "n")}
    _, out, _ = ckpt(str(root), **told)
    assert ", 1 file of 2 to the end; 1 file never checked so far" in out
    code, out, _ = ckpt(str(root), "--format", "jsonl", "--sample", "50%")
    assert json.loads(out.splitlines()[-1])["sample"]["blocks"] == 2
    with pytest.raises(errors.UsageError):
        verify([str(tmp_path)], sample="most")
    code, _, err = ckpt(str(tmp_path), "--sample", "3/2")
    assert code == 2 and "1/2 to 2/2" in err


@pytest.mark.parametrize("words", [("--sample", "1/2"), ("--max-duration", "1h")])
def test_only_contents_are_sampled(tmp_path: Path, words: tuple[str, str]) -> None:
    for level in ("presence", "structure", "values", "load"):
        code, out, err = executed(["verify", str(tmp_path), *words, "--level", level])
        assert (code, out) == (2, "") and f"level {level}" in err and "add --level content" in err


@pytest.mark.parametrize("part", [{"sample": "1/2"}, {"max_duration": 60.0}], ids=str)
def test_workers_read_no_part(part: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(errors.UsageError, match="whole files"):
        asked(ROOTS[0], engine=Engine(threads, "threads"), **part)


ASKED = Selection(world_size=2, sizes={"tp": 2}, settle=0.0)


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


def test_damage_found_before_the_end_counts(tmp_path: Path, enough_for: Callable[[int], Any]) -> None:
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
