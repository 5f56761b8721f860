"""Files and tensors whose elements may all be zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from ckpt_tools.formats.common.floats import KINDS
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Source

ZEROS = "zeros"
"""The name, among what is known of a file, of its first and last elements being zero."""
_FIRST, _AT_ONCE = 64, 1 << 20


def all_zero(source: Source) -> bool:
    """Whether no byte of a file is anything else; reads it up to the first that is. Raises OSError."""
    for at in range(0, source.size, _AT_ONCE):
        if bytes(source.read(at, min(_AT_ONCE, source.size - at))).strip(b"\0"):
            return False
    return True


def is_weight(t: Tensor) -> bool:
    """Whether a tensor has the name that torch and MindSpore give to the weights of a layer."""
    return t.name.rpartition(".")[2] == "weight"


def zero_tensors(source: Source, tensors: Sequence[Tensor], *, every: bool = True) -> Iterator[Tensor]:
    """The tensors that hold nothing but zeros, if all do that have more than one number; else (of ``every``
    one) those that are weights with two axes or more. Of most tensors the first bytes are read. Raises
    OSError.
    """
    several = [t for t in tensors if prod(t.shape) > 1]
    placed = _find_in_one_run(several, source.size)
    filled = next((t for t in placed if not _is_zero(source, t)), None)
    if filled is not None:
        others = [t for t in placed if len(t.shape) > 1 and t is not filled and t.dtype in KINDS]
        yield from all_zeros(source, filter(is_weight, others if every else ()))
    elif len(placed) == len(several) and any(t.dtype in KINDS for t in placed):
        yield from placed


def all_zeros(source: Source, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors that lie in the file in one run and are nothing but zeros. Raises OSError."""
    return (t for t in _find_in_one_run(tensors, source.size) if _is_zero(source, t))


def _find_in_one_run(tensors: Iterable[Tensor], size: int) -> list[Tensor]:
    """The tensors whose bytes lie in the first ``size`` bytes of a file one after another."""
    found = [t for t in tensors if t.offset is not None and not t.pieces]
    return [t for t in found if (t.offset or 0) + t.nbytes <= size]


def _is_zero(source: Source, t: Tensor) -> bool:
    at, step = t.offset or 0, _FIRST
    end = at + t.nbytes
    while at < end:
        if source.read(at, min(step, end - at)).strip(b"\0"):
            return False
        at, step = at + step, _AT_ONCE
    return True
