"""CPU quotas of control groups, on made-up trees."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.checksum import default_jobs
from ckpt_tools.storage import cpus


class Machine:
    """A made-up /proc/self and /sys/fs/cgroup."""

    def __init__(self, tmp: Path) -> None:
        self.proc, self.mounted = tmp / "proc", tmp / "cgroup"
        self.proc.mkdir()
        self.mounted.mkdir()

    def group(self, path: str, text: str, version: int = 2) -> None:
        directory = self.mounted / ("cpu" if version == 1 else "") / path.strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (directory / "cpu.max").write_text(f"{text}\n")
        else:
            amount, period = text.split()
            (directory / "cpu.cfs_quota_us").write_text(f"{amount}\n")
            (directory / "cpu.cfs_period_us").write_text(f"{period}\n")

    def quota(self) -> float:
        return cpus.read_quota(str(self.proc), str(self.mounted))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_without_any_of_it(machine: Machine, tmp_path: Path) -> None:
    assert machine.quota() == math.inf
    assert cpus.read_quota(str(tmp_path / "no such directory")) == math.inf
    (machine.proc / "cgroup").write_text("")
    assert machine.quota() == math.inf


@pytest.mark.parametrize(
    ("text", "cpus_"),
    [
        ("200000 100000", 2.0),
        ("150000 100000", 1.5),
        ("5000 10000", 0.5),
        ("max 100000", math.inf),
        ("", math.inf),
        ("x y", math.inf),
    ],
)
def test_version_2(text: str, cpus_: float, machine: Machine) -> None:
    machine.group("system.slice/job.scope", text)
    (machine.proc / "cgroup").write_text("0::/system.slice/job.scope\n")
    assert machine.quota() == cpus_


@pytest.mark.parametrize(
    ("text", "cpus_"), [("300000 100000", 3.0), ("-1 100000", math.inf), ("50000 100000", 0.5)]
)
def test_version_1(text: str, cpus_: float, machine: Machine) -> None:
    machine.group("slurm/job_7", text, version=1)
    (machine.proc / "cgroup").write_text(
        "9:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/init.scope\n"
    )
    assert machine.quota() == cpus_


@given(st.lists(st.one_of(st.none(), st.integers(1, 64)), min_size=1, max_size=5), st.sampled_from([1, 2]))
def test_the_smallest_on_the_path_counts(
    tmp_path_factory: pytest.TempPathFactory, quotas: list[int | None], version: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    for depth, n in enumerate(quotas):
        text = f"{'max' if version == 2 else -1} 100000" if n is None else f"{n * 100000} 100000"
        machine.group("/".join(f"g{i}" for i in range(depth)), text, version)
    path = "/" + "/".join(f"g{i}" for i in range(len(quotas) - 1))
    (machine.proc / "cgroup").write_text(f"0::{path}\n" if version == 2 else f"4:cpu:{path}\n")
    assert machine.quota() == min((n for n in quotas if n is not None), default=math.inf)


def test_containers(machine: Machine) -> None:
    """With a namespace of its own the path is / ; without one the mount begins at the container's group."""
    machine.group("/", "400000 100000")
    for path in ("/", "/../../kubepods/pod7"):  # started from outside the namespace
        (machine.proc / "cgroup").write_text(f"0::{path}\n")
        assert machine.quota() == 4.0
    machine.group("/", "100000 100000", version=1)
    (machine.proc / "cgroup").write_text("4:cpu,cpuacct:/docker/4f2a\n0::/\n")
    assert machine.quota() == 1.0


@pytest.mark.parametrize(("paid", "jobs"), [(0.5, 1), (1.0, 1), (1.5, 2), (2.0, 2), (math.inf, 7), (64.0, 7)])
def test_the_default_of_jobs(paid: float, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "read_quota", lambda: paid)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    cpus.usable.cache_clear()
    try:
        assert default_jobs() == jobs
    finally:
        cpus.usable.cache_clear()


def test_this_machine_has_a_cpu() -> None:
    assert cpus.read_quota() > 0 and cpus.usable() >= 1
