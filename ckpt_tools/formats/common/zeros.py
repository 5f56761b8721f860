"""Files and tensors whose elements may all be zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
    several = list(filter(_has_several_numbers, tensors))
    placed = [t for t in several if _is_in_one_run(t) and _end(t) <= source.size]
    filled = next((t for t in placed if not _is_zero(source, t)), None)
    if filled is not None:
        weights = filter(_is_matrix, placed if every else ())
        yield from (t for t in weights if t is not filled and _is_zero(source, t))
    elif len(placed) == len(several) and any(t.dtype in KINDS for t in placed):
        yield from placed


def all_zeros(source: Source, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors that lie in the file in one run and are nothing but zeros. Raises OSError."""
    return (t for t in tensors if _is_in_one_run(t) and _is_zero(source, t))


def _is_in_one_run(t: Tensor) -> bool:
    """Return True if the bytes of a tensor lie in the file one after another."""
    return t.offset is not None and not t.pieces


def _has_several_numbers(t: Tensor) -> bool:
    """Return True if a tensor has more than one number."""
    return max(t.shape, default=1) > 1 and 0 not in t.shape


def _is_matrix(t: Tensor) -> bool:
    """Return True if a tensor is a weight with two axes or more."""
    return len(t.shape) > 1 and is_weight(t) and t.dtype in KINDS


def _end(t: Tensor) -> int:
    return (t.offset or 0) + t.nbytes


def _is_zero(source: Source, t: Tensor) -> bool:
    at, step = t.offset or 0, _FIRST
    while at < _end(t):
        if source.read(at, min(step, _end(t) - at)).strip(b"\0"):
            return False
        at, step = at + step, _AT_ONCE
    return True
