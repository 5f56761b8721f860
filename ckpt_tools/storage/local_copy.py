"""What lies in a store as a file of this machine, for programs that know no stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ckpt_tools.storage.local import Source
from ckpt_tools.storage.urls import is_url

_BLOCK = 8 << 20


@contextmanager
def on_this_machine(source: Source) -> Iterator[str]:
    """The path of a file, or of a copy of an object that is gone afterwards. Raises OSError."""
    if not is_url(source.path):
        yield source.path
        return
    with tempfile.NamedTemporaryFile(suffix=f"-{os.path.basename(source.path)[-100:]}") as copy:
        block = memoryview(bytearray(min(_BLOCK, source.size)))
        for at in range(0, source.size, _BLOCK):
            part = block[: source.size - at]
            source.readinto(at, part)
            copy.write(part)
        copy.flush()
        yield copy.name
