"""What a store says about the bytes of an object, asked for without any of them: one request, or two where
it was uploaded in parts.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

from ckpt_tools.model.store_checksum import StoreChecksums
from ckpt_tools.storage.stores.store import CLOUDS, Replaced
from ckpt_tools.storage.urls import joined

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.object_store import ObjectStore
    from ckpt_tools.storage.stores.store import Object, Store

_S3 = frozenset({"s3", "s3a"})
_SIGNED = CLOUDS - _S3


def keeps_checksums(url: str) -> bool:
    """Whether a store of this kind keeps any that it tells."""
    return url.partition("://")[0] in _S3 | _SIGNED


def stored_checksums(store: Store, of: Object) -> StoreChecksums:
    """What a store says of one version of an object. Raises FileNotFoundError, PermissionError, Replaced
    where there is another object now, and OSError, all without anything secret.
    """
    url = joined(store.url, of.key)
    scheme = url.partition("://")[0]
    if scheme not in _S3 | _SIGNED or not of.size:
        return StoreChecksums(url, of.size)
    client: ObjectStore = store  # type: ignore[assignment]  # of these schemes it is (mounts.py)
    if scheme in _S3:
        from ckpt_tools.storage.stores.s3_checksums import ask

        return StoreChecksums(url, of.size, ask(client, of))
    from ckpt_tools.storage.stores.signed_checksums import ask_signed

    return StoreChecksums(url, of.size, ask_signed(client, of, scheme))


def contradicts(store: ObjectStore, of: Object, data: memoryview) -> bool:
    """Whether a store says that an object has other bytes than all of these that came of it, as far as the
    standard library can tell. Raises Replaced.
    """
    try:
        told = stored_checksums(store, of).sums
    except Replaced:
        raise
    except OSError:  # nobody can say
        return False
    known = [(s, s.value == value) for s in told if s.whole and (value := _digest(s.algorithm, data))]
    for s, same in known:
        if not s.weak and not (same and s.claimed):
            return not same
    return any(not same and (s.of_content or store.digests) for s, same in known if s.weak)


def _digest(algorithm: str, data: memoryview) -> bytes | None:
    """None for those that need a package."""
    if algorithm == "crc32":
        return zlib.crc32(data).to_bytes(4, "big")
    if algorithm in ("md5", "sha1", "sha256", "sha512"):
        return hashlib.new(algorithm, data, usedforsecurity=False).digest()
    return None
