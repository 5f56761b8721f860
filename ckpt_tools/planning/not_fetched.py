"""A later checkpoint than the choice of which only pointers are here (of Git LFS, of DVC, or what a server
answered): its data is elsewhere, and only the caller can say that the job is to go on from the older one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from shlex import quote

from ckpt_tools import formats
from ckpt_tools.discovery.exclude import without
from ckpt_tools.discovery.sidecars import DVC, stands_for_nothing_here
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts.common.bare_names import BareName, read_bare_name
from ckpt_tools.model.checkpoint import Checkpoint, comparable
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Choice
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.session import Session

_CODE = "pointer-not-data"
_SHORT = 4096
"""Bytes of a pointer at most, and of the page that a server answers with mostly."""


def require_fetched(
    s: Session, choice: Choice, chosen: Checkpoint, ranked: Sequence[Checkpoint], asked: Selection
) -> None:
    """``chosen`` is the choice, with its step as far as that is known, ``ranked`` are all candidates.

    Raises UsageError where the data of a checkpoint that goes before it, or may do so, was not fetched, or
    where DVC keeps a state that may be later, or a file of the choice itself. Raises CannotLook.
    """
    lost = {r.checkpoint.key for r in choice.rejected}
    for c in (*(r.checkpoint for r in choice.rejected), *(c for c in ranked if c.key not in lost)):
        if c.key != chosen.key and (c.key in lost or _may_go_before(c, chosen, s)) and _differ(c, chosen):
            for path, found in _pointers(s, c, asked):
                raise _question(s, chosen, c.path, path, found)
    if asked.resume_from != "tracker":
        for path in _kept_by_dvc(s, chosen, asked):
            if _may_be_later(path, chosen, s):
                raise _left_by_dvc(s, chosen, path)


# ---- candidates


def _differ(c: Checkpoint, chosen: Checkpoint) -> bool:
    """Whether a job that resumes from one of them may be elsewhere than from the other."""
    return c.order != chosen.order or max(chosen.order) < 0


def _may_go_before(c: Checkpoint, chosen: Checkpoint, s: Session) -> bool:
    """Whether one that did not lose may be later all the same: times of a pointer are those of its copy."""
    if c.kind is Kind.RELEASE:
        return False
    if comparable(c.order, chosen.order):
        return c.order > chosen.order
    return _may_be_later(c.parts[0].path, chosen, s)


def _pointers(s: Session, c: Checkpoint, asked: Selection) -> Iterator[tuple[str, Finding]]:
    """Those of its files that are pointers, also where it lost for another reason before they were read."""
    for p in c.parts:
        small = 0 < p.size <= _SHORT and formats.names.state(p.name) and asked.level > Level.PRESENCE
        report = s.report(p, Level.STRUCTURE) if small else s.reports.get(p.path)
        for f in report.findings if report else ():
            if f.code == _CODE and f.severity is Severity.ERROR:
                yield p.path, f


def _question(s: Session, chosen: Checkpoint, place: str, path: str, found: Finding) -> UsageError:
    name = os.path.relpath(path, s.root)
    text = (
        f"{chosen.label} ({chosen.path}) may not be the newest checkpoint: the data of another was not"
        f" fetched ({name}: {found.message})"
    )
    inside = [place] if path.startswith(f"{place}/") else []
    return UsageError(text, f"{found.hint}; or say {without(s.root, chosen, *inside, path)}")


# ---- what DVC keeps


def _kept_by_dvc(s: Session, chosen: Checkpoint, asked: Selection) -> Iterator[str]:
    """What ``.dvc`` files stand for that is called a checkpoint's file, or as the choice is, and is not
    here.
    """
    above = chosen.parts[0].base if asked.run is not None else s.root
    alike = {_shape(q) for q in _paths(chosen)}
    for file in s.found.bare:
        whole = file.path.removesuffix(DVC)
        like = _shape(whole) in alike
        named = like or formats.names.only_state(os.path.basename(file.path))
        if whole == file.path or not named or not whole.startswith(f"{above}/"):
            continue
        if _asked_for(whole, like, asked) and stands_for_nothing_here(whole):
            yield whole


def _asked_for(path: str, like: bool, asked: Selection) -> bool:
    """Whether the question is about such a file: where it names a layout, a prefix or a kind, one that is
    called as the choice is.
    """
    narrowed = (asked.layout, asked.prefix, asked.kind) != (None, None, None)
    if asked.max_step is not None:
        steps = [n.step for n in map(read_bare_name, path.split("/")) if n.step is not None]
        numbers = _numbers(os.path.basename(path))
        if (steps or numbers[-1:] or [0])[-1] > asked.max_step:
            return False
    return like or not narrowed


def _may_be_later(path: str, chosen: Checkpoint, s: Session) -> bool:
    """Whether neither its name nor that of the directories it lies in makes it an older state, or one that
    nobody resumes from.
    """
    root, dated = s.root, s.layouts.of(chosen).dated
    names = path[len(root) + 1 :].split("/")
    said = [read_bare_name(name) for name in names]
    if any(name.kind is not Kind.PERIODIC for name in said) or not any(map(_tells, names)):
        return any(path.startswith(f"{p.home}/") for p in chosen.parts if p.home)
    near = max(_paths(chosen), key=lambda q: _nearness(names, q[len(root) + 1 :].split("/")))
    for mine, theirs in zip(names, near[len(root) + 1 :].split("/"), strict=False):
        if mine != theirs and _shape(mine) == _shape(theirs):
            return _has_later_name(mine, theirs, dated)
    alone = len(_numbers("/".join(names))) == 1
    return not any(_is_earlier(name, chosen, alone) for name in said)


def _has_later_name(mine: str, theirs: str, dated: re.Pattern[str] | None) -> bool:
    """Whether the numbers in the name are higher. Beside a date they only tell names apart: of two of one
    date, either may be the later.
    """
    dates = [m[1] for name in (mine, theirs) if dated is not None and (m := dated.fullmatch(name))]
    return dates[0] >= dates[1] if len(dates) == 2 else _numbers(mine) > _numbers(theirs)


def _is_earlier(name: BareName, chosen: Checkpoint, alone: bool) -> bool:
    """Whether a name tells an earlier step or epoch; a number without a unit, if there is no other, counts
    one of them, and there are no fewer steps than epochs.
    """
    epoch = name.number if name.epoch is None and alone else name.epoch
    by_step = name.step is not None and chosen.step is not None and name.step < chosen.step
    return by_step or (epoch is not None and chosen.epoch is not None and epoch < chosen.epoch)


def _tells(name: str) -> bool:
    """Whether a name is more than that of a model, whose weights are an export."""
    said = read_bare_name(name)
    return bool(_numbers(name) or said.alias or said.words or said.role)


def _paths(chosen: Checkpoint) -> Sequence[str]:
    """The places of a checkpoint: its files and its own directory."""
    return [*(p.path for p in chosen.parts), chosen.path]


def _nearness(mine: Sequence[str], theirs: Sequence[str]) -> tuple[int, int]:
    """How alike two paths are: names in common at their beginning, then numbers of the first that differ."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False)))
    if common == min(len(mine), len(theirs)) or _shape(mine[common]) != _shape(theirs[common]):
        return common, 0
    numbers = zip(_numbers(mine[common]), _numbers(theirs[common]), strict=True)
    return common, 1 + sum(a == b for a, b in numbers)


def _shape(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _numbers(name: str) -> list[int]:
    return [int(n[:18]) for n in re.findall(r"\d+", name)]


def _left_by_dvc(s: Session, chosen: Checkpoint, whole: str) -> UsageError:
    name = os.path.relpath(whole, s.root)
    text = (
        f"which checkpoint is the newest is in doubt: {name}{DVC} stands for {name!r}, which was not fetched"
        f" and may be later than {chosen.label} ({chosen.path})"
    )
    aside = without(s.root, chosen, whole + DVC)
    return UsageError(text, f"dvc pull {quote(whole + DVC)}; or say {aside}")
