"""Objects in memory, with their generations, and an HTTP server of them: with ranges and conditions as RFC 9110 has
them, or one that knows neither.
"""

from __future__ import annotations

import email.utils
import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from stores.bucket import Bucket
from stores.serving import Handler, serving


@dataclass(frozen=True)
class Stored:
    """``generation`` is larger for what was put later."""

    data: bytes
    generation: int
    saved: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        """The MD5 of what was put at once."""
        return f'"{hashlib.md5(self.data).hexdigest()}"'

    @property
    def last_modified(self) -> str:
        return email.utils.formatdate(self.saved, usegmt=True)


class Shelf:
    """The :class:`stores.bucket.Contents` of one bucket; ``old`` are the generations that were replaced."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.old: dict[tuple[str, int], Stored] = {}
        self.generation = 1_700_000_000_000_000
        self.lock = threading.Lock()

    def put(self, key: str, data: bytes) -> None:
        self.replace(key, data)

    def replace(self, key: str, data: bytes, *, over: int | None = None) -> Stored | None:
        """Put it over the generation ``over`` (0: over nothing); None if there is another one."""
        with self.lock:
            before = self.objects.get(key)
            if over is not None and over != (before.generation if before else 0):
                return None
            self.generation += 1
            if before:
                self.old[key, before.generation] = before
            self.objects[key] = Stored(bytes(data), self.generation)
            return self.objects[key]

    def delete(self, key: str) -> None:
        with self.lock:
            gone = self.objects.pop(key)
            self.old[key, gone.generation] = gone

    def keys(self) -> list[str]:
        return list(self.objects)

    def find(self, key: str, generation: str = "") -> Stored | None:
        """The present one, or the one of this generation."""
        now = self.objects.get(key)
        if not generation or (now is not None and str(now.generation) == generation):
            return now
        return self.old.get((key, int(generation)))


def asked_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and end of a header Range; an empty one if it is beyond the end, None if there is none."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", header)
    if not found:
        return None
    first, last = found.groups()
    return int(first), max(int(first), min(size, int(last) + 1 if last else size))


@dataclass
class HttpFiles:
    """``shelves`` are the buckets by name: the first segment of the path."""

    ranges: bool
    endpoint: str = ""
    shelves: dict[str, Shelf] = field(default_factory=dict)

    def bucket(self, name: str) -> Bucket:
        shelf = self.shelves[name] = Shelf()
        return Bucket(f"{self.endpoint}/{name}", self.endpoint, {"allow_http": "true"}, shelf)


class Files(Handler):
    """GET and HEAD; no lists: a web server has none."""

    def answer(self) -> None:
        files: HttpFiles = self.server.state
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        shelf = files.shelves.get(bucket)
        self.body()
        stored = shelf.find(key) if shelf else None
        if self.command not in {"GET", "HEAD"}:
            self.reply(405, {"Allow": "GET, HEAD"})
        elif stored is None:
            self.reply(404)
        elif files.ranges:
            self.reply_object(stored)
        else:
            self.reply(200, {"Last-Modified": stored.last_modified}, stored.data)

    def reply_object(self, stored: Stored, more: dict[str, str] | None = None) -> None:
        """The object or the range of it that was asked for, if it is the one that was asked for."""
        headers = {"ETag": stored.etag, "Last-Modified": stored.last_modified, "Accept-Ranges": "bytes"}
        headers |= more or {}
        size = len(stored.data)
        part = asked_range(self.headers.get("Range", ""), size)
        if self.headers.get("If-Match", stored.etag) not in {stored.etag, "*"}:
            self.reply(412, headers)
        elif part is None:
            self.reply(200, headers, stored.data)
        elif part[0] >= min(part[1], size):
            self.reply(416, headers | {"Content-Range": f"bytes */{size}"})
        else:
            headers["Content-Range"] = f"bytes {part[0]}-{part[1] - 1}/{size}"
            self.reply(206, headers, stored.data[slice(*part)])


@contextmanager
def http_files(*, ranges: bool = True) -> Iterator[HttpFiles]:
    files = HttpFiles(ranges)
    with serving(Files, files) as server:
        files.endpoint = server.endpoint
        yield files
