"""What fsspec tells of servers that are no object stores: links, and directories that are not listed."""

from __future__ import annotations

import ftplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stores.bucket import Bucket

from ckpt_tools import CannotLook, api
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.filesystem import open_filesystem


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
    from fsspec.config import conf

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
