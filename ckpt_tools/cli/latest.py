"""``ckpt latest``: the files that one rank must load."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ckpt_tools import api
from ckpt_tools.cli import console, options, output
from ckpt_tools.errors import UsageError
from ckpt_tools.job import take
from ckpt_tools.job.decision import read
from ckpt_tools.model.plan import OPENED_BY_RANKS, LoadPlan
from ckpt_tools.output import json, registry, shell
from ckpt_tools.output.sentence import ALONE
from ckpt_tools.output.words import printable
from ckpt_tools.storage.urls import real_path


@options.ask(("text", "json", "shell"), options.SELECTION, "output_file")
def latest(asked: options.Asked) -> int:
    """Print the file(s) that rank N must load, one path per line and nothing else. For a set that every rank
    loads, print its directory or prefix.

    When there is no answer, the exit code says why: 3 no checkpoint exists, 4 none is usable, 5 something
    could not be looked at.

    Examples:
    ckpt latest run --rank 0  # the file that rank 0 loads
    ckpt latest run --rank 0 -v  # with the reasons, on stderr
    ckpt latest run --rank 0 --order step  # the highest step, whatever the times say
    ckpt latest run --rank 0 --max-step 15  # no later step than 15
    eval "$(ckpt latest run --rank 0 --format shell)"; echo "$CKPT_STEP"  # for a script
    """
    to = asked.to
    if os.environ.get("CKPT_PLAN") and (decided := _answer_from_decision(asked)) is not None:
        to.out(decided)
        return 0
    # stdout is for the paths alone
    with output.reading(to, console.err if to.verbose else None) as how:
        plan = api.latest(asked.settings.root, asked.selection, **how)
    if to.verbose:
        console.err(output.tell(plan, to))
    else:
        output.report(plan, to)
        if plan.state == "weights-only" and not to.quiet:
            console.problem("note", ALONE)
    if to.format == "text":
        to.out(list_paths(plan, terminal=to.terminal))
    else:
        to.out(registry.render(to.format, plan, to.view))
    return 0


def _answer_from_decision(asked: options.Asked) -> str | None:
    """Return the decision's answer for this rank, as text; None if CKPT_PLAN is about another root."""
    decision = read(os.environ["CKPT_PLAN"], asked.selection.trust)
    if "root" in asked.settings.origins and real_path(asked.settings.root) != real_path(decision.origin.root):
        return None
    taken = take(decision, asked.selection.rank)
    if asked.to.format == "json":
        return json.dump(taken.body)
    if asked.to.format == "shell":
        return shell.exports(taken.environment)
    return lines(taken.paths, terminal=asked.to.terminal)


def list_paths(plan: LoadPlan, *, terminal: bool = False) -> str:
    """Return each file on a line, or the path that a framework loads for all ranks; ``terminal`` escapes."""
    paths = list(dict.fromkeys(file.path for _, file in plan.loads))
    rank_roles = {file.role for rank, file in plan.loads if rank is not None}
    path = plan.resume.path
    if path and path not in paths and plan.checkpoint and plan.shared and rank_roles <= OPENED_BY_RANKS:
        # Megatron is given the directory above the checkpoint, and the iteration
        is_above = plan.checkpoint.path.startswith(f"{path}/")
        paths = [plan.checkpoint.path if is_above else path]
    return lines(paths, terminal=terminal)


def lines(paths: Iterable[str], *, terminal: bool = False) -> str:
    paths = list(paths)
    for path in paths:
        if "\n" in path and not terminal:
            raise UsageError(f"the path {path!r} holds a line break", "add --json or --format shell")
    return "".join(f"{printable(path) if terminal else path}\n" for path in paths)
