"""The small print of DCP's ``.metadata``: planner_data, storage_meta, version, the pickle's frame, and the
classes that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.common.tensors import near_miss, remember
from ckpt_tools.formats.dcp.metadata import CLASSES, Entry, damaged_names, is_class
from ckpt_tools.formats.pickles.globals import verdict
from ckpt_tools.formats.pickles.stubs import Call, Global, Pickled
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

VERSION = "1.0.0"  # CURRENT_DCP_VERSION of torch 2.13; earlier ones wrote no version
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")  # uuid.uuid4
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
_FRAME, _TARGET = 0x95, 64 * 1024  # Lib/pickle.py: a frame that ends before STOP has at least 64 KiB
_MANY, _PAIRS = 1000, 200_000


def strangers(names: Iterable[str]) -> Iterator[Finding]:
    """What to say of the "module name" pairs that a pickle names: a note on those that need trust and that no
    .metadata of torch itself has.
    """
    known = [f"{m} {n}" for n, modules in CLASSES.items() for m in modules] + [
        "torch Size",
        "torch.serialization _get_layout",
    ]
    split = [Global(*full.split(" ", 1)) for full in names if " " in full]
    odd = [g for g in split if g.module not in CLASSES.get(g.name, ()) and verdict(g) == "needs-trust"]
    for g in odd[:_MANY]:
        meant = near_miss(f"{g.module} {g.name}", known)
        if meant:
            yield finding(
                "bad-header",
                f"the pickle names {str(g)[:120]}: that is {meant.replace(' ', '.')} with a flipped bit",
            )
    if odd:
        some = ", ".join(str(g)[:80] for g in odd[:4]) + (f" and {len(odd) - 4} more" if len(odd) > 4 else "")
        yield finding("needs-trust", f"the pickle names {some}", offset=0)


def frame(source: Source, pickled: Pickled) -> Iterator[Finding]:
    """The first frame of protocol 4 and 5 ends with the pickle unless it has 64 KiB."""
    head = source.read(0, min(11, source.size))
    if len(head) == 11 and head[2] == _FRAME:
        length = int.from_bytes(head[3:], "little")
        if length < _TARGET and 11 + length != pickled.end:
            yield finding(
                "bad-header", f"the pickle's frame has {length} bytes, the pickle {pickled.end}", offset=3
            )
    if pickled.persistents:
        yield finding(
            "bad-header", "the pickle refers to something outside of it", offset=pickled.persistents[0].offset
        )


def planner(paths: Any, known: Mapping[str, Entry]) -> Iterator[Finding]:
    """planner_data: name -> the keys that lead to it in the nested state_dict; joined by dots they are the
    name (_nested_dict.py).

    Other planners than torch's own may keep something else there, or nothing. Before torch 2.3 there could be
    more names than were saved.
    """
    if not isinstance(paths, dict) or not any(type(path) is tuple for path in paths.values()):
        return
    missing = known.keys() - paths.keys()
    for fqn, path in paths.items():
        if _joined(path) != fqn:
            yield finding(
                "bad-header", f"planner_data says that {str(fqn)[:200]!r} is made of {str(path)[:200]}"
            )
        elif fqn not in known and len(missing) * len(paths) < _PAIRS and near_miss(fqn, missing):
            yield finding(
                "bad-header",
                f"planner_data has {fqn[:200]!r}, which differs in one bit from a name that it lacks",
            )
    for fqn in missing:
        yield finding("bad-header", f"planner_data has no path for {fqn[:200]!r}", offset=known[fqn].at)


def _joined(path: Any) -> str | None:
    if (
        type(path) is not tuple
        or not path
        or not all(type(k) is str or (type(k) is int and abs(k) < 1 << 64) for k in path)
    ):
        return None
    return ".".join(map(str, path))


def small(root: Mapping[Any, Any], anatomy: Anatomy) -> Iterator[Finding]:
    """``version`` and ``storage_meta``."""
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
    yield from damaged_names(meta)
    state = meta.state
    save_id = state.get("save_id")
    ids = _is_id(save_id) and _is_id(state.get("load_id"))
    if not ids or not _is_path(state.get("checkpoint_id")) or not _are_modules(state.get("modules")):
        why = "the path, the ids or the modules in storage_meta are damaged"
        yield finding("bad-header", why, offset=meta.offset)
    elif save_id is not None:
        remember(anatomy.metadata, "save_id", save_id)  # a random number of its own for every save


def _is_path(value: Any) -> bool:
    """Whether this may be ``checkpoint_id``: a text, a path of pathlib or nothing."""
    if type(value) is Call and type(value.func) is Global:
        return value.func.name not in _PATHS or all(type(a) is str for a in value.args)
    return value is None or type(value) is str


def _are_modules(value: Any) -> bool:
    return value is None or (type(value) is list and all(type(m) is str for m in value))


def _is_id(value: Any) -> bool:
    """Whether this may be ``save_id`` or ``load_id``: what has the length of a UUID is one."""
    if value is None:
        return True
    return type(value) is str and (len(value) != 36 or _UUID.fullmatch(value) is not None)
