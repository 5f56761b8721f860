"""``ckpt plan``: the whole load plan."""

from __future__ import annotations

from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.progress import progress
from ckpt_tools.errors import CkptError


@options.question("table", "json", "shell")
def plan(asked: options.Question) -> int:
    """Say which checkpoint the job resumes from, which file every rank loads (--rank N: that rank alone), and
    why.

    Without an answer the exit code says why: 3 no checkpoint exists, 4 none is usable, 5 could not look.
    """
    from ckpt_tools import api
    from ckpt_tools.planning.answer import narrowed

    to = asked.output
    try:
        with output.told(asked.output, asked.explain), progress(to) as meter:
            result = api.plan(asked.root, asked.selection, progress=meter, note=output.noted(to))
        if (
            asked.ranked and asked.selection.rank is not None
        ):  # not for CKPT_RANK: each process of a job may have that
            result = narrowed(result, asked.selection.rank)
    except CkptError as error:
        if error.plan is not None and asked.explain and to.format == "table":
            from ckpt_tools.output import story

            console.out(story.render(error.plan))
        raise
    if to.format == "table":
        from ckpt_tools.output import plan as table
        from ckpt_tools.output import story

        console.out(table.render(result, to.view))
        if asked.explain:
            console.out(f"\n{story.render(result)}")
        return 0
    output.tell(result, to)
    if to.format == "json":
        from ckpt_tools.output import json

        console.out(json.render(result))
    else:
        from ckpt_tools.output import shell

        console.out(shell.render(result))
    return 0
