"""MindSpore's strategy file (``src_strategy_<rank>.ckpt`` or ``.json``): how the parameters of a pipeline
stage are cut over its ranks; and its group file, which lists communication groups.

Facts: node_strategy.proto, mindspore/ccsrc strategy_checkpoint_info.cc and
mindspore/parallel/_parallel_serialization.py of MindSpore 2.0 to 2.10.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats import HEAD, format_of, names
from ckpt_tools.formats.common.format import Anatomy, Damage, RankGroups, own_format
from ckpt_tools.formats.common.json_text import mapping, parse
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.formats.mindspore.strategy_groups import KEYS, Strategy, from_json, stage_groups, uneven
from ckpt_tools.formats.mindspore.strategy_proto import MAX_SIZE, begins_like_groups, read, read_groups
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import BytesSource, OpenFile, ShortRead, Source, opened
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.listing import entries_of

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


_RANK_IN_NAME = re.compile(r"(?:rank|src_strategy)_(\d{1,9})\.\w+$")
_FIT = "add --world-size N, or name the directory of this run"
_ONE_RUN = "keep the files of one run only"
_WHICH = "name the directory that holds src_strategy_0.ckpt and its siblings"
_JSON_KEY = b'"parallel_layout_item"'


def strategy_groups(directory: str, world_size: int) -> RankGroups:
    """Groups of ranks that hold the same state, every rank in exactly one. A file is of one pipeline stage, a
    merged one of several. Raises UsageError for files that do not fit, CannotLook for unreadable ones.
    """
    files = list(_read_files(directory))
    if not files:
        raise _wrong(directory, "there is no MindSpore strategy file", _WHICH)
    sizes = {prod(layout.devices): name for name, strategy in files for layout in strategy.layouts}
    if len(sizes) > 1:
        told = " and ".join(f"{size} devices ({name})" for size, name in list(sizes.items())[:2])
        raise _wrong(directory, f"there are stages of {told}", _ONE_RUN)
    count = next(iter(sizes))
    stages, left = divmod(world_size, count)
    if left or not stages:
        raise _wrong(directory, f"a stage has {count} devices, which {world_size} ranks do not fill", _FIT)
    by_stage = _group_by_stage(directory, files, count, stages)
    for stage in range(stages):
        if stage not in by_stage:
            first, last = stage * count, stage * count + count - 1
            raise _wrong(
                directory,
                f"no file is of pipeline stage {stage} (ranks {first} to {last})",
                "copy the file of one of these ranks there, or add --replica-groups GROUPS",
            )
    return tuple(
        tuple(stage * count + rank for rank in group) for stage in range(stages) for group in by_stage[stage]
    )


def _group_by_stage(
    directory: str, files: Sequence[tuple[str, Strategy]], count: int, stages: int
) -> Mapping[int, RankGroups]:
    """The groups within each of the ``stages``, on which all files agree; each has ``count`` devices."""
    known, first_of = dict[int, dict[int | None, RankGroups]](), dict[int, tuple[str, RankGroups]]()
    for name, strategy in files:
        if id(strategy) not in known:
            known[id(strategy)] = {of: stage_groups(held) for of, held in strategy.by_stage().items()}
        rank = _RANK_IN_NAME.search(name)
        by_name = int(rank[1]) // count if rank else 0 if stages == 1 else None  # or the only one
        for of, groups in known[id(strategy)].items():
            stage = by_name if of is None else of
            if stage is None:
                raise _wrong(
                    directory,
                    f"{name} does not say which pipeline stage it is of",
                    "call it src_strategy_RANK.ckpt, after one of its ranks",
                )
            if stage >= stages:
                ranks = f"{count * stages} ranks in stages of {count} devices"
                raise _wrong(directory, f"{name} is of stage {stage}, which {ranks} do not have", _FIT)
            first, same = first_of.setdefault(stage, (name, groups))
            if same != groups:
                both = f"{first} and {name}"
                raise _wrong(directory, f"{both} group the ranks of stage {stage} differently", _ONE_RUN)
    return {stage: groups for stage, (_, groups) in first_of.items()}


def _wrong(directory: str, what: str, hint: str) -> UsageError:
    return UsageError(f"--strategy-dir {directory}: {what}", hint)


def _read_files(directory: str) -> Iterator[tuple[str, Strategy]]:
    """Name and content of each strategy file; ranks of a stage mostly write the same bytes, parsed once."""
    try:
        entries = [entry for entry in entries_of(directory) if patiently(entry.is_file)]
    except (FileNotFoundError, NotADirectoryError) as e:
        raise _wrong(directory, "there is no such directory", _WHICH) from e
    except OSError as e:
        raise CannotLook(f"--strategy-dir {directory}: {e.strerror or e}") from e
    known: dict[bytes, Strategy] = {}
    for entry in entries:
        try:
            data = _read_content(entry.path)
            if data is None:
                continue
            if data not in known:
                known[data] = _parse(entry.name, data)
        except OSError as e:
            raise CannotLook(f"--strategy-dir {directory}: {entry.name}: {e.strerror or e}") from e
        except (Damage, ShortRead, ValueError) as e:
            raise _wrong(
                directory,
                f"{entry.name} is damaged or no strategy file: {e}",
                "remove it if another rank of its stage has a whole one, or add --replica-groups GROUPS",
            ) from e
        yield entry.name, known[data]


def _read_content(path: str) -> bytes | None:
    """The bytes of a strategy file, None for another; a .ckpt that is called one must be one."""
    is_json = path.endswith(".json")  # MindSpore takes only *.json for JSON
    with opened(path) as source:
        if not (source.size <= MAX_SIZE if is_json else _may_be_binary(path, source)):
            return None
        if source.size > MAX_SIZE:
            raise ValueError(f"it has {source.size} bytes")
        data = source.read(0, source.size)
        if source.changed():
            raise ValueError("it changed while it was read")
    return None if is_json and _JSON_KEY not in data else data


def _may_be_binary(path: str, source: OpenFile) -> bool:
    """Whether a file begins as a strategy file does, or is called one and is nothing else."""
    head = source.read(0, min(HEAD, source.size))
    own = format_of("mindspore_strategy")
    if head[:1] == b"\x08" and own.magic(head):
        return True
    name = os.path.basename(path)
    called_so = "strategy" in name.lower() and name.endswith(own.suffixes)
    return called_so and not any(format_of(other).magic(head) for other in names.told_by_magic)


def _parse(name: str, data: bytes) -> Strategy:
    """What the bytes of a strategy file say. Raises Damage, ShortRead or ValueError."""
    import json

    if not name.endswith(".json"):
        return read(BytesSource(data), operators=False)[1]
    try:
        return from_json(json.loads(data))
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


FORMAT = own_format(
    name="mindspore_strategy",
    magic=_magic,
    distinct=False,
    checks={Level.STRUCTURE: _structure},
    loader=None,
    rank_groups=strategy_groups,
)
