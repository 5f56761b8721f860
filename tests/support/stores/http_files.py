"""An HTTP server of files: with ranges and conditions as RFC 9110 has them, or one that knows neither."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from stores.bucket import Bucket
from stores.serving import Handler, serving
from stores.shelf import Shelf, Stored, asked_range


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
        elif self.headers.get("If-None-Match") in {stored.etag, "*"}:
            self.reply(304, headers)
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
