"""What a store can do: list, describe, read a range of one version, write whole, delete."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ckpt_tools.storage.urls import joined

CLOUDS = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"})
"""Schemes of the object stores of clouds."""
OBJECT_STORES = CLOUDS | {"http", "https"}
"""Schemes that obstore serves."""
PAGE = 1000
"""Keys that one list request of S3, GCS or Azure answers at most."""
WEAK = "W/"
"""What the ETag begins with of which HTTP says that it may stay the same when some bytes change."""
FOLDER = "_$folder$"
"""How the name ends of the empty object that Hadoop's S3 file systems (s3n, EMRFS) write for a directory."""


class Object(NamedTuple):
    """One object, as a listing or a HEAD tells it: ``size`` in bytes, ``mtime_ns`` its LastModified in ns
    since 1970. ``etag`` is "" where the store has none, ``version`` where it keeps none or does not tell.
    """

    key: str
    size: int
    mtime_ns: int
    etag: str
    version: str = ""

    @property
    def is_folder(self) -> bool:
        """Whether it is no file, but stands for a directory."""
        return self.size == 0 and self.key.endswith(FOLDER)


class Replaced(OSError):
    """An object is not the one any more that was to be read."""

    def __init__(self, url: str) -> None:
        super().__init__(errno.EBUSY, "it was replaced while it was looked at", url)


DIFFERENTLY = (
    "its bytes differed when they were read twice: something between the store and here changes them"
)
NOT_KEPT = "its bytes are not those that the store says it has: changed on the way, or before it was stored"
ANOTHER = "somebody else has written it meanwhile"


def require_seen(store: Store, key: str, seen: Object | None) -> None:
    """Raises FileExistsError where another object has a key than the one that was seen, if any was."""
    try:
        now = store.head(key)
    except FileNotFoundError:
        return
    if seen is None or (now.etag, now.size) != (seen.etag, seen.size):
        raise FileExistsError(errno.EEXIST, ANOTHER, joined(store.url, key))


def written(store: Store, key: str, data: bytes) -> Object:
    """The object that lies there after a write. Raises OSError where it is not what was written."""
    now = store.head(key)
    if now.size != len(data):
        text = "what lies there is not what was written: something between here and there answers wrongly"
        raise OSError(errno.EREMOTEIO, text, joined(store.url, key))
    return now


def other_than(of: Object, now: Object) -> bool:
    """Whether two answers are of different objects, by what both of them tell."""
    told = zip(of[1:], now[1:], strict=True)
    return of.size != now.size or any(was and is_ and was != is_ for was, is_ in told)


class Store(Protocol):
    """Keys are relative to ``url``, without a slash at either end. ``requests`` counts those made: "list",
    "head", "get", "put", "delete". Safe for several threads. ``pins``: a read of another object than the one
    that is named raises; else who has read looks again whether it is still the one.

    Every method raises FileNotFoundError for what certainly is not there, PermissionError for what may not be
    seen, and OSError for everything else, with the URL as its file name and without anything secret.
    """

    url: str
    requests: Counter[str]
    pins: bool

    def objects(self, prefix: str) -> Iterator[Object]:
        """All objects whose keys are below ``prefix``; nothing of that name is no error. An empty object with
        the name of the prefix and a slash at its end, which stands for the directory, comes as ``prefix``.
        """
        ...

    def confirm_nothing(self, prefix: str) -> None:
        """Raises OSError unless ``objects`` and ``head`` can be believed that have found nothing there."""
        ...

    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        """(the objects directly below ``prefix``, the names that have others below them)."""
        ...

    def head(self, key: str) -> Object: ...

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        """Up to ``length`` bytes at ``start``, and the object that they were read of, which has the ETag and
        version of ``of``. Raises Replaced when there is another one now, where the store ``pins``.
        """
        ...

    def put(self, key: str, data: bytes, replacing: Object | None = None) -> Object:
        """Write a whole object in one request: a new one, or in the place of the one that was seen there.

        Raises FileExistsError where there is one, or another one: as far as the server can tell in the same
        step, else as of a moment ago.
        """
        ...

    def delete(self, keys: Sequence[str]) -> dict[str, OSError]:
        """Delete objects in batches; what could not be deleted, and why. What is not there is no error."""
        ...
