"""Copies that people make by hand, by their names:
``run.bak``, ``step-20-copy``, ``model (1).pt``, ``.trash/``, ``.snapshot/``, ``run_20250131``. Never what
a job saves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple


class Proof(Enum):
    """What it takes to believe a name."""

    NAME = "the name alone"
    EQUAL = "that what it is named after lies beside it, and holds the same bytes"


class Copy(NamedTuple):
    """What a copy was called before; "" when its name does not tell."""

    of: str
    proof: Proof


_END = r"(?P<suffix>(?:\.[A-Za-z][\w-]{0,23}){0,3})"
_TRASH = r"(?i)\.?trash(?:es)?|\.trash-\d+|[.#@]recycle(?:\.bin)?|\$recycle\.bin"
_SNAPSHOTS = r"\.(?:snap(?:s|shots?)?|zfs|stversions)|[~#]snapshot"
"""Of NetApp, OneFS, VAST and HDFS, GPFS and WekaFS, CephFS, GlusterFS, ZFS, DSM; and Syncthing's versions."""
_CERTAIN = (
    r"(?i)(?P<of>.+?)(?:\.(?:bak|old|orig|backup|copy)[._-]?\d*|~[\d~]*|[ ._-]+copy(?:[ _-]?\(?\d+\)?)?|"
    r" ?\((?:\d+|copy|another copy|\w+ copy)\))" + _END
)
_LIKELY = (
    r"(?i)(?:(?P<of>.+?)[ ._-]+(?:bak|old|orig|backup|prev|saved)[._-]?\d*|(?:bak|old|backup|copy)["
    r" ._-](?:of[ ._-])?(?P<of2>.+?))" + _END
)
_DATED = (
    r"(?P<of>.+?)[ ._-](?:(?:19|20)\d{6}(?:[._T-]?\d{4,6})?|(?:19|20)\d\d-\d\d-\d\d(?:[_T"
    r" -]\d\d[-:.]?\d\d(?:[-:.]?\d\d)?)?|1\d{9}(?:\d{3})?)" + _END
)
_HINT = re.compile(
    r"bak|old|orig|copy|backup|prev|saved|trash|recycle|[~(]|\d{8}|\d\d-\d\d|[.#]snap|\.zfs|\.stv",
    re.IGNORECASE,
)
"""What no such name is without: a cheap test."""


def copy(name: str) -> Copy | None:
    """What the name of a file or directory says that it is a copy of;
    None for all that a job would save under.
    """
    if not _HINT.search(name):
        return None
    # The expressions are compiled when a name is met that may be one: most trees have none.
    if re.fullmatch(_TRASH, name) or is_of_snapshots(name):
        return Copy("", Proof.NAME)
    for pattern, proof in ((_CERTAIN, Proof.NAME), (_LIKELY, Proof.EQUAL), (_DATED, Proof.EQUAL)):
        if m := re.fullmatch(pattern, name):
            return Copy((m["of"] or m.groupdict().get("of2") or "") + m["suffix"], proof)
    return None


def is_of_snapshots(name: str) -> bool:
    """Whether a directory is where a file system shows what it held at earlier times."""
    return re.fullmatch(_SNAPSHOTS, name) is not None


def suspected(path: str) -> bool:
    """Whether a path may be, or lie in, what a name calls a copy: a cheap test that few paths pass."""
    return _HINT.search(path) is not None


class Found(NamedTuple):
    """A path that is, or lies in, a copy: ``top`` is the highest directory that is one (or the file itself),
    ``of`` what it is named after ("": unknown).
    """

    path: str
    top: str
    of: str
    proof: Proof


def copies(paths: Iterable[str], root: str, keep: Callable[[str], bool]) -> Iterator[Found]:
    """Those of ``paths`` below ``root`` that a name calls copies, the highest name first;
    one that needs proof only where its original is among ``paths``.

    Nothing in the path of ``root`` itself counts: who asks about a copy gets an answer. ``keep`` says which
    names are a user's own all the same.
    """
    paths, known = list(paths), dict[str, Found | None]()
    there = set(paths)
    for path in paths:
        above = path.rpartition("/")[0]
        while above not in there and len(above) > len(root):
            there.add(above)
            above = above.rpartition("/")[0]

    def top(path: str) -> Found | None:
        if len(path) <= len(root):
            return None
        if path not in known:
            above, _, name = path.rpartition("/")
            known[path] = top(above)
            if known[path] is None and (said := copy(name)) and not keep(name):
                of = f"{above}/{said.of}" if said.of else ""
                if said.proof is Proof.NAME or of in there:
                    known[path] = Found(path, path, of, said.proof)
        return known[path]

    for path in paths:
        if (found := top(path)) is not None:
            yield found._replace(path=path)
