"""``ckpt quarantine``: move checkpoints out of their framework's sight, and back."""

from __future__ import annotations

import os

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import UsageError
from ckpt_tools.guard.quarantine import quarantine as put_away
from ckpt_tools.guard.quarantine import restore as bring_back

_INSTEAD = (
    "'ckpt prune --damaged' removes what is damaged there; --exclude hides it from 'ckpt plan' and 'run'"
)


@options.ask(
    ("table", "json"),
    options.paths("Checkpoints; with --damaged the directory in which they lie."),
    parameter("--damaged", "All damaged checkpoints below PATH."),
    parameter("--undo", "Bring back the checkpoint that was at PATH."),
    "home apply settle no_cache state_dir",
    options.TREE,
    trees_in="paths",
)
def quarantine(asked: options.Asked) -> int:
    """Move checkpoints to ROOT/.ckpt/quarantine, where their framework does not look but ckpt does. They
    still count as existing: if nothing else is left, a job does not start from nothing. A tracker that names
    one of them is changed to name what 'ckpt plan' then chooses. Without --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a question that only you can answer; 3 there is no such
    checkpoint; 5 something could not be looked at or moved: nothing is lost.

    Examples:
    ckpt quarantine run/iter_0000020  # say what would be moved
    ckpt quarantine run/iter_0000020 --apply  # move it below run/.ckpt/quarantine
    ckpt quarantine run --damaged  # all damaged checkpoints
    ckpt quarantine kept/iter_0000020 --undo --apply  # bring it back
    ckpt quarantine run/iter_0000020 --json  # the same for a program (docs/json.md)
    """
    given = asked.given
    paths, root, damaged = given["paths"], given["home"], given["damaged"]
    if damaged and given["undo"]:
        raise UsageError("--damaged and --undo contradict each other", "use one of them")
    output.say_broken_plugins()
    options.on_this_machine([*paths, root], options.RENAMES, _INSTEAD)
    home = options.home_of(paths, root, whole=damaged)
    names = [os.path.abspath(path) for path in paths]

    how = {"apply": given["apply"], "state_dir": asked.state_dir}
    if given["undo"]:
        result = bring_back(home, names, **how, trust=asked.found.trust)
    else:
        result = put_away(home, names, damaged=damaged, **how, selection=asked.found.selection(cache=True))
    return asked.answer("changes", result)
