"""A plan that the framework obeys: a tree of links in its own layout, in which only the chosen checkpoint is,
and its tracker names it.
"""

from __future__ import annotations

import os
from typing import Any

from ckpt_tools.discovery.roots import roots
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.view_swap import put
from ckpt_tools.job.view_tree import Tree
from ckpt_tools.layouts import BUILT_IN, Layouts
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.storage.trust import OURS, Trust


def build(
    plan: LoadPlan, directory: str, trusted: Trust = OURS, layouts: Layouts = BUILT_IN
) -> dict[str, Any]:
    """Build the view of a plan at ``directory`` and say how the framework is told: "resume" in the view, and
    in "view" the links of every file entry.

    Raises UsageError where it cannot be: inside the scanned tree, in place of something else, or of a layout
    whose names tell no rank, or where others can write; CannotLook when it cannot be written.
    """
    directory = os.path.abspath(directory)
    if plan.checkpoint is None:
        raise UsageError("there is no checkpoint to build a view of", "--view needs one")
    _outside(plan.root, directory)
    tree = Tree(plan, plan.checkpoint, directory, layouts)
    try:
        tree.fill()
    except OSError as e:
        raise CannotLook(
            f"{e.filename} cannot be looked at: {e.strerror}",
            "check that its file system is mounted and readable, then start again",
        ) from e
    about = {
        "root": plan.root,
        "fingerprint": plan.fingerprint,
        "checkpoint": plan.checkpoint.path,
        "step": plan.resume_step,
    }
    put(directory, tree.links, tree.texts, about, trusted)
    return tree.described


def _outside(root: str, directory: str) -> None:
    """Raises UsageError unless the view and the scanned tree lie beside each other, wherever links lead."""
    real = os.path.join(os.path.realpath(os.path.dirname(directory)), os.path.basename(directory))
    for top in roots(root):
        scanned = os.path.realpath(top)
        if f"{real}/".startswith(f"{scanned.rstrip('/')}/"):
            raise UsageError(
                f"--view {directory} lies inside {top}, where ckpt never writes",
                "name a directory outside it",
            )
        if f"{scanned}/".startswith(f"{real.rstrip('/')}/"):
            raise UsageError(
                f"--view {directory} holds {top} itself", "name a directory of its own, outside it"
            )
