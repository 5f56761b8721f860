"""A run that started again, in the names of its saves, and has not come as far as before: was that meant?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from shlex import quote
from typing import NamedTuple

from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_READ = 8
"""Files of a save that are asked at most."""


class _Told(NamedTuple):
    """The step that the files of a save count on over restarts, and the save with it."""

    step: int
    save: Checkpoint


class Behind(NamedTuple):
    """The ``newest`` save since the last restart, whose step is lower than that of the ``highest`` before,
    and whether the ``first`` save since then is of no higher step than all before.
    """

    newest: Checkpoint
    highest: Checkpoint
    from_nothing: bool

    def finding(self) -> Finding:
        """What the caller should know of it where the times show that training went back."""
        text = f"newest by restart is {self.newest.label}, and {self.highest.label} was saved before it"
        return finding("mtime-disagrees-with-step", text, path=self.newest.path)

    def question(self) -> UsageError:
        """Which of the two is meant."""
        part = self.newest.parts[0]
        why = "began below every save that is there" if self.from_nothing else "has not come so far again"
        return UsageError(
            f"which checkpoint is the newest is in doubt: {self.highest.path} is of {self.highest.label}, "
            f"and the job that started again after it {why}: its newest is {self.newest.path} "
            f"({self.newest.label})",
            f"say --order step to resume from {self.highest.label}, or --prefix "
            f"{quote(f'{part.prefix}_{part.generation}')} to resume from {self.newest.label}",
        )


def with_told_steps(session: Session, saves: Sequence[Checkpoint], level: Level) -> list[Checkpoint]:
    """Those of a run that started again, with the steps that count on over its restarts where files tell."""
    if len({c.restarts for c in saves}) < 2:
        return list(saves)
    return [replace(c, step=_told(session, c, level)) if c.step is None else c for c in saves]


def warn_where_behind(
    session: Session, saves: Sequence[Checkpoint], level: Level, *, mute: bool
) -> Iterator[Finding]:
    """That a job which started again has not come as far as before. Raises UsageError where only the caller
    can say whether it is to go on: the times are ``mute``, or it began below all that is there.
    """
    if found := _behind(session, saves, level):
        if mute or found.from_nothing:
            raise found.question()
        yield found.finding()


def _behind(session: Session, saves: Sequence[Checkpoint], level: Level) -> Behind | None:
    """The two saves in doubt where the job has started again and not come as far as before, by the steps that
    the first and the last save of each restart tell.
    """
    regular = sorted((c for c in saves if c.kind is Kind.PERIODIC), key=lambda c: c.order)
    last = regular[-1].restarts if regular else 0
    if not last:
        return None

    def ends(restart: int) -> Iterator[_Told]:
        of = [c for c in regular if c.restarts == restart]
        for some in (of, of[::-1]):
            told = ((c, _told(session, c, level)) for c in some)
            yield from islice((_Told(step, replace(c, step=step)) for c, step in told if step is not None), 1)

    since, before = list(ends(last)), [row for k in range(last) for row in ends(k)]
    if not (since and before):
        return None
    first, newest = since
    highest = max(before, key=lambda row: row.step)
    if highest.step <= newest.step:
        return None
    return Behind(newest.save, highest.save, from_nothing=first.step <= min(row.step for row in before))


def _told(session: Session, c: Checkpoint, level: Level) -> int | None:
    """The step that most files of a save count on over restarts."""
    key = session.layouts.of(c).counts_restarts
    told = (whole(session.report(p, level).metadata.get(key)) for p in c.parts[:_READ])
    steps = [step for step in told if step is not None]
    return max(steps, key=steps.count, default=None)
