"""How commands change a tree: under a lock, with a journal, in single renames, so that whatever dies
meanwhile is finished or taken back by the next command.
"""

from __future__ import annotations

from ckpt_tools.guard.journal.entries import Operation, Status
from ckpt_tools.guard.journal.steps import Move, Step, Swap
from ckpt_tools.guard.journal.store import Store, interrupted, looked_at, opened

__all__ = ["Move", "Operation", "Status", "Step", "Store", "Swap", "interrupted", "looked_at", "opened"]
