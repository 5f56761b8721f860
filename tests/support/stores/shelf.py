"""Objects in memory, with their generations, for the servers that are ours."""

from __future__ import annotations

import email.utils
import hashlib
import re
import threading
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stored:
    """``generation`` is larger for what was put later."""

    data: bytes
    generation: int
    joined: bool = False  # of parts
    saved: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        """The MD5 of what was put at once."""
        return f'"{hashlib.md5(self.data + b"parts" * self.joined).hexdigest()}"'

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

    def replace(
        self, key: str, data: bytes, *, over: int | None = None, joined: bool = False
    ) -> Stored | None:
        """Put it over the generation ``over`` (0: over nothing); None if there is another one."""
        with self.lock:
            before = self.objects.get(key)
            if over is not None and over != (before.generation if before else 0):
                return None
            self.generation += 1
            if before:
                self.old[key, before.generation] = before
            self.objects[key] = Stored(bytes(data), self.generation, joined)
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
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if not found:
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), max(int(first), min(size, int(last) + 1 if last else size))
