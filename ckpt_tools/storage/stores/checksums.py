"""What the store of a URL says about the bytes of its object."""

from __future__ import annotations

from ckpt_tools.model.store_checksum import StoreChecksums
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.told import stored_checksums


def checksums_of(url: str) -> StoreChecksums:
    """What the store says of the object at a URL, as it was listed. Raises as ``stored_checksums`` does."""
    tree, key = mounts.tree_of(url)
    return stored_checksums(tree.store, tree.object(key))
