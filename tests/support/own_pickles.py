"""Pickles that name what is in no list, made of those of our fixtures."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

MINE = b"cmycompany.models\nConfig\n"
CALL = MINE + b")\x81}b"


def adding(path: Path, value: bytes, then: bytes = b"0") -> None:
    """Put a value on the pickle's stack, and off again (or do what ``then`` says with it): the rest of the
    file stays what it was.
    """
    before = path.stat()
    if path.read_bytes()[:2] == b"PK":
        with zipfile.ZipFile(path) as old:
            files = [(i, old.read(i)) for i in old.infolist()]
        with zipfile.ZipFile(path, "w") as new:
            for info, data in files:
                if not info.filename.endswith(
                    (".data/serialization_id", ".format_version", ".storage_alignment")
                ):
                    plain = zipfile.ZipInfo(info.filename)
                    new.writestr(
                        plain,
                        data[:-1] + value + then + b"." if info.filename.endswith("/data.pkl") else data,
                    )
    else:
        data = path.read_bytes()
        path.write_bytes(pickle.dumps(pickle.loads(data), 2)[:-1] + value + then + b".")  # our own fixture
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def setting(path: Path, key: str, value: object) -> None:
    """Give the dict that a file holds another value under a key."""
    adding(path, pickle.dumps(key, 2)[2:-1] + pickle.dumps(value, 2)[2:-1], b"s")
