"""The fault file: JSON that says which ranks' devices failed (docs/elastic.md has the schema)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ckpt_tools.settings.checked_json import decode
from ckpt_tools.settings.parsers import MAX_RANK, path, rank_set
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust

Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
_EXAMPLE = 'write a list of ranks such as [3, 5], or {"version": 1, "fault_ranks": [3, 5]} (docs/elastic.md)'


class _Faults(Struct):
    """The content of a fault file, unless it is a list of ranks. ``FaultRankIds`` is the field of MindX DL's
    scheduler: a list of numbers as texts; in older versions, a list within a text
    (ascend-for-volcano FaultRankIdsJobCMData, key fault-npus; read by mindx_elastic's FaultRanksManager).
    """

    version: Literal[1] = 1
    fault_ranks: list[Rank] | UnsetType = UNSET
    FaultRankIds: list[int | str] | int | str | UnsetType = UNSET
    fault_nodes: list[str] = []
    node_ranks: dict[str, list[Rank]] | None = None


def ranks(value: Iterable[object]) -> list[int]:
    """Return ranks as they are. Raise ValueError for anything that is no rank."""
    return decode(list(value), list[Rank])


def _list_rank_sets(faults: _Faults) -> Iterator[list[int]]:
    """Yield the ranks of each field. Raise ValueError if none names any, or if a node is not known."""
    if faults.fault_ranks is not UNSET:
        yield faults.fault_ranks
    if faults.FaultRankIds is not UNSET:
        ids = faults.FaultRankIds
        words = re.findall(r"[^\s,\[\]'\"]+", ids) if isinstance(ids, str) else ids
        listed = words if isinstance(words, list) else [words]
        yield ranks(int(w) if isinstance(w, str) and re.fullmatch("[0-9]{1,9}", w) else w for w in listed)
    if faults.node_ranks is not None:
        for node in faults.fault_nodes:
            if node not in faults.node_ranks:
                raise ValueError(f"node_ranks does not know the fault node {node!r}")
            yield faults.node_ranks[node]
    elif faults.fault_ranks is UNSET and faults.FaultRankIds is UNSET:
        raise ValueError("it has no fault_ranks, and no node_ranks that tell those of fault_nodes")


def fault_file(value: object, base: str = "", trusted: Trust = OURS) -> frozenset[int]:
    """Return the ranks that a fault file names. Raise ValueError, and Untrusted if others could write it."""
    file = path(value, base)
    try:
        # all ranks of the largest known job need far fewer bytes; a checkpoint may be named by mistake
        data = trust.read(file, 1 << 20, trusted)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise ValueError(f"{file!r} cannot be read ({e}): name a JSON file such as [3, 5]") from e
    try:
        content = json.loads(data)
        sets = [ranks(content)] if isinstance(content, list) else _list_rank_sets(decode(content, _Faults))
        return frozenset().union(*sets)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{file!r} is no fault file ({e}): {_EXAMPLE}") from e


def fault_ranks(value: object, base: str = "", trusted: Trust = OURS) -> frozenset[int]:
    """Return the ranks of ``1,3-5``, a list of numbers, or one or more fault files. Raise ValueError."""
    lines = value.strip().splitlines() if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return rank_set(value)
    ranks_of_all = frozenset[int]()
    for line in lines:
        is_list = re.fullmatch(r"[0-9,\s-]*", line)
        ranks_of_all |= rank_set(line) if is_list else fault_file(line.strip(), base, trusted)
    return ranks_of_all
