"""What a store says about the bytes of an object, asked for without any of them: one request, or two where
it was uploaded in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.model.store_checksum import StoreChecksums
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.store import CLOUDS
from ckpt_tools.storage.urls import joined

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.object_store import ObjectStore
    from ckpt_tools.storage.stores.store import Object, Store

_S3 = frozenset({"s3", "s3a"})
_SIGNED = CLOUDS - {"s3", "s3a"}


def keeps_checksums(url: str) -> bool:
    """Whether a store of this kind keeps any that it tells."""
    return url.partition("://")[0] in _S3 | _SIGNED


def checksums_of(url: str) -> StoreChecksums:
    """What the store says of the object at a URL, as it was listed. Raises as ``stored_checksums`` does."""
    tree, key = mounts.tree_of(url)
    return stored_checksums(tree.store, tree.object(key))


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
