"""A directory of MindSpore strategy files in, groups of ranks with the same state out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from math import prod

from ckpt_tools.cache.locks import inside
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.formats import FORMATS, HEAD, Damage
from ckpt_tools.formats.mindspore.mindspore_strategy import FORMAT
from ckpt_tools.formats.mindspore.strategy_groups import Strategy, from_json, stage_groups
from ckpt_tools.formats.mindspore.strategy_proto import MAX_SIZE, read
from ckpt_tools.storage import BytesSource, LocalSource, ShortRead, trust
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import patiently
from ckpt_tools.storage.trust import Trust

Groups = tuple[tuple[int, ...], ...]

_OWN = re.compile(r"(?:rank|src_strategy)_(\d{1,9})\.\w+$")
_FIT = "say --world-size N, or name the directory of this run"
_JSON_KEY = b'"parallel_layout_item"'


def strategy_groups(directory: str, world_size: int) -> Groups:
    """Groups of ranks that hold the same state, every rank in exactly one.

    Each file is of one pipeline stage, whose ranks all write the same; a merged file is of several. Raises UsageError when the files
    are damaged, contradict each other or do not fit the number of ranks, CannotLook when they cannot be read.
    """
    found = list(_files(directory))
    if not found:
        raise _wrong(
            directory,
            "there is no MindSpore strategy file",
            "name the directory that holds src_strategy_0.ckpt and its siblings",
        )
    sizes = {prod(layout.devices): name for name, strategy in found for layout in strategy.layouts}
    if len(sizes) > 1:
        said = " and ".join(f"{size} devices ({name})" for size, name in list(sizes.items())[:2])
        raise _wrong(directory, f"there are stages of {said}", "keep the files of one run only")
    count = next(iter(sizes))
    stages, left = divmod(world_size, count)
    if left or not stages:
        raise _wrong(directory, f"a stage has {count} devices, which {world_size} ranks do not fill", _FIT)
    groups, named = dict[int, Groups](), dict[int, str]()
    for (name, told), inner in _grouped(found).items():
        stage = _stage(name, count, stages) if told is None else told
        if stage is None:
            raise _wrong(
                directory,
                f"{name} does not say which pipeline stage it is of",
                "call it src_strategy_RANK.ckpt, after one of its ranks",
            )
        if stage >= stages:
            raise _wrong(
                directory,
                f"{name} is of stage {stage}, which {world_size} ranks in stages of {count} devices do not have",
                _FIT,
            )
        if groups.setdefault(stage, inner) != inner:
            raise _wrong(
                directory,
                f"{named[stage]} and {name} group the ranks of stage {stage} differently",
                "keep the files of one run only",
            )
        named.setdefault(stage, name)
    for stage in range(stages):
        if stage not in groups:
            text = (
                f"no file is of pipeline stage {stage} (ranks {stage * count} to {stage * count + count - 1})"
            )
            raise _wrong(
                directory, text, "copy the file of one of these ranks there, or say --replica-groups instead"
            )
    return tuple(
        tuple(stage * count + rank for rank in group) for stage in range(stages) for group in groups[stage]
    )


def believed(directory: str, root: str, trusted: Trust) -> None:
    """Raises Untrusted where strategy files lie outside ROOT and others could have written them: they say whose files a rank loads.

    Those in ROOT were written as the checkpoints were.
    """
    if inside(directory, root):
        return
    try:
        with trust.named("--strategy-dir"):
            trust.check(directory, trusted)
            for entry in entries_of(directory):
                trust.check(entry.path, trusted)
    except OSError:
        return  # strategy_groups says what cannot be read


def _grouped(found: Sequence[tuple[str, Strategy]]) -> dict[tuple[str, int | None], Groups]:
    """(name, stage it says) -> the groups within that stage, worked out once for files with the same bytes."""
    known: dict[int, dict[int | None, Groups]] = {}
    for _, strategy in found:
        if id(strategy) not in known:
            known[id(strategy)] = {
                stage: stage_groups(layouts) for stage, layouts in strategy.by_stage().items()
            }
    return {(name, stage): inner for name, strategy in found for stage, inner in known[id(strategy)].items()}


def _stage(name: str, count: int, stages: int) -> int | None:
    """The stage of a file that does not say it: that of the rank in its name, or the only one."""
    own = _OWN.search(name)
    return int(own[1]) // count if own else 0 if stages == 1 else None


def _wrong(directory: str, what: str, hint: str) -> UsageError:
    return UsageError(f"--strategy-dir {directory}: {what}", hint)


def _files(directory: str) -> Iterator[tuple[str, Strategy]]:
    """(name, what it says) of each strategy file; ranks of a stage mostly write the same bytes, which become one value."""
    import xxhash

    known: dict[str, Strategy] = {}
    try:
        entries = [e for e in entries_of(directory) if patiently(e.is_file)]
    except (FileNotFoundError, NotADirectoryError) as e:
        raise _wrong(
            directory,
            "there is no such directory",
            "name the directory that holds src_strategy_0.ckpt and its siblings",
        ) from e
    except OSError as e:
        raise CannotLook(f"--strategy-dir {directory}: {e.strerror or e}") from e
    for entry in entries:
        try:
            if (data := _content(entry.path)) is None:
                continue
            digest = xxhash.xxh3_128_hexdigest(data)
            if digest not in known:
                known[digest] = (
                    from_json(_json(data))
                    if entry.name.endswith(".json")
                    else read(BytesSource(data), operators=False)[1]
                )
        except OSError as e:
            raise CannotLook(f"--strategy-dir {directory}: {entry.name}: {e.strerror or e}") from e
        except (Damage, ShortRead, ValueError) as e:
            text = f"{entry.name} is damaged or no strategy file: {e}"
            raise _wrong(
                directory,
                text,
                "remove it if another rank of its stage has a whole one, or say --replica-groups instead",
            ) from e
        yield entry.name, known[digest]


def _content(path: str) -> bytes | None:
    """The bytes of a strategy file; None for any other file. A .ckpt that is called a strategy file and is nothing else must be one."""
    name = os.path.basename(path)
    with LocalSource(path) as source:
        head = source.read(0, min(HEAD, source.size))
        named = (
            "strategy" in name.lower()
            and name.endswith(FORMAT.suffixes)
            and not any(f.magic(head) for f in FORMATS)
        )
        binary = named or (
            head[:1] == b"\x08" and FORMAT.magic(head)
        )  # not a group file; MindSpore takes only *.json for JSON
        if not (source.size <= MAX_SIZE if name.endswith(".json") else binary):
            return None
        if source.size > MAX_SIZE:
            raise ValueError(f"it has {source.size} bytes")
        data = source.read(0, source.size)
        if source.changed():
            raise ValueError("it changed while it was read")
    return None if name.endswith(".json") and _JSON_KEY not in data else data


def _json(data: bytes) -> object:
    import json

    try:
        return json.loads(data)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
