"""What stores say of objects, beside what seals say of the same files: asked for once, without any body."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from ckpt_tools.checksum.store_sums import compared, of_chunks, told_of_whole
from ckpt_tools.formats.seals.document import known_digests
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.store_checksum import NAMES, StoreChecksums
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.told import stored_checksums


class Evidence:
    """What stores say of objects, each asked for once. Safe for several threads."""

    def __init__(self) -> None:
        self._told: dict[str, StoreChecksums] = {}
        self._lock = threading.Lock()

    def told(self, url: str) -> StoreChecksums:
        """Raises OSError."""
        with self._lock:
            if (have := self._told.get(url)) is not None:
                return have
        tree, key = mounts.tree_of(url)
        told = told_of_whole(stored_checksums(tree.store, tree.object(key)))
        with self._lock:
            return self._told.setdefault(url, told)

    def same(self, path: str, sealed: SealedFile, algorithm: str) -> bool:
        """Whether a file is the one that was sealed, as far as its store says it."""
        try:
            told = self.told(path)
        except OSError:
            return False
        found = beside_seal(told, sealed, algorithm)
        return found is not None and found.same


class Judged(NamedTuple):
    """Whether an object is what something says that it is, by the name of the checksum that shows it."""

    same: bool
    what: str


def beside_digests(told: StoreChecksums, known: Mapping[str, bytes]) -> Judged | None:
    """Return whether an object has these digests; None where nothing can be compared."""
    found = compared(told, known)
    if found is None:
        return None
    return Judged(found.same, _differs(found.checksum.algorithm, found.checksum.value, found.known))


def beside_seal(told: StoreChecksums, sealed: SealedFile, algorithm: str) -> Judged | None:
    """Whether an object is the file that was sealed; None where nothing can be compared."""
    if told.size != sealed.size:
        return Judged(False, f"it has {told.size:,} bytes; {sealed.size:,} were sealed")
    if (found := beside_digests(told, known_digests(sealed, algorithm))) is not None:
        return found
    for s in told.sums:
        crcs = {"crc32": sealed.chunk_crc32, "crc32c": sealed.chunk_crc32c}.get(s.algorithm, "")
        chunks = [bytes.fromhex(crcs[i : i + 8]) for i in range(0, len(crcs), 8)]
        value = None if s.whole or s.weak else of_chunks(s, sealed.size, chunks)
        if value is not None:
            return Judged(value == s.value, _differs(s.algorithm, s.value, value))
    return None


def _differs(algorithm: str, stored: bytes, known: bytes) -> str:
    """Two checksums of one kind, in words."""
    return f"the store says {NAMES[algorithm]} {stored.hex()}, {known.hex()} was expected"
