"""``ckpt repair``: repair damaged files, if something proves what they held."""

from __future__ import annotations

import os
from typing import Any

from ckpt_tools import api
from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard import repair as mending
from ckpt_tools.model.answers import Changes


@options.ask(
    ("table", "json"),
    options.paths("Checkpoints, files of them, or directories."),
    parameter(
        "--accept-odds P",
        "Also flip back bits that only a CRC locates, if wrong with at most this probability.",
    ),
    parameter("--tracker", "Make the framework's 'latest' file name the plan's choice."),
    "home apply state_dir settle key_file jobs",
    options.TREE,
    trees_in="paths",
)
def repair(asked: options.Asked) -> int:
    """Repair damaged files at and below PATH: flip back the one bit that a CRC locates, if a seal, a second
    checksum or --accept-odds confirms it; write the lost directory of a torch archive and the index of a
    sharded model anew. The damaged file goes to quarantine; the repaired one keeps its times, mode and
    owner. Without --apply nothing is done.

    Exit codes: 0 all damage is repaired, or would be; 1 some of it stays; 2 a question that only you can
    answer; 3 nothing recognised; 5 something could not be looked at or written: nothing is lost.

    Examples:
    ckpt repair run  # say what can be repaired, and how
    ckpt repair run --apply  # repair what is proven, and say what is not
    ckpt repair run --accept-odds 0.001 --apply  # also flip back bits that only a CRC locates
    ckpt repair run --tracker --apply  # make the tracker name what plan chooses
    ckpt repair run --json  # the same for a program (docs/json.md)
    """
    output.say_broken_plugins()
    given = asked.given
    paths, root, accept_odds = given["paths"], given["home"], given["accept_odds"]
    options.on_this_machine([*paths, root], options.RENAMES, options.DOWNLOAD)
    # a directory of several checkpoints is itself the root
    home = os.path.abspath(root or options.lone(_root_of(os.path.abspath(path)) for path in paths))

    how: dict[str, Any] = {"apply": given["apply"], "state_dir": asked.state_dir}
    how["selection"] = asked.found.selection()
    if given["tracker"]:
        result = mending.repair_trackers(home, **how)
    else:
        try:
            odds = float(accept_odds or 0)
        except ValueError:
            odds = -1.0
        if not 0 <= odds < 1:
            why = f"--accept-odds: {accept_odds!r} is not a probability"
            raise UsageError(why, "use a number such as 0.001")
        result = mending.repair(home, paths, accept_odds=odds, **how)
    asked.answer("changes", result)
    return exit_code(result)


def exit_code(result: Changes) -> int:
    """Return 5 if a file could not be checked, else 1 if damage stays, else 0."""
    if any(f.code in ("unreadable", "in-use", "unread-pickle") for f in result.findings):
        return CannotLook.exit_code
    return int(any(c.state == "stays" for c in result.changes))


def _root_of(path: str) -> str:
    """Return the directory that holds the checkpoint or file ``path``; ``path`` if it holds checkpoints."""
    if not os.path.isdir(path):
        return os.path.dirname(path)

    found = api.scan(path).checkpoints
    own = bool(found) and all(p.home == path for c in found for p in c.parts)
    return os.path.dirname(path) if own else path
