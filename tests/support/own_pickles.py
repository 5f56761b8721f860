"""Pickles that name what is in no list, made of those of our fixtures."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

from timed import same_times

MINE = b"cmycompany.models\nConfig\n"
CALL = MINE + b")\x81}b"
LEFT_OUT = (".data/serialization_id", ".format_version", ".storage_alignment")


def adding(path: Path, value: bytes, then: bytes = b"0") -> None:
    """Put a value on the pickle's stack, and off again (or do what ``then`` says with it): the rest of the
    file stays what it was.
    """
    with same_times(path):
        _add(path, value + then)


def _add(path: Path, more: bytes) -> None:
    if path.read_bytes()[:2] == b"PK":
        with zipfile.ZipFile(path) as old:
            files = [(i, old.read(i)) for i in old.infolist()]
        with zipfile.ZipFile(path, "w") as new:
            for info, data in files:
                if not info.filename.endswith(LEFT_OUT):
                    added = data[:-1] + more + b"." if info.filename.endswith("/data.pkl") else data
                    new.writestr(zipfile.ZipInfo(info.filename), added)
    else:
        data = path.read_bytes()
        path.write_bytes(pickle.dumps(pickle.loads(data), 2)[:-1] + more + b".")  # our own fixture


def setting(path: Path, key: str, value: object) -> None:
    """Give the dict that a file holds another value under a key."""
    adding(path, pickle.dumps(key, 2)[2:-1] + pickle.dumps(value, 2)[2:-1], b"s")
