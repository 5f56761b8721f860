"""What MindSpore's and safetensors' files share: scalars worth showing, damaged words, and the zero tail of a
file that was never filled.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.tiling import untiled
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Scalar
from ckpt_tools.model.tensor import Box, Tensor
from ckpt_tools.storage import Source

# ---- Tensors whose pieces lie in several files: whether all pieces of one save make up whole tensors.


def incomplete(files: Iterable[Mapping[str, Box]]) -> Iterator[Finding]:
    """Tensors that the pieces in all files of a save do not fill; replicated ones are in one file only."""
    pieces: dict[str, list[Box]] = defaultdict(list)
    for file in files:
        for name, box in file.items():
            pieces[name].append(box)
    for name, boxes in pieces.items():
        if len({len(box.start) for box in boxes}) > 1:
            what = "differ in their number of dimensions"
        else:
            shape = tuple(max(ends) for ends in zip(*(box.stop for box in boxes), strict=True))
            bad = untiled(shape, boxes)
            if bad is None or bad.kind == "complex":
                continue
            words = {"hole": "leave a hole", "overlap": "overlap"}
            what = words.get(bad.kind, "differ in their number of dimensions")
        text = f"the chunks of {name[:200]!r} {what}: a file of another save, or one that is missing"
        yield finding("bad-header", text)


_WORDS = (
    "epoch_num step_num global_step cur_rank batch_num loss_scale global_batch_size epoch step last_epoch"
    " last_step"
)
PROGRESS = frozenset(_WORDS.split())
"""Entries that say how far training was (MindSpore's append_info, MindIO TTP, mindformers): always kept,
whatever else there is.
"""
MAX_SCALARS = 64
MAX_TEXT = 256
MAX_TENSORS, MAX_INDEXED, MAX_NAME = 150_000, 1_000_000, 4096
"""More entries and longer names than any real file has; a hostile file stops here before it costs gigabytes
of objects.
"""
_PAGE = 4096
_TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64"
_CODES = dict(zip(_TYPES.split(), "?bBhHiIqQefd", strict=True))


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that differs from ``word`` in exactly one bit, which no new name does."""
    raw = word.encode("utf-8", "surrogatepass")
    for k in known:
        if len(k) == len(raw) and sum((a ^ b).bit_count() for a, b in zip(raw, k.encode(), strict=True)) == 1:
            return k
    return None


def is_single(dtype: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is one number that ``scalar`` can read."""
    return (dtype in _CODES or dtype == "bfloat16") and tuple(shape) in ((), (1,))


def scalar(raw: bytes, dtype: str) -> Scalar:
    """One little-endian element as a Python value; a NaN or infinity as text, because JSON has none."""
    if dtype == "bfloat16":
        raw, dtype = b"\0\0" + raw, "float32"
    value: int | float | bool = struct.unpack("<" + _CODES[dtype], raw)[0]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def remember(metadata: dict[str, Scalar], name: str, value: Scalar) -> None:
    """Keep a scalar if it tells progress or there is room; long texts are left out."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return
    if name in PROGRESS or len(metadata) < MAX_SCALARS:
        metadata[name] = value


def zero_tail(source: Source, tensors: Sequence[Tensor], start: int) -> Finding | None:
    """The mark of lost pages: zeros from a page border inside a row of a matrix to the file's end; genuine
    ones begin with a tensor or a row. The data begins at ``start``. Reads one page as a rule, at most about
    40.
    """
    last = (source.size - 1) // _PAGE

    def zero(page: int) -> bool:
        data = source.read(page * _PAGE, min(_PAGE, source.size - page * _PAGE))
        return data.count(0) == len(data)

    lo, hi = (start - 1) // _PAGE, last  # page lo holds header bytes, so it is not zero
    if hi <= lo or not zero(hi):
        return None
    while hi - lo > 1 and last - hi < 16:  # page by page first: other zeros may lie before a short tail
        lo, hi = (lo, hi - 1) if zero(hi - 1) else (hi - 1, hi)
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (lo, mid) if zero(mid) else (mid, hi)
    at = hi * _PAGE
    if source.size - at < 256 or at - 8 < start or not any(source.read(at - 8, 8)):
        return None
    cut = next((t for t in tensors if _cuts_row(t, at)), None)
    if cut is None:
        return None
    why = f"zero bytes from a page border inside tensor {cut.name!r} to the end of the file"
    return finding("zero-tail", why, offset=at)


def _cuts_row(t: Tensor, at: int) -> bool:
    """Whether a byte of the file lies inside a row of a matrix."""
    if t.offset is None or not t.offset < at < t.offset + t.nbytes or len(t.shape) < 2:
        return False
    return (at - t.offset) % (t.nbytes // t.shape[0]) != 0
