"""Commands that choose, of trees in a store: the plan names what was judged by its ETag and its version, and
nobody starts with another object. What a store cannot do is refused at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import flipped
from places import FIXTURES
from run_helpers import CLEAN, SAY, ckpt, megatron
from stores.asking import TREE, as_user, ask, variables
from stores.bucket import Bucket
from stores.s3 import of_user as env
from stores.s3 import s3_of

from ckpt_tools.storage.stores import mounts

STEPS = (10, 20)
LAST = "run/iter_0000020/mp_rank_01/model_optim_rng.pt"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory to start commands in, which must stay empty."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def uploaded(bucket: Bucket, tmp_path: Path) -> str:
    bucket.upload(megatron(tmp_path / "run", steps=STEPS), "run")
    return f"{bucket.url}/run"


def another(path: Path) -> bytes:
    """Its bytes, but for the last one."""
    data = path.read_bytes()
    return flipped(data, 8 * (len(data) - 1))


def planned(bucket: Bucket, tmp_path: Path, *words: str) -> dict[str, Any]:
    done = ckpt("plan", f"{bucket.url}/run", "--json", "--order", "step", *words, env=env(bucket, tmp_path))
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def files(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [*body["shared"], *(f for rank in body["ranks"] for f in rank["files"])]


def test_the_plan_names_the_etag_of_each_file(s3: Bucket, tmp_path: Path) -> None:
    uploaded(s3, tmp_path)
    rows = files(planned(s3, tmp_path))
    # the bucket keeps no versions
    assert [(bool(row["etag"]), "version" in row) for row in rows] == [(True, False)] * 2


@pytest.mark.share(2)
@pytest.mark.parametrize("known", [False, True])
def test_the_plan_names_the_version_that_was_judged(
    versioned_s3: Bucket, tmp_path: Path, known: bool
) -> None:
    """Also where the verdicts are known from before, and nothing is read of the files."""
    uploaded(versioned_s3, tmp_path)
    versioned_s3.put(LAST, (tmp_path / LAST).read_bytes())
    if known:
        planned(versioned_s3, tmp_path)
    rows = {row["path"]: row for row in files(planned(versioned_s3, tmp_path))}
    there = s3_of(versioned_s3)
    head = there.client.head_object(Bucket=there.bucket, Key=LAST)
    row = rows[f"{versioned_s3.url}/{LAST}"]
    assert (row["version"], row["etag"]) == (head["VersionId"], head["ETag"])
    assert all(row["version"] for row in rows.values())


def test_a_decision_to_stage_names_the_version_of_each_file(versioned_s3: Bucket, tmp_path: Path) -> None:
    """So that each node brings the one that was judged."""
    root = uploaded(versioned_s3, tmp_path)
    with as_user(tmp_path, versioned_s3):
        words = ("--stage", tmp_path / "ssd", "--plan-dir", tmp_path / "plans", "--json")
        said = ask("hook", root, "--order", "step", *map(str, words))
    body = json.loads(Path(said.json["env"]["CKPT_PLAN"]).read_text())
    planned = {f["path"]: f["version"] for f in files(body)}
    rows = body["stage"]["files"]
    assert rows and all(f["version"] for f in rows)
    assert planned.items() <= {f["url"]: f["version"] for f in rows}.items()


def test_the_fingerprint_tells_another_object_of_the_same_size(s3: Bucket, tmp_path: Path) -> None:
    uploaded(s3, tmp_path)
    before = planned(s3, tmp_path, "--level", "presence")
    s3.put(LAST, another(tmp_path / LAST))
    after = planned(s3, tmp_path, "--level", "presence")
    assert before["fingerprint"] != after["fingerprint"]


def test_run_starts_a_command_with_urls(s3: Bucket, tmp_path: Path, home: Path) -> None:
    root = uploaded(s3, tmp_path)
    done = ckpt("run", root, "--order", "step", "--", *SAY, "{ckpt.step}", env=env(s3, tmp_path), cwd=home)
    assert done.returncode == 0, done.stderr
    words, told = json.loads(done.stdout)
    assert words == ["20"] and told["CKPT_ARGS"] == f"--load {root} --ckpt-step 20"
    body = json.loads(Path(told["CKPT_PLAN"]).read_text())
    assert all(row["etag"] for row in files(body))
    assert told["CKPT_PLAN"].startswith(str(tmp_path / "state"))
    asked = ckpt("latest", "--rank", "1", env=env(s3, tmp_path, CKPT_PLAN=told["CKPT_PLAN"]), cwd=home)
    assert asked.stdout.split() == [f"{s3.url}/{LAST}"], asked.stderr
    history = ckpt("plan", root, "--history", "--json", env=env(s3, tmp_path), cwd=home)
    assert json.loads(history.stdout)["starts"][0]["step"] == 20
    assert not os.listdir(home)


@pytest.mark.parametrize("bucket", ["gcs", "rclone_s3"], indirect=True)
def test_another_process_follows_the_decision(bucket: Bucket, tmp_path: Path) -> None:
    """It asks for single objects where the one that decided had a list, in which times have more digits."""
    bucket.upload(megatron(tmp_path / "run", steps=STEPS), "run")
    with as_user(tmp_path, bucket):
        said = ask("hook", f"{bucket.url}/run", "--order", "step", "--json")
        os.environ["CKPT_PLAN"] = said.json["env"]["CKPT_PLAN"]
        mounts._trees.clear()
        asked = ask("latest", "--rank", "1")
        assert asked.printed == f"{bucket.url}/{LAST}\n", asked


@pytest.mark.exhaustive
def test_an_object_replaced_after_the_decision_is_not_loaded(s3: Bucket, tmp_path: Path) -> None:
    root = uploaded(s3, tmp_path)
    hook = ckpt("hook", root, "--order", "step", "--json", env=env(s3, tmp_path))
    told = json.loads(hook.stdout)["env"]
    reads = env(s3, tmp_path, CKPT_PLAN=told["CKPT_PLAN"])
    assert ckpt("hook", "--read", "--rank", "1", env=reads).returncode == 0
    s3.put(LAST, another(tmp_path / LAST))
    for words in (("latest", "--rank", "1"), ("hook", "--read", "--rank", "1")):
        done = ckpt(*words, env=reads)
        assert done.returncode == 5 and "has changed since it was chosen" in done.stderr, words
    s3.delete(LAST)
    gone = ckpt("latest", "--rank", "1", env=reads)
    assert gone.returncode == 5 and "cannot be looked at any more" in gone.stderr
    assert ckpt("latest", "--rank", "0", env=reads).returncode == 0


def test_a_lost_prefix_is_no_first_launch(s3: Bucket, tmp_path: Path) -> None:
    root = uploaded(s3, tmp_path)
    assert ckpt("run", root, "--order", "step", "--", "true", env=env(s3, tmp_path)).returncode == 0
    for key in list(s3.keys()):
        s3.delete(key)
    done = ckpt("run", root, "--allow=none", "--", "true", env=env(s3, tmp_path))
    assert done.returncode == 5, done.stderr
    s3.put("run/notes.txt", b"x")
    done = ckpt("run", root, "--allow=none", "--", "true", env=env(s3, tmp_path))
    assert done.returncode == 4 and "an earlier start resumed from step 20" in done.stderr


OF_HERE = "a directory or a file of this machine"


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("repair URL", "download it"), ("repair LOCAL --root URL", "download it"), ("quarantine URL/iter_0000010", "prune --damaged"),
        ("quarantine --damaged URL", "prune --damaged"), ("pin URL/iter_0000010", "--keep-every"),
        ("undo URL", "nothing there was repaired"), ("ls --quarantine URL", "nothing was put away"),
        ("plan URL --plan-dir URL/plans", OF_HERE),
        ("seal URL --seal-dir URL/seals", OF_HERE), ("run URL --view URL/view -- true", OF_HERE),
        ("run URL --view LOCAL/view -- true", "--stage DIR"), ("run URL --require-mount -- true", "leave out --require-mount"),
        ("plan URL -o URL/answer", "a FILE of this machine"),
    ],
)  # fmt: skip
def test_what_a_store_cannot_do_is_refused(
    words: str, says: str, s3: Bucket, tmp_path: Path, home: Path
) -> None:
    root = uploaded(s3, tmp_path)
    before = s3.keys()
    (tmp_path / "local").mkdir()
    given = words.replace("URL", root).replace("LOCAL", str(tmp_path / "local")).split()
    done = ckpt(*given, env=env(s3, tmp_path), cwd=home)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert s3.keys() == before and not os.listdir(home) and not os.listdir(tmp_path / "local")


def test_a_url_alone_is_listed_and_one_beside_a_directory_verified(s3: Bucket, tmp_path: Path) -> None:
    root = uploaded(s3, tmp_path)
    done = ckpt(root, env=env(s3, tmp_path))
    assert done.returncode == 0 and "iter_0000020" in done.stdout
    both = ckpt("verify", tmp_path / "run", root, "--json", env=env(s3, tmp_path))
    assert both.returncode == 0 and json.loads(both.stdout)["root"] == "/", both.stderr


def test_two_nodes_come_to_one_checkpoint(s3: Bucket, tmp_path: Path) -> None:
    """Both of them see the store whole."""
    s3.upload(megatron(tmp_path / "run", world=4), "run")

    def node(n: int) -> tuple[int, str, str]:
        nodes = ("--agree", "--nodes", "2", "--node", str(n), "--world-size", "4", "--timeout", "1000")
        words = ("run", f"{s3.url}/run", "--order", "step", *nodes, "--job", "j")
        own = env(s3, tmp_path / f"{n}")
        done = ckpt(*words, "--plan-dir", str(tmp_path / "shared"), "--", *SAY, env=own)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(node, range(2)))
    assert [code for code, _, _ in answers] == [0, 0], answers
    told = [json.loads(out)[1] for _, out, _ in answers]
    assert [t["CKPT_ARGS"] for t in told] == [f"--load {s3.url}/run --ckpt-step 20"] * 2
    assert told[0]["CKPT_FINGERPRINT"] == told[1]["CKPT_FINGERPRINT"]


def test_steps_of_a_url_are_offered(gcs: Bucket, tmp_path: Path) -> None:
    gcs.upload(TREE, "run")
    asked = {
        "_CKPT_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": f"ckpt plan {gcs.url}/run --max-step ",
    }
    done = ckpt(env={**variables(gcs), **asked}, cwd=tmp_path)
    assert (done.stdout.split(), done.stderr) == (["30", "20", "10"], "")


# ---- threads that take turns at every few bytecodes: what is made when it is first needed, two may need at once

TURNS = ("verify @ --no-cache", "plan @ --no-cache --order step", "ls @", "seal @ --dry-run")
CODE = """
import sys
sys.setswitchinterval(1e-6)
from ckpt_tools.cli import main
sys.argv = ["ckpt", *sys.argv[1:]]
main()
"""
LARGEST = 200_000
RUNS = 12


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", TURNS, ids=lambda words: words.split()[0])
def test_whoever_comes_first_no_command_fails(words: str, s3: Bucket) -> None:
    """One in 25 of these ended with exit 70 where each class compiles its constructor for its first value."""
    files = [path for path in sorted(FIXTURES.glob("formats/*/good/*")) if path.is_file()]
    for path in files:
        if path.stat().st_size < LARGEST:
            s3.put(f"run/{path.parts[-3]}/{path.name}", path.read_bytes())
    line = [sys.executable, "-c", CODE, *words.replace("@", f"{s3.url}/run").split()]
    for _ in range(RUNS):
        done = subprocess.run(line, env={**CLEAN, **variables(s3)}, capture_output=True, text=True)
        assert done.returncode in (0, 2), done.stderr  # of several runs one has to be named
