"""``ckpt seal --scheduler``: the seal is that of one machine, whoever reads, and what nobody saw whole has none."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dask_cluster import Cluster, alone
from places import FIXTURES
from run_helpers import megatron
from scheduled import MIB, Threads, big, flip, mpirun

from ckpt_tools import api, guard
from ckpt_tools.errors import UsageError
from ckpt_tools.formats.seals.names import NAME
from ckpt_tools.guard import sealing
from ckpt_tools.inspection.digest_pass import DigestPass
from ckpt_tools.model.seal import Sealing
from ckpt_tools.reading.engines import Engine

ROOTS = [*sorted((FIXTURES / "formats").iterdir()), *sorted((FIXTURES / "layouts").glob("*/*/tree"))]


def by_threads(root: Path, before: Callable[[Any], object] = lambda _: None, **more: Any) -> Sealing:
    with Threads(before) as threads:
        return guard.seal(root, engine=Engine(threads, "threads"), **more)


def facts(done: Sealing) -> list[tuple[object, ...]]:
    return [(x.path, x.state, x.label, x.files, x.size, x.findings) for x in done.checkpoints]


def seals_below(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.share(48)
@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.relative_to(FIXTURES).as_posix())
def test_every_fixture_has_the_same_seals(root: Path, tmp_path: Path) -> None:
    """Good and damaged ones of every format and layout."""
    here = guard.seal(root, seal_dir=str(tmp_path / "here"))
    there = by_threads(root, seal_dir=str(tmp_path / "there"))
    assert facts(there) == facts(here)
    assert seals_below(tmp_path / "there") == seals_below(tmp_path / "here")


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "more",
    [{}, {"digest": "sha256"}, {"also": ["md5", "sha512"]}, {"tensors": True}],
    ids=["xxh3", "sha256", "also", "tensors"],
)
def test_every_digest_is_the_same(more: dict[str, Any], tmp_path: Path) -> None:
    """A file of more than one chunk, of records that are CRC-protected, and one of no format."""
    home = tmp_path / "run/step_3"
    home.mkdir(parents=True)
    big(home / "model.pt", 72)
    (home / "words.txt").write_bytes(os.urandom(3 * MIB + 1))
    here = guard.seal(tmp_path / "run", seal_dir=str(tmp_path / "here"), **more)
    there = by_threads(tmp_path / "run", seal_dir=str(tmp_path / "there"), **more)
    assert facts(there) == facts(here) and here.count("sealed")
    assert seals_below(tmp_path / "there") == seals_below(tmp_path / "here")


def test_bytes_are_read_once_and_by_workers(tmp_path: Path) -> None:
    file = big(tmp_path / "model.pt", 4)
    done = by_threads(file)
    assert done.count("sealed") == 1
    size = file.stat().st_size
    assert size <= done.bytes_read < size + MIB
    again = by_threads(file)  # sealed already: it is held to its seal
    assert again.count("already") == 1 and size <= again.bytes_read < size + MIB


# ---- what must not be sealed


def refused(done: Sealing, root: Path, state: str) -> None:
    assert {x.state for x in done.checkpoints} == {state}, done
    assert not [p for p in root.rglob("*") if "ckpt-seal" in p.name]


@pytest.mark.parametrize(
    "how",
    [
        lambda path: os.truncate(path, path.stat().st_size - 100),
        lambda path: path.unlink(missing_ok=True),
        lambda path: flip(path, 2 * MIB),
    ],
    ids=["cut", "gone", "written"],
)
def test_what_changes_while_workers_read_it(how: Callable[[Path], object], tmp_path: Path) -> None:
    file, left = big(tmp_path / "model.pt", 4), [how]

    def before(files: Any) -> None:
        if left and files[0][0] == "seal":
            left.pop()(file)

    done = by_threads(tmp_path, before)
    assert not left
    refused(done, tmp_path, "in-use")


def test_a_file_of_the_checkpoint_that_changes_when_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the workers are still at another one."""
    home = megatron(tmp_path / "run", steps=(10,)) / "iter_0000010"
    first = min(home.rglob("*.pt"))
    real = sealing.Digesting.answered

    def answered(self: Any, request: Any, *more: Any) -> Any:
        out = real(self, request, *more)
        if request.path == str(first):
            flip(first, 1000)
        return out

    monkeypatch.setattr(sealing.Digesting, "answered", answered)
    refused(by_threads(home), home, "in-use")


@pytest.mark.parametrize("time", ["mtime", "ctime"])
def test_a_worker_that_sees_another_file_of_this_name(
    time: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that its machine has at the same place, of the same size and even the same time of its write."""
    file = big(tmp_path / "run/model.pt", 4) if (tmp_path / "run").mkdir() is None else Path()
    copy = tmp_path / "elsewhere.pt"
    (shutil.copy2 if time == "ctime" else shutil.copyfile)(file, copy)
    flip(copy, 2 * MIB)
    if time == "ctime":
        shutil.copystat(file, copy)
    real = DigestPass.read
    monkeypatch.setattr(DigestPass, "read", lambda self, path, **more: real(self, str(copy), **more))
    done = by_threads(tmp_path / "run")
    refused(done, tmp_path / "run", "unreadable")
    assert "there is another file of this name" in done.checkpoints[0].findings[0].message


def test_a_worker_that_does_not_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big(tmp_path / "model.pt", 1)

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, os.strerror(2))

    monkeypatch.setattr(DigestPass, "read", missing)
    done = by_threads(tmp_path)
    refused(done, tmp_path, "unreadable")
    assert "while this machine can open it" in done.checkpoints[0].findings[0].message


def test_a_rank_seals_by_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="by itself"):
        by_threads(tmp_path, rank=0, world_size=1)


# ---- Dask, MPI


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("dask"))
    yield made
    made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Checkpoints of several kinds, one of them broken."""
    root = tmp_path / "tree"
    for name in ("torch_zip", "safetensors", "json_member", "npz"):
        shutil.copytree(FIXTURES / "formats" / name / "good", root / name)
    big(root / "torch_zip/big.pt", 4)
    (root / "broken").mkdir()
    flip(big(root / "broken/model.pt", 1), MIB // 2)
    megatron(root / "run")
    return root


def states(text: str) -> list[tuple[str, str]]:
    return [(x["path"], x["state"]) for x in json.loads(text)["checkpoints"]]


@pytest.mark.exhaustive
def test_dask_makes_the_same_seals(cluster: Cluster, tree: Path, tmp_path: Path) -> None:
    words = ("seal", str(tree), "--json", "--quiet", "--tensors")
    here = alone(*words, "--seal-dir", str(tmp_path / "here"), cache=str(tmp_path))
    assert here[0] == 1 and "sealed" in here[1]
    away = tmp_path / "there"
    code, out, err = cluster.run(*words, "--seal-dir", str(away))
    assert (code, states(out)) == (1, states(here[1])), err
    assert seals_below(away) == seals_below(tmp_path / "here")
    assert len([pid for pid, reads in cluster.reads().items() if reads]) == 2


@pytest.mark.exhaustive
def test_mpi_makes_the_same_seals(tree: Path, tmp_path: Path) -> None:
    words = ("seal", str(tree), "--json", "--quiet")
    here = alone(*words, "--seal-dir", str(tmp_path / "here"), cache=str(tmp_path))
    there = mpirun(*words, "--seal-dir", str(tmp_path / "there"), tmp=tmp_path)
    assert (there.returncode, states(there.stdout)) == (1, states(here[1])), there.stderr
    assert seals_below(tmp_path / "there") == seals_below(tmp_path / "here")


@pytest.mark.exhaustive
def test_a_worker_killed_in_the_middle_and_one_file_that_kills_them_all(tmp_path: Path) -> None:
    """What another worker reads again is sealed; what nobody survives is not, and is exit 5."""
    cluster = Cluster(tmp_path, 5, READ_RATE="30e6", DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1")
    try:
        for name in ("good", "poison", "elsewhere"):
            (tmp_path / "run" / name).mkdir(parents=True)
        file = big(tmp_path / "run/good/model.pt", 80)
        big(tmp_path / "run/good/other.pt", 80)
        process = cluster.begin("seal", str(tmp_path / "run/good"), "--json", batch=8 * MIB)
        cluster.until(lambda: sum(len(r) > 3 for r in cluster.reads().values()) > 1)
        victim = next(w for w in cluster.workers if len(cluster.reads().get(w.pid, ())) > 3)
        victim.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=1000)
        assert process.returncode == 0 and states(out)[0][1] == "sealed", err
        assert api.verify([file], require_seal=True).verdict.value == "ok"

        for name in ("poison", "elsewhere"):
            big(tmp_path / "run" / name / "model.pt", 3)
        words = "seal", str(tmp_path / "run/poison"), str(tmp_path / "run/elsewhere"), "--json"
        code, out, err = cluster.run(*words)
        assert code == 5, err + out
        assert [state for _, state in states(out)] == ["unreadable", "unreadable"]
        assert "every worker that read it died" in out and "No such file or directory on" in out
        assert not list((tmp_path / "run/poison").glob(".*")) + list((tmp_path / "run/elsewhere").glob(".*"))
    finally:
        cluster.close()


@pytest.mark.exhaustive
def test_a_scheduler_that_goes_away_seals_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, READ_RATE="5e6")
    try:
        (tmp_path / "run").mkdir()
        names = [big(tmp_path / f"run/{name}.pt", 80).name for name in ("a", "b")]
        process = cluster.begin("seal", str(tmp_path / "run"), "--json", batch=8 * MIB)
        cluster.until(lambda: len(cluster.reads()) == 2)
        cluster.scheduler.kill()
        out, err = process.communicate(timeout=1000)
        assert process.returncode == 5 and "is gone" in err, out
        assert [p.name for p in (tmp_path / "run").iterdir()] == names
    finally:
        cluster.close()


def test_merging_asks_no_scheduler(tmp_path: Path) -> None:
    home = megatron(tmp_path / "run", steps=(10,)) / "iter_0000010"
    guard.seal(home, rank=0, world_size=1)
    words = "seal", str(home), "--merge", "--scheduler", "tcp://127.0.0.1:1"
    assert alone(*words, cache=str(tmp_path))[0] == 0 and (home / NAME).exists()
