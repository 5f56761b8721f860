"""hf:// through huggingface_hub's own file system, against a mock of the Hub's HTTP API, as far as that asks it: what a
repository is, its tree and some paths of it, and ranges of files. The Hub itself nobody can start; what it answers was
taken from its client, which alone says that this is the Hub.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from places import LAYOUT_TREES
from run_helpers import CKPT, CLEAN
from stores.bucket import Bucket
from stores.http_files import Shelf, Stored, asked_range
from stores.serving import Handler, serving

from ckpt_tools.storage.stores.filesystem import FileSystem
from ckpt_tools.storage.stores.store import Object

pytest.importorskip("huggingface_hub")
MODEL = "org/model"


@dataclass
class Hub:
    """``shelves`` are the repositories by name; ``hidden`` those that need a token; ``seen`` is what was asked:
    method and path. ``before`` is called with the name of each file before a range of it is answered. Without
    ``ranges`` all of it is, as mirrors do; what is ``gated`` is listed, and not read.
    """

    endpoint: str = ""
    shelves: dict[str, Shelf] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    seen: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str], object] = bool
    ranges: bool = True
    gated: bool = False

    def bucket(self, name: str) -> Bucket:
        shelf = self.shelves[name] = Shelf()
        return Bucket(f"hf://{name}", self.endpoint, {}, shelf)


class Answering(Handler):
    """Of models alone, at their revision ``main``; a tree is one page."""

    def answer(self) -> None:
        hub: Hub = self.server.state
        target = urlsplit(self.path)
        names = [unquote(n) for n in target.path.strip("/").split("/")]
        hub.seen.append((self.command, target.path))
        said = self.body()
        if names[:2] == ["api", "models"] and len(names) > 3:
            if (shelf := self._repository(hub, "/".join(names[2:4]))) is not None:
                self._api(shelf, names[4:], target.query, said)
        elif len(names) > 4 and names[2:4] == ["resolve", "main"]:
            if (shelf := self._repository(hub, "/".join(names[:2]))) is not None:
                hub.before("/".join(names[4:]))
                self._file(shelf, "/".join(names[4:]))
        else:
            self.reply(404)

    def _repository(self, hub: Hub, name: str) -> Shelf | None:
        """The Hub tells nobody whether a repository is not there or may not be seen."""
        if name in hub.shelves and (name not in hub.hidden or self.headers.get("Authorization")):
            return hub.shelves[name]
        self.reply(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        return None

    def _api(self, shelf: Shelf, rest: list[str], query: str, said: bytes) -> None:
        if self.command == "POST" and rest == ["paths-info", "main"]:
            asked = parse_qs(said.decode()).get("paths", [])
            self._json([row for path in asked if (row := _row(shelf, path)) is not None])
        elif self.command != "GET":
            self.reply(403, {"X-Error-Message": "this token may not write"})
        elif rest in ([], ["revision", "main"]):
            self._json({"id": "model", "sha": "0" * 40, "private": False, "tags": [], "siblings": []})
        elif rest[:2] == ["tree", "main"]:
            self._tree(shelf, "/".join(rest[2:]), parse_qs(query))
        else:
            self.reply(404, {"X-Error-Code": "RevisionNotFound"})

    def _tree(self, shelf: Shelf, top: str, query: dict[str, list[str]]) -> None:
        start = f"{top}/" if top else ""
        below = sorted(k for k in list(shelf.keys()) if k.startswith(start))
        if not below and top:
            self.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        deep = query.get("recursive", ["false"])[0].lower() in {"true", "1"}
        names = [n for k in below for n in _names(k, start, deep=deep)]
        self._json([_row(shelf, name) for name in dict.fromkeys(names)])

    def _file(self, shelf: Shelf, key: str) -> None:
        stored = shelf.find(key)
        if stored is None:
            self.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{_oid(stored)}"', "Accept-Ranges": "bytes", "X-Repo-Commit": "0" * 40}
        hub: Hub = self.server.state
        if hub.gated:
            self.reply(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted"})
            return
        part = asked_range(self.headers.get("Range", ""), len(stored.data)) if hub.ranges else None
        if part is None:
            self.reply(200, headers, stored.data)
        else:
            headers["Content-Range"] = f"bytes {part[0]}-{part[1] - 1}/{len(stored.data)}"
            self.reply(206, headers, stored.data[slice(*part)])

    def _json(self, value: Any) -> None:
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _names(key: str, start: str, *, deep: bool) -> Iterator[str]:
    """The directories below ``start`` that a key lies in, and the key, of which only the first is listed unless
    ``deep``.
    """
    parts = key[len(start) :].split("/")
    for n in range(1, len(parts) + 1 if deep else 2):
        yield start + "/".join(parts[:n])


def _row(shelf: Shelf, path: str) -> dict[str, Any] | None:
    if (stored := shelf.find(path)) is not None:
        return {"type": "file", "oid": _oid(stored), "size": len(stored.data), "path": path}
    if any(k.startswith(f"{path}/") for k in list(shelf.keys())):
        return {"type": "directory", "oid": sha1(path.encode()).hexdigest(), "size": 0, "path": path}
    return None


def _oid(stored: Stored) -> str:
    """As git names a blob."""
    return sha1(b"blob %d\0%b" % (len(stored.data), stored.data)).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    with serving(Answering, hub) as server:
        hub.endpoint = server.endpoint
        yield hub


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
