"""Checkpoints of a store brought to a local disk: whole and verified, or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import executed
from kill_points import Commands
from msgspec.structs import replace
from run_helpers import CKPT, CLEAN, SAY, broken_body, ckpt, megatron, torchrun_env
from small_files import deepspeed_model, deepspeed_zero
from stores.asking import variables
from stores.bucket import Bucket
from stores.calls import Counted, contents
from stores.faults import Corrupt, Cut, Short
from stores.proxy import Fault, Proxy, Rule
from stores.s3 import of_s3

from ckpt_tools import api
from ckpt_tools.errors import CannotLook
from ckpt_tools.job.decision import StagedFile
from ckpt_tools.job.staging.fetching import Fetch
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.source import CHUNK
from ckpt_tools.storage.stores.tree import Tree

BODY = "model_optim_rng"
NEWEST = "iter_0000020"
ORDER = ("--order", "step", "--no-cache")  # all objects are uploaded in one second
NOTE = ".ckpt-stage.json"
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return megatron(tmp_path / "run")


@pytest.fixture
def uploaded(s3: Bucket, run: Path) -> Bucket:
    s3.upload(run, "run")
    return s3


@pytest.fixture
def through(uploaded: Bucket, proxy: Proxy) -> Bucket:
    return uploaded.through(proxy.endpoint)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


def stage(bucket: Bucket, home: Path, *words: object) -> Done:
    return ckpt("stage", f"{bucket.url}/run", home, *ORDER, *words, env=of_s3(bucket))


def start(bucket: Bucket, home: Path | str, *words: object, cwd: Path | None = None) -> Done:
    """A job that prints its words and variables."""
    ours = ("run", f"{bucket.url}/run", *ORDER, "--stage", home, *words)
    return ckpt(*ours, "--", *SAY, "{ckpt.path}", "{ckpt.args}", env=of_s3(bucket), cwd=cwd)


def told(done: Done) -> dict[str, str]:
    """The variables that the job sees; its words name the copies too."""
    assert done.returncode == 0, done.stderr
    words, variables = json.loads(done.stdout)
    assert words == f"{variables['CKPT_PATH']} {variables['CKPT_ARGS']}".split()
    return dict(variables)


def answer(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def staged(bucket: Bucket, home: Path, *words: object) -> dict[str, Any]:
    return answer(stage(bucket, home, "--json", *words))


def only(home: Path) -> Path:
    """The one checkpoint that is staged; nothing else may look like one."""
    (found,) = [p for p in home.iterdir() if p.name != ".ckpt-stage"]
    assert (found / NOTE).is_file()
    return found


def files_of(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(directory).items() if NOTE not in name}


def asked_for(proxy: Proxy, path: str) -> int:
    """How often a part of a file was."""
    return sum(s.method == "GET" and path in s.path for s in proxy.seen)


def newest_of(run: Path) -> dict[str, bytes]:
    """What a staged copy of the newest checkpoint holds."""
    own = {name: data for name, data in files_of(run).items() if not name.startswith("iter_0000010")}
    return {**own, "latest_checkpointed_iteration.txt": b"20"}


# -- what a job gets -----------------------------------------------------------------------------------------


def test_a_job_starts_by_copies(uploaded: Bucket, run: Path, home: Path) -> None:
    keys = uploaded.keys()
    seen = told(start(uploaded, home))
    copy = only(home)
    assert (seen["CKPT_PATH"], seen["CKPT_ARGS"]) == (str(copy), f"--load {copy} --ckpt-step 20")
    assert files_of(copy) == newest_of(run)
    assert uploaded.keys() == keys
    decision = json.loads(Path(seen["CKPT_PLAN"]).read_text())
    rows = {row["url"]: row for row in decision["stage"]["files"]}
    assert set(rows) == {f["path"] for r in decision["ranks"] for f in r["files"]}
    assert all(row["etag"] and row["path"].startswith(f"{copy}/") for row in rows.values())
    assert decision["view"]["ranks"]["1"] == [f"{copy}/{NEWEST}/mp_rank_01/{BODY}.pt"]
    again = ckpt("latest", "--rank", "1", env={**of_s3(uploaded), "CKPT_PLAN": seen["CKPT_PLAN"]})
    assert again.stdout == f"{copy}/{NEWEST}/mp_rank_01/{BODY}.pt\n"


@pytest.mark.share(3)
@pytest.mark.parametrize("bucket", ["rclone_s3", "azurite", "gcs"], indirect=True)
def test_every_store_is_brought_whole(bucket: Bucket, run: Path, home: Path) -> None:
    bucket.upload(run, "run")
    line = ("stage", f"{bucket.url}/run", home, *ORDER, "--json")
    first = answer(ckpt(*line, env=variables(bucket)))
    assert {row["level"] for row in first["files"]} == {"content"}
    assert files_of(only(home)) == newest_of(run)
    shutil.rmtree(only(home) / NEWEST / "mp_rank_01")
    assert answer(ckpt(*line, env=variables(bucket)))["fetched"]["files"] == 1
    assert files_of(only(home)) == newest_of(run)


def test_each_byte_comes_once(through: Bucket, proxy: Proxy, home: Path) -> None:
    """The bodies are verified on their way: what is planned first is their structure alone. What is there is not
    fetched again.
    """
    copied = staged(through, home)
    assert {row["level"] for row in copied["files"]} == {"content"} and copied["fetched"]["files"] == 2
    # its end and its beginning for the plan, then all of it
    assert asked_for(proxy, f"{NEWEST}/mp_rank_00") <= 3
    inode = (only(home) / NEWEST / f"mp_rank_00/{BODY}.pt").stat().st_ino
    assert staged(through, home)["fetched"] == {"files": 0, "bytes": 0}
    assert (only(home) / NEWEST / f"mp_rank_00/{BODY}.pt").stat().st_ino == inode


def test_the_hook_tells_a_script_the_same(uploaded: Bucket, home: Path) -> None:
    """The job that it starts reads its copies; what is gone from them stops it."""
    assert "CKPT_STEP=20 " in (said := stage(uploaded, home, "--format", "shell").stdout)
    assert f"CKPT_PATH={only(home)} " in said
    line, env = ("hook", f"{uploaded.url}/run", *ORDER, "--stage", home), of_s3(uploaded)
    hooked = answer(ckpt(*line, "--json", env=env))["env"]
    seen = told(start(uploaded, home))
    assert all(hooked[k] == seen[k] for k in ("CKPT_PATH", "CKPT_ARGS", "CKPT_STEP"))
    assert hooked["CKPT_PATH"] == str(only(home))
    env["CKPT_PLAN"] = hooked["CKPT_PLAN"]
    asked = ("latest", "--rank", "1")
    assert ckpt(*asked, env=env).stdout == f"{only(home)}/{NEWEST}/mp_rank_01/{BODY}.pt\n"
    shutil.rmtree(only(home))
    assert ckpt(*asked, env=env).returncode == 5
    assert ckpt("hook", "--read", "--rank", "1", env=env).returncode == 5


def test_a_relative_directory_is_below_the_current_one(uploaded: Bucket, tmp_path: Path) -> None:
    seen = told(start(uploaded, "ssd", cwd=tmp_path))
    assert seen["CKPT_PATH"] == str(only(tmp_path / "ssd"))


def test_a_first_launch_stages_nothing(s3: Bucket, home: Path) -> None:
    s3.put("run/readme.txt", b"hello")
    seen = told(start(s3, home, "--allow=none"))
    assert (seen["CKPT_RESUME"], seen["CKPT_PATH"]) == ("0", "")
    assert not home.exists()
    assert staged(s3, home, "--allow=none")["checkpoint"] is None
    assert stage(s3, home).returncode == 3


# -- ranks of this node --------------------------------------------------------------------------------------


def test_a_node_stages_what_its_ranks_load(s3: Bucket, tmp_path: Path, home: Path) -> None:
    """Rank 0's file is asked for by every rank of Megatron-LM."""
    s3.upload(megatron(tmp_path / "run", world=4), "run")
    first = staged(s3, home, "--ranks", "2")
    assert [Path(row["path"]).parent.name for row in first["files"]] == ["mp_rank_00", "mp_rank_02"]
    assert [row["rank"] for row in first["ranks"]] == [0, 2]
    more = staged(s3, home, "--ranks", "2-3")
    assert (more["fetched"]["files"], more["directory"]) == (1, first["directory"])
    assert len(staged(s3, home)["files"]) == 4


def test_a_layout_whose_ranks_look_for_all_files_is_staged_whole(s3: Bucket, home: Path) -> None:
    """DeepSpeed goes on without any optimizer's state where one of its files is not there."""
    for rank in range(2):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        s3.put(f"run/global_step20/{name}", deepspeed_zero(20, 2, rank))
    s3.put("run/global_step20/mp_rank_00_model_states.pt", deepspeed_model(20, 2, 1, 0))
    s3.put("run/latest", b"global_step20")
    assert len(staged(s3, home, "--ranks", "1")["files"]) == 3
    assert (only(home) / "latest").read_bytes() == b"global_step20"


def test_workers_of_a_node_stage_once(through: Bucket, proxy: Proxy, home: Path) -> None:
    line = [*CKPT, "run", f"{through.url}/run", *ORDER, "--stage", str(home), "--worker", "--", *SAY]
    envs = [{**CLEAN, **of_s3(through), **torchrun_env(rank, 2)} for rank in range(2)]
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(line, env=env, **piped) for env in envs]
    ended = [w.communicate() for w in workers]
    assert [w.returncode for w in workers] == [0, 0], ended
    assert {json.loads(out)[1]["CKPT_PATH"] for out, _ in ended} == {str(only(home))}
    assert asked_for(proxy, f"{NEWEST}/mp_rank_01") <= 3, proxy.seen


# -- what goes wrong on the way ------------------------------------------------------------------------------


def middle_of(path: Path) -> int:
    """A byte that only a checksum covers."""
    before = path.read_bytes()
    broken_body(path.parents[2])
    after = path.read_bytes()
    path.write_bytes(before)
    return next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", [Corrupt, Cut, Short])
def test_what_is_damaged_on_the_way_comes_again(
    through: Bucket, proxy: Proxy, run: Path, home: Path, fault: Callable[[int], Fault]
) -> None:
    path, at = f"{NEWEST}/mp_rank_00", middle_of(run / NEWEST / f"mp_rank_00/{BODY}.pt")
    # the plan reads a file's structure first, in one request or two; the next one asks for its content
    staged(through, home.with_name("first"))
    reads = asked_for(proxy, path)
    proxy.clear()
    proxy.add(Rule(fault(at), "GET", path, first=reads, times=1))
    assert staged(through, home)["resume_step"] == 20
    assert files_of(only(home)) == newest_of(run)
    assert asked_for(proxy, path) > reads


def test_damage_in_the_store_is_never_a_silent_fallback(s3: Bucket, run: Path, tmp_path: Path) -> None:
    broken_body(run)
    s3.upload(run, "run")
    done = start(s3, tmp_path / "ssd")
    assert told(done)["CKPT_STEP"] == "10"
    assert "came damaged twice: crc-mismatch" in done.stderr
    assert "step 20 was skipped (" in done.stderr and NEWEST in done.stderr
    assert only(tmp_path / "ssd").name.startswith("iter_0000010-")
    stopped(start(s3, tmp_path / "ssd", "--no-fallback"), 6)
    done = stage(s3, tmp_path / "other", "--json")
    assert answer(done)["resume_step"] == 10
    assert "step 20 was skipped (" in done.stderr
    assert stage(s3, tmp_path / "other", "--no-fallback").returncode == 6


def test_nothing_starts_where_nothing_is_whole(s3: Bucket, tmp_path: Path, home: Path) -> None:
    run = megatron(tmp_path / "run", steps=(20,))
    broken_body(run)
    s3.upload(run, "run")
    assert stopped(start(s3, home), 4)


def stopped(done: Done, code: int) -> str:
    """What is said of a job that did not start."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return done.stderr


def test_what_always_comes_damaged_stops_the_start(
    through: Bucket, proxy: Proxy, run: Path, home: Path
) -> None:
    """The store's own checksum says that it has it whole."""
    path = run / NEWEST / f"mp_rank_00/{BODY}.pt"
    proxy.add(Rule(Corrupt(middle_of(path)), "GET", f"{NEWEST}/mp_rank_00"))
    assert "the store says" in stopped(start(through, home), 5)


def test_an_object_replaced_between_two_nodes_stops_the_second(uploaded: Bucket, tmp_path: Path) -> None:
    """They share one decision, by which the first may have started."""
    words = ("--nodes", "2", "--world-size", "2", "--job", "j", "--plan-dir", tmp_path / "plans")
    first = start(uploaded, tmp_path / "first", *words, "--node", "0", "--level", "structure")
    assert told(first)["CKPT_STEP"] == "20"
    uploaded.put(f"run/{NEWEST}/mp_rank_01/{BODY}.pt", b"other")
    second = start(uploaded, tmp_path / "first", *words, "--node", "1", "--level", "structure")
    assert "replaced" in stopped(second, 5)


# -- what stays, and what goes -------------------------------------------------------------------------------


def test_a_bit_that_flipped_on_the_disk(uploaded: Bucket, run: Path, home: Path) -> None:
    """Nothing but its bytes shows it: they are read again with --no-cache, which no test's clock can fake."""
    staged(uploaded, home)
    note, path = only(home) / NOTE, only(home) / NEWEST / f"mp_rank_01/{BODY}.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    rows = json.loads(note.read_text())
    (row,) = (row for row in rows["files"] if row["name"].endswith(f"mp_rank_01/{BODY}.pt"))
    row["seen"] = [(st := path.stat()).st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino]
    note.write_text(json.dumps(rows))
    words = ("stage", f"{uploaded.url}/run", home, "--order", "step", "--json")
    by_times = answer(ckpt(*words, env=of_s3(uploaded)))
    by_bytes = answer(ckpt(*words, "--no-cache", env=of_s3(uploaded)))
    assert [one["fetched"]["files"] for one in (by_times, by_bytes)] == [0, 1]
    assert files_of(only(home)) == newest_of(run)


@pytest.mark.exhaustive
def test_after_another_boot_the_bytes_are_looked_at(uploaded: Bucket, run: Path, home: Path) -> None:
    """What was not on the disk yet may be lost with the power, whatever its times say."""
    staged(uploaded, home)
    note = only(home) / NOTE
    note.write_text(re_hosted := note.read_text().replace('"boot": "', '"boot": "before-'))
    assert staged(uploaded, home)["fetched"]["files"] == 0
    assert "before-" not in note.read_text()
    note.write_text(re_hosted)
    path = only(home) / NEWEST / f"mp_rank_01/{BODY}.pt"
    st, data = path.stat(), path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert staged(uploaded, home)["fetched"]["files"] == 1
    assert files_of(only(home)) == newest_of(run)


def test_the_least_recently_used_go(uploaded: Bucket, home: Path) -> None:
    first = Path(staged(uploaded, home, "--max-step", "10")["directory"])
    staged(uploaded, home, "--keep", "2")
    assert first.exists()
    with open(home / ".ckpt-stage" / f"{first.name}.use", "rb") as used:
        fcntl.flock(used, fcntl.LOCK_SH)  # as a job that runs has it
        assert staged(uploaded, home, "--keep", "1")["removed"] == []
        assert first.exists()
    assert staged(uploaded, home, "--keep", "1")["removed"] == [first.name]
    assert only(home).name.startswith(NEWEST)


def test_the_copy_before_stays_until_the_new_one_has_come(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("stage", "local://run", "ssd", *ORDER)
    assert ckpt(*line, "--max-step", "10", cwd=tmp_path).returncode == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Fetch, "files", lambda *_: os.stat("/nowhere"))
    assert executed([*line, "--keep", "1"])[0] == 5
    assert only(tmp_path / "ssd").name.startswith("iter_0000010")


def test_a_running_job_keeps_its_copies(uploaded: Bucket, home: Path) -> None:
    line = ["run", f"{uploaded.url}/run", *ORDER, "--max-step", "10", "--stage", str(home)]
    line = [*CKPT, *line, "--", "sh", "-c", "echo started; read line"]
    piped: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    job = subprocess.Popen(line, env={**CLEAN, **of_s3(uploaded)}, **piped)
    assert job.stdout.readline() == "started\n"
    assert staged(uploaded, home, "--keep", "1")["removed"] == []
    job.communicate("go\n")
    assert len(staged(uploaded, home, "--keep", "1")["removed"]) == 1


def test_a_file_of_somebody_else_is_not_removed(uploaded: Bucket, tmp_path: Path, home: Path) -> None:
    first = Path(staged(uploaded, home, "--max-step", "10")["directory"])
    (first / "saved").symlink_to(tmp_path)
    assert staged(uploaded, home, "--keep", "1")["removed"] == []
    done = stage(uploaded, home, "--max-step", "10")
    assert done.returncode == 2
    assert "saved was not put there by ckpt" in done.stderr


@pytest.mark.share(2)
@pytest.mark.parametrize("what", ["home", "checkpoint"])
def test_a_directory_that_others_can_write_is_refused(uploaded: Bucket, home: Path, what: str) -> None:
    staged(uploaded, home)
    (home if what == "home" else only(home)).chmod(0o777)
    assert "--stage" in stopped(start(uploaded, home), 2)


def test_it_lies_on_any_file_system(uploaded: Bucket, run: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        staged(uploaded, Path(home))
        assert files_of(only(Path(home))) == newest_of(run)


def test_room_is_looked_for_before(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    monkeypatch.chdir(tmp_path)
    code, _, err = executed(["stage", "local://run", "ssd", *ORDER])
    assert code == 5 and all(words in err for words in ("are needed", "4.0 KiB free", "--keep N"))
    assert not list((tmp_path / "ssd").glob("*/*.pt"))


ASKED = (
    "--rank 1 --world-size 2 --order step --exclude logs --jobs 3 --settle 7s --tp 2 --replicas all --max-age 3h"
    " --strict --budget 5s --allow=none --allow=missing --allow=unreadable --same-save x --trust-global a.*"
    " --io direct --max-attempts 2 --prove-replicas --save-interval 10 --fault-ranks 1 --resume-from step"
    " --prefer periodic --run r --no-cache"
)


def test_it_asks_what_plan_asks(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag that the two have in common means the same; but contents are read as they are fetched."""
    asked: list[Any] = []

    def plan(root: str, selection: Any, **_: object) -> None:
        asked.append((root, selection))
        raise CannotLook("that is all")

    monkeypatch.setattr(api, "plan", plan)
    words = [*ASKED.split(), "--seal-dir", str(tmp_path), "--plan-dir", str(tmp_path), "--key-file", str(run)]
    for level in ("structure", "content", "values"):
        for line in (["plan", "local://run"], ["stage", "local://run", str(tmp_path / "ssd")]):
            assert executed([*line, *words, "--level", level])[0] == 5
        ours, theirs = asked.pop(), asked.pop()
        expected = "structure" if level == "content" else level
        assert str(ours[1].level) == expected
        assert (ours[0], replace(ours[1], level=theirs[1].level, compare_only=False)) == theirs


@pytest.mark.parametrize("words", ["--view v", "--agree --nodes 1"])
def test_what_contradicts_it_is_refused(uploaded: Bucket, home: Path, words: str) -> None:
    said = stopped(start(uploaded, home, *words.split()), 2)
    assert f"--stage and {words.split(maxsplit=1)[0]}" in said


def test_a_local_root_is_refused(run: Path, tmp_path: Path) -> None:
    for line in (("stage", run, tmp_path / "ssd"), ("run", run, "--stage", tmp_path / "ssd", "--", "true")):
        done = ckpt(*line)
        assert done.returncode == 2 and "--stage is for a ROOT in a store" in done.stderr
    assert ckpt("stage", run, "s3://bucket/there").returncode == 2


# -- killed, or out of room, anywhere ------------------------------------------------------------------------


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.chdir(tmp_path)
    process = Commands()
    yield process
    process.close()


EVERY = pytest.mark.exhaustive
STEPS = [
    pytest.param(0, 4, id="kill"),
    pytest.param(ENOSPC, 4, id="ENOSPC"),
    pytest.param(0, 1, id="kill at each call", marks=EVERY),
    pytest.param(ENOSPC, 1, id="ENOSPC at each call", marks=EVERY),
]


@pytest.mark.share(2)
@pytest.mark.parametrize(("errno", "step"), STEPS)
@pytest.mark.exhaustive
def test_stopped_anywhere_it_is_never_taken_for_whole(
    home: Path, run: Path, commands: Commands, errno: int, step: int
) -> None:
    line = ["stage", "local://run", str(home), *ORDER, "--json"]
    calls = commands.run(line, home).calls
    expected = files_of(only(home))
    assert expected == newest_of(run)
    assert len(calls) > 15
    for nth in range(1 + bool(errno) * step // 2, len(calls) + 1, step):
        shutil.rmtree(home)
        stopped = commands.run(line, home, nth, errno)
        for path in home.glob("iter_*[0-9a-f]"):  # what bears the name of a whole one is one
            assert files_of(path) == expected, calls[nth - 1]
        assert stopped.code in ((-9,) if not errno else (0, 5)), (calls[nth - 1], stopped)
        again = commands.run(line, home)
        assert again.code == 0, (calls[nth - 1], again.err)
        assert files_of(only(home)) == expected, calls[nth - 1]


def test_what_came_before_it_was_killed_is_not_fetched_again(
    home: Path, run: Path, commands: Commands
) -> None:
    line = ["stage", "local://run", str(home), *ORDER, "--json"]
    calls = commands.run(line, home).calls
    shutil.rmtree(home)
    opens = (i for i, call in enumerate(calls, 1) if call.startswith("open") and NOTE in call)
    note = max(i for i in opens if ".tmp" in calls[i - 1])
    assert commands.run(line, home, note).code == -9
    (part,) = home.glob(".ckpt-stage/*.part")
    other = commands.run(["stage", "local://run", str(home), *ORDER, "--max-step", "10", "--keep", "1"], home)
    assert (other.code, part.exists()) == (0, False), other.err
    assert commands.run(line, home, note).code == -9
    assert commands.run(line, home).body["fetched"]["files"] == 0


# -- a large file comes in ranges, into a file of its own until it is whole: what was whole when a process was killed is
# read again from the disk, and only the rest is fetched ------------------------------------------------------

URL = "cells://bucket"
KEY = "run/model.pt"
CELLS = 16
"""Many more than are under way at a time."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    path = tmp_path / "objects" / KEY
    path.parent.mkdir(parents=True)
    torch.save({"w": torch.arange(CELLS * CHUNK // 4 + 1000, dtype=torch.int32)}, path)
    counted = Counted(URL, tmp_path / "objects")
    monkeypatch.setitem(mounts._trees, (URL, ()), Tree(counted))
    return counted


def cells(store: Counted) -> list[int]:
    """The numbers of those that were asked for."""
    return sorted(start // CHUNK for _, start, length in store.gets if length > CHUNK // 2)


def fetch(part: Path, *names: str, progress: Callable[[int, int], object] | None = None) -> list[str]:
    """Bring the file to ``part`` under these names, and return those of its records."""
    tree, _ = mounts.tree_of(URL)
    tree.refresh("run")
    part.mkdir(exist_ok=True)
    _, *of = tree.object(KEY)
    wanted = {name: StagedFile(str(part / name), f"{URL}/{KEY}", *of, None) for name in names}
    bring = Fetch(f"{URL}/run", str(part), {f"{URL}/{KEY}"}, replace(ReadOptions(), jobs=1), progress)
    return [r.name for r in bring.files(wanted)]


def test_what_was_not_whole_comes_anew(store: Counted, tmp_path: Path) -> None:
    arrived, part, whole = list[int](), tmp_path / "part", (tmp_path / "objects" / KEY).read_bytes()

    def progress(n: int, _: int) -> None:
        arrived.append(n)
        if len(arrived) > 4:
            raise OSError(errno.EIO, "this is the end")

    with pytest.raises((CannotLook, OSError), match="this is the end"):
        fetch(part, "model.pt", progress=progress)
    assert not (part / "model.pt").exists()
    store.gets.clear()
    fetch(part, "model.pt")
    assert (part / "model.pt").read_bytes() == whole
    assert cells(store) == list(range(CELLS))


def test_what_was_whole_is_read_from_the_disk(store: Counted, tmp_path: Path) -> None:
    part, path, seen = tmp_path / "part", tmp_path / "objects" / KEY, list[tuple[int, int]]()
    fetch(part, "model.pt")
    store.gets.clear()
    fetch(part, "model.pt", progress=lambda *n: seen.append(n))
    assert cells(store) == [] and seen == [(size := path.stat().st_size, size)]
    with (part / "model.pt").open("r+b") as file:
        file.seek(CHUNK + 77)
        file.write(b"\xff\xfe\xfd\xfc")
    fetch(part, "model.pt")
    assert (part / "model.pt").read_bytes() == path.read_bytes()
    assert cells(store) == list(range(CELLS))
    assert [p.name for p in part.iterdir() if p.is_dir()] == []


def test_what_has_two_names_comes_once(store: Counted, tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert fetch(part, "a/model.pt", "b/model.pt") == ["a/model.pt", "b/model.pt"]
    data = (tmp_path / "objects" / KEY).read_bytes()
    assert all((part / name).read_bytes() == data for name in ("a/model.pt", "b/model.pt"))
    assert cells(store) == list(range(CELLS))
