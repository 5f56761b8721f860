"""MessagePack as flax packs it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.msgpack import Ext
from msgspec.msgpack import encode as packed


def array(shape: Sequence[int], dtype: str, data: bytes) -> Ext:
    return Ext(1, packed([list(shape), dtype, data]))
