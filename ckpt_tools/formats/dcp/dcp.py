"""torch.distributed.checkpoint (DCP): ``.metadata``, a pickle that lists which bytes of the data files
(``__<rank>_<k>.distcp``) in its directory hold which tensor or object.

Facts: torch/distributed/checkpoint/{metadata,filesystem,default_planner}.py of torch 2.13; versions from 2.0
on differ in attributes.
megatron/core/dist_checkpointing/strategies/filesystem_async.py of Megatron-core 0.16.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, limit, make_format
from ckpt_tools.formats.common.tensors import find_untiled, near_miss, remember
from ckpt_tools.formats.dcp import data_files, metadata
from ckpt_tools.formats.dcp.metadata import ATTRIBUTES, CLASSES, MCORE, PATHS, Entry, Segment, is_class
from ckpt_tools.formats.pickles.globals import find_verdict
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.stubs import Call, Global, Pickled
from ckpt_tools.formats.torch.tensors import ITEMSIZE, is_proto
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import Source

VERSION = "1.0.0"  # CURRENT_DCP_VERSION of torch 2.13; earlier ones wrote no version
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")  # uuid.uuid4
_FRAME, _TARGET = 0x95, 64 * 1024  # Lib/pickle.py: a frame that ends before STOP has at least 64 KiB
_MANY, _PAIRS = 1000, 200_000
_MODULES = tuple(module.encode() for module in (*CLASSES["Metadata"], MCORE))
_DATA = re.compile(r"(?:.*?)__(\d+)_\d+\.distcp", re.DOTALL)
_PADDLE = re.compile(r"\d+_(\d+)\.distcp")
"""Data files of paddle.distributed: a pickle each, described by the metadata of the same save."""


def _magic(head: bytes) -> bool:
    """Return whether the file is a pickle of protocol 2 to 5 that first names a Metadata class's module."""
    return is_proto(head) and any(2 < head.find(m) < 16 for m in _MODULES)


def _index_of(name: str) -> tuple[str, ...]:
    """Return the possible index names of a data file; a save without collectives has one index per rank."""
    if not name.endswith(".distcp"):
        return ()
    if m := _PADDLE.fullmatch(name):
        return (f"{m[1]}.metadata",)
    m = _DATA.fullmatch(name)
    return (".metadata", f"__{m[1]}.metadata") if m else (".metadata",)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check ``.metadata`` alone; ``anatomy.members`` gets a claim that checks each data file against it."""
    why = "DCP's .metadata has no checksum: it is checked against itself and against the files beside it"
    yield finding("not-checksummed", why)
    pickled = yield from _read_pickle(source, anatomy)
    yield from _check_globals(anatomy.globals)
    if pickled.end < source.size:
        why = f"{source.size - pickled.end:,} bytes follow the pickle"
        yield finding("trailing-data", why, offset=pickled.end)
    of_mcore = is_class(pickled.value, "MCoreMetadata")
    root = metadata.read_state(
        pickled.value, "MCoreMetadata" if of_mcore else "Metadata", "the pickle's value"
    )
    yield from metadata.find_flipped_names(pickled.value)
    entries = yield from metadata.read_entries(root.get("state_dict_metadata"))
    segments = yield from metadata.read_segments(root.get("storage_data"))
    yield from _check_tiles(entries, segments)
    yield from _compare_segments(entries, segments)
    yield from _claim_files(entries, segments, anatomy)
    yield from _check_paths(root.get("planner_data"), entries)
    yield from _check_version(root, anatomy)
    head = source.read(0, min(11, source.size))
    length = int.from_bytes(head[3:], "little")
    if len(head) == 11 and head[2] == _FRAME and length < _TARGET and 11 + length != pickled.end:
        why = f"the pickle's frame has {length} bytes, the pickle {pickled.end}"
        yield finding("bad-header", why, offset=3)
    if pickled.persistents:
        why = "the pickle refers to something outside of it"
        yield finding("bad-header", why, offset=pickled.persistents[0].offset)
    for fqn, e in entries.items():
        anatomy.keys.add(fqn)
        if e.dtype:
            size = min(math.prod(e.shape) * ITEMSIZE.get(e.dtype, 0), 1 << 62)
            anatomy.tensors.append(Tensor(fqn, e.dtype, e.shape, size))
    if anatomy.regions is not None:
        _explain(source.read(0, source.size), anatomy, root, entries, segments)


def _read_pickle(source: Source, anatomy: Anatomy) -> Generator[Finding, None, Pickled]:
    """Read ``.metadata``, and leave out findings needs-trust: _check_globals decides about its classes."""
    reading = read_judged(source, 0, source.size, anatomy, whole=True)
    while True:
        try:
            f = next(reading)
        except StopIteration as e:
            pickled: Pickled = e.value
            return pickled
        if f.code != "needs-trust":
            yield f


def _check_globals(names: Sequence[str]) -> Iterator[Finding]:
    """Report classes and functions named by the pickle that no .metadata of torch has."""
    known = [f"{m} {n}" for n, modules in CLASSES.items() for m in modules]
    known += ["torch Size", "torch.serialization _get_layout"]
    split = [Global(*full.split(" ", 1)) for full in names if " " in full]
    odd = [g for g in split if g.module not in CLASSES.get(g.name, ()) and find_verdict(g) == "needs-trust"]
    for g in odd[:_MANY]:
        if meant := near_miss(f"{g.module} {g.name}", known):
            why = f"the pickle names {str(g)[:120]}: that is {meant.replace(' ', '.')} with a flipped bit"
            yield finding("bad-header", why)
    if odd:
        more = f" and {len(odd) - 4} more" if len(odd) > 4 else ""
        shown = ", ".join(str(g)[:80] for g in odd[:4]) + more
        yield finding("needs-trust", f"the pickle names {shown}", offset=0)


def _check_paths(paths: Any, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    """Check planner_data: flat name -> tuple of keys in the nested state_dict, whose texts joined by
    dots are the name (_nested_dict.py). Other planners than torch's own may keep something else, or nothing.
    Before torch 2.3 planner_data could have more names than were saved.
    """
    if not isinstance(paths, dict) or not any(type(path) is tuple for path in paths.values()):
        return
    missing = entries.keys() - paths.keys()
    for fqn, path in paths.items():
        valid = type(path) is tuple and path and all(map(_is_key, (fqn, *path)))
        if not valid or ".".join(map(str, path)) != fqn:
            what = f"{fqn!r:.202} is made of {path!s:.200}" if valid else "a name is made of what are no keys"
            yield finding("bad-header", f"planner_data says that {what}")
        elif fqn not in entries and len(missing) * len(paths) < _PAIRS and near_miss(fqn, missing):
            why = f"planner_data has {fqn[:200]!r}, which differs in one bit from a name that it lacks"
            yield finding("bad-header", why)
    for fqn in missing:
        yield finding("bad-header", f"planner_data has no path for {fqn[:200]!r}", offset=entries[fqn].at)


def _is_key(value: Any) -> bool:
    """Return whether a value may be a key of a state_dict: a text, or a number of 64 bits."""
    return type(value) is str or (type(value) is int and abs(value) < 1 << 64)


def _check_version(root: Mapping[Any, Any], anatomy: Anatomy) -> Iterator[Finding]:
    """Check ``version`` and ``storage_meta``; add version and id of the save to ``anatomy.metadata``."""
    version, meta = root.get("version"), root.get("storage_meta")
    if version is not None:
        if type(version) is not str or near_miss(version, (VERSION,)):
            yield finding("bad-header", f"the version is {str(version)[:40]!r}")
        else:
            remember(anatomy.metadata, "dcp_version", version)
    if meta is None:
        return
    if not is_class(meta, "StorageMeta") or not isinstance(meta.state, dict):
        yield finding("bad-header", "storage_meta is no StorageMeta", offset=getattr(meta, "offset", None))
        return
    yield from metadata.find_flipped_names(meta)
    save_id, path, modules = (meta.state.get(name) for name in ("save_id", "checkpoint_id", "modules"))
    are_ids = all(map(_is_id, (save_id, meta.state.get("load_id"))))
    are_modules = type(modules) in (list, type(None)) and all(type(m) is str for m in modules or ())
    if not are_ids or not _is_path(path) or not are_modules:
        why = "the path, the ids or the modules in storage_meta are damaged"
        yield finding("bad-header", why, offset=meta.offset)
    elif save_id is not None:
        remember(anatomy.metadata, "save_id", save_id)  # a random number of its own for every save


def _is_path(value: Any) -> bool:
    """Return whether a value may be ``checkpoint_id``: text, None, a path of pathlib or another class."""
    if type(value) is Call and type(value.func) is Global:
        return value.func.name not in PATHS or all(type(a) is str for a in value.args)
    return value is None or type(value) is str


def _is_id(value: Any) -> bool:
    """Return whether a value may be ``save_id`` or ``load_id``: a text as long as a UUID must be a UUID."""
    is_text = type(value) is str
    return value is None or (is_text and (len(value) != 36 or _UUID.fullmatch(value) is not None))


def _explain(
    data: bytes, anatomy: Anatomy, root: dict[Any, Any], entries: Mapping[str, Entry], segments: list[Segment]
) -> None:
    """Add to ``anatomy.regions`` what each byte of ``.metadata`` is, and what contradicts a change of it."""
    names = {s.path for s in segments} | _find_repeated_names(root.get("planner_data"))
    extra = {k for k in root if k not in ATTRIBUTES["Metadata"] or k in ("mcore_data", "all_local_plans")}
    tensors = [e for e in entries.values() if e.dtype]
    filled = all(math.prod(e.shape) == sum(math.prod(c.sizes) for c in e.chunks) for e in tensors)
    sizes = filled and not any(s.transforms for s in segments)
    metadata.explain(data, anatomy, names, extra, sizes=sizes)


def _find_repeated_names(paths: Any) -> set[Any]:
    """Return the names in planner_data that join several keys by dots, and the keys, which repeat them."""
    names = set[Any]()
    for name, path in paths.items() if isinstance(paths, dict) else ():
        if type(path) is tuple and len(path) > 1:
            names |= {name, *(part for part in path if type(part) is str)}
    return names


def _check_tiles(entries: Mapping[str, Entry], segments: Sequence[Segment]) -> Iterator[Finding]:
    """Check that chunks fill every tensor without overlap. One rank's save (``__<rank>.metadata``,
    no_dist=True) may lack the shards of others: torch checks volumes only when several ranks save.
    """
    writers = {m[1] for path in {s.path for s in segments} if (m := _DATA.fullmatch(path.rpartition("/")[2]))}
    holes = []
    for fqn, e in entries.items():
        bad = find_untiled(e.shape, [c.box for c in e.chunks]) if e.dtype else None
        if bad is None:
            continue
        at = e.chunks[bad.box].at if bad.box >= 0 else e.at
        if bad.kind == "complex":
            why = f"the chunks of {fqn[:200]!r} lie so irregularly that they were not compared"
            yield finding("too-complex", why, offset=at)
        elif bad.kind == "hole":
            why = f"the chunks of {fqn[:200]!r} do not fill its shape {list(e.shape)}"
            holes.append(finding("bad-header", why, offset=at))
        else:
            what = "reaches beyond its shape" if bad.kind == "bounds" else "overlaps another"
            yield finding("bad-header", f"a chunk of {fqn[:200]!r} {what}", offset=at)
    if len(writers) > 1 or (len(holes) == 1 and writers == {"0"}):
        yield from holes


def _compare_segments(entries: Mapping[str, Entry], segments: Sequence[Segment]) -> Iterator[Finding]:
    """Check that storage_data has one segment for each chunk and each object, and no other segment."""
    at_of: dict[tuple[str, tuple[int, ...] | None], int] = {}  # (name, offsets) -> offset in the pickle
    for fqn, entry in entries.items():
        for c in entry.chunks:
            if (fqn, c.offsets) in at_of:
                why = f"two chunks of {fqn[:200]!r} lie at {list(c.offsets)}"
                yield finding("bad-header", why, offset=c.at)
            at_of[fqn, c.offsets] = c.at
        if not entry.dtype:
            at_of[fqn, None] = entry.at
    seen = set()
    for s in segments:
        chunk = (s.fqn, s.offsets)
        shown = f"{s.fqn[:200]!r} at {list(s.offsets or ())}"
        if chunk in seen:
            yield finding("duplicate-key", f"storage_data names {shown} twice", offset=s.at)
        elif chunk not in at_of:
            why = f"storage_data names {shown}, which state_dict_metadata does not have"
            yield finding("bad-header", why, offset=s.at)
        elif s.hint is not None and s.offsets not in [c.offsets for c in entries[s.fqn].chunks[s.hint :][:1]]:
            why = f"storage_data says that {shown} is chunk {s.hint}, which it is not"
            yield finding("odd-header", why, offset=s.at)
        seen.add(chunk)
    for (fqn, offsets), at in at_of.items():
        if (fqn, offsets) not in seen:
            at_offsets = f" at {list(offsets)}" if offsets is not None else ""
            yield finding("bad-header", f"no file holds {fqn[:200]!r}{at_offsets}", offset=at)


def _claim_files(
    entries: Mapping[str, Entry], segments: Sequence[Segment], anatomy: Anatomy
) -> Iterator[Finding]:
    """Add a claim for each data file to ``anatomy.members``; report files whose segments overlap."""
    chunks = {(fqn, c.offsets): (e.dtype, c.sizes) for fqn, e in entries.items() for c in e.chunks}
    by_path: dict[str, list[data_files.Piece]] = defaultdict(list)
    for s in segments:
        dtype, sizes = ("", ()) if s.offsets is None else chunks.get((s.fqn, s.offsets), (None, ()))
        if dtype is not None:
            by_path[s.path].append(data_files.Piece(s.start, s.length, s.fqn, dtype, sizes, s.transforms))
    for path, pieces in by_path.items():
        overlap = data_files.find_overlap(pieces)
        if overlap:
            inside = f"{overlap.fqn[:200]!r} begins at byte {overlap.start:,}, inside the entry before it"
            yield finding("bad-header", f"in {path[:200]!r} {inside}", offset=0)
        check = _report_overlap if overlap else partial(data_files.check, pieces=pieces)
        anatomy.members[path] = Claim("dcp", check, whole=True)


def _report_overlap(_source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """Leave a data file unread: the index is damaged where it describes the file, which may be intact."""
    why = "the entries that .metadata gives for this file overlap, so it was not looked at"
    yield finding("too-complex", why)


FORMAT = make_format(
    "dcp", _magic, _structure, loader=None, unasked=True, index_of=_index_of, names_its_save=True
)
