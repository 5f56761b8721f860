"""``ckpt latest``: the files that one rank must load."""

from __future__ import annotations

import os

from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.progress import progress
from ckpt_tools.errors import CkptError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.storage.urls import real_path

EXAMPLES = """
ckpt latest run --rank 0  # the file that rank 0 loads
ckpt latest run --rank 0 -v  # with the reasons, on stderr
ckpt latest run --rank 0 --order step  # the highest step, whatever the times say
ckpt latest run --rank 0 --max-step 15  # no later step than 15
eval "$(ckpt latest run --rank 0 --format shell)"; echo "$CKPT_STEP"  # for a script
"""


@options.choosing("text", "json", "shell", takes="output_file")
def latest(request: options.Request) -> int:
    """Print the file(s) that rank N must load, one path per line and nothing else. For a set that every rank
    loads, print its directory or prefix.

    When there is no answer, the exit code says why: 3 no checkpoint exists, 4 none is usable, 5 something
    could not be looked at.
    """
    from ckpt_tools import api

    to = request.output
    if os.environ.get("CKPT_PLAN") and (decided := _decided(request)) is not None:
        to.out(decided)
        return 0
    try:
        with output.explaining_failure(request.output, request.explain), progress(to) as meter:
            plan = api.latest(request.root, request.selection, progress=meter, note=output.cache_notes(to))
    except CkptError as error:
        if error.plan is not None:
            _explain(request, error.plan)
        raise
    output.report(plan, to)
    _explain(request, plan)
    if to.format == "json":
        from ckpt_tools.output import json

        to.out(json.render(plan))
    elif to.format == "shell":
        from ckpt_tools.output import shell

        to.out(shell.render(plan))
    else:
        from ckpt_tools.output import text

        to.out(text.render(plan, terminal=to.terminal))
    return 0


def _decided(request: options.Request) -> str | None:
    """The answer that the job's decision gives to this rank; None when CKPT_PLAN is about another root."""
    from ckpt_tools.job import taken
    from ckpt_tools.job.command import environment
    from ckpt_tools.job.decision import read

    decision = read(os.environ["CKPT_PLAN"], request.selection.trust)
    if request.rooted and real_path(request.root) != real_path(decision.about["root"]):
        return None
    mine = taken(decision, request.selection.rank)
    if request.output.format == "json":
        from ckpt_tools.output import json

        return json.dump(mine.body)
    if request.output.format == "shell":
        from ckpt_tools.output import shell

        return shell.exports(environment(mine.decision, mine.rank))
    from ckpt_tools.output import text

    return text.lines(mine.paths, terminal=request.output.terminal)


def _explain(request: options.Request, plan: LoadPlan) -> None:
    if request.explain:  # stdout is for the paths alone
        from ckpt_tools.output import story

        console.err(story.render(plan))
