"""PaddlePaddle's distributed checkpoints: ``<id>.metadata``, a pickle that lists the pieces of tensors in
each ``<rank>_<id>.distcp`` beside it.

Facts: paddle/distributed/flex_checkpoint/dcp/{metadata,save_state_dict,load_state_dict}.py of Paddle 3.3;
until 3.1 they lay in distributed/checkpoint, and the metadata had neither global_shape nor flattened ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limit, make_format
from ckpt_tools.formats.common.tensors import find_untiled
from ckpt_tools.formats.dcp.metadata import read_lengths
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.stubs import Call, Global
from ckpt_tools.formats.torch.tensors import ITEMSIZE, text
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Box, Guard
from ckpt_tools.storage import Source

_MODULES = (
    "paddle.distributed.flex_checkpoint.dcp.metadata",
    "paddle.distributed.checkpoint.metadata",  # until 3.1
)
_STORED = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Types that numpy does not have -> the types that paddle.save writes instead."""
_PieceKey = tuple[tuple[int, ...], tuple[int, ...] | None]
"""The key of one piece of a tensor: its offsets, and the range of a flattened piece, else None."""


class Piece(NamedTuple):
    """One piece of a tensor: its box in the whole tensor, its dtype and shape in the file, and the shape of
    the ``whole``, if known. ``at`` is the offset of its description in the metadata file.

    A ``flat`` piece is a range of the elements of its box, so several pieces may have the same box.
    """

    box: Box
    dtype: str
    shape: tuple[int, ...]
    flat: bool
    whole: tuple[int, ...] | None
    at: int


def _magic(head: bytes) -> bool:
    """Return True for a pickle whose first global is in the module of Paddle's Metadata."""
    return head[:1] == b"\x80" and any(2 < head.find(m.encode()) < 16 for m in _MODULES)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the metadata alone; ``anatomy.members`` gets a claim that checks each data file against it."""
    why = "Paddle's metadata has no checksum: it is checked against itself and against the files beside it"
    yield finding("not-checksummed", why)
    pickled = yield from read_judged(source, 0, source.size, anatomy, whole=True)
    what = "metadata: its chunks are compared with the files, not its names"
    anatomy.explain(0, pickled.end, what, Guard.UNPROTECTED)
    if pickled.end < source.size:
        why = f"{source.size - pickled.end:,} bytes follow the pickle"
        yield finding("trailing-data", why, offset=pickled.end)
    root = _read_state(pickled.value, "Metadata")
    values = root.get("state_dict_metadata")
    if not isinstance(values, dict):
        raise Damage("bad-header", "state_dict_metadata is not a dict", 0)
    pieces: dict[str, dict[_PieceKey, Piece]] = {}
    for tensor, chunks in values.items():
        if type(tensor) is not str or type(chunks) is not list:
            yield finding("bad-header", "state_dict_metadata names no list of chunks")
            continue
        by_key = pieces[tensor] = {}
        for value in chunks:
            try:
                state = _read_state(value, "LocalTensorMetadata")
                by_key[_read_piece_key(state, value.offset)] = _read_piece(state, value.offset)
            except Damage as e:
                yield e.finding
    for tensor, by_key in pieces.items():
        yield from _check_tiles(tensor, list(by_key.values()), anatomy)
    yield from _claim_files(root.get("storage_metadata"), pieces, anatomy)


def _read_state(value: Any, name: str) -> dict[Any, Any]:
    """Return the attributes of an object of Paddle's class ``name``. Raise Damage for any other value."""
    is_object = type(value) is Call and value.func in {Global(m, name) for m in _MODULES}
    if not is_object or not isinstance(value.state, dict):
        raise Damage("bad-header", f"there is something else than a {name}", getattr(value, "offset", None))
    return value.state


def _read_piece_key(state: Mapping[Any, Any], at: int) -> _PieceKey:
    """Return (offsets, flattened range) of a LocalTensorMetadata or LocalTensorIndex. Raise Damage."""
    flat = state.get("flattened_range")
    start = read_lengths(state.get("global_offset"), "global_offset", at)
    return start, None if flat is None else read_lengths(flat, "flattened_range", at)


def _read_piece(state: Mapping[Any, Any], at: int) -> Piece:
    """Return the piece that the attributes ``state`` of a LocalTensorMetadata describe. Raise Damage."""
    shape, whole = read_lengths(state.get("local_shape"), "local_shape", at), state.get("global_shape")
    (start, flat), dtype = _read_piece_key(state, at), state.get("dtype", "")
    if len(start) != len(shape) or type(dtype) is not str:
        raise Damage("bad-header", "a chunk has offsets of another number of dimensions, or no type", at)
    if whole is not None and len(read_lengths(whole, "global_shape", at)) != len(shape):
        raise Damage("bad-header", "a chunk has another number of dimensions than its tensor", at)
    if flat is not None and not (len(flat) == 2 and flat[0] <= flat[1]):
        raise Damage("bad-header", "the range of a flattened chunk is none", at)
    box = Box(start, tuple(o + n for o, n in zip(start, shape, strict=True)))
    shape_in_file = shape if flat is None else (flat[1] - flat[0],)
    return Piece(box, dtype, shape_in_file, flat is not None, None if whole is None else tuple(whole), at)


def _check_tiles(tensor: str, pieces: list[Piece], anatomy: Anatomy) -> Iterator[Finding]:
    """Report pieces that do not fill their tensor: the loader leaves a gap as a new model has it."""
    shown = repr(tensor[:200])
    if not pieces or len({(p.dtype, p.whole, len(p.box.start)) for p in pieces}) > 1:
        yield finding("bad-header", f"{shown} has no chunks, or of several types or shapes")
        return
    first = pieces[0]
    shape = first.whole or tuple(map(max, zip(*(p.box.stop for p in pieces), strict=True)))
    anatomy.keys.add(tensor)
    if first.dtype and first.dtype not in ITEMSIZE:
        yield finding("unknown-dtype", f"{shown} has the type {first.dtype[:80]!r}", offset=first.at)
    bad = None if any(p.flat for p in pieces) else find_untiled(shape, [p.box for p in pieces])
    if bad is not None and bad.kind != "complex":
        why = f"the chunks of {shown} do not fill its shape {list(shape)} exactly"
        yield finding("bad-header", why, offset=pieces[bad.box].at if bad.box >= 0 else first.at)


def _claim_files(
    values: Any, pieces: Mapping[str, Mapping[_PieceKey, Piece]], anatomy: Anatomy
) -> Iterator[Finding]:
    """Read ``storage_metadata``: a claim for each data file. A piece may be in several files."""
    if not isinstance(values, dict):
        raise Damage("bad-header", "storage_metadata is not a dict", 0)
    by_file: dict[str, dict[str, Piece]] = defaultdict(dict)
    in_files = set[tuple[str, _PieceKey]]()
    for index, name in values.items():
        try:
            state = _read_state(index, "LocalTensorIndex")
            tensor, key = state.get("tensor_key"), _read_piece_key(state, index.offset)
        except Damage as e:
            yield e.finding
            continue
        if type(tensor) is not str or type(name) is not str or key not in pieces.get(tensor, {}):
            why = f"storage_metadata names a chunk of {text(tensor)!r} that state_dict_metadata does not have"
            yield finding("bad-header", why, offset=index.offset)
            continue
        by_file[name][tensor] = pieces[tensor][key]
        in_files.add((tensor, key))
    for tensor, by_key in pieces.items():
        if lost := [p for key, p in by_key.items() if (tensor, key) not in in_files]:
            yield finding("bad-header", f"no file holds a chunk of {tensor[:200]!r}", offset=lost[0].at)
    for name, file_pieces in by_file.items():
        anatomy.members[name] = Claim("paddle_dist", partial(_compare, file_pieces))


def _compare(pieces: Mapping[str, Piece], _source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Compare the pieces that the metadata lists for a data file with the tensors in the file."""
    tensors = {t.name: t for t in anatomy.tensors}
    missing = [name for name in pieces if name not in tensors]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        why = f"the metadata says that {missing[0][:200]!r}{more} is in this file, which does not hold it"
        yield finding("missing-tensor", why)
    for name, p in pieces.items():
        t = tensors.get(name)
        if t and (t.shape != p.shape or (p.dtype and t.dtype not in (p.dtype, _STORED.get(p.dtype)))):
            expected = f"the metadata says {p.dtype} {list(p.shape)}"
            why = f"{name[:200]!r} is {t.dtype} {list(t.shape)} here, {expected}"
            yield finding("tensor-size", why, offset=t.offset)


FORMAT = make_format("paddle_dist", _magic, _structure, loader=None, unasked=True)
