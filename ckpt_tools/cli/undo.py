"""``ckpt undo``: undo the last repair or quarantine."""

from __future__ import annotations

from typing import Any

from ckpt_tools.cli import options, output
from ckpt_tools.cli.given import read_settings

FORMATS = ("table", "json")
EXAMPLES = """
ckpt undo kept  # say what would be undone
ckpt undo kept --apply  # undo it
CKPT_ROOT=kept ckpt undo  # with ROOT from a variable
cd kept && ckpt undo  # ROOT is the current directory by default
ckpt undo kept --json  # the same for a program (docs/json.md)
"""


@options.taking("root apply state_dir trust_group trust_owner trust_dir config", options.PRINT)
def undo(
    **given: Any,
) -> int:
    """Undo the last 'ckpt repair' or 'ckpt quarantine' below ROOT. Without --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a file is no longer what that command left; 3 there is
    nothing to undo; 5 something could not be looked at or moved: nothing is lost.
    """
    to = output.requested(FORMATS, given)
    found = read_settings(given, to)
    options.on_this_machine([found.root], options.RENAMES, "nothing there was repaired or put away by ckpt")
    from ckpt_tools.guard.quarantine import undo as take_back
    from ckpt_tools.output import changes

    result = take_back(
        found.root, apply=given["apply"], state_dir=found.values.get("state-dir"), trust=found.trust
    )
    to.out(changes.json(result) if to.format == "json" else changes.render(result, to.view))
    return 0
