"""The list of files that were repaired by nothing but the CRC that told the flipped bit: 'verify' and 'plan'
warn of them for as long as they stay as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ckpt_tools.discovery.quarantined import REPAIRED, SCHEMA, read_repaired
from ckpt_tools.guard.journal import Move, Step, Store, Swap


def noted(store: Store, repaired: Sequence[tuple[str, float]]) -> Step:
    """The step that adds (path, odds) to the list. Raises CannotLook."""
    root = store.tree.root
    target = f".ckpt/{REPAIRED}"
    rows = {row["path"]: row for row in read_repaired(os.path.join(root, target))}
    for path, odds in repaired:
        info = os.stat(path)
        below = os.path.relpath(os.path.realpath(path), root)
        rows[below] = {"path": below, "size": info.st_size, "mtime_ns": info.st_mtime_ns, "odds": odds}
    data = json.dumps({"schema": SCHEMA, "files": list(rows.values())}).encode("utf-8", "surrogateescape")
    incoming = f"{store.place('incoming')}/{target}"
    there = store.tree.identity(target) is not None
    store.write(incoming, data, like=target if there else ".ckpt/lock")
    if there:
        return Swap(target, incoming, f"{store.place('replaced')}/{target}")
    return Move(incoming, target)
