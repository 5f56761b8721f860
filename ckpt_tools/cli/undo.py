"""``ckpt undo``: undo the last repair or quarantine."""

from __future__ import annotations

from ckpt_tools.cli import options
from ckpt_tools.guard.quarantine import undo as take_back


@options.ask(
    ("table", "json"), "root apply state_dir trust trust_group trust_owner trust_dir config", options.PRINT
)
def undo(asked: options.Asked) -> int:
    """Undo the last 'ckpt repair' or 'ckpt quarantine' below ROOT. Without --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a file is no longer what that command left; 3 there is
    nothing to undo; 5 something could not be looked at or moved: nothing is lost.

    Examples:
    ckpt undo kept  # say what would be undone
    ckpt undo kept --apply  # undo it
    CKPT_ROOT=kept ckpt undo  # with ROOT from a variable
    cd kept && ckpt undo  # ROOT is the current directory by default
    ckpt undo kept --json  # the same for a program (docs/json.md)
    """
    found = asked.found
    options.on_this_machine([found.root], options.RENAMES, "nothing there was repaired or put away by ckpt")

    result = take_back(found.root, apply=asked.given["apply"], state_dir=asked.state_dir, trust=found.trust)
    return asked.answer("changes", result)
