"""Orbax's ``_METADATA``: JSON that lists every leaf of the saved tree, from which the files beside it follow.

Facts: orbax-checkpoint 0.12.8, metadata/tree.py (InternalTreeMetadata) and tree/utils.py
(param_name_from_keypath). Older versions write neither use_ocdbt nor store_array_data_equal_to_fill_value;
no data file is required beside such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, check_nothing, make_format
from ckpt_tools.formats.common.json_text import mapping, read_json, sequence
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.formats.tensorstore.zarr import MAX_CHUNKS, claim_chunks
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_TOP = (
    "tree_metadata",
    "use_ocdbt",
    "use_zarr3",
    "store_array_data_equal_to_fill_value",
    "custom_metadata",
    "value_metadata_tree",
)
_ENTRY, _KEY = ("key_metadata", "value_metadata"), ("key", "key_type")
_VALUE = ("value_type", "skip_deserialize", "write_shape")
_FIRST = re.compile(rb'\s?\{\s*"(?:%s)"\s*:' % "|".join(_TOP).encode())
_STORED = frozenset({"jax.Array", "np.ndarray", "scalar"})
_MAX_LISTED = 16
_ARRAYS = "array_metadatas/process_0"
_WITHOUT_ARRAYS = "arrays are restored without it, unless they are random keys of JAX"


def _find_flips(entries: Mapping[str, object], expected: tuple[str, ...]) -> Iterator[str]:
    """Yield a text for each key that is one bit away from an expected one, which Orbax takes for missing."""
    for key in entries:
        if key not in expected and (meant := near_miss(key, expected)):
            yield f"{key[:80]!r} stands where {meant!r} belongs"


def _read_leaf(name: str, entry: object, errors: list[str]) -> str | None:
    """Return the name of a leaf's stored array or None; fill ``errors``. Raise Damage if Orbax refuses it."""
    leaf = mapping(entry)
    keys, value = sequence(leaf.get("key_metadata")), mapping(leaf.get("value_metadata"))
    names = [mapping(k).get("key") for k in keys]
    kind = value.get("value_type")
    if not isinstance(kind, str) or not all(isinstance(n, str) for n in names):
        raise Damage("bad-header", f"the entry of {name[:200]!r} lacks its keys or the type of its value", 0)
    errors += (*_find_flips(leaf, _ENTRY), *_find_flips(value, _VALUE))
    errors += (flip for k in keys for flip in _find_flips(mapping(k), _KEY))
    if name != str(tuple(names)):
        errors.append(f"{name[:200]!r} and its key_metadata {str(names)[:200]} name different leaves")
    stored = kind in _STORED and value.get("skip_deserialize") is False
    return ".".join(map(str, names)) if stored and names else None


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check Orbax's list of leaves; add claims on the files that hold them. Reads the whole file."""
    text = read_json(source)
    yield from text.odd
    top = mapping(text.value)
    what = "JSON text: its form is checked, and that the files it names are there"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)
    leaves = top.get("tree_metadata")
    if not isinstance(leaves, dict):
        raise Damage("bad-header", "there is no tree_metadata, without which Orbax restores nothing", 0)
    errors = list(_find_flips(top, _TOP))
    arrays = [a for name, entry in leaves.items() if (a := _read_leaf(name, entry, errors)) is not None]
    for why in errors[:_MAX_LISTED]:
        yield finding("bad-header", why, offset=0, severity=Severity.WARNING)
    if len(leaves) <= MAX_CHUNKS:
        anatomy.keys |= leaves.keys()
    # Orbax took the shape of a leaf's pieces from the files of array_metadatas/ when it saved
    if any(mapping(leaf["value_metadata"]).get("write_shape") is not None for leaf in leaves.values()):
        anatomy.members[_ARRAYS] = Claim("orbax_tree", check_nothing, spared=_WITHOUT_ARRAYS)
    if top.get("use_ocdbt") is True and arrays:
        anatomy.members["manifest.ocdbt"] = Claim("orbax_tree", check_nothing)
    elif top.get("use_ocdbt") is False:
        follow = top.get("store_array_data_equal_to_fill_value") is True
        metadata = "zarr.json" if top.get("use_zarr3") is True else ".zarray"
        for name in arrays[:MAX_CHUNKS]:
            check = partial(claim_chunks, name=name, of="orbax_tree")
            anatomy.members[f"{name}/{metadata}"] = Claim("orbax_tree", check, follow=follow)


FORMAT = make_format(
    "orbax_tree", lambda head: bool(_FIRST.match(head)), _structure, distinct=False, loader=None
)
