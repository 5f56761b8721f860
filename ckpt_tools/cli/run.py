"""``ckpt run``: plan once per job, tell the command what to resume from, and become that command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from ckpt_tools import job
from ckpt_tools.cli import console, options, output, signals
from ckpt_tools.cli.app import AFTER_DASHES
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import UsageError
from ckpt_tools.job import Listener, ProcessDecision
from ckpt_tools.launchers import read_launch_line
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.sentence import sum_up
from ckpt_tools.output.shell import ALL_FILES, FLAG, name_example, warn_of_others


@options.ask(
    ("text",),
    f"{options.SELECTION} resume_args worker {options.JOB} {options.STAGE}",
    parameter("-- COMMAND", "What to start, after --.", name="command", many=True),
)
def run(asked: options.Asked) -> int:
    """Choose and verify a checkpoint once per job, then start the command after -- with CKPT_PATH, CKPT_STEP
    … set and {ckpt.path}, {ckpt.step}, {ckpt.args} replaced.

    When there is no checkpoint (3; --allow none), none is usable (4; --allow fresh), something could not be
    looked at (5), or the command would not learn of the checkpoint (2), nothing is started and the exit code
    says why.

    Examples:
    ckpt run run --rank 0 -- echo start  # plan, then become the command
    ckpt run run --rank 0 -- sh -c 'python train.py --load "$CKPT_PATH"'  # pass the path as an argument
    ckpt run run --rank 0 -- sh -c 'echo "$CKPT_STEP"'  # or read it from the environment
    ckpt run empty --allow none -- echo first start  # a first launch has nothing to resume from
    ckpt run run --rank 0 --view view -- echo start  # make a directory of links to this checkpoint alone
    """
    from ckpt_tools.job.command import become

    command = asked.given["command"] or []
    if not command or not command[0]:
        raise UsageError("there is no command to start", AFTER_DASHES)
    own = console.name_urls(list(takewhile("--".__ne__, sys.argv[2:])))
    job_options = job.Options(words=["ckpt", "run", *own], worker=asked.given["worker"], **asked.job)
    with listen(asked) as listener:
        taken = job.decide(asked.settings.root, asked.selection, job_options, command, listener=listener)
    if taken.staged is not None:
        os.set_inheritable(taken.staged.lock, True)  # in use as long as the command runs
    words = taken.fill(command)
    idle = job_options.worker and taken.rank is None  # a scheduler, which trains nothing
    if not idle and not taken.is_informed(command):
        hint = _suggest_line(job_options, command, taken)
        raise UsageError(taken.explain_uninformed(), hint, rule="choice/silent-resume")
    if not words or not words[0]:
        raise UsageError(f"{command[0]!r} becomes no command to start", AFTER_DASHES)
    if not asked.to.quiet and (taken.rank or 0) == 0:
        _describe_start(taken, command)
    console.flush()
    signals.restore()
    try:
        become(words, {**os.environ, **taken.environment})
    except OSError as e:
        why = f"{words[0]!r} cannot be started: {e.strerror}"
        console.problem("error", why, "check the command after --")
        return 127 if isinstance(e, FileNotFoundError) else 126  # as shells do


def _suggest_line(job_options: Any, command: Sequence[str], taken: ProcessDecision) -> str:
    """Return a hint: the line by which the command learns of the choice, or advice if there is none."""
    path, example = taken.path, (FLAG, f"--resume {name_example(taken.path, taken.links)}")
    ours = [*job_options.words, *(() if taken.resume_args else example)]
    words = [*command, *(() if "{ckpt.args}" in command else ["{ckpt.args}"])]
    flag = "with the flag of your script in place of --resume"
    if path is not None and taken.arguments:
        reads = shlex.join([*ours, "--", "sh", "-c", 'exec "$0" "$@"  # reads CKPT_ARGS', *command])
        return f"{shlex.join([*ours, '--', *words])}; or, if it reads CKPT_ARGS by itself: {reads}"
    if path is not None and taken.resume_args:
        return f"ask for what is known, as in {shlex.join(example)}"
    if path is not None:
        line = shlex.join([*ours, "--", *words])
        return f"{line}, {flag}; without '{{ckpt.args}}' if the command reads CKPT_PATH"
    if job_options.worker:
        return "add --view DIR: it builds one tree of them, which CKPT_PATH names"
    launched = read_launch_line(words, os.environ)
    if launched is None:
        each = f"start each rank with 'ckpt run --worker {shlex.join(example)}' inside the launcher"
        return f"{each}, which sets CKPT_PATH to its own file; or build one tree for all with --view DIR"
    line = shlex.join(launched.inside([*ours, "--worker"]))
    return f"each rank learns of its own file with: {line}, {flag}; or build one tree for all with --view DIR"


@contextmanager
def listen(asked: options.Asked) -> Iterator[Listener]:
    """Yield a listener that shows a decision's progress and reasons in the process that decides."""

    def report(plan: LoadPlan) -> None:
        if asked.to.verbose:
            console.err(output.tell(plan, asked.to))
        elif not asked.to.quiet:
            console.problem("note", sum_up(plan))
            output.report(plan, asked.to)

    with output.reading(asked.to) as how:
        yield Listener(report, **how)


def _describe_start(taken: ProcessDecision, command: Sequence[str]) -> None:
    """Print on stderr what the job starts from, and how the command learns of it if no word names it."""
    decision, chosen = taken.decision, taken.decision.document.checkpoint
    what = "nothing" if chosen is None else decision.resume.path or chosen.path
    console.problem("note", f"the job starts from {what} (decision: {decision.path})")
    if chosen is not None and not any("{ckpt." in word or "CKPT_" in word for word in command):
        text = "no word of the command names it: it must read CKPT_PATH by itself"
        add = "'{ckpt.args}' to the command"
        if not taken.arguments:
            add = f"{FLAG} '--resume {name_example(taken.path, taken.links)}' before the --, and {add}"
        console.problem("note", text, f"if it takes arguments, add {add}")
    warn_of_other_files(taken)


def warn_of_other_files(taken: ProcessDecision) -> None:
    """Warn if the job is given one path of several files that the training loop must load."""
    rest = warn_of_others(taken.path, taken.links, taken.resume_args)
    # a framework finds the other files itself
    if rest and (taken.resume_args or not taken.decision.resume.args):
        console.problem("warning", rest, ALL_FILES)
