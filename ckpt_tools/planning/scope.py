"""Which paths matter to a question about one run, or about all."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from ckpt_tools.model.selection import Selection
from ckpt_tools.storage.urls import is_url

Scope = Callable[[str], bool]
"""Whether a path matters to the question."""


def scope(root: str, selection: Selection) -> Scope:
    run = (selection.run or "").rstrip("/")
    run = os.path.relpath(run, root) if os.path.isabs(run) or is_url(run) else run
    return partial(_inside, root, "" if run == "." else run, selection.prefix or "")


def anywhere(_path: str) -> bool:
    return True


def _inside(root: str, run: str, prefix: str, path: str) -> bool:
    """Whether a path would belong to a run of that name: below a directory called so, or a file whose name
    starts with its prefix.
    """
    above, _, name = f"/{os.path.relpath(path, root)}".rpartition("/")
    if run and f"/{run}/" not in f"{above}/":
        # the runs of one directory differ by the prefix of their files
        directory, _, start = run.rpartition("/")
        return f"{above}/".endswith(f"/{directory}/" if directory else "/") and name.startswith(start)
    return name.startswith(prefix)
