"""Files and tensors whose elements are all zero, and lost pages in the middle of numbers.

A disk, a file system or a network copy loses whole pages; programs write zeros as whole rows, whole tensors
or single numbers. So a run of zeros is an accident if it begins and ends exactly at page borders, both inside
rows (one of a matrix), among numbers that are not zero: by chance, one in a million runs of genuine zeros
lies so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from operator import attrgetter

from ckpt_tools.checksum.compare import Watch
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.tensors import KINDS
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import Source

ZEROS = "zeros"
"""The name of the fact about a file that its first and last elements are zero."""
_FIRST, _AT_ONCE = 64, 1 << 20  # bytes of the first read and of later ones


def is_zero(source: Source) -> bool:
    """Return whether all bytes of a file are zero; read it up to the first other byte. Raise OSError."""
    for at in range(0, source.size, _AT_ONCE):
        if bytes(source.read(at, min(_AT_ONCE, source.size - at))).strip(b"\0"):
            return False
    return True


def is_weight(t: Tensor) -> bool:
    """Return whether a tensor has the name that torch and MindSpore give to the weights of a layer."""
    return t.name.rpartition(".")[2] == "weight"


def find_zeros(source: Source, tensors: Sequence[Tensor], *, every: bool = True) -> Iterator[Tensor]:
    """Yield the tensors of more than one number if all of these are zero; else, if ``every``, zero weights of
    two dimensions or more. Of most tensors only the first bytes are read. Raise OSError.
    """
    several = [t for t in tensors if prod(t.shape) > 1]
    located = _find_in_one_run(several, source.size)
    nonzero = next((t for t in located if not _is_zero(source, t)), None)
    if nonzero is not None:
        others = [t for t in located if len(t.shape) > 1 and t is not nonzero and t.dtype in KINDS]
        yield from filter_zeros(source, filter(is_weight, others if every else ()))
    elif len(located) == len(several) and any(t.dtype in KINDS for t in located):
        yield from located


def filter_zeros(source: Source, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Return the tensors that lie in the file in one run each and are all zero. Raise OSError."""
    return (t for t in _find_in_one_run(tensors, source.size) if _is_zero(source, t))


def _find_in_one_run(tensors: Iterable[Tensor], size: int) -> list[Tensor]:
    """Return the tensors whose bytes lie without gaps in a file of ``size`` bytes."""
    found = [t for t in tensors if t.offset is not None and not t.pieces]
    return [t for t in found if (t.offset or 0) + t.nbytes <= size]


def _is_zero(source: Source, t: Tensor) -> bool:
    """Return whether all bytes of a tensor are zero; read it up to the first other byte. Raise OSError."""
    at, step = t.offset or 0, _FIRST
    end = at + t.nbytes
    while at < end:
        if source.read(at, min(step, end - at)).strip(b"\0"):
            return False
        at, step = at + step, _AT_ONCE
    return True


PAGE = 4096
MANY = 8
"""The most runs in one tensor that count as lost pages: more are a pattern, of a pruned tensor."""
MOST = 4096
"""The most runs in one file that are looked at, with two small reads each."""
BLOCK = 64
"""Numbers in a block: programs that cut rows into blocks (heads, tiles) use multiples of it, as a rule."""
_ZEROS = bytes(PAGE)
_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "complex64": 8, "complex128": 16}


def find_zero_pages(offset: int, data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield file offsets (start, stop) of each run of zero pages in ``data``, which lies at ``offset``."""
    first = -offset % PAGE
    count = (len(data) - first) // PAGE
    if count < 1:
        return
    # the first byte of each page is seldom zero, so few pages are looked at further
    heads = data[first : first + count * PAGE : PAGE].tobytes()
    run, i = -1, heads.find(0)
    while i >= 0:
        at = first + i * PAGE
        if data[at + PAGE - 1] == 0 and data[at : at + PAGE].tobytes() == _ZEROS:
            run = at if run < 0 else run
            end = at + PAGE
            if i + 1 < count and heads[i + 1] == 0:  # the run may go on
                i += 1
                continue
        else:
            end = at
        if run >= 0:
            yield offset + run, offset + end
            run = -1
        i = heads.find(0, i + 1)


def watch_zeros(runs: list[tuple[int, int]]) -> Watch:
    """Return a function that adds the runs of zero pages in data to ``runs``, unless these are too many."""

    def watch(offset: int, data: memoryview | bytes) -> None:
        if len(runs) < MOST:
            runs.extend(find_zero_pages(offset, memoryview(data)))

    return watch


def join_runs(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return runs (start, stop) in file order, with touching runs joined."""
    out: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        else:
            out.append((start, stop))
    return out


def find_lost_pages(
    source: Source, tensors: Sequence[Tensor], runs: Iterable[tuple[int, int]]
) -> Iterator[Finding]:
    """Yield ``zero-pages`` for runs of zero pages between numbers of a row; read two pages for each."""
    located = sorted([t for t in tensors if t.offset is not None and t.nbytes], key=attrgetter("offset"))
    starts = [t.offset or 0 for t in located]
    found: dict[str, list[tuple[int, int]]] = {}
    for start, stop in join_runs(runs)[:MOST]:
        left, right = _find_tensor_across(located, starts, start), _find_tensor_across(located, starts, stop)
        if left is None or right is None or not _are_rows_cut(left, start, right, stop):
            continue
        if _is_dense(source, left, start, left=True) and _is_dense(source, right, stop, left=False):
            found.setdefault(left.name, []).append((start, stop))
    for name, lost in found.items():
        if len(lost) > MANY:
            continue
        for start, stop in lost:
            where = f"inside tensor {name[:200]!r}, in the middle of a row"
            why = f"{stop - start} zero bytes from one page border to another {where}"
            yield finding("zero-pages", why, offset=start)


def _are_rows_cut(left: Tensor, start: int, right: Tensor, stop: int) -> bool:
    """Return whether zeros from ``start`` to ``stop`` cut a row at both ends, one of them in a matrix."""
    if len(left.shape) < 2 and len(right.shape) < 2:
        return False
    return _is_inside_row(left, start) and _is_inside_row(right, stop)


def _find_tensor_across(located: Sequence[Tensor], starts: Sequence[int], edge: int) -> Tensor | None:
    """Return the tensor that has bytes on both sides of the offset ``edge``, None if there is none."""
    i = bisect_right(starts, edge - 1) - 1
    t = located[i] if i >= 0 else None
    return t if t is not None and (t.offset or 0) + t.nbytes > edge else None


def _is_inside_row(t: Tensor, edge: int) -> bool:
    """Return whether ``edge`` lies inside a row of floats and at no border of its blocks (heads, tiles)."""
    width, at = _WIDTHS.get(t.dtype, 0), edge - (t.offset or 0)
    return width > 0 and len(t.shape) > 0 and at % (t.shape[-1] * width) != 0 and at % (BLOCK * width) != 0


def _is_dense(source: Source, t: Tensor, edge: int, *, left: bool) -> bool:
    """Return whether the number beside ``edge`` is not zero, and few (one in 64) on the page there are."""
    width, offset = _WIDTHS[t.dtype], t.offset or 0
    low, high = (max(edge - PAGE, offset), edge) if left else (edge, min(edge + PAGE, offset + t.nbytes))
    data = source.read(low, high - low)
    if not any(data[-width:] if left else data[:width]):
        return False
    numbers = [data[i : i + width] for i in range((offset - low) % width, len(data) - width + 1, width)]
    return sum(not any(n) for n in numbers) * 64 <= len(numbers)
