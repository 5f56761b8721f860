"""``model.safetensors.index.json`` and ``pytorch_model.bin.index.json``: which shard of a model holds which
tensor.

Facts: huggingface_hub/serialization/_torch.py (``save_torch_state_dict``), transformers/modeling_utils.py
(``save_pretrained``), torch/distributed/checkpoint/hf_storage.py and _consolidate_hf_safetensors.py,
mlx_lm/utils.py (``save_model``), colossalai/checkpoint_io/utils.py (``save_param_groups``: the loader of an
optimizer raises without the file that ``metadata.param_groups`` names).

DCP_SHARDING_INFO: where in the whole tensor each piece of a safetensors file begins, as DCP's Hugging Face
writer says.

Facts: torch/distributed/checkpoint/{_hf_utils,filesystem,hf_storage}.py of torch 2.13: a JSON text among the
safetensors metadata, ``{name: {"saved_offsets": [...]}}``, one entry for each tensor of the file. Nobody
writes down the whole tensors' shapes: the reader takes the furthest end of all pieces for them, so a lost
last shard looks like a smaller tensor.
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
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limited, nothing, own_format
from ckpt_tools.formats.common.json_text import Cursor, integers, mapping, parse
from ckpt_tools.formats.common.tensors import MAX_INDEXED as MAX_TENSORS
from ckpt_tools.formats.common.tensors import MAX_NAME, near_miss, remember
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Box, Level, Tensor
from ckpt_tools.storage import Source

# ---- What an index of a sharded model says about its shards, and whether they agree.


class Map(Struct):
    """What an index says, shared by its claims: tensor -> shard, shard -> tensors, the text of total_size.
    ``sizes`` collects what each shard holds, None where that cannot be told; ``last`` completed them and
    reports on their sum.
    """

    where: dict[str, str] = field(default_factory=dict)
    shards: dict[str, list[str]] = field(default_factory=dict)
    total: str = ""
    sizes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    last: str = ""

    def note(self, shard: str, sizes: tuple[int, ...] | None) -> None:
        """Keep what a shard holds; None when that cannot be told."""
        self.sizes[shard] = sizes
        if len(self.sizes) == len(self.shards) and None not in self.sizes.values():
            self.last = self.last or shard


def _list_some(names: Sequence[str]) -> str:
    first = repr(names[0][:200])
    return f"{len(names)} tensors, the first {first}" if len(names) > 1 else f"tensor {first}"


def compare(said: Map, shard: str, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """What the index says about a shard against what the shard holds."""
    have = anatomy.keys
    missing = _find_missing(said.shards[shard], anatomy)
    extra = sorted(n for n in have if n not in said.where)
    double = sorted(n for n in have if said.where.get(n, shard) != shard)
    if missing:
        them = "them" if len(missing) > 1 else "it"
        why = f"the index maps {_list_some(missing)} to this file, which does not hold {them}"
        yield finding("missing-tensor", why)
    if double:
        other = repr(said.where[double[0]][:200])
        why = f"{_list_some(double)}: the index maps what this file holds to {other}"
        yield finding("duplicate-tensor", why)
    if extra:
        yield finding("extra-tensor", f"the index does not name {_list_some(extra)} of this file")
    agree = not (missing or double or extra)
    said.note(shard, (*_add_up(anatomy.tensors), source.size) if agree else None)
    if said.last == shard and said.total:
        yield from _compare_total(said.total, list(said.sizes.values()))


def _find_missing(named: Sequence[str], anatomy: Anatomy) -> list[str]:
    """Tensors that a shard lacks; a tied one is named in its metadata."""
    have = anatomy.keys
    return [n for n in named if n not in have and anatomy.metadata.get(n) not in have]


def _add_up(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes of the tensors, each for itself, and with those counted once that share their first byte."""
    shared = {(t.storage, t.offset): t.nbytes for t in sorted(tensors, key=attrgetter("nbytes"))}
    return sum(t.nbytes for t in tensors), sum(shared.values())


def _compare_total(text: str, sizes: Sequence[tuple[int, ...] | None]) -> Iterator[Finding]:
    """``total_size`` is the sum of the tensors' bytes (tied ones once or each; ColossalAI: MiB) or of the
    files' (mlx). Readers ignore it, and others are everyday, but not the right one with one bit changed.
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
"""Bytes; the largest models have indexes of about 20 MB."""
MAX_SHARDS = 100_000
_SECTIONS = ("metadata", "weight_map")
_TOTALS = ("total_size", "total_parameters")
_BLANK = " \t\r\n"
_START = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*\"(?:metadata|weight_map)\"[ \t\r\n]*:[ \t\r\n]*\{")
_PAIR = re.compile(r'[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*([,}])')
"""An entry without escapes, which nearly all are: ten times faster than reading it token by token."""


Weights = Callable[[Cursor], Iterator[Finding]]
"""Reads the ``weight_map`` at the cursor."""


class Said(Protocol):
    """What an index maps (``where``), and the text of its total_size."""

    total: str

    @property
    def where(self) -> Sized: ...


def begins_so(head: bytes) -> bool:
    """Whether a file begins like an index."""
    return _START.match(head) is not None


def _read_pairs(cursor: Cursor) -> Iterator[tuple[str, str]]:
    """(tensor, shard) of the object at the cursor, which holds texts only."""
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


def _read_weights(cursor: Cursor, said: Map) -> Iterator[Finding]:
    """``weight_map``. A tensor named twice counts as its last entry, as in every reader."""
    spelt: dict[str, str] = {}
    for name, shard in _read_pairs(cursor):
        if len(name) > MAX_NAME or len(shard) > MAX_NAME:
            raise Damage("too-complex", f"a name of {max(len(name), len(shard))} characters", cursor.offset)
        if name in said.where:
            why = f"tensor {name[:200]!r} is mapped twice; readers take the last entry"
            yield finding("duplicate-key", why, offset=cursor.offset)
        elif len(said.where) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} tensors", cursor.offset)
        said.where[name] = spelt.setdefault(shard, shard)  # one text for all entries of a shard
        if len(spelt) > MAX_SHARDS:
            raise Damage("too-complex", f"more than {MAX_SHARDS} shards", cursor.offset)
    for name, shard in said.where.items():
        said.shards.setdefault(shard, []).append(name)


def _read_metadata(cursor: Cursor, said: Said, anatomy: Anatomy) -> Iterator[Finding]:
    """Free entries, of which some may tell progress; ``total_size`` is kept for the shards."""
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
            said.total = text
        if len(text) <= 300 and not text.startswith(("{", "[")):
            value = cursor.decoder.decode(text)
            value = str(value) if isinstance(value, float) and not isfinite(value) else value
            remember(anatomy.metadata, key, value)
    cursor.mark(start, cursor.at, "metadata: total_size is compared with the shards, nothing checks the rest")


def read_index(source: Source, anatomy: Anatomy, said: Said, weights: Weights) -> Iterator[Finding]:
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
        yield from _read_sections(cursor, said, anatomy, weights)
    except Damage as e:
        rest = cursor.text[cursor.at :].strip(_BLANK)
        cut = not rest or ("}" not in rest and not cursor.text.rstrip(_BLANK).endswith("}"))
        if e.finding.code == "bad-header" and cut:
            why = f"the index ends at byte {source.size} in the middle ({e.finding.message[:200]})"
            raise Damage("truncated", why, source.size) from None
        raise
    if rest := cursor.text[cursor.at :].strip(_BLANK):
        raise Damage("trailing-data", f"{len(rest)} characters follow the end of the index", cursor.offset)
    if not said.where:
        raise Damage("bad-header", "there is no weight_map, or it maps no tensor to a shard", 0)
    cursor.explain(anatomy, "the map of tensors to shards")


@limited
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the whole index; what it says about its shards becomes their claims."""
    said = Map()
    yield from read_index(source, anatomy, said, partial(_read_weights, said=said))
    anatomy.keys.update(said.where)
    anatomy.members.update(
        (shard, Claim(FORMAT.name, partial(compare, said, shard), joint=True)) for shard in said.shards
    )
    groups = anatomy.metadata.get("param_groups")  # an optimizer's, in a file of their own
    if isinstance(groups, str) and groups.endswith(".bin"):
        anatomy.members.setdefault(groups, Claim(FORMAT.name, nothing))


def _read_sections(cursor: Cursor, said: Said, anatomy: Anatomy, weights: Weights) -> Iterator[Finding]:
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
            yield from _read_metadata(cursor, said, anatomy)
        else:
            if meant := near_miss(section, _SECTIONS):
                raise cursor.bad(f"{section!r} is one bit away from {meant!r}")
            cursor.skip()
            cursor.mark(start, cursor.at, "an entry that nothing checks")


FORMAT = own_format(
    name="safetensors_index", magic=begins_so, checks={Level.STRUCTURE: _structure}, loader=None
)


KEY = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"


def read_places(text: str, anatomy: Anatomy, at: int) -> Iterator[Finding]:
    """Fill ``anatomy.places`` with the place of every tensor in its whole; ``at`` is where the text is."""
    found: list[Finding] = []
    try:
        info = mapping(parse(text.encode("utf-8", "surrogatepass"), found))
    except Damage as e:
        yield finding("bad-header", f"{KEY}: {e}", offset=at)
        return
    yield from found
    for t in anatomy.tensors:
        said = mapping(info.get(t.name))
        start = integers(said.get(_OFFSETS))
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
