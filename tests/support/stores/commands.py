"""Commands about a tree in a store, as lines: ``@`` is the tree, and what they write here lies in ``home``."""

from __future__ import annotations

from stores.asking import NEWEST, TREE

PLANS = {
    "plan": "plan @ --json",
    "plan of the tracker": "plan @ --order tracker --json",
    "latest": "latest @ --rank 0 --json",
    "hook": "hook @ --json --plan-dir home/plans",
    "stage": "stage @ home/ssd --json",
}
"""Those that choose a checkpoint."""
READERS = {
    "ls": "ls @ --json",
    "verify": "verify @ --level content --json",
    "verify a file": f"verify @/{NEWEST} --level content --json",
    "show": f"show @/{NEWEST} --json",
    "diff": f"diff {TREE}/iter_0000030 @/iter_0000030 --json",
    **PLANS,
    "watch": "watch @ --once --settle 0s --state-dir home/watched",
}
WRITERS = {
    "seal": "seal @ --json",
    "prune": "prune @ --keep-last 1 --damaged --settle 0s --apply --json --state-dir home/pruned",
}
