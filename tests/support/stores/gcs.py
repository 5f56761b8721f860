"""The part of Google Cloud Storage's XML API that obstore speaks, as a server of ours.

The emulators that can be installed from a registry speak JSON, and obstore asks by the XML API
(https://cloud.google.com/storage/docs/xml-api): GET and HEAD with Range, If-Match and ?generation=, PUT with
x-goog-if-generation-match, DELETE, and lists with prefix, delimiter, start-after, max-keys and pages; no uploads in
parts, which ckpt makes none of. Any token may do all.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from stores.bucket import Bucket
from stores.http_files import Files, Shelf, Stored
from stores.serving import serving

PAGE = 1000


@dataclass
class Gcs:
    """``shelves`` are the buckets by name."""

    endpoint: str = ""
    shelves: dict[str, Shelf] = field(default_factory=dict)

    def bucket(self, name: str) -> Bucket:
        shelf = self.shelves[name] = Shelf()
        # With skip_signature, obstore 0.12 still asks Google's metadata server for a token before it writes.
        options = {"base_url": self.endpoint, "bearer_token": "ckpt-tests-secret", "allow_http": "true"}
        return Bucket(f"gs://{name}", self.endpoint, options, shelf)


class Xml(Files):
    """Requests of the XML API, with the bucket in the path."""

    def answer(self) -> None:
        self.gcs: Gcs = self.server.state
        path, _, query = self.path.partition("?")
        self.query = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        bucket, _, self.key = unquote(path).lstrip("/").partition("/")
        data = self.body()
        if bucket not in self.gcs.shelves:
            self.fails(404, "NoSuchBucket")
            return
        self.shelf = self.gcs.shelves[bucket]
        if not self.key and self.command == "GET":
            self.list()
        elif self.command in {"GET", "HEAD"}:
            self.read()
        elif self.command == "DELETE":
            self.remove()
        else:
            self.put(data)

    def fails(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code></Error>"
        self.reply(status, {"Content-Type": "application/xml"}, text.encode())

    def read(self) -> None:
        stored = self.shelf.find(self.key, self.query.get("generation", ""))
        if stored is None:
            self.fails(404, "NoSuchKey")
        else:
            self.reply_object(stored, self.told(stored))

    def told(self, stored: Stored) -> dict[str, str]:
        """The headers that only Google has."""
        from crc32c import crc32c

        hashes = "crc32c=" + base64.b64encode(crc32c(stored.data).to_bytes(4, "big")).decode()
        hashes += ",md5=" + base64.b64encode(hashlib.md5(stored.data).digest()).decode()
        goog = {"generation": str(stored.generation), "metageneration": "1", "hash": hashes}
        goog["stored-content-length"] = str(len(stored.data))
        return {**{f"x-goog-{name}": value for name, value in goog.items()}, "ETag": stored.etag}

    def remove(self) -> None:
        if self.shelf.find(self.key) is None:
            self.fails(404, "NoSuchKey")
        else:
            self.shelf.delete(self.key)
            self.reply(204)

    def put(self, data: bytes) -> None:
        over = self.headers.get("x-goog-if-generation-match")
        stored = self.shelf.replace(self.key, data, over=None if over is None else int(over))
        if stored is None:
            self.fails(412, "PreconditionFailed")
        else:
            self.reply(200, self.told(stored))

    def list(self) -> None:
        """One page: keys, and below a delimiter the beginnings that several share, in order."""
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        most = min(PAGE, int(self.query.get("max-keys", PAGE)))
        rows: list[str] = []
        last, shared, more = after, "", False
        for key in sorted(k for k in self.shelf.objects if k.startswith(prefix) and k > after):
            ends = key.find(delimiter, len(prefix)) if delimiter else -1
            begins = key[: ends + len(delimiter)] if ends >= 0 else ""
            if begins and (begins == shared or after.startswith(begins)):
                last = key
                continue
            if more := len(rows) == most:
                break
            shared, last = begins, key
            common = f"<CommonPrefixes><Prefix>{escape(begins)}</Prefix></CommonPrefixes>"
            rows.append(common if begins else self.row(key))
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        cut = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        text = f"<ListBucketResult>{cut}{''.join(rows)}</ListBucketResult>"
        whole = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
        self.reply(200, {"Content-Type": "application/xml"}, whole)

    def row(self, key: str) -> str:
        one = self.shelf.objects[key]
        saved = datetime.fromtimestamp(one.saved, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (
            f"<Contents><Key>{escape(key)}</Key><Generation>{one.generation}</Generation>"
            f"<LastModified>{saved}</LastModified><ETag>{escape(one.etag)}</ETag>"
            f"<Size>{len(one.data)}</Size></Contents>"
        )


@contextmanager
def gcs_server() -> Iterator[Gcs]:
    gcs = Gcs()
    with serving(Xml, gcs) as server:
        gcs.endpoint = server.endpoint
        yield gcs
