"""``ckpt hook``: the decision of ``ckpt run``, for scripts that start the job themselves."""

from __future__ import annotations

import os

from msgspec.structs import replace

from ckpt_tools import job
from ckpt_tools.cli import console, options
from ckpt_tools.cli.options import parameter
from ckpt_tools.cli.run import listen, warn_of_other_files
from ckpt_tools.errors import UsageError
from ckpt_tools.job.decision import read
from ckpt_tools.output import json, shell

UNINFORMED = (
    "each rank learns of its own file with 'ckpt run ROOT --worker' inside the launcher, or with 'ckpt hook"
    " ROOT --by-rank' here and 'ckpt hook --read' in each rank; or build one tree for all with --view DIR"
)


@options.ask(
    ("shell", "json", "slurm"),
    f"{options.SELECTION} resume_args output_file worker",
    parameter("--read", "Decide nothing: read the decision that CKPT_PLAN names, for the rank that asks."),
    parameter("--by-rank", "Each rank reads its own part of the decision later, with --read."),
    f"{options.JOB} {options.STAGE}",
)
def hook(asked: options.Asked) -> int:
    """Choose and verify a checkpoint once per job, and print what the job needs to know: decision="$(ckpt
    hook ROOT)" || exit; eval "$decision".

    --format slurm is for a TaskProlog, which reads the decision that the batch script made (--read). 'ckpt
    hook install' prints complete scripts for slurm, torchrun, msrun, kubernetes and mindcluster.

    Examples:
    plan="$(ckpt hook run)" && eval "$plan" && echo "$CKPT_STEP"  # in a script
    ckpt hook run --json  # the decision for a program
    ckpt hook run --plan-dir plans  # where other nodes find it
    ckpt hook run --allow none --budget 60s  # in bounded time, for a prolog
    ckpt hook install slurm  # print a job script
    """
    if asked.given["read"]:
        path = os.environ.get("CKPT_PLAN")
        if not path:
            text = "CKPT_PLAN is not set, so there is no decision to read"
            hint = 'decide before the tasks start: decision="$(ckpt hook ROOT)" || exit; eval "$decision"'
            raise UsageError(text, hint)
        decision = read(path, asked.selection.trust)
        taken = job.take(decision, asked.selection.rank, asked.resume_args, require_rank=False)
    else:
        job_options = job.Options(worker=asked.given["worker"], **asked.job)
        with listen(asked) as listener:
            taken = job.decide(asked.settings.root, asked.selection, job_options, listener=listener)
    values = taken.environment
    if asked.to.format == "json":
        body = {**taken.body, "path": taken.decision.path, "env": values}
        if taken.decision.has_checkpoint:
            body["resume"] = {**body["resume"], "args": list(taken.arguments)}
        asked.to.out(json.dump(body))
    else:
        by_rank = taken.decision.ranks if asked.given["by_rank"] and taken.rank is None else ()
        for rank in by_rank or (taken.rank,):
            rank_view = replace(taken, rank=rank)
            if not rank_view.is_informed(()):
                raise UsageError(rank_view.explain_uninformed(), UNINFORMED, rule="choice/silent-resume")
        if not asked.to.quiet:
            warn_of_other_files(taken)
            if values["CKPT_PATH"] and not values["CKPT_ARGS"]:
                rest = shell.name_example(taken.path, taken.links)
                console.problem("note", shell.ONLY_PATH.format(rest))
        asked.to.out(shell.exports(values) if asked.to.format == "shell" else shell.task_prolog(values))
    return 0
