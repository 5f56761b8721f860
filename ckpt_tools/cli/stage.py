"""``ckpt stage``: copy what a job would resume from, from a store to a disk of this machine."""

from __future__ import annotations

import os
from collections.abc import Collection

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.cli.run import listen
from ckpt_tools.errors import UsageError
from ckpt_tools.job.command import ProcessDecision
from ckpt_tools.job.decision import MEANT, Decision
from ckpt_tools.job.staging import find_ranks_of_node
from ckpt_tools.job.staging import stage as bring
from ckpt_tools.output import shell
from ckpt_tools.output import staging as emit
from ckpt_tools.settings import parsers
from ckpt_tools.storage.urls import is_url, to_absolute


@options.ask(
    ("table", "json", "shell"),
    f"{options.SELECTION} keep output_file",
    parameter("DIR", "Directory on this machine for all copies.", name="directory", required=True),
)
def stage(asked: options.Asked) -> int:
    """Copy the files that the ranks of this node load, and the files that go with them, from ROOT in a store
    to a directory below DIR. They are verified on the way, and the copy is complete or does not exist. Files
    that are there already are not fetched again.

    When there is no answer, the exit code says why, as for plan: 3 no checkpoint exists, 4 none is usable, 5
    something could not be looked at, or there is no room.

    Examples:
    ckpt stage s3://bucket/run staged  # copy what a job would load to a local disk
    ckpt stage s3://bucket/run staged --rank 0-3  # only the files that these ranks load
    ckpt stage s3://bucket/run staged --keep 2  # keep two copies, and remove older ones
    eval "$(ckpt stage s3://bucket/run staged --format shell)"; echo "$CKPT_PATH"  # for a script
    ckpt stage s3://bucket/run staged --json  # the same for a program (docs/json.md)
    """
    to, home = asked.to, asked.given["directory"]
    if is_url(home):
        raise UsageError(f"DIR is a directory of this machine, and {home} is a URL", "use ckpt stage URL DIR")
    rank, given = asked.selection.rank, asked.given.get("ranks")
    ranks: Collection[int] | None
    if given is not None:
        ranks = output.read_value("--rank", parsers.rank_set, given, "add --rank 0-7")
    elif asked.given["rank"] is not None and rank is not None:
        ranks = range(rank, rank + 1)
    else:
        ranks = find_ranks_of_node(os.environ)
    keep = asked.job.get("keep")
    with listen(asked) as listener:
        staged = bring(asked.settings.root, asked.selection, home, ranks=ranks, keep=keep, to=listener)
    decision = staged.decision if staged else Decision("", {"schema": MEANT, "checkpoint": None})
    env = ProcessDecision(decision, None if asked.given["rank"] is None else rank).environment
    if to.format == "shell":
        to.out(shell.exports(env))
    elif staged is None:
        root = to_absolute(asked.settings.root)
        to.out(emit.render_nothing(root) if to.format == "json" else f"there is no checkpoint in {root}\n")
    else:
        to.out(emit.json(staged, env) if to.format == "json" else emit.render(staged, env, to.view))
    return 0
