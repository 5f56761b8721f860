"""The operations of a store: list, describe, read a range of one version, write whole, delete."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ckpt_tools.storage.urls import READ_ONLY, join

CLOUDS = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"})
"""Schemes of the object stores of clouds."""
OBJECT_STORES = CLOUDS | {"http", "https"}
"""Schemes that obstore serves."""
PAGE = 1000
"""The most keys in one page of a list of S3, GCS or Azure."""
WEAK = "W/"
"""The beginning of a weak ETag, which by HTTP may stay the same when some bytes change."""
FOLDER = "_$folder$"
"""The end of the name of the empty object that Hadoop (s3n, EMRFS) writes for a directory."""


class Object(NamedTuple):
    """One object, from a listing or a HEAD: ``size`` in bytes, ``mtime_ns`` its LastModified in ns since
    1970. ``etag`` is "" if the store has none, ``version`` is "" if the store keeps none or does not tell it.
    """

    key: str
    size: int
    mtime_ns: int
    etag: str
    version: str = ""


class Replaced(OSError):
    """An object was replaced by another one before or while it was read."""

    def __init__(self, url: str) -> None:
        super().__init__(errno.EBUSY, "it was replaced while it was looked at", url)


DIFFERENTLY = (
    "its bytes differed when they were read twice: something between the store and here changes them"
)
NOT_KEPT = "its bytes are not those that the store says it has: changed on the way, or before it was stored"
ANOTHER = "somebody else has written it meanwhile"


def is_other(obj: Object, now: Object) -> bool:
    """Return True if two answers describe different objects, by the fields that both have."""
    pairs = zip(obj[1:], now[1:], strict=True)
    return obj.size != now.size or any(old and new and old != new for old, new in pairs)


class Store(ABC):
    """One store. Keys are relative to ``url``, without a slash at either end. ``requests`` counts requests by
    kind: "list", "head", "get", "put", "delete". ``pins``: reading an object that was replaced raises
    Replaced; in other stores the reader must check with ``head`` afterwards. Safe for several threads.

    Every method raises FileNotFoundError for objects that certainly do not exist, PermissionError for those
    that may not be seen, and OSError for all other failures, with the URL as file name and nothing secret.
    """

    pins = False

    def __init__(self, url: str) -> None:
        self.url, self.requests = url, Counter[str]()

    @abstractmethod
    def objects(self, prefix: str) -> Iterator[Object]:
        """Yield all objects whose keys are below ``prefix``; there may be none. An empty object that stands
        for the directory, named as ``prefix`` with a slash at its end, has the key ``prefix``.
        """

    @abstractmethod
    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        """Return (objects directly below ``prefix``, names that have other keys below them)."""

    @abstractmethod
    def head(self, key: str) -> Object: ...

    @abstractmethod
    def read(self, obj: Object, start: int, length: int) -> tuple[memoryview, Object]:
        """Return up to ``length`` bytes at ``start``, and the object they belong to, with the ETag and
        version of ``obj``. Raise Replaced if the object is another one now and the store ``pins``.
        """

    @abstractmethod
    def write(self, key: str, data: bytes, replacing: Object | None) -> None:
        """Write a whole object in one request, on the condition of ``put`` if the server can check it."""

    @abstractmethod
    def delete_one(self, key: str) -> None: ...

    def confirm_nothing(self, prefix: str) -> None:  # noqa: B027 - most protocols tell an empty answer from none
        """Raise OSError unless the empty answers of ``objects`` and ``head`` can be believed."""

    def put(self, key: str, data: bytes, replacing: Object | None = None) -> Object:
        """Write a whole object in one request: a new one, or in place of ``replacing``, the object seen
        before. Raise FileExistsError if another object is there: checked by the server in the same step if it
        can, and by a HEAD a moment before, because some servers ignore conditions.
        """
        self._require_writable(key)
        with suppress(FileNotFoundError):
            now = self.head(key)
            if replacing is None or (now.etag, now.size) != (replacing.etag, replacing.size):
                raise FileExistsError(errno.EEXIST, ANOTHER, join(self.url, key))
        self.write(key, data, replacing)
        now = self.head(key)
        if now.size != len(data):
            text = "what lies there is not what was written: something between here and there answers wrongly"
            raise OSError(errno.EREMOTEIO, text, join(self.url, key))
        return now

    def delete(self, keys: Sequence[str]) -> dict[str, OSError]:
        """Delete objects. Return the errors by key; a missing object is no error."""
        failed: dict[str, OSError] = {}
        for key in keys:
            try:
                self._require_writable(key)
                self.requests["delete"] += 1
                self.delete_one(key)
            except FileNotFoundError:
                continue
            except OSError as e:
                failed[key] = e
        return failed

    def _require_writable(self, key: str) -> None:
        if self.url.partition("://")[0] in READ_ONLY:  # even if the user has the right
            raise OSError(errno.EROFS, "ckpt writes nothing to this kind of store", join(self.url, key))
