"""``ckpt hook``: the decision of ``ckpt run``, for scripts that start the job themselves; ``ckpt hook
install`` prints such scripts.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

from ckpt_tools.cli import options, output
from ckpt_tools.cli.progress import progress
from ckpt_tools.cli.run import Worker, reporter
from ckpt_tools.cli.words import option
from ckpt_tools.errors import UsageError

Read = Annotated[
    bool,
    option("--read", help="Decide nothing: read the decision that CKPT_PLAN names, for the rank that asks."),
]


@options.choosing(
    "shell",
    "json",
    "slurm",
    worker=Worker,
    read=Read,
    output_file=options.OutputFile,
    **options.JOB,
    **options.STAGE,
)
def hook(request: options.Request) -> int:
    """Choose and verify a checkpoint once per job, and print what the job needs to know: decision="$(ckpt
    hook ROOT)" || exit; eval "$decision".

    --format slurm is for a TaskProlog, which reads the decision that the batch script made (--read). 'ckpt
    hook install' prints complete scripts for slurm, torchrun, msrun, kubernetes and mindcluster.
    """
    from ckpt_tools import job
    from ckpt_tools.job.command import environment
    from ckpt_tools.job.decision import read

    if request.given["read"]:
        path = os.environ.get("CKPT_PLAN")
        if not path:
            raise UsageError(
                "CKPT_PLAN is not set, so there is no decision to read",
                'decide before the tasks start: decision="$(ckpt hook ROOT)" || exit; eval "$decision"',
            )
        taken = job.taken(read(path, request.selection.trust), request.selection.rank, needed=False)
    else:
        job_options = job.Options(worker=request.given["worker"], **request.job)
        with output.explaining_failure(request.output, request.explain), progress(request.output) as meter:
            taken = job.decide(
                request.root,
                request.selection,
                job_options,
                listener=job.Listener(reporter(request), meter, output.cache_notes(request.output)),
            )
    values = environment(taken.decision, taken.rank)
    if request.output.format == "json":
        from ckpt_tools.output import json

        request.output.out(json.dump({**taken.body, "path": taken.decision.path, "env": values}))
    else:
        from ckpt_tools.output import shell

        request.output.out(
            shell.exports(values) if request.output.format == "shell" else shell.task_prolog(values)
        )
    sys.stdout.flush()
    return 0
