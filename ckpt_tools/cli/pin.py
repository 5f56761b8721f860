"""``ckpt pin``: checkpoints that ``ckpt prune`` never removes."""

from __future__ import annotations

import os

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.guard.prune import pin as put

_WHY = "a pin is a file in the directory that is pruned"
_INSTEAD = "say what stays with --keep, or protect the objects (S3 Object Lock, a retention)"


@options.ask(
    ("table", "json"),
    options.paths("Checkpoints."),
    parameter("--undo", "Remove the pins of PATH."),
    parameter("--dry-run", "Only say what would be done."),
    "home",
    options.TREE,
    trees_in="paths",
)
def pin(asked: options.Asked) -> int:
    """Pin checkpoints, so that 'ckpt prune' never removes them. A pin is a file in .ckpt/pins of the
    directory that is pruned, where no framework sees it. It is written at once.

    Exit codes: 0 done, or shown what would be done; 2 PATH is only a part of a checkpoint; 3 there is no such
    checkpoint, or no such pin; 5 something could not be looked at or written.

    Examples:
    ckpt pin run/iter_0000010 --dry-run  # say what would be pinned
    ckpt pin pinned/iter_0000010  # pin it
    ckpt pin pinned/iter_0000020 --undo  # remove its pin
    ckpt pin --root run run/iter_0000010 --dry-run  # a pin that counts for 'ckpt prune run'
    ckpt pin run/iter_0000010 --dry-run --json  # the same for a program (docs/json.md)
    """
    output.say_broken_plugins()
    given = asked.given
    paths, root = given["paths"], given["home"]
    options.on_this_machine([*paths, root], _WHY, _INSTEAD)
    names = [os.path.abspath(path) for path in paths]
    home = options.home_of(names, root)

    result = put(
        home, names, remove=given["undo"], dry_run=given["dry_run"], selection=asked.found.selection()
    )
    return asked.answer("changes", result)
