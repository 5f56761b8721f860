"""``ckpt pin``: checkpoints that ``ckpt prune`` never removes."""

from __future__ import annotations

import os
from typing import Annotated, Any

from ckpt_tools.cli import options, output
from ckpt_tools.cli.given import read_settings
from ckpt_tools.cli.options import argument, option

FORMATS = ("table", "json")
_WHY = "a pin is a file in the directory that is pruned"
_INSTEAD = (
    "name what stays with --keep-every and its like, or protect the objects (S3 Object Lock, a retention)"
)
EXAMPLES = """
ckpt pin run/iter_0000010 --dry-run  # say what would be pinned
ckpt pin pinned/iter_0000010  # pin it
ckpt pin pinned/iter_0000020 --remove  # remove its pin
ckpt pin --root run run/iter_0000010 --dry-run  # a pin that counts for 'ckpt prune run'
ckpt pin run/iter_0000010 --dry-run --json  # the same for a program (docs/json.md)
"""


@options.taking(options.TRUST, options.PRINT)
def pin(
    paths: Annotated[list[str], argument("PATH", "Checkpoints.")],
    remove: Annotated[bool, option("--remove", help="Remove the pins of PATH.")] = False,
    root: Annotated[
        str | None,
        option("--root", metavar="DIR", help="Directory that is pruned; default: the one that PATH lies in."),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only say what would be done.")] = False,
    **given: Any,
) -> int:
    """Pin checkpoints, so that 'ckpt prune' never removes them. A pin is a file in .ckpt/pins of the
    directory that is pruned, where no framework sees it. It is written at once.

    Exit codes: 0 done, or shown what would be done; 2 PATH is only a part of a checkpoint; 3 there is no such
    checkpoint, or no such pin; 5 something could not be looked at or written.
    """
    given["paths"] = paths
    to = output.requested(FORMATS, given)
    found = read_settings(given, to, tuple(paths))
    output.broken_plugins()
    options.on_this_machine([*paths, *([root] if root else ())], _WHY, _INSTEAD)
    names = [os.path.abspath(path) for path in paths]
    home = os.path.abspath(root) if root else options.home_of(names)
    from ckpt_tools.guard.prune import pin as put

    result = put(home, names, remove=remove, dry_run=dry_run, selection=found.selection())
    from ckpt_tools.output import changes

    to.out(changes.json(result) if to.format == "json" else changes.render(result, to.view))
    return 0
