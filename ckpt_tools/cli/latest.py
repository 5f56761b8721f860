"""``ckpt latest``: the files that one rank must load."""

from __future__ import annotations

import os

from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.progress import progress
from ckpt_tools.output.sentence import ALONE
from ckpt_tools.storage.urls import real_path

EXAMPLES = """
ckpt latest run --rank 0  # the file that rank 0 loads
ckpt latest run --rank 0 -v  # with the reasons, on stderr
ckpt latest run --rank 0 --order step  # the highest step, whatever the times say
ckpt latest run --rank 0 --max-step 15  # no later step than 15
eval "$(ckpt latest run --rank 0 --format shell)"; echo "$CKPT_STEP"  # for a script
"""


@options.ask(("text", "json", "shell"), options.SELECTION, "output_file")
def latest(asked: options.Asked) -> int:
    """Print the file(s) that rank N must load, one path per line and nothing else. For a set that every rank
    loads, print its directory or prefix.

    When there is no answer, the exit code says why: 3 no checkpoint exists, 4 none is usable, 5 something
    could not be looked at.
    """
    from ckpt_tools import api

    to = asked.to
    if os.environ.get("CKPT_PLAN") and (decided := _decided(asked)) is not None:
        to.out(decided)
        return 0
    # stdout is for the paths alone
    with (
        output.explain_failure(to, console.err if to.verbose else None),
        progress(to) as meter,
    ):
        plan = api.latest(asked.found.root, asked.selection, progress=meter, note=output.cache_notes(to))
    if to.verbose:
        console.err(output.tell(plan, to))
    else:
        output.report(plan, to)
        if plan.state == "weights-only" and not to.quiet:
            console.problem("note", ALONE)
    if to.format == "text":
        from ckpt_tools.output import text

        to.out(text.render(plan, terminal=to.terminal))
    else:
        to.out(output.text_of(plan, to))
    return 0


def _decided(asked: options.Asked) -> str | None:
    """The answer that the job's decision gives to this rank; None when CKPT_PLAN is about another root."""
    from ckpt_tools.job import take
    from ckpt_tools.job.decision import read

    decision = read(os.environ["CKPT_PLAN"], asked.selection.trust)
    if "root" in asked.found.origins and real_path(asked.found.root) != real_path(decision.about.root):
        return None
    mine = take(decision, asked.selection.rank)
    if asked.to.format == "json":
        from ckpt_tools.output import json

        return json.dump(mine.body)
    if asked.to.format == "shell":
        from ckpt_tools.output import shell

        return shell.exports(mine.environment)
    from ckpt_tools.output import text

    return text.lines(mine.paths, terminal=asked.to.terminal)
