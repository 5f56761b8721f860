"""A mock of the Hub's HTTP API, as far as huggingface_hub's file system asks it: what a repository is, its tree
and some paths of it, and ranges of files. The Hub itself nobody can start; what it answers was taken from its
client, huggingface_hub, which alone says that this is the Hub.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stores.bucket import Bucket
from stores.serving import Handler, serving
from stores.shelf import Shelf, Stored, asked_range

PAGE = 50
"""Entries that one answer has at most; the Hub has 1,000 of them."""


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
    """Of models alone, at their revision ``main``."""

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
        rows = list(dict.fromkeys(names))
        first = int(query.get("cursor", ["0"])[0])
        more = {}
        if first + PAGE < len(rows):
            url = f"{self.server.endpoint}{urlsplit(self.path).path}?cursor={first + PAGE}&recursive={deep}"
            more = {"Link": f'<{url}>; rel="next"'}
        self._json([_row(shelf, name) for name in rows[first : first + PAGE]], more)

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

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self.reply(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())


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


@contextmanager
def hugging_face() -> Iterator[Hub]:
    hub = Hub()
    with serving(Answering, hub) as server:
        hub.endpoint = server.endpoint
        yield hub
