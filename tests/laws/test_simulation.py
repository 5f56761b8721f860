"""Twenty-four hours of a job that crashes, rolls back and restarts: ckpt must find, after each crash, the
newest save that the simulation knows to be whole.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from simulated_frameworks import FRAMEWORKS, Framework
from simulated_job import START, Job, Save

from ckpt_tools import errors
from ckpt_tools.api import plan, verify
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

DAY = 86_400.0
MINUTES = 40


class Day:
    """``seen`` counts what happened."""

    def __init__(self, name: str, seed: int, root: Path) -> None:
        self.job = Job(root, random.Random(f"{name} {seed}"))
        self.framework: Framework = FRAMEWORKS[name](self.job)
        self.seen: Counter[str] = Counter()
        self.step = 0

    # ---- questions

    def check_plan(self, what: str, **more: object) -> Save | None:
        """The plan against what is true; returns the save to resume from."""
        job, fw = self.job, self.framework
        selection = Selection(**{**vars_of(fw.selection()), **more})  # type: ignore[arg-type]
        expected = job.newest(fw.lost(), selection.save_interval, selection.max_step)
        self.seen[what] += 1
        made, why = self.asked(selection)
        if made is None:
            assert expected is None, (
                f"{what}: {why!r}, expected step {expected.step if expected else None}"
                f" {why.plan.rejected if why and why.plan else ''}"
            )
            self.seen["none"] += 1
            return None
        planned = [
            os.path.relpath(f.path, job.root)
            for f in (*made.shared, *(f for r in made.by_rank for f in r.files))
        ]
        homes = {s.home for s in job.saves if s.files & set(planned)}
        # whole, of one step and home, but of two attempts, which only their times tell
        if homes & job.mixed() and all(job.content[p][1] for p in planned):
            self.seen["two attempts"] += 1
            return next(s for s in reversed(job.saves) if s.home in homes)
        assert expected is not None, f"{what}: planned {made.resume_step} {planned}, nothing is whole"
        if any(f.code == "generation-mismatch" for r in made.rejected for f in r.findings):
            self.seen["restarts in doubt"] += 1  # an older one, and it is said
            expected = next((s for s in job.saves if all(job.good(p, s.id) for p in planned)), expected)
        assert made.resume_step == expected.step, (
            f"{what}: planned {made.resume_step}, expected {expected.step}"
            f" {[(r.checkpoint.step, r.findings) for r in made.rejected]}"
        )
        self.check_files(made, planned, expected)
        return expected

    def asked(self, selection: Selection) -> tuple[LoadPlan | None, errors.CkptError | None]:
        """The plan, or why there is none."""
        try:
            return plan(str(self.job.root), selection), None
        except (errors.NoCheckpoint, errors.NoneUsable) as e:
            return None, e
        # a rank that never got to its first save: only the caller knows how many there are
        except errors.UsageError as e:
            if "which checkpoint is the newest" in str(e):
                self.seen["in doubt"] += 1
                return self.asked(replace(selection, order="mtime"))
            if "topology-mismatch" not in str(e):
                raise
            return None, e

    def check_files(self, made: LoadPlan, planned: list[str], expected: Save) -> None:
        """Every planned file is whole and of this save, or of a dying gasp of its step; every need of it is
        planned, for every rank.
        """
        of_step = [s for s in self.job.saves if s.step == expected.step and (s is expected or s.gasp)]
        found = next((s for s in of_step if all(self.job.good(p, s.id) for p in planned)), None)
        assert found, planned
        assert all(set(need) & set(planned) for need in found.needs), (planned, found.needs)
        if made.by_rank:
            assert [r.rank for r in made.by_rank] == list(range(self.framework.world))

    def check_verify(self, what: str) -> None:
        """Errors only where a crash really lost something."""
        result = verify([str(self.job.root)])
        self.seen[what] += 1
        rows = [(r.report.path, f) for r in result.files for f in r.report.findings] + [
            (f.path, f) for f in result.findings
        ]
        for path, f in rows:
            if f.code == "same-content":  # what is written here depends on the step alone
                continue
            if f.code == "missing-rank" and len({*getattr(self.framework, "prefix", {}).values()}) > 1:
                continue  # ranks that count restarts differently: their files are listed apart
            if f.severity is Severity.ERROR and not self.job.excused(path):
                raise AssertionError(f"{what}: {os.path.relpath(path, self.job.root)}: {f.code} {f.message}")
            self.seen[f"{f.severity} {f.code}"] += 1

    # ---- the day

    def live(self) -> None:
        """Somebody looks while a save is under way."""
        self.check_verify("verify while saving")
        self.check_plan("plan while saving")

    def one_save(self, crash: bool) -> bool:
        job, fw = self.job, self.framework
        job.tick(60 * MINUTES * 0.5, 60 * MINUTES * 1.5)
        made = fw.save(self.step + fw.every - self.step % fw.every)
        made.id = len(job.saves)
        job.saves.append(made)
        if not job.run(
            made.phases, made.id, crash=crash, look=self.live if job.rng.random() < 0.15 else None
        ):
            return False
        self.step = made.step
        self.seen["saves"] += 1
        return job.run([fw.prune()], -1, crash=crash and job.rng.random() < 0.3) if any(fw.prune()) else True

    def fault(self, crashed: bool) -> None:
        """What the job still does when it dies: nothing, a dying gasp, or half of one. Then perhaps the node
        loses power.
        """
        job, fw = self.job, self.framework
        fw.faults = frozenset()
        at = job.saves[-1].step if crashed else self.step + job.rng.randrange(1, fw.every)
        if job.rng.random() < 0.7 and (made := fw.gasp(at)) is not None:
            made.id = len(job.saves)
            job.saves.append(made)
            job.tick(1, 5)
            self.seen["gasps"] += job.run(made.phases, made.id, crash=job.rng.random() < 0.3)
        if job.rng.random() < 0.3:
            job.power_loss()
            self.seen["power losses"] += 1

    def restart(self) -> None:
        job, fw = self.job, self.framework
        job.tick(20, 600)
        self.check_verify("verify after a crash")
        found = self.check_plan("restart")
        if job.rng.random() < 0.25 and found is not None and found.step > fw.every:
            found = self.check_plan("rollback", max_step=job.rng.randrange(fw.every, found.step))
        self.step = found.step if found else 0
        fw.faults = frozenset()
        fw.restart()

    def run(self) -> None:
        night = START + self.job.rng.uniform(0.3, 0.7) * DAY
        while self.job.now < START + DAY:
            crash = self.job.rng.random() < 0.25
            crashed = not self.one_save(crash)
            if crashed or self.job.rng.random() < 0.1:
                self.fault(crashed)
                self.restart()
            if self.job.now > night:
                night = float("inf")
                self.check_verify("nightly verify")
        self.check_verify("last verify")
        self.check_plan("last plan")


def vars_of(selection: Selection) -> dict[str, object]:
    return {name: getattr(selection, name) for name in type(selection).__match_args__}


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
if "SIMULATION_SEEDS" in os.environ:
    SEEDS = [int(seed) for seed in os.environ["SIMULATION_SEEDS"].split()]


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_day(name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(name, seed, tmp_path)
    monkeypatch.setattr(
        "ckpt_tools.reading.session.time", SimpleNamespace(time_ns=lambda: int(day.job.now * 1e9))
    )
    day.run()
    assert day.seen["saves"] >= 10 and day.seen["restart"] >= 2
    # only after somebody went back in time may it be in doubt which save is the newest, and seldom
    assert day.seen["in doubt"] <= min(10, 10 * day.seen["rollback"])
    print(dict(day.seen))  # noqa: T201
