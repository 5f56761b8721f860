"""``model.safetensors.index.json`` and ``pytorch_model.bin.index.json``: which shard of a model holds which
tensor.

Facts: huggingface_hub/serialization/_torch.py (``save_torch_state_dict``), transformers/modeling_utils.py
(``save_pretrained``), torch/distributed/checkpoint/hf_storage.py and _consolidate_hf_safetensors.py,
mlx_lm/utils.py (``save_model``), colossalai/checkpoint_io/utils.py (``save_param_groups``: the loader of an
optimizer raises without the file that ``metadata.param_groups`` names).

DCP_SHARDING_INFO: the place in the whole tensor at which each piece in a safetensors file begins, as DCP's
Hugging Face writer stores it.

Facts: torch/distributed/checkpoint/{_hf_utils,filesystem,hf_storage}.py of torch 2.13: a JSON text among the
safetensors metadata, ``{name: {"saved_offsets": [...]}}``, one entry for each tensor of the file. The
shapes of whole tensors are stored nowhere: the reader takes the furthest end of all pieces for the shape, so
a lost last shard looks like a smaller tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Protocol

from msgspec import Struct, field

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, check_nothing, limit, make_format
from ckpt_tools.formats.common.json_text import Cursor, mapping, parse, read_integers
from ckpt_tools.formats.common.tensors import MAX_INDEXED as MAX_TENSORS
from ckpt_tools.formats.common.tensors import MAX_NAME, near_miss, remember
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Box, Tensor
from ckpt_tools.storage import Source

# ---- The entries of an index of a sharded model, and their comparison with the shards.


class ShardIndex(Struct):
    """The content of an index, shared by its claims: ``where`` maps tensors to shards, ``shards`` shards to
    tensors, ``total`` is the text of total_size. ``sizes`` collects the bytes that each shard holds, None if
    unknown; ``last`` is the shard that came last and reports on their sum.
    """

    where: dict[str, str] = field(default_factory=dict)
    shards: dict[str, list[str]] = field(default_factory=dict)
    total: str = ""
    sizes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    last: str = ""

    def note(self, shard: str, sizes: tuple[int, ...] | None) -> None:
        """Keep the byte counts of a shard, None if they are unknown; the last shard of all is ``last``."""
        self.sizes[shard] = sizes
        if len(self.sizes) == len(self.shards) and None not in self.sizes.values():
            self.last = self.last or shard


def _list_some(names: Sequence[str]) -> str:
    """Return one tensor's name, or the number of several and the first name, for a message."""
    first = repr(names[0][:200])
    return f"{len(names)} tensors, the first {first}" if len(names) > 1 else f"tensor {first}"


def compare(index: ShardIndex, shard: str, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Compare the tensors that the index maps to a shard with the tensors in the shard."""
    have = anatomy.keys
    missing = _find_missing_tensors(index.shards[shard], anatomy)
    extra = sorted(n for n in have if n not in index.where)
    double = sorted(n for n in have if index.where.get(n, shard) != shard)
    if missing:
        them = "them" if len(missing) > 1 else "it"
        why = f"the index maps {_list_some(missing)} to this file, which does not hold {them}"
        yield finding("missing-tensor", why)
    if double:
        other = repr(index.where[double[0]][:200])
        why = f"{_list_some(double)}: the index maps what this file holds to {other}"
        yield finding("duplicate-tensor", why)
    if extra:
        yield finding("extra-tensor", f"the index does not name {_list_some(extra)} of this file")
    agree = not (missing or double or extra)
    index.note(shard, (*_count_bytes(anatomy.tensors), source.size) if agree else None)
    if index.last == shard and index.total:
        yield from _check_total(index.total, list(index.sizes.values()))


def _find_missing_tensors(names: Sequence[str], shard: Anatomy) -> list[str]:
    """Return the names that a shard lacks. A tied tensor is not missing: the metadata names its twin."""
    have = shard.keys
    return [n for n in names if n not in have and shard.metadata.get(n) not in have]


def _count_bytes(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Return the bytes of all tensors, and the bytes if tensors that begin at the same byte count once."""
    shared = {(t.storage, t.offset): t.nbytes for t in sorted(tensors, key=attrgetter("nbytes"))}
    return sum(t.nbytes for t in tensors), sum(shared.values())


def _check_total(text: str, sizes: Sequence[tuple[int, ...] | None]) -> Iterator[Finding]:
    """Compare ``total_size`` with the bytes of all tensors (tied ones once or each; ColossalAI: in MiB) or of
    all files (mlx). Readers ignore it and wrong ones are common: a note, unless one bit is flipped.
    """
    bytes_of = {sum(column) for column in zip(*(s for s in sizes if s is not None), strict=True)}
    sums = {str(n) for n in bytes_of}
    plain = text.removesuffix(".0")
    if None in sizes or plain in sums or text in {str(n / (1 << 20)) for n in bytes_of}:
        return
    shown = f"total_size is {text[:40]}, the {len(sizes)} shards hold {min(sums, key=int)} bytes of tensors"
    if near_miss(plain, sums):
        yield finding("odd-header", f"{shown}: one bit apart")
    else:
        yield finding("odd-header", shown, severity=Severity.NOTE)


MAX_INDEX = 64 << 20
"""Bytes of an index at most; the largest models have about 20 MB."""
MAX_SHARDS = 100_000
_SECTIONS = ("metadata", "weight_map")
_TOTALS = ("total_size", "total_parameters")
_BLANK = " \t\r\n"
_START = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*\"(?:metadata|weight_map)\"[ \t\r\n]*:[ \t\r\n]*\{")
_PAIR = re.compile(r'[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*([,}])')
"""An entry without escapes, as nearly all are: ten times faster than to read it token by token."""

Weights = Callable[[Cursor], Iterator[Finding]]
"""Reads the ``weight_map`` at the cursor."""


class AnyIndex(Protocol):
    """The content of an index: ``where`` has an item for each tensor, ``total`` is the text of total_size."""

    total: str

    @property
    def where(self) -> Sized: ...


def is_index_start(head: bytes) -> bool:
    """Return True if a file begins like an index."""
    return _START.match(head) is not None


def _read_pairs(cursor: Cursor) -> Iterator[tuple[str, str]]:
    """Yield (tensor, shard) from the JSON object at the cursor, which holds texts only."""
    cursor.token("{")
    start, more = cursor.at, cursor.token('"}')
    if more == "}":
        return
    cursor.at, more = start, ","
    while more == ",":
        if m := _PAIR.match(cursor.text, cursor.at):
            cursor.at = m.end()
            key, value, more = m.groups()
        else:
            key = cursor.string()
            cursor.token(":")
            value = cursor.string()
            more = cursor.token(",}")
        yield key, value


def _read_weights(cursor: Cursor, index: ShardIndex) -> Iterator[Finding]:
    """Read ``weight_map``. Of a tensor named twice the last entry counts, as in every reader."""
    shard_names: dict[str, str] = {}
    for name, shard in _read_pairs(cursor):
        if len(name) > MAX_NAME or len(shard) > MAX_NAME:
            raise Damage("too-complex", f"a name of {max(len(name), len(shard))} characters", cursor.offset)
        if name in index.where:
            why = f"tensor {name[:200]!r} is mapped twice; readers take the last entry"
            yield finding("duplicate-key", why, offset=cursor.offset)
        elif len(index.where) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} tensors", cursor.offset)
        index.where[name] = shard_names.setdefault(shard, shard)  # one text for all entries of a shard
        if len(shard_names) > MAX_SHARDS:
            raise Damage("too-complex", f"more than {MAX_SHARDS} shards", cursor.offset)
    for name, shard in index.where.items():
        index.shards.setdefault(shard, []).append(name)


def _read_metadata(cursor: Cursor, index: AnyIndex, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the metadata, which may have any keys; keep ``total_size`` to compare it with the shards."""
    seen = set[str]()
    start = cursor.at
    for key in cursor.members():
        at = cursor.at
        text = cursor.skip()
        if key in seen:
            yield finding("duplicate-key", f"the metadata {key[:200]!r} occurs twice", offset=cursor.byte(at))
        elif len(seen) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} entries of metadata", cursor.offset)
        seen.add(key)
        if meant := near_miss(key, _TOTALS):
            why = f"the metadata key {key!r} is one bit away from {meant!r}"
            yield finding("bad-header", why, offset=cursor.byte(at))
        if key == "total_size":
            index.total = text
        if len(text) <= 300 and not text.startswith(("{", "[")):
            value = cursor.decoder.decode(text)
            value = str(value) if isinstance(value, float) and not isfinite(value) else value
            remember(anatomy.metadata, key, value)
    cursor.mark(start, cursor.at, "metadata: total_size is compared with the shards, nothing checks the rest")


def read_index(source: Source, anatomy: Anatomy, index: AnyIndex, weights: Weights) -> Iterator[Finding]:
    """Read a whole index; ``weights`` reads its ``weight_map``, which must not be empty. Raises Damage."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > MAX_INDEX:
        raise Damage("too-complex", f"an index of {source.size} bytes", 0)
    data = source.read(0, source.size)
    try:
        cursor = Cursor(data.decode(), 0, mapped=anatomy.regions is not None)
    except UnicodeDecodeError as e:
        raise Damage("bad-header", "the index is not UTF-8", e.start) from None
    del data
    try:
        yield from _read_sections(cursor, index, anatomy, weights)
    except Damage as e:
        unread = cursor.text[cursor.at :].strip(_BLANK)
        is_cut = not unread or ("}" not in unread and not cursor.text.rstrip(_BLANK).endswith("}"))
        if e.finding.code == "bad-header" and is_cut:
            why = f"the index ends at byte {source.size} in the middle ({e.finding.message[:200]})"
            raise Damage("truncated", why, source.size) from None
        raise
    if unread := cursor.text[cursor.at :].strip(_BLANK):
        raise Damage("trailing-data", f"{len(unread)} characters follow the end of the index", cursor.offset)
    if not index.where:
        raise Damage("bad-header", "there is no weight_map, or it maps no tensor to a shard", 0)
    cursor.explain(anatomy, "the map of tensors to shards")


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the whole index; add a claim for each shard to ``anatomy.members``."""
    index = ShardIndex()
    yield from read_index(source, anatomy, index, partial(_read_weights, index=index))
    anatomy.keys.update(index.where)
    for shard in index.shards:
        anatomy.members[shard] = Claim(FORMAT.name, partial(compare, index, shard), joint=True)
    groups = anatomy.metadata.get("param_groups")  # the file with an optimizer's param_groups
    if isinstance(groups, str) and groups.endswith(".bin"):
        anatomy.members.setdefault(groups, Claim(FORMAT.name, check_nothing))


def _read_sections(cursor: Cursor, index: AnyIndex, anatomy: Anatomy, weights: Weights) -> Iterator[Finding]:
    """Read the entries of the index: its weight_map, its metadata, and others, which are skipped."""
    seen = set[str]()
    for section in cursor.members():
        if section in seen:
            raise cursor.bad(f"{section[:200]!r} occurs twice")
        if len(seen) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} entries beside the map", cursor.offset)
        seen.add(section)
        start = cursor.key
        if section == "weight_map":
            yield from weights(cursor)
        elif section == "metadata":
            yield from _read_metadata(cursor, index, anatomy)
        else:
            if meant := near_miss(section, _SECTIONS):
                raise cursor.bad(f"{section!r} is one bit away from {meant!r}")
            cursor.skip()
            cursor.mark(start, cursor.at, "an entry that nothing checks")


FORMAT = make_format("safetensors_index", is_index_start, _structure, loader=None)

KEY = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"


def read_boxes(text: str, anatomy: Anatomy, at: int) -> Iterator[Finding]:
    """Fill ``anatomy.places`` with each piece's box in its whole tensor, from DCP's ``text`` at ``at``."""
    found: list[Finding] = []
    try:
        info = mapping(parse(text.encode("utf-8", "surrogatepass"), found))
    except Damage as e:
        yield finding("bad-header", f"{KEY}: {e}", offset=at)
        return
    yield from found
    for t in anatomy.tensors:
        entry = mapping(info.get(t.name))
        start = read_integers(entry.get(_OFFSETS))
        if start is None or len(start) != len(t.shape):
            why = f"{KEY} does not say where tensor {t.name[:200]!r} of shape {list(t.shape)} begins"
            yield finding("bad-header", why, offset=at)
        else:
            stop = tuple(a + n for a, n in zip(start, t.shape, strict=True))
            anatomy.places[t.name] = Box(start, stop)
    names = {t.name for t in anatomy.tensors}
    for name in info.keys() - names:
        meant = near_miss(name, names)
        why = f"{KEY} names {name[:200]!r}, which is not in the file" + (f"; {meant!r} is" if meant else "")
        yield finding("bad-header", why, offset=at)
