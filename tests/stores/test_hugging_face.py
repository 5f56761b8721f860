"""hf:// through huggingface_hub's own file system, against a mock of the Hub's HTTP API: the real one cannot be
started here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import LAYOUT_TREES
from run_helpers import CKPT, CLEAN
from stores.bucket import Bucket
from stores.hugging_face import Hub, hugging_face

from ckpt_tools.storage.stores.filesystem import FileSystem
from ckpt_tools.storage.stores.store import Object

pytest.importorskip("huggingface_hub")
MODEL = "org/model"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hugging_face() as started:
        yield started


def ask(hub: Hub, home: Path, *words: str, **env: str) -> tuple[int, Any]:
    """The exit code and the JSON of a command in a process of its own: the client reads where the Hub is once."""
    done = run(hub, home, *words, "--json", **env)
    return done.returncode, json.loads(done.stdout)


def run(hub: Hub, home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {**CLEAN, "HOME": str(home), "HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_XET": "1", **env}
    done = subprocess.run([*CKPT, *words], env=env, cwd=home, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done


def tree(case: str) -> Path:
    return LAYOUT_TREES / case / "tree"


def uploaded(hub: Hub, case: str) -> str:
    bucket = hub.bucket(MODEL)
    bucket.upload(tree(case))
    return bucket.url


def facts(files: Any) -> list[tuple[str, str]]:
    return sorted((os.path.basename(f["path"]), f["verdict"]) for f in files)


@pytest.mark.share(2)
@pytest.mark.parametrize("case", ["sharded-safetensors/consolidated", "hf-trainer/trainer", "dcp/two"])
def test_the_answers_are_those_of_the_local_tree(case: str, hub: Hub, tmp_path: Path) -> None:
    url, local = uploaded(hub, case), str(tree(case))
    there, here = (ask(hub, tmp_path, "verify", root, "--no-cache") for root in (url, local))
    assert there[0] == here[0] and facts(there[1]["files"]) == facts(here[1]["files"])
    there, here = (ask(hub, tmp_path, "ls", root)[1]["checkpoints"] for root in (url, local))
    assert [(c["step"], c["layout"]) for c in there] == [(c["step"], c["layout"]) for c in here]
    assert {method for method, _ in hub.seen} <= {"GET", "HEAD", "POST"}


def test_a_repository_that_may_not_be_seen_is_not_absent(hub: Hub, tmp_path: Path) -> None:
    url = uploaded(hub, "hf-trainer/trainer")
    hub.hidden.add(MODEL)
    code, said = ask(hub, tmp_path, "plan", url, "--allow=none", "--allow=missing")
    assert code == 5 and "HF_TOKEN" in json.dumps(said)
    assert ask(hub, tmp_path, "ls", url, HF_TOKEN="hf_secret")[0] == 0


@pytest.fixture
def opened(hub: Hub) -> tuple[FileSystem, Object]:
    """A repository as this process opens it, and the one file that it has."""
    from huggingface_hub import HfFileSystem

    hub.bucket(MODEL).put("a.bin", bytes(range(100)))
    store = FileSystem("hf://", HfFileSystem(endpoint=hub.endpoint, skip_instance_cache=True), "")
    return store, store.head(f"{MODEL}/a.bin")


def test_a_whole_file_in_place_of_a_range_is_no_range(hub: Hub, opened: tuple[FileSystem, Object]) -> None:
    """Its first bytes were taken for those that were asked for, and a good archive for one that is cut off."""
    store, file = opened
    assert bytes(store.read(file, 40, 20)[0]) == bytes(range(40, 60))
    hub.ranges = False
    with pytest.raises(OSError, match="whole files alone"):
        store.read(file, 40, 20)
    assert len(store.read(file, 0, 100)[0]) == 100


def test_a_gated_repository_says_whom_to_ask(hub: Hub, opened: tuple[FileSystem, Object]) -> None:
    store, file = opened
    hub.gated = True
    with pytest.raises(PermissionError, match="is gated: ask for access"):
        store.read(file, 40, 20)


REPLACED = ["plan", "plan --allow none,missing", "latest --rank 0", "verify --level content"]


def replace_at(hub: Hub, bucket: Bucket, name: str, number: int) -> list[str]:
    """Have another commit of the same size before the answer of this number about a file; all are noted."""
    answers: list[str] = []

    def before(key: str) -> None:
        if key == name:
            if len(answers) == number:
                stored = hub.shelves[MODEL].find(key)
                assert stored is not None
                bucket.put(key, bytes(len(stored.data)))
            answers.append(key)

    hub.before = before
    return answers


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "number", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (0, 2, 3))], ids="answer {}".format
)
@pytest.mark.parametrize("question", REPLACED)
def test_a_file_that_another_commit_replaces_in_mid_read_is_in_use(
    question: str, number: int, hub: Hub, tmp_path: Path
) -> None:
    """Its zeros are those of a broken file, and no reason for an older checkpoint."""
    bucket = hub.bucket(MODEL)
    bucket.upload(tree("hf-trainer/trainer"))
    newest = next(key for key in reversed(bucket.keys()) if key.endswith("optimizer.pt"))
    answers = replace_at(hub, bucket, newest, number)
    code, said = ask(hub, tmp_path, *question.split(), bucket.url, "--no-cache")
    if len(answers) <= number:  # all of it was read before
        assert code == 0, said
    elif number and question.startswith("verify"):  # judged before, and compared with other saves now
        assert code in (0, 5) and "broken" not in {row["verdict"] for row in said["files"]}, said
    elif question.startswith("verify"):
        rows = {row["path"].partition(f"{MODEL}/")[2]: row for row in said["files"]}
        assert code == 5 and "in-use" in {found["code"] for found in rows[newest]["findings"]}
        assert rows.pop(newest)["verdict"] == "unknown"
        assert {row["verdict"] for row in rows.values()} == {"ok"}
    else:
        assert code == 5 and said["checkpoint"] is None, said


WRITES = ["seal @", "seal @ --merge", "prune @ --keep 1 --apply", "watch @ --once --seal"]


@pytest.mark.share(3)
@pytest.mark.parametrize("line", WRITES)
def test_no_write_is_asked_for(line: str, hub: Hub, tmp_path: Path) -> None:
    """A token that may write would let it happen: each is a commit that others see."""
    words = line.replace("@", uploaded(hub, "hf-trainer/trainer")).split()
    done = run(hub, tmp_path, *words, HF_TOKEN="hf_secret")
    assert done.returncode == 2, done.stderr
    assert "nothing is written to hf://" in " ".join(done.stderr.split())
    assert {m for m, path in hub.seen if "/paths-info/" not in path} <= {"GET", "HEAD"}


@pytest.mark.exhaustive
def test_seals_of_it_lie_elsewhere(hub: Hub, tmp_path: Path) -> None:
    url = uploaded(hub, "hf-trainer/trainer")
    assert ask(hub, tmp_path, "seal", url, "--dry-run")[0] == 0
    assert ask(hub, tmp_path, "seal", url, "--seal-dir", str(tmp_path / "seals"))[0] == 0
    assert {m for m, path in hub.seen if "/paths-info/" not in path} <= {"GET", "HEAD"}


def test_not_even_by_a_command_that_forgot_to_ask() -> None:
    """No request leaves: there is no file system behind it."""
    store = FileSystem("hf://", SimpleNamespace(), "")
    with pytest.raises(OSError, match="writes nothing"):
        store.put("org/model/a", b"")
    assert set(store.delete(["org/model/a", "org/model/b"])) == {"org/model/a", "org/model/b"}
    assert not store.requests
