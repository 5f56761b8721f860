"""``ckpt plan``: the whole load plan."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools import api
from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import NoCheckpoint, UsageError
from ckpt_tools.model.finding import Verdict, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output import registry, shell
from ckpt_tools.output.sentence import ALONE, sum_up
from ckpt_tools.output.words import printable
from ckpt_tools.planning.planner import narrow_to_rank
from ckpt_tools.settings.declarations import OUTPUT
from ckpt_tools.storage.urls import to_absolute


@options.ask(
    ("table", "json", "shell"),
    f"{options.SELECTION} resume_args output_file fail_on",
    parameter("--history", "List instead what earlier starts resumed from, and what was lost.", OUTPUT),
    document="plan",
)
def plan(asked: options.Asked) -> int:
    """Say which checkpoint the job resumes from, which file every rank loads (with --rank N only that rank),
    and why.

    When there is no answer, the exit code says why: 3 no checkpoint exists, 4 none is usable, 5 something
    could not be looked at. With --history: 0 listed, 3 no start of ROOT is known, 5 the history cannot be
    read.

    Examples:
    ckpt plan run  # what every rank loads
    ckpt plan run -v  # which checkpoints were considered, and why each lost
    ckpt plan run --fault-ranks 1 --replica-groups all  # the device of rank 1 failed
    ckpt plan run --no-fallback --strict  # the newest, looked at in full, or an error
    ckpt plan run --json  # the same for a program (docs/json.md)
    """
    to = asked.to
    if asked.given["history"]:
        from ckpt_tools.job.starts import read_history
        from ckpt_tools.planning.first_launch import find_home

        root = to_absolute(asked.settings.root)
        found = read_history(root, find_home(root, asked.selection), asked.selection.trust)
        if not found.starts and not found.damaged:
            text = f"no start of {root} is known ({find_home(root, asked.selection)})"
            raise NoCheckpoint(text, "'ckpt run' and 'ckpt hook' write it; --plan-dir says where they do")
        return asked.answer("history", found)
    tell = to.out if to.verbose and to.format == "table" else None
    with output.reading(to, tell) as how:
        result = api.plan(asked.settings.root, asked.selection, **how)
    # not for CKPT_RANK, which each process of a job may have
    if asked.given["rank"] is not None and asked.selection.rank is not None:
        result = narrow_to_rank(result, asked.selection.rank)
    if result.checkpoint:
        result = _fill_arguments(result, asked)
    if to.format != "table":
        output.report(result, to)
    if to.format == "table" and to.quiet:
        text = f"{printable(sum_up(result))}\n"
    else:
        text = registry.render(to.format, result, to.view)
    to.out(text)
    # something is worse than it should be: a warning, or a better checkpoint that lost
    worse = result.rejected or result.rollback or worst(result.warnings) is not Verdict.OK
    return int(to.warnings_fail and bool(worse))


def _fill_arguments(plan: LoadPlan, asked: options.Asked) -> LoadPlan:
    """Return the plan with the words of --resume-args as arguments. Raise UsageError if none is left."""
    resume_args, quiet, for_shell = asked.resume_args, asked.to.quiet, asked.to.format == "shell"
    if for_shell and plan.state == "weights-only" and not quiet:
        console.problem("note", ALONE)
    if not resume_args:
        if for_shell and plan.path and not plan.arguments and not quiet:
            example = shell.name_example(plan.resume.path, plan.files())
            console.problem("note", shell.ONLY_PATH.format(example))
        return plan
    assert plan.checkpoint is not None  # noqa: S101 - for the type checker
    known = {"path": plan.resume.path, "step": plan.resume_step, "epoch": plan.checkpoint.epoch}
    args = shell.fill_arguments(resume_args, known, plan.files())
    if args and not quiet and (rest := shell.warn_of_others(plan.resume.path, plan.files(), resume_args)):
        console.problem("warning", rest, shell.ALL_FILES)
    if for_shell and not args:
        text = shell.explain_silence(plan.checkpoint.layout, plan.resume.path, resume_args)
        raise UsageError(text, shell.EACH_RANK, rule="choice/silent-resume")
    return replace(plan, resume=replace(plan.resume, args=args))
