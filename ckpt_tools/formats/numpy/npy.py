"""NumPy arrays as numpy.save writes them: a header, then the raw elements, or a pickle if they are Python
objects; one array, or several one after the other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.tensors import MAX_TENSORS, zero_tail
from ckpt_tools.formats.numpy.header import Header, read_header
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.scalars import add_arrays, add_scalars
from ckpt_tools.formats.pickles.stubs import Call
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

MAGIC = b"\x93NUMPY"
_FIRST = 256
"""Bytes read at once: most headers have 128."""
_MOST = 1 << 17
"""Bytes of a header at most, which take 65 MB to parse; NumPy's own reader takes 10,000."""


class Array(NamedTuple):
    """One array: its header, the offset of its elements, and the length of all before the header's text."""

    header: Header
    data: int
    text_start: int


def magic(head: bytes) -> bool:
    """Return True for NumPy's magic."""
    return head.startswith(MAGIC)


def read_array_header(source: Source, at: int) -> Array:
    """Read the header of the array that begins at byte ``at``. Raises Damage."""
    first = source.read(at, min(_FIRST, source.size - at))
    begins = 10 if first[6:7] == b"\1" else 12
    if len(first) < begins:
        raise Damage("truncated", "the file ends inside the header of an array", source.size)
    if not first.startswith(MAGIC) or first[6] not in (1, 2, 3) or first[7]:
        raise Damage("bad-header", "no array of a known version of NumPy's format begins here", at)
    length = int.from_bytes(first[8:begins], "little")
    if length > source.size - at - begins:
        raise Damage("truncated", "the file ends inside the header of an array", source.size)
    if length > _MOST:
        raise Damage("too-complex", f"the header of an array has {length:,} bytes", at)
    raw = first[begins : begins + length]
    if len(raw) < length:
        raw += source.read(at + begins + len(raw), length - len(raw))
    try:
        text = raw.decode("utf-8" if first[6] == 3 else "latin-1")
    except UnicodeDecodeError:
        raise Damage("bad-header", "the header of an array is not UTF-8", at) from None
    return Array(read_header(text, at + begins), at + begins + length, begins)


def read_array(source: Source, at: int, name: str, anatomy: Anatomy) -> Generator[Finding, None, int]:
    """Check the array that begins at byte ``at``, add it to ``anatomy``; return its end. Raises Damage."""
    array = read_array_header(source, at)
    _explain(at, array, anatomy)
    if array.header.element.objects:
        pickled = yield from read_judged(source, array.data, source.size, anatomy)
        what = "a pickle of an array's objects: its names and numbers are not checked"
        anatomy.explain(array.data, pickled.end - array.data, what, Guard.UNPROTECTED)
        # numpy.save keeps a dict as an array without dimensions
        state = pickled.value.state if type(pickled.value) is Call else None
        if type(state) is tuple and len(state) == 5 and state[1] == () and type(state[4]) is list:
            for value in state[4] if len(state[4]) == 1 else ():
                add_scalars(value, anatomy)
                yield from add_arrays(pickled._replace(value=value), anatomy)
        return pickled.end
    end = array.data + array.header.nbytes
    if end > source.size:
        why = f"the elements of an array should end at byte {end:,}, the file ends at {source.size:,}"
        raise Damage("truncated", why, source.size)
    tensor = make_tensor(array.header, name, array.data)
    anatomy.tensors.append(tensor)
    anatomy.explain(array.data, tensor.nbytes, "elements without a checksum", Guard.UNPROTECTED)
    return end


def make_tensor(header: Header, name: str, offset: int | None) -> Tensor:
    """Return an array as a tensor; in Fortran order it is transposed, so that the rows are contiguous."""
    shape = header.shape[::-1] if header.fortran else header.shape
    return Tensor(name, header.element.name, shape, header.nbytes, offset)


def _explain(at: int, array: Array, anatomy: Anatomy) -> None:
    """Explain the header: any flipped bit shows, but for another version or a type of the same size."""
    header, begins = array.header, at + array.text_start
    anatomy.explain(at, 6, "NumPy's mark")
    guard = Guard.STRUCTURE if array.text_start == 10 else Guard.UNPROTECTED
    anatomy.explain(at + 6, 1, "the version of the header", guard)
    anatomy.explain(at + 7, array.text_start - 7, "the length of the header")
    if not header.is_canonical or header.element.objects or not header.nbytes:
        anatomy.explain(begins, array.data - begins, "type, order and shape", Guard.UNPROTECTED)
        return
    anatomy.explain(begins, header.start, "the header")
    anatomy.explain(begins + header.start, header.stop - header.start, "the type", Guard.UNPROTECTED)
    after = begins + header.stop
    anatomy.explain(after, array.data - after, "order and shape, by which the elements are counted")


def read_arrays(source: Source, anatomy: Anatomy, at: int = 0) -> Iterator[Finding]:
    """Check arrays one after the other, from byte ``at`` to the end of the file. Raises Damage."""
    yield finding("not-checksummed", "NumPy's format has no checksum")
    for name in map(str, range(MAX_TENSORS)):
        at = yield from read_array(source, at, name, anatomy)
        if not source.read(at, min(6, source.size - at)).startswith(MAGIC):
            break
    else:
        raise Damage("too-complex", f"more than {MAX_TENSORS:,} arrays", at)
    if at < source.size:
        yield finding("trailing-data", f"{source.size - at:,} bytes follow the last array", offset=at)
    last = anatomy.tensors[-1:]
    if last and (lost := zero_tail(source, last, last[0].offset or 0)):
        yield lost


FORMAT = make_format("npy", magic, limit(read_arrays), hides_cuts=True)
