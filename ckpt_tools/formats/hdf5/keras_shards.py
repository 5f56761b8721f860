"""``model.weights.json``, the index of a Keras model's weights: which shard holds which group of variables.

Facts: keras/src/saving/saving_lib.py of 3.15.1 (``ShardedH5IOStore``): the map is from the group of a
layer's or the optimizer's variables to a file, or to a list of the files over which the group is spread;
``total_size`` is the sum of the variables' bytes. The index is written last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from msgspec import Struct, field

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limit, make_format
from ckpt_tools.formats.common.json_text import Cursor
from ckpt_tools.formats.common.tensors import MAX_INDEXED, MAX_NAME, MAX_TENSORS, remember
from ckpt_tools.formats.safetensors.safetensors_index import MAX_SHARDS, is_index_start, read_index
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import Source

_SHARDS_OF = "shards_of"
"""Key in the metadata: names of the shards in an index, without their numbers."""
_WHOLE_BYTES = ("float", "int", "uint", "bfloat", "complex")
"""Prefixes of the types whose bytes Keras counts as h5py stores them; Keras counts a bool as one bit."""


class _Map(Struct):
    """One index, shared by its claims: ``where`` is group -> shards, ``shards`` shard -> groups. ``held`` is
    shard -> variables found in it, name -> bytes, or -1 if Keras counts them in another way. ``last`` is the
    last shard that was checked: its check reports errors in all shards together.
    """

    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shards: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    total: str = ""
    held: dict[str, Mapping[str, int]] = field(default_factory=dict)
    last: str = ""


def _read_weights(cursor: Cursor, index: _Map) -> Iterator[Finding]:
    """Add ``weight_map`` to ``index``. A group named twice counts as its last entry, as in any reader."""
    entries = 0
    for group in cursor.members():
        start, is_list = cursor.key, cursor.token('["') == "["
        if not is_list:
            cursor.at -= 1  # the quote belongs to the name of the only shard
        names = [cursor.string()]
        while is_list and cursor.token(",]") == ",":
            names.append(cursor.string())
        shards = tuple(names)
        entries += len(shards)
        if entries > MAX_INDEXED or len(index.where) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {min(entries, MAX_TENSORS)} entries", cursor.offset)
        if any(len(shard) > MAX_NAME for shard in shards):
            raise Damage("too-complex", f"a name of more than {MAX_NAME} characters", cursor.offset)
        if group in index.where or len(set(shards)) < len(shards):
            text = f"{group[:200]!r} is mapped twice, or twice to one file"
            yield finding("duplicate-key", text, offset=cursor.byte(start))
        index.where[group] = shards
    for group, shards in index.where.items():
        for shard in dict.fromkeys(shards):
            index.shards[shard].append(group)
            if len(index.shards) > MAX_SHARDS:
                raise Damage("too-complex", f"more than {MAX_SHARDS} shards", cursor.offset)


def _name_some(groups: list[str]) -> str:
    """Return the first name, and how many more there are."""
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"{groups[0][:200]!r}{more}"


def _compare(index: _Map, shard: str, _source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Compare a shard's groups in the index with its tensors; with the last shard, compare all shards."""
    groups = {f"/{t.name}".rpartition("/")[0] for t in anatomy.tensors}
    missing = [group for group in index.shards[shard] if group not in groups]
    extra = sorted(groups.difference(index.shards[shard]))
    if missing:
        why = f"the index maps variables of {_name_some(missing)} to this file, which holds none"
        yield finding("missing-tensor", why)
    if extra:
        yield finding("extra-tensor", f"the index does not name {_name_some(extra)} of this file")
    if not missing:
        sizes = {t.name: t.nbytes if t.dtype.startswith(_WHOLE_BYTES) else -1 for t in anatomy.tensors}
        index.held[shard] = sizes
        if len(index.held) == len(index.shards):
            index.last = index.last or shard
    if index.last == shard:
        yield from _compare_all(index)


def _compare_all(index: _Map) -> Iterator[Finding]:
    """Report variables that two shards hold, or else a sum of bytes that differs from ``total_size``."""
    holders = Counter(name for variables in index.held.values() for name in variables)
    sizes = [size for variables in index.held.values() for size in variables.values()]
    if twice := sorted(name for name, n in holders.items() if n > 1):
        why = f"two shards hold {_name_some(twice)}: one of them is of another save"
        yield finding("duplicate-tensor", why, severity=Severity.ERROR)
    elif index.total and -1 not in sizes and index.total.removesuffix(".0") != str(sum(sizes)):
        why = f"total_size of the index is {index.total[:40]}, and its {len(index.held)} shards hold"
        text = f"{sum(sizes)} bytes of variables: one of them may be of another save"
        yield finding("odd-header", f"{why} {text}")


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the whole index; ``anatomy.members`` gets a claim that checks each shard against it."""
    index = _Map()
    yield from read_index(source, anatomy, index, partial(_read_weights, index=index))
    anatomy.keys.update(group.strip("/") for group in index.where)
    stems = dict.fromkeys(shard.rpartition("_")[0] for shard in index.shards)
    remember(anatomy.metadata, _SHARDS_OF, " ".join(stems))
    for shard in index.shards:
        anatomy.members[shard] = Claim("keras_shards", partial(_compare, index, shard), joint=True)


# not distinct: indexes of safetensors begin so as well
FORMAT = make_format("keras_shards", is_index_start, _structure, loader=None, distinct=False)
