"""The fault file: JSON that says which ranks' devices failed (docs/elastic.md has the schema)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ckpt_tools.settings.parsers import MAX_RANK, path, rank_set
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust


def rank(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a rank: ranks are whole numbers such as 3")  # noqa: TRY004 - the caller of every parser waits for ValueError
    if not 0 <= value <= MAX_RANK:
        fault = "negative" if value < 0 else f"above {MAX_RANK}"
        raise ValueError(f"rank {value} is {fault}: ranks count from 0")
    return value


def ranks(value: object, where: str) -> frozenset[int]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is not a list of ranks such as [3, 5]")  # noqa: TRY004
    try:
        return frozenset(rank(v) for v in value)
    except ValueError as e:
        raise ValueError(f"{where}: {e}") from e


def _list_rank_sets(content: object) -> Iterator[frozenset[int]]:
    """Yield the ranks of each field: fault_ranks, FaultRankIds, fault_nodes. Raise ValueError."""
    if isinstance(content, list):
        yield ranks(content, "the list")
        return
    if not isinstance(content, dict):
        raise ValueError(  # noqa: TRY004
            'is neither a list of ranks such as [3, 5] nor an object such as {"version": 1, "fault_ranks":'
            " [3, 5]}"
        )
    version = content.get("version", 1)
    if version is True or version != 1:
        raise ValueError(f"has version {version!r}, and this ckpt reads version 1")
    if "fault_ranks" in content:
        yield ranks(content["fault_ranks"], "fault_ranks")
    # The field of MindX DL's scheduler: a list of numbers as texts; in older versions, a list within a text
    # (ascend-for-volcano FaultRankIdsJobCMData, key fault-npus; read by mindx_elastic's FaultRanksManager).
    if "FaultRankIds" in content:
        ids = content["FaultRankIds"]
        ids = re.findall(r"[^\s,\[\]'\"]+", ids) if isinstance(ids, str) else ids
        ids = ids if isinstance(ids, list) else [ids]
        digits = (int(v) if isinstance(v, str) and re.fullmatch(r"[0-9]{1,9}", v) else v for v in ids)
        yield ranks(list(digits), "FaultRankIds")
    yield from _find_ranks_of_nodes(content)


def _find_ranks_of_nodes(content: dict[str, object]) -> Iterator[frozenset[int]]:
    nodes, by_node = content.get("fault_nodes", []), content.get("node_ranks")
    if not isinstance(nodes, list) or not all(isinstance(n, str) for n in nodes):
        raise ValueError('fault_nodes is not a list of names such as ["node-7"]')
    if by_node is None:
        if content.keys() & {"fault_ranks", "FaultRankIds"}:
            return
        raise ValueError(
            'names fault_nodes but not their ranks: add "node_ranks": {"node-7": [56, 57]}, or fault_ranks'
            if nodes
            else "has no fault_ranks"
        )
    if not isinstance(by_node, dict):
        raise ValueError('node_ranks is not an object such as {"node-7": [56, 57]}')  # noqa: TRY004
    for node in nodes:
        if node not in by_node:
            raise ValueError(f"node_ranks does not know the fault node {node!r}")
        yield ranks(by_node[node], f"node_ranks of {node!r}")


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
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{file!r} is not JSON ({e}): write a list of ranks such as [3, 5]") from e
    try:
        return frozenset().union(*_list_rank_sets(content))
    except ValueError as e:
        raise ValueError(f"{file!r}: {e}") from e


def fault_ranks(value: object, base: str = "", trusted: Trust = OURS) -> frozenset[int]:
    """Return the ranks of ``1,3-5``, a list of numbers, or one or more fault files. Raise ValueError."""
    lines = value.strip().splitlines() if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return rank_set(value)
    ranks = (
        rank_set(line) if re.fullmatch(r"[0-9,\s-]*", line) else fault_file(line.strip(), base, trusted)
        for line in lines
    )
    return frozenset().union(*ranks)
