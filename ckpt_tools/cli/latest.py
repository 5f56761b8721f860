"""``ckpt latest``: the files one rank must load."""

from __future__ import annotations

import sys

from ckpt_tools.cli import console, options
from ckpt_tools.cli.progress import progress


@options.question("text", "json", "shell")
def latest(asked: options.Question) -> int:
    """Print the file(s) that rank N must load, one path per line and nothing else.

    Without an answer the exit code says why: 3 no checkpoint exists, 4 none is usable, 5 could not look.
    """
    from ckpt_tools import pipeline

    to = asked.output
    with progress(to) as meter:
        plan = pipeline.latest(asked.root, asked.selection, progress=meter)
    options.tell(plan, to)
    if to.format == "json":
        from ckpt_tools.emit import json

        console.out(json.render(plan))
    elif to.format == "shell":
        from ckpt_tools.emit import shell

        console.out(shell.render(plan))
    else:
        from ckpt_tools.emit import text

        console.out(text.render(plan, terminal=console.terminal(sys.stdout)))
    return 0
