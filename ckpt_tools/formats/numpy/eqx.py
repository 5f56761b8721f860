"""The leaves of a model as equinox' tree_serialise_leaves writes them: NumPy arrays one after the other, in
some files behind a line of JSON with the settings of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, limit, make_format
from ckpt_tools.formats.numpy import npy
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_LINE = 1 << 20
"""Bytes of the line of JSON at most."""


def magic(head: bytes) -> bool:
    """Return True for NumPy's magic, or for a line of JSON before it, which may be longer than ``head``."""
    if head[:1] != b"{":
        return npy.magic(head)
    _, line, behind = head.partition(b"\n")
    return len(head) == HEAD if not line else behind.startswith(npy.MAGIC[: len(behind)])


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Skip the line of JSON, if there is one, and check the arrays behind it."""
    at = 0
    if source.read(0, min(1, source.size)) == b"{":
        head = source.read(0, min(source.size, _LINE))
        at = head.find(b"\n" + npy.MAGIC) + 1
        if not at:
            whole = len(head) == source.size
            raise Damage("truncated" if whole else "too-complex", "no array follows the settings", len(head))
        anatomy.explain(0, at, "settings as JSON, which nothing checks", Guard.UNPROTECTED)
    yield from npy.read_arrays(source, anatomy, at)


FORMAT = make_format("eqx", magic, _structure, distinct=False, hides_cuts=True)
