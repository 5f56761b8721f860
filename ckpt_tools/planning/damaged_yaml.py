"""Settings in YAML beside the files of a choice that are zeros, or cut: no format of ours tells that, but the
same file of another save.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from os.path import basename, dirname

from ckpt_tools.discovery.file_stat import stat_of
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import ShortRead, opened

_MOST = 64
"""Texts of the choice that are looked at, and those of other saves that each is compared with."""
_LARGEST = 1 << 18
"""Bytes of one that is read."""


def damaged_yaml(c: Checkpoint, saves: Sequence[Checkpoint], texts: Sequence[str]) -> Iterator[Finding]:
    """Warnings about those of ``texts`` in YAML that lie beside the files of ``c``. ``saves`` are others of
    its run that have directories of their own, as ``c`` has then.
    """
    directories = {dirname(p.path) for p in c.parts}
    others = {p.home: o.mtime_ns for o in saves for p in o.parts}
    for path in islice((path for path in texts if dirname(path) in directories), _MOST):
        like = _like(path, c, [o for o in texts if dirname(o) in others])
        size = stat_of(path)[0]
        if size == 0 and any(stat_of(o)[0] > 0 for o in islice(like, _MOST)):
            yield _wrong(path, "empty-file", "it has no bytes, and that of another save has")
        elif 0 < size <= _LARGEST:
            yield from _read(path, [o for o in like if others[dirname(o)] <= c.mtime_ns])


def _like(path: str, c: Checkpoint, texts: Sequence[str]) -> list[str]:
    """Those of the same name, where the path lies in the directory of its save."""
    if dirname(path) not in {p.home for p in c.parts if p.home}:
        return []
    return [o for o in texts if basename(o) == basename(path)]


def _read(path: str, older: Iterable[str]) -> Iterator[Finding]:
    """What the bytes of a text tell, and those of its name in older saves: what a job adds to grows."""
    data = _bytes(path)
    if data and not data.strip(b"\0"):
        yield _wrong(path, "zero-filled", "all of its bytes are zero, which no text is")
    elif data and any(_begins(o, data) for o in islice(older, _MOST)):
        text = "it ends early: an older save's begins with the same bytes, and is longer"
        yield _wrong(path, "truncated", text)


def _begins(path: str, data: bytes) -> bool:
    """Whether a longer file begins with these bytes."""
    return len(data) < stat_of(path)[0] <= _LARGEST and _bytes(path).startswith(data)


def _bytes(path: str) -> bytes:
    """All of a small file; nothing where it cannot be read: it is no part of what is loaded."""
    try:
        with opened(path) as source:
            return source.read(0, min(source.size, _LARGEST))
    except (OSError, ShortRead):
        return b""


def _wrong(path: str, code: str, text: str) -> Finding:
    return finding(code, text, path=path, severity=Severity.WARNING)
