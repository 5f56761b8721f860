"""Any other file system with a URL (SFTP, HDFS, Hugging Face, memory …), by fsspec."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timezone
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from ckpt_tools.storage.stalls import watch_call
from ckpt_tools.storage.stores.refused import NO_RANGES, to_os_error
from ckpt_tools.storage.stores.store import Object, Store
from ckpt_tools.storage.urls import join

P = ParamSpec("P")
T = TypeVar("T")


def open_filesystem(url: str, options: Mapping[str, Any]) -> FileSystem:
    """Return a store opened by fsspec. Raise ImportError if fsspec is missing, OSError if it fails."""
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations

    try:
        fs, top = url_to_fs(url, **options)
    except ImportError as e:
        how = known_implementations.get(url.partition("://")[0], {}).get("err", "") or "pip install it"
        text = f"fsspec needs {e.name or 'another package'}, which is not installed: {how}"
        raise OSError(errno.ENOPKG, text, url) from None
    except ValueError:
        text = "no such kind of store is known to fsspec, or not these options of it"
        raise OSError(errno.EPROTONOSUPPORT, text, url) from None
    except Exception as e:
        raise to_os_error(e, url) from None
    return FileSystem(url, fs, top)


class FileSystem(Store):
    """One store by fsspec: ``fs`` is its file system, ``top`` the path there that ``url`` stands for."""

    def __init__(self, url: str, fs: Any, top: str) -> None:
        super().__init__(url)
        self.fs, self.top = fs, top.rstrip("/")
        # one connection: a thread would take another's answer for its own, and the other wait for ever
        self._scheme = url.partition("://")[0].lower()
        alone = self._scheme in ("sftp", "ssh", "ftp")
        self._connection_lock: AbstractContextManager[Any] = Lock() if alone else nullcontext()

    def _make_path(self, key: str) -> str:
        return f"{self.top}/{key}" if key else self.top or "/"

    def objects(self, prefix: str) -> Iterator[Object]:
        left = [prefix]
        while left:
            objects, names = self.directory(key := left.pop())
            yield from objects
            left += (f"{key}/{name}" if key else name for name in reversed(names))

    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        self.requests["list"] += 1
        try:
            found = self._call(prefix, self._ask_anew, self.fs.ls, self._make_path(prefix), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        if not found and self._scheme == "ftp":
            text = "nothing is listed, and fsspec says the same of what an FTP server refuses to list"
            raise OSError(errno.EREMOTEIO, text, join(self.url, prefix))
        objects, names = [], []
        for info in found:
            path = str(info["name"])
            if not path.startswith("/") and self.top.startswith("/"):
                path = f"/{path}"
            key = path[len(self.top) :].strip("/")
            if key == prefix:  # some file systems list a file as its own entry
                continue
            if info["type"] == "directory":
                names.append(key.rpartition("/")[2])
            else:
                obj = _make_object(key, info)
                if info["type"] == "link":  # a broken link is an object that cannot be read
                    with suppress(FileNotFoundError):
                        obj = self.head(key)
                objects.append(obj)
        return objects, names

    def head(self, key: str) -> Object:
        self.requests["head"] += 1
        # Hugging Face tells the name of a blob only in the expanded info
        more = {"expand_info": True} if self._scheme == "hf" else {}
        info = self._call(key, self._ask_anew, self.fs.info, self._make_path(key), **more)
        if info["type"] == "directory":
            raise FileNotFoundError(errno.ENOENT, "it is a directory", join(self.url, key))
        return _make_object(key, info)

    def read(self, obj: Object, start: int, length: int) -> tuple[memoryview, Object]:
        self.requests["get"] += 1
        path = self._make_path(obj.key)
        # no read-ahead: fsspec would cut a range out of it, even if the server began elsewhere
        more = {"cache_type": "none"} if self._scheme == "hf" else {}
        data = self._call(obj.key, self.fs.cat_file, path, start, start + length, **more)
        if len(data) > length:
            raise OSError(errno.EIO, NO_RANGES, join(self.url, obj.key))
        return memoryview(data), obj

    def write(self, key: str, data: bytes, replacing: Object | None) -> None:  # noqa: ARG002 - no conditions
        self.requests["put"] += 1
        self._call(key, self.fs.pipe_file, self._make_path(key), data)

    def delete_one(self, key: str) -> None:
        self._call(key, self.fs.rm_file, self._make_path(key))

    def _ask_anew(self, ask: Callable[..., Any], path: str, **more: bool) -> Any:
        """Return ``ask(path)``, and not what fsspec remembers of an earlier list."""
        self.fs.invalidate_cache()
        return ask(path, **more)

    def _call(self, key: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``call(*args)``, a call of fsspec about a key. Raise OSError, whose text has no secret."""

        def in_turn() -> T:
            with self._connection_lock:
                return call(*args, **kwargs)

        try:
            return watch_call(in_turn)
        except Exception as e:  # each file system of fsspec has errors of its own
            raise to_os_error(e, join(self.url, key)) from None


_TIMES = ("mtime", "LastModified", "last_modified", "modify", "created")
"""Names that file systems give the time of the last change."""
_TAGS = ("ETag", "etag", "blob_id", "oid", "xet_hash", "sha")


def _make_object(key: str, info: Mapping[str, Any]) -> Object:
    """Return an object from fsspec's ``info``. Times count in whole microseconds: a float holds no more."""
    at: Any = next((info[k] for k in _TIMES if k in info), 0)
    if isinstance(at, str):  # RFC 3659, of FTP
        dated = at[:14].isdecimal() and len(at) >= 14
        at = datetime.strptime(f"{at[:14]}Z", "%Y%m%d%H%M%S%z") if dated else 0
    if isinstance(at, datetime):
        at = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    ns = round(at * 1_000_000) * 1000 if isinstance(at, (int, float)) else 0
    tag = next((str(info[k]) for k in _TAGS if info.get(k)), "")
    return Object(key, int(info["size"] or 0), ns, tag, str(info.get("VersionId") or ""))
