"""A plan -> one or a few short sentences: what is resumed, what was skipped and why, what it costs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import LoadPlan, Rejected
from ckpt_tools.output.words import plural
from ckpt_tools.planning.rules.save.missing_part import GONE

ALONE = "It holds weights only: the optimizer starts from scratch."
_NAMED = 2
"""Up to this number of skipped checkpoints, each has a sentence."""
_RANGES = 8
"""Up to this number of ranges of ranks, a sentence names the ranks; with more it counts them."""


def sum_up(plan: LoadPlan) -> str:
    """Return what the job resumes from, what was skipped and why, and how many steps are trained again."""
    sentences = [_say_choice(plan), *[ALONE] * (plan.state == "weights-only")]
    if len(plan.rejected) <= _NAMED:
        sentences += (_say_skipped(r) for r in plan.rejected)
    else:
        first = _say_skipped(plan.rejected[0])
        sentences.append(f"{len(plan.rejected):,} better checkpoints were skipped. {first}")
    steps = [r.checkpoint.step for r in plan.rejected if not r.checkpoint.unfinished]
    known = [step for step in steps if step is not None]
    if known and plan.resume_step is not None and (lost := max(known) - plan.resume_step) > 0:
        sentences.append(f"{plural(lost, 'step')} of training {'is' if lost == 1 else 'are'} lost.")
    return " ".join(sentences)


def _say_choice(plan: LoadPlan) -> str:
    c = plan.checkpoint
    if c is None:
        text = "No checkpoint can be used" if plan.rejected else "There is no checkpoint to resume from"
        return f"{text}: without one, training starts from scratch."
    name, file = c.label, os.path.basename(plan.resume.path or "")
    if plan.resume.path in [p.path for p in c.parts] and c.parts[1:] and file != name:
        name += f" ({file})"  # one of several copies: the file that is loaded
    codes = {f.code for f in plan.warnings}
    which = "finished " if "unfinished-save" in codes else "usable " if "no-layout" in codes else ""
    newest = "" if plan.rejected or plan.ahead else f", the newest {which}checkpoint"
    return f"Resume from {name}{newest}."


def _say_skipped(rejected: Rejected) -> str:
    c = rejected.checkpoint
    name = c.label if (c.step, c.epoch) == (None, None) else f"{c.label[0].upper()}{c.label[1:]}"
    return f"{name} was skipped: {explain_rejection(rejected)}."


def explain_rejection(rejected: Rejected) -> str:
    """Return why a checkpoint lost, in half a sentence."""
    errors = [f for f in rejected.findings if f.severity is Severity.ERROR]
    if with_ranks := [f for f in errors if f.ranks]:
        return _blame_ranks(with_ranks)
    causes = [f for f in errors if not f.follows] or list(rejected.findings)
    if not causes or GONE in causes[0].message:
        return "it is gone" if causes or not rejected.checkpoint.parts else "it is not usable"
    return _blame_files(rejected.checkpoint, causes)


def _blame_ranks(findings: Sequence[Finding]) -> str:
    """Return a text such as ``ranks 0 and 4-7 have no file`` for findings on ranks without a usable file."""
    ranks = ranges.ranges(n for f in findings for first, last in f.ranks for n in range(first, last + 1))
    before, comma, last = ranges.words(ranks).rpartition(", ")
    who = f"ranks {f'{before} and {last}' if comma else last} have"
    if (count := ranges.size(ranks)) == 1 or len(ranks) > _RANGES:
        who = f"rank {last} has" if count == 1 else f"{count:,} ranks have"
    return f"{who} {'no good copy' if any(f.follows for f in findings) else 'no file'}"


def _blame_files(c: Checkpoint, causes: Sequence[Finding]) -> str:
    """Return which file is not usable and its finding's code, or the message of a finding on no one file."""
    first, subject, files = causes[0], f"{name_kind(c)} ", {p.path for p in c.parts}
    if first.message.startswith(subject):
        return f"it {first.message.removeprefix(subject)}"
    damaged = {f.path: None for f in causes if f.path and (f.path in files or f.path != c.path)}
    if first.path not in damaged or first.code == "missing-part":  # of a save that holds too little
        return f"{first.message} ({first.code})"
    name = os.path.basename(first.path)
    if len(damaged) == 1:
        return f"{name} is not usable ({first.code})"
    return f"{len(damaged):,} of its files are not usable, the first is {name} ({first.code})"
