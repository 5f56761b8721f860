"""What a job that starts now would resume from, and whether the framework's own tracker says the same."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError
from ckpt_tools.guard.watch import DAY, WatchOptions
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.session import Session

_BUDGET = 60.0
"""Seconds: as 'ckpt run' has it. What was verified before is in the cache."""
_READ = (
    *("jobs", "io", "limit_rate", "settle", "require", "seal_dir", "trust_global", "key_file"),
    *("trust", "layouts"),
)
"""Options of reading that the question has as well."""


class Answer(Struct, frozen=True):
    """``exit_code`` is what 'ckpt plan' would end with, ``why`` its message. ``tracker`` says whether the
    tracker names what is chosen, None where there is none.
    """

    exit_code: int
    path: str | None = None
    step: int | None = None
    why: str = ""
    tracker: bool | None = None


def ask(s: Session, options: WatchOptions, runs: Sequence[str]) -> Answer:
    """Ask ``plan`` about the root of a session; of several ``runs`` in it, those saved last first, about each
    of them: the first that could not be resumed, else the first. What it cannot answer is an answer too.
    """
    question, answers = selection(options), list[Answer]()
    for run in runs if len(runs) > 1 else [None]:
        try:
            chosen = plan(s.root, replace(question, run=run)).checkpoint
        except CkptError as e:
            answers.append(Answer(e.exit_code, why=str(e) if run is None else f"run {run}: {e}"))
            continue
        if chosen is None:
            answers.append(Answer(0))
            continue
        agrees, tracker = None, s.tracker(chosen.layout, chosen.parts[0].base) if chosen.parts else None
        if tracker is not None:
            said = tracker[1]
            agrees = not isinstance(said, Finding) and s.layouts.of(chosen).tracker.names(chosen, said)
        answers.append(Answer(0, chosen.path, chosen.step, tracker=agrees))
    first = next((a for a in answers if a.exit_code), answers[0])
    trackers = {a.tracker for a in answers} - {None}
    return replace(first, tracker=all(trackers) if trackers else None)


def selection(options: WatchOptions) -> Selection:
    """The question of a job that says nothing else."""
    read = {name: getattr(options.read, name) for name in _READ}
    age = max(DAY, 2 * options.every)
    return Selection(**read, plan_dir=options.plan_dir, cache=True, max_age=age, budget=_BUDGET)
