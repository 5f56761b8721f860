"""MindSpore's strategy file (``src_strategy_<rank>.ckpt`` or ``.json``), which says how the parameters of a
pipeline stage are cut over its ranks; and MindSpore's group file, which lists communication groups.

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
from ckpt_tools.formats.common.format import Anatomy, Damage, RankGroups, make_format
from ckpt_tools.formats.common.json_text import mapping, parse
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.formats.mindspore.strategy_groups import (
    KEYS,
    MAX_SIZE,
    Strategy,
    begins_like_groups,
    find_uneven,
    from_json,
    read_file,
    read_groups,
    stage_groups,
)
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import BytesSource, ShortRead, Source, opened
from ckpt_tools.storage.listing import list_entries
from ckpt_tools.storage.stalls import retry_call

_BEGIN = re.compile(
    rb"\x08[\x80-\xff]{0,4}[\x00-\x7f](?:[\x12\x1a][\x80-\xff]{0,4}[\x00-\x7f]\n|\Z)", re.DOTALL
)
_JSON = re.compile(rb'\{\s*"(?:current_stage"\s*:\s*\d+\s*[,}]|parallel_(?:layout|strategy)_item")')
"""``current_stage`` comes first: C++ sorts the keys, and MindSpore's merge in Python keeps this order."""
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|-?[0-9][-+.0-9eE]*|[\t\r]+', re.DOTALL)


def _magic(head: bytes) -> bool:
    """Return whether a file begins with ``current_stage`` and a named record, as JSON, or with a group."""
    return _BEGIN.match(head) is not None or _JSON.match(head) is not None or begins_like_groups(head)


def _read_json(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the JSON form: its syntax, and the fields that MindSpore reads."""
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
    _add_metadata(anatomy, top.get("current_stage"), strategy)
    if text := find_uneven(strategy):
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


def _add_metadata(anatomy: Anatomy, current: object, strategy: Strategy) -> None:
    """Add current_stage, the number of parameters, and the stage of an unmerged file to the metadata."""
    if isinstance(current, int):
        anatomy.metadata["current_stage"] = current
    anatomy.metadata["parameters"] = len(strategy.layouts)
    is_merged = strategy.by_stage().get(strategy.stage) is not strategy.layouts  # from several stages
    if strategy.stage is not None and not is_merged:
        anatomy.metadata["stage"] = strategy.stage


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a strategy file (protobuf or JSON) or a group file; every byte is read."""
    first = source.read(0, min(1, source.size))
    try:
        if first == b"{":
            yield from _read_json(source, anatomy)
        elif first == b"\n":
            anatomy.metadata["groups"] = read_groups(source, anatomy)
        else:
            _add_metadata(anatomy, *read_file(source, anatomy=anatomy))
    except ShortRead:
        raise Damage("truncated", "the file ends inside a record", source.size) from None
    yield finding("not-checksummed", "strategy and group files carry no checksum")


_RANK_IN_NAME = re.compile(r"(?:rank|src_strategy)_(\d{1,9})\.\w+$")
_FIT = "add --world-size N, or name the directory of this run"  # hints of errors
_ONE_RUN = "keep the files of one run only"
_DIRECTORY = "name the directory that holds src_strategy_0.ckpt and its siblings"
_JSON_KEY = b'"parallel_layout_item"'


def strategy_groups(directory: str, world_size: int) -> RankGroups:
    """Return groups of ranks that hold the same state; every rank is in exactly one. A file describes one
    pipeline stage, a merged file several. Raise UsageError if files do not fit, CannotLook if unreadable.
    """
    files = list(_read_files(directory))
    if not files:
        raise _error(directory, "there is no MindSpore strategy file", _DIRECTORY)
    sizes = {prod(layout.devices): name for name, strategy in files for layout in strategy.layouts}
    if len(sizes) > 1:
        both = " and ".join(f"{size} devices ({name})" for size, name in list(sizes.items())[:2])
        raise _error(directory, f"there are stages of {both}", _ONE_RUN)
    count = next(iter(sizes))
    stages, remainder = divmod(world_size, count)
    if remainder or not stages:
        raise _error(directory, f"a stage has {count} devices, which {world_size} ranks do not fill", _FIT)
    by_stage = _group_by_stage(directory, files, count, stages)
    for stage in range(stages):
        if stage not in by_stage:
            first, last = stage * count, stage * count + count - 1
            text = f"no file is of pipeline stage {stage} (ranks {first} to {last})"
            hint = "copy the file of one of these ranks there, or add --replica-groups GROUPS"
            raise _error(directory, text, hint)
    return tuple(
        tuple(stage * count + rank for rank in group) for stage in range(stages) for group in by_stage[stage]
    )


def _group_by_stage(
    directory: str, files: Sequence[tuple[str, Strategy]], count: int, stages: int
) -> Mapping[int, RankGroups]:
    """Return stage -> groups of its ranks, from 0. Raise UsageError if two files of a stage disagree."""
    known, first_of = dict[int, dict[int | None, RankGroups]](), dict[int, tuple[str, RankGroups]]()
    for name, strategy in files:
        if id(strategy) not in known:
            known[id(strategy)] = {at: stage_groups(layouts) for at, layouts in strategy.by_stage().items()}
        rank = _RANK_IN_NAME.search(name)
        only_stage = 0 if stages == 1 else None
        stage_by_name = int(rank[1]) // count if rank else only_stage
        for stage_in_file, groups in known[id(strategy)].items():
            stage = stage_by_name if stage_in_file is None else stage_in_file
            if stage is None:
                hint = "call it src_strategy_RANK.ckpt, after one of its ranks"
                raise _error(directory, f"{name} does not say which pipeline stage it is of", hint)
            if stage >= stages:
                ranks = f"{count * stages} ranks in stages of {count} devices"
                raise _error(directory, f"{name} is of stage {stage}, which {ranks} do not have", _FIT)
            first_name, first_groups = first_of.setdefault(stage, (name, groups))
            if first_groups != groups:
                text = f"{first_name} and {name} group the ranks of stage {stage} differently"
                raise _error(directory, text, _ONE_RUN)
    return {stage: groups for stage, (_, groups) in first_of.items()}


def _error(directory: str, what: str, hint: str) -> UsageError:
    return UsageError(f"--strategy-dir {directory}: {what}", hint)


def _read_files(directory: str) -> Iterator[tuple[str, Strategy]]:
    """Yield (name, content) of each strategy file; equal files, as a stage's ranks write, are parsed once."""
    try:
        entries = [entry for entry in list_entries(directory) if retry_call(entry.is_file)]
    except (FileNotFoundError, NotADirectoryError) as e:
        raise _error(directory, "there is no such directory", _DIRECTORY) from e
    except OSError as e:
        raise CannotLook(f"--strategy-dir {directory}: {e.strerror or e}") from e
    known: dict[bytes, Strategy] = {}
    for entry in entries:
        try:
            data = _read_content(entry.path)
            if data is None:
                continue
            if data not in known:
                known[data] = _parse_strategy(entry.name, data)
        except OSError as e:
            raise CannotLook(f"--strategy-dir {directory}: {entry.name}: {e.strerror or e}") from e
        except (Damage, ShortRead, ValueError) as e:
            hint = "remove it if another rank of its stage has a whole one, or add --replica-groups GROUPS"
            raise _error(directory, f"{entry.name} is damaged or no strategy file: {e}", hint) from e
        yield entry.name, known[data]


def _read_content(path: str) -> bytes | None:
    """Return the bytes of a file that by its beginning or its name must be a strategy file, else None."""
    own, name = format_of("mindspore_strategy"), os.path.basename(path)
    is_json = name.endswith(".json")  # MindSpore takes only *.json for JSON
    with opened(path) as source:
        if is_json and source.size > MAX_SIZE:
            return None
        head = b"" if is_json else source.read(0, min(HEAD, source.size))
        if not is_json and not (head[:1] == b"\x08" and own.magic(head)):
            has_name = "strategy" in name.lower() and name.endswith(own.suffixes)
            if not has_name or any(format_of(other).magic(head) for other in names.told_by_magic):
                return None
        if source.size > MAX_SIZE:
            raise ValueError(f"it has {source.size} bytes")
        data = source.read(0, source.size)
        if source.changed():
            raise ValueError("it changed while it was read")
    return None if is_json and _JSON_KEY not in data else data


def _parse_strategy(name: str, data: bytes) -> Strategy:
    """Return the content of a strategy file. Raise Damage, ShortRead or ValueError."""
    if name.endswith(".json"):
        return from_json(parse(data, []))
    return read_file(BytesSource(data), operators=False)[1]


FORMAT = make_format(
    "mindspore_strategy", _magic, _structure, distinct=False, loader=None, rank_groups=strategy_groups
)
