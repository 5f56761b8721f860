"""``model.weights.json``: which shard of a Keras model's weights holds which group of variables.

Facts: keras/src/saving/saving_lib.py of 3.15.1 (``ShardedH5IOStore``): the map is from the group of a
layer's or the optimizer's variables to a file, or to a list of the files over which the group is spread;
``total_size`` is the sum of the variables' bytes. It is written last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from msgspec import Struct, field

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limited, own_format
from ckpt_tools.formats.common.json_text import Cursor
from ckpt_tools.formats.common.tensors import MAX_INDEXED, MAX_NAME, MAX_TENSORS, remember
from ckpt_tools.formats.safetensors.safetensors_index import MAX_SHARDS, begins_so, read_index
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Source

_SHARDS_OF = "shards_of"
"""In the metadata: what the shards that an index names are called, without their numbers."""
_WHOLE_BYTES = ("float", "int", "uint", "bfloat", "complex")
"""How the types begin that Keras counts as h5py stores them; it counts a bool as a bit."""


class _Map(Struct):
    """What an index says, shared by all its claims: group -> its shards, shard -> its groups. ``held`` are
    the variables that the shards turn out to hold, name -> bytes, -1 where Keras counts them otherwise.
    ``last`` is the shard with which all were looked at: it reports what only all of them show.
    """

    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shards: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    total: str = ""
    held: dict[str, Mapping[str, int]] = field(default_factory=dict)
    last: str = ""


def _read_names(cursor: Cursor) -> Iterator[str]:
    """The file at the cursor, or each of the list of files."""
    if cursor.token('["') == '"':
        cursor.at -= 1
        yield cursor.string()
        return
    more = ","
    while more == ",":
        yield cursor.string()
        more = cursor.token(",]")


def _read_weights(cursor: Cursor, said: _Map) -> Iterator[Finding]:
    """``weight_map``. A group named twice counts as its last entry, as in every reader."""
    entries = 0
    for group in cursor.members():
        start = cursor.key
        shards = tuple(_read_names(cursor))
        entries += len(shards)
        if entries > MAX_INDEXED or len(said.where) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {min(entries, MAX_TENSORS)} entries", cursor.offset)
        if any(len(shard) > MAX_NAME for shard in shards):
            raise Damage("too-complex", f"a name of more than {MAX_NAME} characters", cursor.offset)
        if group in said.where or len(set(shards)) < len(shards):
            text = f"{group[:200]!r} is mapped twice, or twice to one file"
            yield finding("duplicate-key", text, offset=cursor.byte(start))
        said.where[group] = shards
    for group, shards in said.where.items():
        for shard in dict.fromkeys(shards):
            said.shards[shard].append(group)
            if len(said.shards) > MAX_SHARDS:
                raise Damage("too-complex", f"more than {MAX_SHARDS} shards", cursor.offset)


def _name_some(groups: list[str]) -> str:
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"{groups[0][:200]!r}{more}"


def _compare(said: _Map, shard: str, _source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """What the index says about a shard against what it holds."""
    groups = {f"/{t.name}".rpartition("/")[0] for t in anatomy.tensors}
    missing = [group for group in said.shards[shard] if group not in groups]
    extra = sorted(groups.difference(said.shards[shard]))
    if missing:
        why = f"the index maps variables of {_name_some(missing)} to this file, which holds none"
        yield finding("missing-tensor", why)
    if extra:
        yield finding("extra-tensor", f"the index does not name {_name_some(extra)} of this file")
    if not missing:
        counted = {t.name: t.nbytes if t.dtype.startswith(_WHOLE_BYTES) else -1 for t in anatomy.tensors}
        said.held[shard] = counted
        if len(said.held) == len(said.shards):
            said.last = said.last or shard
    if said.last == shard:
        yield from _compare_all(said)


def _compare_all(said: _Map) -> Iterator[Finding]:
    """Variables that two shards hold, and other sizes than were saved."""
    holders = Counter(name for held in said.held.values() for name in held)
    sizes = [size for held in said.held.values() for size in held.values()]
    if twice := sorted(name for name, n in holders.items() if n > 1):
        why = f"two shards hold {_name_some(twice)}: one of them is of another save"
        yield finding("duplicate-tensor", why, severity=Severity.ERROR)
    elif said.total and -1 not in sizes and said.total.removesuffix(".0") != str(sum(sizes)):
        why = f"total_size of the index is {said.total[:40]}, and its {len(said.held)} shards hold"
        why = f"{why} {sum(sizes)} bytes of variables: one of them may be of another save"
        yield finding("odd-header", why)


@limited
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the whole index; what it says about its shards becomes their claims."""
    said = _Map()
    yield from read_index(source, anatomy, said, partial(_read_weights, said=said))
    anatomy.keys.update(group.strip("/") for group in said.where)
    remember(anatomy.metadata, _SHARDS_OF, " ".join(dict.fromkeys(s.rpartition("_")[0] for s in said.shards)))
    for shard in said.shards:
        anatomy.members[shard] = Claim("keras_shards", partial(_compare, said, shard), joint=True)


FORMAT = own_format(
    name="keras_shards",
    magic=begins_so,
    checks={Level.STRUCTURE: _structure},
    loader=None,
    distinct=False,  # indexes of safetensors begin so as well
)
