"""``ckpt verify --scheduler``: the answer is that of one machine, whoever reads; workers die, engines go,
file systems are not mounted.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dask_cluster import MIB, Cluster, Threads, alone, big, mpirun, without_time
from own_plugins import install, saved
from places import FIXTURES, ROOT
from run_helpers import CLEAN, flip, megatron

from ckpt_tools import Level, api, guard
from ckpt_tools.errors import CannotLook
from ckpt_tools.output import json as emit
from ckpt_tools.reading import engines, scheduler
from ckpt_tools.reading.engines import Engine

ROOTS = [*sorted((FIXTURES / "formats").iterdir()), *sorted((FIXTURES / "layouts").glob("*/*/tree"))]
KEYS = sorted(FIXTURES.glob("formats/mindspore_encrypted/*.key"))


def asked(
    root: Path, level: Level = Level.CONTENT, before: Callable[[Any], object] = lambda _: None, **more: Any
) -> str:
    with Threads(before) as threads:
        return alike(root, level, engine=Engine(threads, "threads"), **more)


def alike(root: Path, level: Level = Level.CONTENT, **more: Any) -> str:
    return without_time(emit.render(api.verify([str(root)], level, **more)))


# ---- the same answer


@pytest.mark.share(48)
@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.relative_to(FIXTURES).as_posix())
def test_every_fixture_has_the_same_report(root: Path) -> None:
    """Good and damaged ones of every format and layout."""
    assert asked(root) == alike(root)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed tree of several kinds, of which a file has a flipped bit, one is lost and one is new."""
    root = tmp_path_factory.mktemp("sealed")
    for name in ("torch_zip", "safetensors", "json_member", "npz"):
        shutil.copytree(FIXTURES / "formats" / name / "good", root / name)
    big(root / "torch_zip/big.pt", 1)
    run = megatron(root / "run")
    assert guard.seal(root, digest="sha256", tensors=True).count("sealed") > 4
    assert guard.seal(run / "iter_0000020", again=True, tensors=True).count("sealed") == 1
    first, last = sorted((run / "iter_0000020").rglob("*.pt"))
    for path in (root / "torch_zip/big.pt", first):
        flip(path, path.stat().st_size // 2)
    (run / "iter_0000020/new.pt").write_bytes(b"new")
    last.unlink()
    return root


def test_seals_are_compared_by_workers(sealed: Path) -> None:
    """What seals say of a file goes with it, and leads to the same findings, to the tensors that are hit."""
    text = asked(sealed)
    assert text == alike(sealed)
    assert "seal-mismatch" in text and "tensors hit" in text and "seal-extra" in text


@pytest.mark.share(3)
@pytest.mark.parametrize("level", [Level.PRESENCE, Level.STRUCTURE, Level.VALUES])
@pytest.mark.parametrize("name", ["torch_zip", "dcp", "tf_bundle", "mindspore_ckpt"])
def test_other_levels(name: str, level: Level) -> None:
    assert asked(FIXTURES / "formats" / name, level) == alike(FIXTURES / "formats" / name, level)


def test_with_a_cache_the_second_run_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "run").mkdir()
    file = big(tmp_path / "run/model.pt", 1)
    os.utime(file, (1_700_000_000, 1_700_000_000))
    time.sleep(0.15)  # a file changed just before it is read is not kept
    sent = []
    for _ in range(2):
        with Threads() as threads:
            engine = Engine(threads, "threads")
            result = api.verify([str(file.parent)], engine=engine, cache=True, max_age=1000.0).summary
        sent.append((len(threads.sent), result.bytes_read > file.stat().st_size // 2, result.ok))
    assert sent == [(1, True, 1), (0, False, 1)]


# ---- what is sent


@pytest.mark.parametrize(
    ("name", "suffix"), [("dcp", ".distcp"), ("tf_bundle", ".data-00000-of-00001"), ("ocdbt", "")]
)
def test_files_that_an_index_explains_are_looked_at_by_workers_too(name: str, suffix: str) -> None:
    """What the index says of them goes with them; what adds up over files is looked at here."""
    looks: dict[str, int] = {}

    def note(files: Any) -> None:
        told = [pickle.loads(data) for data in files]
        looks.update({path: len(how["claims"]) for path, how in told})

    asked(FIXTURES / "formats" / name / "good", before=note)
    assert sum(claims > 0 and path.endswith(suffix) for path, claims in looks.items()) > 1
    looks.clear()
    asked(FIXTURES / "formats" / "safetensors_index" / "good", before=note)
    assert looks and not any(looks.values())


@pytest.mark.parametrize("key", KEYS, ids=lambda p: p.name)
def test_a_key_is_never_sent(tmp_path: Path, key: Path) -> None:
    file = next(p for p in (key.parent / "good").iterdir() if p.name == key.name.removesuffix(".key"))
    (tmp_path / "key").write_bytes(key.read_bytes())
    (key := tmp_path / "key").chmod(0o600)
    with Threads() as threads:
        result = api.verify([str(file)], engine=Engine(threads, "threads"), key_file=str(key))
    assert without_time(emit.render(result)) == alike(file, key_file=str(key))
    assert result.verdict.value in ("ok", "suspect")
    assert not any(key.read_bytes() in data for data in threads.sent)


# ---- files that change, and machines that see others


def codes(text: str) -> tuple[str, list[str]]:
    file = json.loads(text.replace(", , ", ", "))["files"][0]
    return file["verdict"], [f["code"] for f in file["findings"]]


def test_gone_for_everybody_is_said_as_from_here(tmp_path: Path) -> None:
    file = big(tmp_path / "model.pt", 1)
    text = asked(tmp_path, before=lambda _: file.unlink(missing_ok=True))
    assert codes(text) == ("unknown", ["in-use"]) and "was removed while it was read" in text


def test_the_worker_sees_another_file_of_this_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word is not taken: the file is read here."""
    file, inspect = big(tmp_path / "model.pt", 4), scheduler.inspect
    shutil.copyfile(file, older := tmp_path.parent / "older.pt")
    flip(file, 2 * MIB)
    here = alike(tmp_path)
    worker = lambda path: older if threading.current_thread() is not threading.main_thread() else path  # noqa: E731
    monkeypatch.setattr(scheduler, "inspect", lambda path, *a, **more: inspect(str(worker(path)), *a, **more))
    notes = list[str]()
    assert asked(tmp_path, note=notes.append) == here and codes(here)[1] == ["crc-mismatch"]
    assert len(notes) == 1 and f"on {os.uname().nodename} could not read {file}, or has another" in notes[0]


def test_other_versions_do_not_work_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big(tmp_path / "model.pt", 1)
    ours, main = scheduler.tool_version(), threading.main_thread()
    told = {True: ours, False: "0.0.9"}
    monkeypatch.setattr(scheduler, "tool_version", lambda: told[threading.current_thread() is main])
    with pytest.raises(CannotLook, match=r"has ckpt-tools 0\.0\.9"):
        asked(tmp_path)


def test_a_defect_of_ours_ends_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big(tmp_path / "model.pt", 1)
    monkeypatch.setattr(scheduler, "inspect", lambda *_, **__: [].pop())
    with pytest.raises(CannotLook, match="IndexError"):
        asked(tmp_path)


# ---- Dask


@pytest.mark.exhaustive
def test_dask_gives_the_same_bytes(sealed: Path, tmp_path: Path) -> None:
    """Real processes over files of every format; both workers read. Over all trees threads do the same above."""
    with closing(Cluster(tmp_path)) as cluster:
        for root in (FIXTURES / "formats", sealed):
            words = ("verify", str(root), "--json", "--quiet", "--no-cache")
            same(alone(*words, cache=str(tmp_path)), cluster.run(*words))
        assert len([pid for pid, reads in cluster.reads().items() if reads]) == 2


def same(here: tuple[int, str, str], there: tuple[int, str, str]) -> None:
    assert (there[0], without_time(there[1])) == (here[0], without_time(here[1])), there[2]


def test_several_workers_read_and_one_killed_in_the_middle_is_replaced(tmp_path: Path) -> None:
    with closing(Cluster(tmp_path, READ_RATE="30e6")) as cluster:
        (tmp_path / "run").mkdir()
        files = [big(tmp_path / f"run/model_{i}.pt", 24) for i in range(2)]
        words = ("verify", str(tmp_path / "run"), "--json", "--quiet", "--no-cache")
        here, there = alone(*words, cache=str(tmp_path)), cluster.run(*words, batch=8 * MIB)
        same(here, there)
        shares = [sum(n for _, _, n in reads) for reads in cluster.reads().values()]
        size = sum(file.stat().st_size for file in files)
        # every byte once
        assert len(shares) == 2 and min(shares) > size // 4 and abs(size - sum(shares)) < MIB

        flip(files[0], 20 * MIB)
        cluster.forget_reads()
        here = alone(*words, cache=str(tmp_path))
        process = cluster.begin(*words, batch=8 * MIB)
        cluster.until(lambda: all(len(r) > 3 for r in cluster.reads().values()) and len(cluster.reads()) == 2)
        victim = cluster.workers[0]
        victim.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=1000)
        reads = cluster.reads()
        assert 0 < sum(n for _, _, n in reads[victim.pid]) < size // 2, "it was not in the middle"
        assert here[0] == 1 and '"crc-mismatch"' in out
        same(here, (process.returncode, out, err))
        # it had begun what the other then read from the start: only the answer counts it once
        read = sum(n for r in reads.values() for _, _, n in r)
        assert read > json.loads(out)["summary"]["bytes_read"] - MIB


@pytest.mark.exhaustive
def test_a_file_that_kills_its_readers_and_one_that_they_do_not_see(tmp_path: Path) -> None:
    """This machine reads both, and neither stops the others."""
    failing = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with closing(Cluster(tmp_path, workers=5, **failing)) as cluster:
        for name in ("good", "poison", "elsewhere"):
            (tmp_path / "run" / name).mkdir(parents=True)
            big(tmp_path / "run" / name / "model.pt", 3)  # larger than what is read at once
        roots = (str(tmp_path / "run" / name) for name in ("poison", "elsewhere"))
        code, out, err = cluster.run("verify", *roots, "--json", "--no-cache")
        assert code == 0 and json.loads(out)["summary"]["ok"] == 2, err + out
        assert "elsewhere/model.pt, or has another file there: it is read here" in err
        assert 0 < sum(w.poll() is None for w in cluster.workers) < 5
        code, out, err = cluster.run("verify", str(tmp_path / "run/good"), "--json", "--no-cache")
        assert code == 0, err


@pytest.mark.exhaustive
def test_a_scheduler_that_goes_away_is_exit_5(tmp_path: Path) -> None:
    with closing(Cluster(tmp_path, READ_RATE="5e6")) as cluster:
        (tmp_path / "run").mkdir()
        for name in ("a", "b"):
            big(tmp_path / f"run/{name}.pt", 48)
        words = ("verify", str(tmp_path / "run"), "--json", "--no-cache")
        process = cluster.begin(*words)
        cluster.until(lambda: len(cluster.reads()) == 2)
        cluster.scheduler.kill()
        out, err = process.communicate(timeout=1000)
        assert process.returncode == 5 and "is gone" in err and "without --scheduler" in err
        assert json.loads(out)["error"]["exit_code"] == 5
        code, _, err = cluster.run(*words)
        assert code == 5 and "no Dask scheduler answers" in err


@pytest.mark.exhaustive
def test_without_workers_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    with closing(Cluster(tmp_path, workers=0)) as cluster:
        big(tmp_path / "model.pt", 1)
        code, _, err = cluster.run("verify", str(tmp_path / "model.pt"), "--no-cache", grace=1.0)
        assert code == 5 and "has had no worker" in err and "start workers" in err


@pytest.mark.exhaustive
def test_workers_of_dask_have_the_same_plugins_or_none(tmp_path: Path) -> None:
    place = install(tmp_path / "site")
    with closing(Cluster(tmp_path, workers=1, PYTHONPATH=f"{place}:{ROOT}")) as cluster:
        run = saved(tmp_path / "run")
        code, out, err = cluster.run("verify", str(run), "--json", "--no-cache")
        assert code == 0, err
        assert {(f["format"], f["verdict"]) for f in json.loads(out)["files"]} == {("own", "ok")}
        assert any(cluster.reads().values())
        other = str(megatron(tmp_path / "other"))
        assert cluster.run("verify", other, "--no-cache")[0] == 0
        code, _, err = cluster.run("verify", other, "--no-cache", "--no-plugins")
        assert code == 5
        assert "with own-parts 1.0, this is" in err


# ---- MPI


@pytest.mark.exhaustive
def test_mpi_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    big(tmp_path / "run/good.pt", 16)
    roots = {FIXTURES / "formats/torch_zip": 1, FIXTURES / "layouts/dcp": 0, tmp_path / "run": 0}
    for root, code in roots.items():
        words = ("verify", str(root), "--json", "--quiet", "--no-cache")
        here, there = alone(*words, cache=str(tmp_path)), mpirun(*words, tmp=tmp_path)
        assert here[0] == code
        same(here, (there.returncode, there.stdout, there.stderr))


def test_mpi_compares_seals(sealed: Path, tmp_path: Path) -> None:
    words = ("verify", str(sealed), "--json", "--quiet", "--no-cache")
    here, there = alone(*words, cache=str(tmp_path)), mpirun(*words, tmp=tmp_path)
    assert here[0] == 1 and "tensors hit" in here[1]
    same(here, (there.returncode, there.stdout, there.stderr))


def test_mpi_outside_mpirun_says_how() -> None:
    code, _, err = alone("verify", str(FIXTURES), "--scheduler", "mpi", cache="/nowhere")
    assert code == 2 and "mpirun -n 4 python -P -m mpi4py.futures -m ckpt_tools" in err


# ---- what is not there


def python(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**CLEAN, "PYTHONPATH": str(FIXTURES.parent)}
    line = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=1000)


@pytest.mark.parametrize(
    ("name", "scheduler", "extra"), [("distributed", "tcp://127.0.0.1:1", "dask"), ("mpi4py", "mpi", "mpi")]
)
def test_a_missing_package_is_named(name: str, scheduler: str, extra: str) -> None:
    script = f"import sys; sys.modules[{name!r}] = None; from ckpt_tools.cli import main; main()"
    done = python(script, "verify", FIXTURES, "--scheduler", scheduler)
    assert done.returncode == 2 and f"pip install 'ckpt-tools[{extra}]'" in done.stderr


@pytest.mark.parametrize("scheduler", ["nonsense", "tcp://", "file:{tmp}/none.json", "file:{tmp}/bad.json"])
def test_a_wrong_scheduler_is_said_so(scheduler: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    words = ("verify", str(FIXTURES), "--scheduler", scheduler.format(tmp=tmp_path))
    code, _, err = alone(*words, cache=str(tmp_path))
    assert code == (5 if "none" in scheduler else 2) and "hint:" in err and "Traceback" not in err


@pytest.mark.exhaustive
def test_threads_are_the_default_and_load_nothing() -> None:
    script = (
        "import sys; from ckpt_tools.cli import execute; execute(['verify', sys.argv[1], '-q', *sys.argv[2:]])\n"
        "print([m for m in sys.modules if m in ('distributed', 'dask', 'mpi4py')], file=sys.stderr)"
    )
    for more in ((), ("--scheduler", "threads")):
        done = python(script, FIXTURES / "layouts/dcp", *more)
        assert done.stderr.endswith("[]\n"), done.stderr


def test_the_setting_may_come_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    from ckpt_tools.settings import resolve

    (tmp_path / "ckpt.toml").write_text('scheduler = "file:cluster.json"\n')
    in_file, in_env = f"file:{tmp_path}/cluster.json", "tcp://10.0.0.1:8786"
    for env, said in (({}, in_file), ({"CKPT_SCHEDULER": in_env}, in_env)):
        found = resolve.resolve({"scheduler": None}, env=env, cwd=str(tmp_path))
        assert found.values["scheduler"] == said
    with engines.engine("threads") as none:
        assert none is None
