"""MindSpore's strategy file (``src_strategy_<rank>.ckpt`` or ``.json``): how the parameters of a pipeline
stage are cut over its ranks; and its group file, which lists communication groups.

Facts: node_strategy.proto, mindspore/ccsrc strategy_checkpoint_info.cc and
mindspore/parallel/_parallel_serialization.py of MindSpore 2.0 to 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, RankGroups, own_format
from ckpt_tools.formats.common.json_text import mapping, parse
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.formats.mindspore.strategy_groups import KEYS, Strategy, from_json, uneven
from ckpt_tools.formats.mindspore.strategy_proto import MAX_SIZE, begins_like_groups, read, read_groups
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import ShortRead, Source

_BEGIN = re.compile(
    rb"\x08[\x80-\xff]{0,4}[\x00-\x7f](?:[\x12\x1a][\x80-\xff]{0,4}[\x00-\x7f]\n|\Z)", re.DOTALL
)
_JSON = re.compile(rb'\{\s*"(?:current_stage"\s*:\s*\d+\s*[,}]|parallel_(?:layout|strategy)_item")')
"""C++ sorts the keys, Python's merge has them in this order, so ``current_stage`` comes first."""
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|-?[0-9][-+.0-9eE]*|[\t\r]+', re.DOTALL)


def _magic(head: bytes) -> bool:
    """``current_stage``, then what begins with a name; or the JSON form; or a group."""
    return _BEGIN.match(head) is not None or _JSON.match(head) is not None or begins_like_groups(head)


def _read_json(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """The JSON form: well-formed, with the fields that MindSpore reads."""
    if source.size > MAX_SIZE:
        raise Damage("too-complex", f"a strategy file of {source.size} bytes", 0)
    data, found = source.read(0, source.size), list[Finding]()
    value = parse(data, found)
    yield from found
    top = mapping(value)
    if "parallel_layout_item" not in top and not any(near_miss(k, KEYS) for k in top):
        if not any(k.startswith("parallel_") for k in top):
            raise Damage("bad-header", "it has not the fields of a strategy file", 0)
        what = "strategies of operators: only the form of the JSON text is checked"
        anatomy.explain(0, len(data), what, Guard.UNPROTECTED)
        return
    try:
        strategy = from_json(value)
    except ValueError as e:
        raise Damage("bad-header", str(e), 0) from None
    _remember(anatomy, top.get("current_stage"), strategy)
    if text := uneven(strategy):
        yield finding("bad-header", text, offset=0, severity=Severity.WARNING)
    at = 0
    for m in _TOKEN.finditer(data) if anatomy.regions is not None else ():
        if m[2] is not None and m[1].decode() in KEYS:
            continue
        start, end = m.span(1 if m[1] is not None else 0)
        anatomy.explain(at, start - at, "keys and signs of the JSON text")
        anatomy.explain(start, end - start, "name or number: only its form is checked", Guard.UNPROTECTED)
        at = end
    anatomy.explain(at, len(data) - at, "keys and signs of the JSON text")


def _remember(anatomy: Anatomy, current: object, strategy: Strategy) -> None:
    if isinstance(current, int):
        anatomy.metadata["current_stage"] = current
    anatomy.metadata["parameters"] = len(strategy.layouts)
    merged = strategy.by_stage().get(strategy.stage) is not strategy.layouts  # from several stages
    if strategy.stage is not None and not merged:
        anatomy.metadata["stage"] = strategy.stage


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Walk every record to the last byte."""
    first = source.read(0, min(1, source.size))
    try:
        if first == b"{":
            yield from _read_json(source, anatomy)
        elif first == b"\n":
            anatomy.metadata["groups"] = read_groups(source, anatomy)
        else:
            _remember(anatomy, *read(source, anatomy=anatomy))
    except ShortRead:
        raise Damage("truncated", "the file ends inside a record", source.size) from None
    yield finding("not-checksummed", "strategy and group files carry no checksum")


def _rank_groups(directory: str, world_size: int) -> RankGroups:
    from ckpt_tools.formats.mindspore.strategy_directory import strategy_groups

    return strategy_groups(directory, world_size)


FORMAT = own_format(
    name="mindspore_strategy",
    magic=_magic,
    distinct=False,
    checks={Level.STRUCTURE: _structure},
    loader=None,
    rank_groups=_rank_groups,
)
