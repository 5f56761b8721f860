"""The answers that a report is made from, and what to do next: one sentence, with the commands for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ckpt_tools.errors import CkptError, NoneUsable, NotNewest
from ckpt_tools.model.answers import Scan, Verification
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Region
from ckpt_tools.output.json import Object, fields
from ckpt_tools.output.page import WORST
from ckpt_tools.output.sentence import sum_up
from ckpt_tools.output.verification import conclude
from ckpt_tools.output.words import plural, printable


class Advice(Struct, frozen=True):
    """One sentence, how good the news are, and (what for, command) of what can be copied."""

    verdict: Verdict
    sentence: str
    commands: tuple[tuple[str, str], ...] = ()
    hint: str = ""

    @property
    def shown(self) -> Object:
        commands = [{"what": what, "command": command} for what, command in self.commands]
        return {**fields(self, "verdict", "sentence", "hint"), "commands": commands}


def advise_start(start: Start) -> Advice:
    """Return what a job can do: resume, start from nothing, or what its error asks for; with the commands."""
    if (error := start.error) is not None:
        verdict = Verdict.BROKEN if isinstance(error, (NoneUsable, NotNewest)) else Verdict.UNKNOWN
        commands = [("what was considered", _write_plan_command(start))]
        if isinstance(error, NoneUsable):
            commands.insert(0, ("what can be repaired", f"ckpt repair {_quote(start.root)}"))
        return Advice(verdict, f"There is no answer: {error}", tuple(commands), error.hint)
    plan = start.plan
    if plan is None or plan.checkpoint is None:
        return Advice(Verdict.UNKNOWN, "Start from the beginning: there is nothing to resume from.")
    commands = [("what every rank loads, and why", _write_plan_command(start))]
    if any(not r.checkpoint.unfinished for r in plan.rejected):
        repair = f"ckpt repair {_quote(start.root)}"
        commands.insert(0, ("whether what is damaged can be repaired", repair))
    verdict = Verdict.SUSPECT if plan.rejected else Verdict.OK
    return Advice(verdict, sum_up(plan), tuple(commands))


def _write_plan_command(start: Start) -> str:
    run = f" --run {_quote(start.run)}" if start.run is not None else ""
    return f"ckpt plan {_quote(start.root)}{run} -v"


def _quote(text: str) -> str:
    """Return a word quoted for a shell, of printable characters alone: it can be copied from a page."""
    if printable(text) == text:
        return shlex.quote(text)
    escaped = (chr(b) if 0x20 <= b < 0x7F and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(text))
    return f"$'{''.join(escaped)}'"


def advise(given: Gathered) -> Advice:
    """Return what to do: about the only start, about several of them, or else about what was verified."""
    starts = [advise_start(start) for start in given.starts]
    if len(starts) == 1:
        return starts[0]
    if starts:
        good = sum(start.error is None for start in given.starts)
        worst = pick_worst({advice.verdict for advice in starts})
        first = next(i for i, advice in enumerate(starts) if advice.verdict is worst)
        where = given.starts[first].run or given.starts[first].root
        tail = "" if worst is Verdict.OK else f" Look at {where} first: {starts[first].sentence}"
        text = f"{good} of {plural(len(starts), 'run')} can resume.{tail}"
        return Advice(worst, text, starts[first].commands, starts[first].hint)
    return _advise_verification(given.verification, given.roots)


def _advise_verification(result: Verification, roots: Sequence[str]) -> Advice:
    """Return what was found where there is nothing that a job could start from."""
    look = (("what is there", f"ckpt ls {' '.join(map(_quote, roots))} --tree"),)
    if not result.summary.files:
        files = plural(result.summary.unrecognised, "file")
        return Advice(Verdict.UNKNOWN, f"No checkpoint was recognised in {files}.", look)
    return Advice(result.verdict, f"{conclude(result)}.", look)


class Start(Struct, frozen=True):
    """What a job would resume from; else ``error`` says why, and ``plan`` what was considered."""

    root: str
    run: str | None
    plan: LoadPlan | None
    error: CkptError | None = None


class Gathered(Struct, frozen=True):
    """The answers that one report shows. ``made_at`` is in seconds since 1970, ``maps`` are of the bytes
    of damaged files, by path; ``runs_omitted`` counts those that no plan was made for.
    """

    roots: tuple[str, ...]
    made_at: float
    verification: Verification
    scans: tuple[Scan, ...] = ()
    starts: tuple[Start, ...] = ()
    maps: Mapping[str, tuple[Region, ...]] = field(default_factory=dict)
    exit_code: int | None = None
    runs_omitted: int = 0


def pick_worst(verdicts: set[Verdict]) -> Verdict:
    """Return the verdict that needs attention most; unknown if there is none."""
    return next((v for v in WORST if v in verdicts), Verdict.UNKNOWN)


def list_causes(findings: tuple[Finding, ...]) -> list[Finding]:
    """Return findings that no others beside them have caused, the worst first."""
    return sorted((f for f in findings if not f.follows), key=lambda f: -f.severity)
