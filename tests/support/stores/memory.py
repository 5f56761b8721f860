"""fsspec's file system in memory, of this process alone."""

from __future__ import annotations

from dataclasses import dataclass

from stores.bucket import Bucket


@dataclass(frozen=True)
class Memory:
    root: str

    def put(self, key: str, data: bytes) -> None:
        self.files().pipe_file(f"{self.root}/{key}", data)

    def delete(self, key: str) -> None:
        self.files().rm_file(f"{self.root}/{key}")

    def keys(self) -> list[str]:
        return [path.removeprefix(f"{self.root}/") for path in self.files().find(self.root)]

    def files(self):  # type: ignore[no-untyped-def]
        from fsspec.implementations.memory import MemoryFileSystem

        return MemoryFileSystem()


def memory_bucket(name: str) -> Bucket:
    return Bucket(f"memory://{name}", f"memory://{name}", {}, Memory(f"/{name}"))
