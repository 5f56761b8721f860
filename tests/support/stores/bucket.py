"""One bucket on a test server: where it is, how a client reaches it, and a way past that client to fill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol


class Contents(Protocol):
    """The objects of a bucket, written and read without obstore or fsspec: they are what is tested."""

    def put(self, key: str, data: bytes) -> None: ...

    def delete(self, key: str) -> None: ...

    def keys(self) -> list[str]: ...


@dataclass(frozen=True)
class Bucket:
    """``options`` are those that a user would set for the store, all of them text."""

    url: str  # "s3://bucket": a key is appended after "/"
    endpoint: str  # "http://127.0.0.1:port", what a proxy is put in front of
    options: Mapping[str, str]
    contents: Contents

    def put(self, key: str, data: bytes) -> None:
        self.contents.put(key, data)

    def delete(self, key: str) -> None:
        self.contents.delete(key)

    def keys(self) -> list[str]:
        """All keys, in order."""
        return sorted(self.contents.keys())

    def upload(self, directory: str | Path, prefix: str = "") -> None:
        """Every file below a local directory, by its relative path below ``prefix``."""
        root = Path(directory)
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            name = path.relative_to(root).as_posix()
            self.put(f"{prefix.strip('/')}/{name}" if prefix else name, path.read_bytes())

    def through(self, endpoint: str) -> Bucket:
        """The same bucket for a client that asks another endpoint, a proxy; it is filled directly."""
        moved = {name: value.replace(self.endpoint, endpoint) for name, value in self.options.items()}
        return replace(self, url=self.url.replace(self.endpoint, endpoint), endpoint=endpoint, options=moved)

    def store(self, **retry: Any) -> Any:
        """A client of obstore. It wants the options of HTTP apart: with ``allow_http`` in ``config``,
        obstore 0.12 panics.
        """
        from obstore.store import from_url

        config = {name: value for name, value in self.options.items() if name != "allow_http"}
        return from_url(
            self.url,
            config=config or None,  # type: ignore[arg-type]
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, **retry},  # type: ignore[typeddict-item]
        )
