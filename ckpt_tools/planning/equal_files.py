"""Which files of a run are equal, for the rule ``pair/same-content``: digests of pages, then all bytes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.inspection.recognise import by_layout
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.planning.facts import StateFile
from ckpt_tools.planning.pages import equal, prints
from ckpt_tools.planning.rules.pair.same_content import RULE, check
from ckpt_tools.planning.rules.rule import Effect, finding_of

if TYPE_CHECKING:
    from ckpt_tools.planning.pages import Pages
    from ckpt_tools.reading.session import Session

_WRITERS = 4
"""Files that a rank writes at the same time, at most (DCP's thread_count, 2 in Megatron-core)."""
_FEW = 32
"""Bytes of a file that may hold no more than a number."""
_NO_STATE = ("rng", "scheduler", "metadata", "index", "data")
_COUNTED = re.compile(r"/(?:iter|iteration|step|global_step|checkpoint)[_-]?([0-9]{1,18})(?=/)")


class Copied(NamedTuple):
    """A file that is byte for byte another's; ``rival`` is the other where that may as well be the copy."""

    path: str
    finding: Finding
    rival: Part | None = None


class EqualFiles:
    """The files of one run that are equal. Each is opened once for its digest, however often it is asked."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._pages: dict[str, Pages] = {}
        self._confirmed: dict[tuple[str, str], bool] = {}

    def find_copies(self, parts: Sequence[Part], others: Sequence[Part] = ()) -> Iterator[Copied]:
        """Yield those of ``parts`` that are byte for byte a file of another step, rank or role.

        ``others`` are files of the run's other saves, nearest first: only what is equal to one of ``parts``
        is asked of them.
        """
        read = [p for p in parts if p.path in self.session.reports]
        if not any(is_compared(p, self.session) for p in read):
            return
        known, said = {p.path: p for p in (*read, *others)}, set[tuple[str, Severity]]()
        for hit in check(self._facts(read, others)):
            severity = Severity.ERROR if hit.severity is None else hit.severity
            if (hit.path, severity) in said or not self._are_equal(known[hit.path], known[hit.other]):
                continue
            said.add((hit.path, severity))
            rival = known[hit.other] if hit.effect is Effect.ASK else None
            yield Copied(hit.path, finding_of(RULE, replace(hit, severity=severity, of_file=True)), rival)

    def _are_equal(self, a: Part, b: Part) -> bool:
        if (a.path, b.path) not in self._confirmed:
            self._confirmed[a.path, b.path] = self._confirmed[b.path, a.path] = equal(a, b, self.session)
        return self._confirmed[a.path, b.path]

    def _facts(self, parts: Sequence[Part], others: Sequence[Part]) -> list[StateFile]:
        contents = prints(parts, others, self.session, self._pages)
        each, mine = files_for_each_tensor(parts, self.session), {p.path for p in parts}
        files = defaultdict[bytes, list[Part]](list)
        for p in (*parts, *others):
            if p.path in contents:
                files[contents[p.path]].append(p)
        return [
            self._fact(p, content, p.path in mine and p.path not in each, shared=len(same) > 1)
            for content, same in files.items()
            for p in same
        ]

    def _fact(self, p: Part, content: bytes, mine: bool, *, shared: bool) -> StateFile:
        """Of a file that is equal to none only its content matters."""
        s, report = self.session, self.session.reports.get(p.path)
        asked = shared and mine and is_compared(p, s)
        return StateFile(
            path=p.path,
            role=p.role,
            kind=p.kind,
            home=p.home,
            when=(*when(p), self._date(p)),
            place=place(p),
            content=content,
            compared=asked,
            broken=not p.size or (report is not None and report.verdict is Verdict.BROKEN),
            trained=asked and self._is_trained(p),
            indexed=is_indexed(p, s),
            tells_step=s.layouts.piece_of(p).step_from == "content",
            fits=shared and p.size > 0 and self._fits(p),
            state=asked or _holds_state(p, s),
        )

    def _date(self, p: Part) -> int:
        """Return what the name of a save says about the day on which it was written; -1 for nothing."""
        dated = self.session.layouts.of(p).dated
        m = dated.fullmatch(p.home.rpartition("/")[2]) if dated is not None else None
        return int("".join(filter(str.isdigit, m[1]))) if m else -1

    def _is_trained(self, p: Part) -> bool:
        """Return whether a file is an optimizer's state, or has one among its tensors."""
        names = [p.name, *(t.name for t in self.session.inspect(p.path, Level.STRUCTURE)[1].tensors)]
        moves = self.session.layouts.piece_of(p).moves
        return moves or p.role == "optimizer" or any(map(is_optimizer_state, names))

    def _fits(self, p: Part) -> bool:
        """Return whether a file tells the name or the step that it goes by."""
        from ckpt_tools.layouts.common.loop_counters import steps_told  # of equal files alone

        metadata = self.session.known(p).metadata
        name = metadata.get("archive_name")
        return bool(name and p.name.startswith(f"{name}.")) or (p.step in steps_told(metadata))


def is_compared(p: Part, s: Session) -> bool:
    """Return whether a file holds a model or an optimizer's state that would be loaded and may change.

    Metadata and indexes may be the same in every save: what they say is compared with names instead. So may
    files that only an index names (``data``): many hold a setting, or one tensor that is frozen.
    """
    piece, report = s.layouts.piece_of(p), s.reports.get(p.path)
    if report is None or report.verdict is Verdict.BROKEN or p.size <= _FEW:
        return False
    if piece.constant or not piece.loaded:
        return False
    if piece.moves:
        return True
    if p.role in _NO_STATE or p.path in s.indexes.known:
        return False
    return report.tensors > 0 or p.role == "model"


def _holds_state(p: Part, s: Session) -> bool:
    if p.role in ("model", "optimizer"):
        return True
    report = s.reports.get(p.path)
    told = report is not None and report.tensors > 0
    return told and p.role not in _NO_STATE and p.path not in s.indexes.known


def is_indexed(p: Part, s: Session) -> bool:
    """Return whether an index says what a file holds."""
    return any(map(by_layout, s.indexes.described(p.path)))


def files_for_each_tensor(parts: Sequence[Part], s: Session) -> set[str]:
    """Return the paths of files that an index names and of which a rank has many with a tensor each: the
    number that each is called by says nothing, and some tensors are the same in every save.
    """
    of_rank = defaultdict[tuple[str, int | None], list[Part]](list)
    for p in parts:
        if is_indexed(p, s):
            of_rank[p.home, p.rank].append(p)
    many = (rows for rows in of_rank.values() if len(rows) > _WRITERS)
    each = (rows for rows in many if all((r := s.reports.get(p.path)) is None or r.tensors < 2 for p in rows))
    return {p.path for rows in each for p in rows}


def when(p: Part) -> tuple[int, ...]:
    """Return when in training a file was saved. A job that started again may save the same step again, and
    the same bytes: restarts count only where nothing else tells the time.
    """
    generation = p.generation if p.step is None and p.epoch is None else None
    return tuple(-1 if v is None else v for v in (p.step, p.epoch, p.step_in_epoch, generation))


def place(p: Part) -> tuple[object, ...]:
    """Return what is the same for a file at all steps. A directory within a save may count the step once more
    (``checkpoint-20/iter_0000020/``).
    """
    aside = p.kind if p.kind in (Kind.BEST, Kind.RELEASE) else None
    name = p.path.removeprefix(p.home) if p.home else ""
    if name.count("/") > 1 and (m := _COUNTED.match(name)) and int(m[1]) == p.step:
        name = name[m.end() :]
    return p.role, p.rank, p.coords, aside, p.base, name
