"""What fsspec tells of servers that are no object stores: links, directories that are not listed, and what was replaced."""

from __future__ import annotations

import errno
import ftplib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.config import conf
from stores.asking import TREE, as_user, ask
from stores.bucket import Bucket
from stores.sftp import Directory

from ckpt_tools import CannotLook, api
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.filesystem import FileSystem, _make_object, open_filesystem
from ckpt_tools.storage.stores.mounts import tree_of
from ckpt_tools.storage.stores.store import Object, is_other


class Client:
    """An FTP server's answers; ``refused`` is the path that it does not list."""

    def __init__(self) -> None:
        self.refused, self.files = "", {"/run/a.txt": "20231114221320", "/run/one/b.txt": "20231114221321.5"}

    def mlsd(self, path: str) -> Iterator[tuple[str, dict[str, str]]]:
        if path == self.refused:
            raise ftplib.error_perm("550 no")
        top = path.rstrip("/") + "/"
        below = {file[len(top) :].partition("/") for file in self.files if file.startswith(top)}
        for name, slash, _ in sorted(below):
            time = self.files.get(top + name, "20231114221320")
            yield name, {"type": "dir" if slash else "file", "size": "1", "modify": time}

    def dir(self, path: str, _: object) -> None:
        raise ftplib.error_temp("450 busy")

    def close(self) -> None:
        """It has no connection."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    from fsspec.implementations.ftp import FTPFileSystem

    client = Client()
    monkeypatch.setattr(FTPFileSystem, "_connect", lambda self: setattr(self, "ftp", client))
    monkeypatch.setattr(FTPFileSystem, "cachable", False)
    return client


def test_a_directory_that_is_not_listed_is_not_empty(client: Client) -> None:
    """fsspec answers with no names where the server refuses a directory that its list of another has."""
    client.refused = "/run/one"
    store = open_filesystem("ftp://host", {})
    with pytest.raises(OSError, match="refuses to list") as error:
        list(store.objects("run"))
    assert error.value.filename == "ftp://host/run/one"


def test_a_list_is_not_answered_from_memory(client: Client) -> None:
    store = open_filesystem("ftp://host", {})
    before = list(store.objects("run"))
    assert [(of.key, of.mtime_ns) for of in before] == [
        ("run/a.txt", 1_700_000_000_000_000_000),
        ("run/one/b.txt", 1_700_000_001_000_000_000),
    ]
    client.files["/run/one/b.txt"] = "20231114221400"
    client.files["/run/two/c.txt"] = "20231114221400"
    assert [of.key for of in store.objects("run")] == ["run/a.txt", "run/one/b.txt", "run/two/c.txt"]
    assert store.head("run/one/b.txt").mtime_ns == 1_700_000_040_000_000_000


def test_the_directory_that_cannot_be_listed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(url: str) -> None:
        raise PermissionError(13, "no", f"{url}/one")

    monkeypatch.setattr(mounts, "refresh", refused)
    with pytest.raises(CannotLook, match=r"memory://run/one: no"):
        api.scan("memory://run")


def test_a_link_to_a_file_is_the_file(sftp: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conf, "sftp", dict(sftp.options))  # ckpt takes no password
    folder: Any = sftp.contents
    home = Path(folder.root)
    (home / "blob").write_bytes(b"123")
    (home / "linked").symlink_to("blob")
    (home / "dangling").symlink_to("nowhere")
    store = open_filesystem(sftp.url.rpartition("/")[0], {})
    name = sftp.url.rpartition("/")[2]
    found = {of.key.rpartition("/")[2]: of for of in store.objects(name)}
    assert set(found) == {"blob", "dangling", "linked"}
    assert found["linked"].size == 3
    assert found["linked"][1:] == found["blob"][1:]
    assert bytes(store.read(found["linked"], 0, 3)[0]) == b"123"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("sftp://127.0.0.1:1/data", "nothing answers at the store's address"),
        ("nowhere://host/run", "no such kind of store is known"),
        ("http://127.0.0.1:1/model.pt", "nothing answers at the store's address"),
    ],
)
def test_the_cause_is_named(url: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_STORE_OPTION", "max_retries=0")
    with pytest.raises(CannotLook, match=cause) as error:
        api.scan(url)
    assert "docs/stores.md" in error.value.hint


# ---- a store whose reads do not say of which object they are is asked afterwards: what was read of one that was replaced
# meanwhile is worth nothing, neither as good nor as broken

NEWEST = "run/iter_0000030/mp_rank_00/model_optim_rng.pt"
TRACKER = "run/latest_checkpointed_iteration.txt"
Read = Callable[[FileSystem, Object, int, int], tuple[memoryview, Object]]
QUESTIONS = ("plan", "plan --allow none,missing", "latest --rank 0", "plan --level structure")


@pytest.fixture(params=["memory_store", "sftp"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    bucket: Bucket = request.getfixturevalue(request.param)
    bucket.upload(TREE, "run")
    if isinstance(
        bucket.contents, Directory
    ):  # SFTP tells whole seconds: what was replaced within one cannot be seen
        for path in bucket.contents.root.rglob("*"):
            os.utime(path, (1.7e9, 1.7e9))
    monkeypatch.setitem(conf, "sftp", dict(bucket.options))  # ckpt takes no password
    with as_user(tmp_path, bucket):
        yield bucket


def replace_at(patch: pytest.MonkeyPatch, bucket: Bucket, key: str, data: bytes, after: int) -> list[int]:
    """Put other bytes there before the read number ``after`` of an object; all its reads are noted."""
    usual: Read = FileSystem.read
    reads: list[int] = []

    def read(self: FileSystem, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        if f"{self.url}/{of.key}".endswith(f"/{key}"):
            if len(reads) == after:
                bucket.put(key, data)
            reads.append(start)
        return usual(self, of, start, length)

    patch.setattr(FileSystem, "read", read)
    return reads


@pytest.mark.share(18)
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_was_replaced_while_it_was_read_makes_no_older_one_the_choice(
    question: str, after: int, run: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes would be those of a broken file."""
    garbage = bytes(len((TREE / NEWEST.removeprefix("run/")).read_bytes()))
    reads = replace_at(monkeypatch, run, NEWEST, garbage, after)
    said = ask(*question.split(), f"{run.url}/run", "--json")
    # else it was judged before, and is what was judged
    assert (said.code, said.step) == ((5, None) if len(reads) > after else (0, 30)), said.text


def test_it_is_in_use(run: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_at(monkeypatch, run, NEWEST, bytes((TREE / NEWEST[4:]).stat().st_size), 0)
    said = ask("verify", f"{run.url}/run", "--json")
    verdicts = said.verdicts
    assert verdicts.pop(NEWEST.removeprefix("run/")) == "unknown"
    assert said.code == 5 and "in-use" in said.codes
    assert set(verdicts.values()) == {"ok"}


def test_a_tracker_that_is_replaced_is_not_half_of_each(run: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes are read as the list told: two digits of three are a number as well."""
    replace_at(monkeypatch, run, TRACKER, b"3000000", 0)
    said = ask("plan", f"{run.url}/run", "--order", "tracker", "--json")
    assert said.code == 5, said.text


@pytest.mark.share(6)
@pytest.mark.parametrize("wrong", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
def test_who_cannot_ask_says_nothing_of_the_file(
    wrong: int, run: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is damaged or whole."""

    def head(self: FileSystem, key: str) -> Object:
        if key.endswith("mp_rank_00/model_optim_rng.pt"):
            raise OSError(wrong, os.strerror(wrong), key)
        return usual(self, key)

    usual = FileSystem.head
    monkeypatch.setattr(FileSystem, "head", head)
    for damage in (0, 1):
        said = ask("verify", f"{run.url}/run", "--json")
        assert {v for k, v in said.verdicts.items() if "mp_rank_00" in k} == {"unknown"}
        assert {v for k, v in said.verdicts.items() if "mp_rank_00" not in k} == {"ok"}
        assert said.code == 5
        for question in QUESTIONS:
            said = ask(*question.split(), f"{run.url}/run", "--json")
            assert said.code == 5 and said.json["checkpoint"] is None, (damage, said.text)
        run.put(NEWEST, bytes(5000))


def test_it_takes_one_request_a_reading(run: Bucket) -> None:
    assert ask("verify", f"{run.url}/run").code == 0
    requests = tree_of(f"{run.url}/run")[0].store.requests
    files = sum(path.is_file() for path in TREE.rglob("*"))
    assert 0 < requests["head"] <= 2 * files, requests  # saves are compared with each other as well


def test_only_what_both_answers_tell_is_compared() -> None:
    """A list may lack what a HEAD has."""
    of = Object("a", 3, 5, "x", "")
    for same in (of, of._replace(etag=""), of._replace(mtime_ns=0), of._replace(version="v")):
        assert not is_other(of, same) and not is_other(same, of)
    for other in (of._replace(size=4), of._replace(etag="y"), of._replace(mtime_ns=6), of._replace(size=0)):
        assert is_other(of, other) and is_other(other, of)


@pytest.mark.parametrize("name", ["ETag", "blob_id", "xet_hash", "sha"])
def test_a_digest_of_the_contents_tells_one_from_another(name: str) -> None:
    """As file systems of fsspec call it: that of a file of Hugging Face's buckets is its ``xet_hash``."""
    one, other = (_make_object("a", {"size": 3, "mtime": 5, name: text}) for text in ("x", "y"))
    assert is_other(one, other)
