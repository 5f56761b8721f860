"""Converts the paths that callers of the Python API give (texts, bytes and path objects) to texts."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ckpt_tools.errors import UsageError

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""One path, as ``open`` takes it."""
Paths = Path | Iterable[Path]
"""One path, or several."""


def one(path: Path, what: str = "root") -> str:
    """Return a path as str; a presigned URL without its query. Raise UsageError if it is no path or empty."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise UsageError(f"{what} {path!r} is not a path", "give a text or a path object")
    text = os.fsdecode(path)
    if not text:
        raise UsageError(f"{what} is an empty path", "name a directory or a file, such as '.'")
    if "://" in text:
        from ckpt_tools.storage.signed import strip_query

        return strip_query(text)
    return text


def to_paths(paths: Paths) -> list[str]:
    """Return a list of paths; one path is a list of one, never its letters. Raise UsageError for none."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        return [one(paths, "path")]
    if not isinstance(paths, Iterable):
        raise UsageError(f"paths {paths!r} are not paths", "give a path, or a list of paths")
    found = [one(path, "path") for path in paths]
    if not found:
        raise UsageError("there is no path to look at", "name a directory or a file, such as '.'")
    return found


def names(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple; a single str becomes a tuple of one."""
    return (given,) if isinstance(given, str) else tuple(given)
