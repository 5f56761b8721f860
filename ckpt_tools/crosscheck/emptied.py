"""Directories called as saves are, and nothing of a checkpoint in them: what was saved there is
lost, or only its framework knows what it is.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from ckpt_tools.discovery.found import LAST
from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.bare_names import (
    calls_a_save,
    is_version,
    may_be_later,
    read_bare_name,
    read_version,
)
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.plan import Rejected
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.listing import entries_of, names_of
from ckpt_tools.storage.retry import status

_ENDING = re.compile(r"(?<=[_-])[0-9]+\Z")
_TEXT = re.compile(r"\.(?:json|ya?ml|toml|txt|md|jinja|py)\Z")
_HINT = "bring back what was removed; if nothing was saved there, move the directory away"
_Count = tuple[int, int]


def later_saves(s: Session, checkpoints: Sequence[Checkpoint]) -> Iterator[Rejected]:
    """Those beside the directories of the ``checkpoints``, of a later number than all of these, that hold
    what lies beside the files of a checkpoint (``config.yaml``), and none of these files. Not where there are
    such between all saves too: a job that is evaluated more often than it saves leaves them.
    """
    strange = _strange(s)
    saves = _saves(checkpoints) if strange else {}
    taken = _taken(s) if saves else frozenset[str]()
    for (base, pattern), members in saves.items():
        below = dict.fromkeys(_below(strange, base))
        yield from _later(s, members, [t for t in below if _pattern(t) == pattern and t not in taken])


def empty_saves(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Those beside the directory of ``c`` and its siblings, of a later number than all of these, in which
    there is no file at all, or only some of those that say nothing without the others (``metadata.json``):
    nobody can tell one that is lost from one that was cut short at its beginning. Of one that a tracker names
    that is told anyway.
    """
    home = c.parts[0].home
    if not home and c.step is None and c.epoch is None:
        yield from _beside_untold(s, c)
    if not home:
        yield from _beside_its_directory(s, c)
    if home and s.found.empty:
        yield from _of_the_same_words(s, c, home)
        yield from _of_no_earlier_date(s, c, home)
    if home:
        yield from _of_the_last(s, c, home)
    if not home or not _names_its_save(c):
        return
    yield from _begun(s, c, home)
    if not s.found.empty:
        return
    for top in _empty_later(s, os.path.dirname(home)):
        own = _pattern(top) == _pattern(home) or _may_be_later(top, c)
        if own and not is_tracked(s, c, top):
            text = f"it is empty, and called as a later save than {os.path.basename(home)} is"
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def _empty_later(s: Session, base: str) -> Iterator[str]:
    """The empty ones in a directory, each of a later number than all saves there of its pattern."""
    saves = defaultdict[str, set[_Count]](set)
    for at in _homes(s, base):
        saves[_pattern(at)].add(_counted(at))
    for pattern in sorted(saves.keys() & {_pattern(top) for top in _below(s.found.empty, base)}):
        yield from _empty_after(s, base, pattern, sorted(saves[pattern]))


def _empty_after(s: Session, base: str, pattern: str, saves: Sequence[_Count]) -> list[str]:
    """The empty ones of a later number than all ``saves`` of their pattern."""
    empty = _empty(s, {top for top in _below(s.found.empty, base) if _pattern(top) == pattern})
    if _are_usual(saves, map(_counted, empty)):
        return []
    return [top for top in empty if _counted(top) > saves[-1]]


def _of_the_same_words(s: Session, c: Checkpoint, home: str) -> Iterator[Finding]:
    """Those that are called as its directory is but for the number: by a higher one, or by none, as the last
    is (``cat-state`` after ``cat-000002-state``).
    """
    base, words = os.path.dirname(home), _words(home)
    alike = {top for top in _below(s.found.empty, base) if len(words) > 1 and _words(top) == words}
    for top in _empty(s, alike):
        told = _pattern(top) == _pattern(home) and _names_its_save(c)
        if not told and _is_next(top, home):
            text = f"it is empty, and called as {os.path.basename(home)} is: it may have been a later save"
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def is_called_alike(path: str, c: Checkpoint) -> bool:
    """Whether something beside the directory of ``c`` is called as that is but for the number: by a higher
    one, or by none.
    """
    own, words = directory_of(c), _words(path)
    if not own or words != _words(own) or not _is_next(path, own):
        return False
    return len(words) > 1 or _is_called_later(path, own)


def _is_next(top: str, home: str) -> bool:
    return _number(top) < 0 or _number(top) > _number(home)


def _of_the_last(s: Session, c: Checkpoint, home: str) -> Iterator[Finding]:
    """Those called as the last save of all is (``final``) that were made no earlier than the choice was: a
    script may make one before it trains. One in which only such texts are left as lie in the choice too was
    no less a save.
    """
    tops = {top for top in _below(s.found.empty, os.path.dirname(home)) if _is_called_last(top)}
    late = dict.fromkeys(_empty(s, tops), "is empty") | _with_texts_alone(s, home)
    for top, state in late.items():
        if not is_tracked(s, c, top) and _made_ns(s, top) >= c.mtime_ns:
            text = f"it {state}, is called as the last save is, and no older than {os.path.basename(home)}"
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def _is_called_last(top: str) -> bool:
    return LAST.search(os.path.basename(top)) is not None


def _with_texts_alone(s: Session, home: str) -> dict[str, str]:
    """Directories beside the choice's that are called as the last save, and what of a save they hold."""
    tops = [top for top in dict.fromkeys(_below(_strange(s), os.path.dirname(home))) if _is_called_last(top)]
    taken = _taken(s) if tops else frozenset[str]()
    out, usual = dict[str, str](), set(_names(s, home)) if tops else set[str]()
    for top in tops:
        known = top in taken or any(
            e is None or e.is_dir() for e in _entries(s, top)
        )  # it may be a whole copy
        names = set[str]() if known else set(_names(s, top))
        if (like := names & usual) and all(name in like or _TEXT.search(name) for name in names):
            out[top] = f"holds {min(like)}, and no checkpoint"
    return out


def _of_no_earlier_date(s: Session, c: Checkpoint, home: str) -> Iterator[Finding]:
    """Those that are called by a date, as the layout's saves are, which is no earlier than the choice's."""
    dated = s.layouts.of(c).dated
    own = dated and dated.fullmatch(os.path.basename(home))
    if not (dated and own):
        return
    dates = {
        top: dated.fullmatch(os.path.basename(top)) for top in _below(s.found.empty, os.path.dirname(home))
    }
    for top in _empty(s, {top for top, date in dates.items() if date and date[1] >= own[1]}):
        if not is_tracked(s, c, top):
            text = f"it is empty, and its date is no earlier than that of {os.path.basename(home)}"
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def _made_ns(s: Session, directory: str) -> int:
    """When an empty directory was made; now where nobody can say."""
    try:
        return status(directory).st_mtime_ns
    except OSError:
        return s.now_ns


def _words(home: str) -> list[str]:
    return [word for word in re.split(r"[-_.=]", os.path.basename(home)) if not re.search(r"\d", word)]


def _may_be_later(top: str, c: Checkpoint) -> bool:
    """Whether one that is called otherwise than ``c`` (``step_40`` beside ``epoch_0``) is of the same job."""
    return _is_called_a_save(top) and may_be_later(os.path.basename(top), c.step, c.epoch)


def _begun(s: Session, c: Checkpoint, home: str) -> Iterator[Finding]:
    """Those that hold nothing but files called as some of the save's own are."""
    strange = _strange(s)
    if not strange:
        return
    base, own, taken = os.path.dirname(home), {p.name for p in c.parts}, _taken(s)
    highest = max(_counted(at) for at in _homes(s, base))
    for top in dict.fromkeys(_below(strange, base)):
        if top in taken or _pattern(top) != _pattern(home) or _counted(top) <= highest:
            continue
        if own.issuperset(names := _names(s, top)) and not is_tracked(s, c, top):
            later = f"is called as a later save than {os.path.basename(home)} is"
            text = f"it holds nothing but {min(names)}, and {later}"
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def _beside_untold(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Those beside a file of which nothing tells the step: it may be the model that training began with. What
    such a save begins with lies beside that file too (``config.json``).
    """
    path = c.parts[0].path
    base = os.path.dirname(path)
    below = dict.fromkeys(_below((*s.found.empty, *_strange(s)), base))
    if tops := [top for top in below if _is_called_a_save(top)]:
        taken, usual = _taken(s), {*_names(s, base)}
        for top in (top for top in tops if top not in taken and usual.issuperset(_names(s, top))):
            text = (
                f"it is called as a save, and holds none; nothing tells the step of {os.path.basename(path)}"
            )
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def _beside_its_directory(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Those beside the directory of files that count nothing, and called as that is but for a higher number:
    it may be that of a step (``20/model.pt``), which only a second one shows.
    """
    if not (own := directory_of(c)):
        return
    below = dict.fromkeys(_below((*s.found.empty, *_strange(s)), os.path.dirname(own)))
    if tops := [top for top in below if _is_called_later(top, own)]:
        taken, usual = _taken(s), {*_names(s, own)}
        for top in (top for top in tops if top not in taken and usual.issuperset(_names(s, top))):
            text = (
                f"it holds no checkpoint, and is called as {os.path.basename(own)} is: it may be a later save"
            )
            yield finding("unfinished-save", text, path=top, hint=_HINT)


def directory_of(c: Checkpoint) -> str:
    """The directory of a save's own, or that of files that count nothing, where its name has a number; ""
    for none. The first of several may be a rank's.
    """
    own = c.parts[0].home or os.path.dirname(c.parts[0].path)
    counted = any(read_bare_name(p.name).numbered or os.path.dirname(p.path) != own for p in c.parts)
    return own if c.parts[0].home or (not counted and _number(own) > 0) else ""


def _is_called_later(top: str, own: str) -> bool:
    return _pattern(top) == _pattern(own) and _words(top) == _words(own) and _number(top) > _number(own)


def _names(s: Session, directory: str) -> list[str]:
    """Of all that lies there; the directory's own path where nobody can look."""
    return [e.name if e is not None else directory for e in _entries(s, directory)]


def _homes(s: Session, base: str) -> set[str]:
    """The directories of saves in ``base``."""
    return {p.home for p in s.parts if p.home and os.path.dirname(p.home) == base}


def is_tracked(s: Session, c: Checkpoint, top: str) -> bool:
    """Whether a tracker beside ``c`` names the directory, or the end of its name behind a dash: that it is
    gone is told anyway.
    """
    number, name = _number(top), os.path.basename(top)
    said = {says for _, says in s.trackers(c.layout, os.path.dirname(top))}
    return not said.isdisjoint((number, name)) or any(
        isinstance(says, str) and name.endswith(f"-{says}") for says in said
    )


def _empty(s: Session, tops: Collection[str]) -> list[str]:
    """Those of the directories in which there are directories at most."""
    if not tops:
        return []
    depth = next(iter(tops)).count("/") + 1  # they lie in one directory

    def within(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        rows = (("/".join(path.split("/")[:depth]), path) for path in paths)
        return (row for row in rows if row[0] in tops)

    taken = _taken(s) | {top for top, path in within(_strange(s)) if not _has_no_file(s, path)}
    empty = dict.fromkeys(top for top, path in within(s.found.empty) if _is_empty(s, path))
    return [top for top in empty if top not in taken and not s.found.leaves_out(top)]


def _is_empty(s: Session, directory: str) -> bool:
    """Whether nothing lies there, not even a link."""
    return not _entries(s, directory)


def _has_no_file(s: Session, directory: str) -> bool:
    """Whether there are directories at most, of which one may be called as a file is (``model``)."""
    return all(e is not None and e.is_dir(follow_symlinks=False) for e in _entries(s, directory))


def _entries(s: Session, directory: str) -> Sequence[os.DirEntry[str] | None]:
    """What lies there; something unknown where nobody can look."""
    try:
        return entries_of(directory)
    except OSError as e:
        s.unread[directory] = e.strerror or str(e)
        return [None]


def _saves(checkpoints: Iterable[Checkpoint]) -> dict[tuple[str, str], dict[_Count, Checkpoint]]:
    """By number, those in directories of one pattern in one directory."""
    out = defaultdict[tuple[str, str], dict[_Count, Checkpoint]](dict)
    for c in checkpoints:
        if (home := c.parts[0].home) and _is_called_a_save(home):
            out[os.path.dirname(home), _pattern(home)].setdefault(_counted(home), c)
    return out


def _later(s: Session, saves: Mapping[_Count, Checkpoint], without: Sequence[str]) -> Iterator[Rejected]:
    """Those of the directories ``without`` a checkpoint that were one, later than all ``saves``."""
    highest = max(saves)
    if all(_counted(top) <= highest for top in without):
        return
    alike = {top: like for top in without if (like := _alike(s, top, saves[highest]))}
    if not _are_usual(sorted(saves), map(_counted, alike)):
        yield from (_rejected(t, saves[highest], like) for t, like in alike.items() if _counted(t) > highest)


def _are_usual(saves: Sequence[_Count], without: Iterable[_Count]) -> bool:
    """Whether between any two saves lies one of the numbers ``without`` a save."""
    others = list(without)
    gaps = list(pairwise(saves))
    return bool(gaps) and all(any(first < n < last for n in others) for first, last in gaps)


def _strange(s: Session) -> list[str]:
    """The directories of files that belong to no checkpoint."""
    return list(dict.fromkeys((*s.found.strange, *(os.path.dirname(f.path) for f in s.found.bare))))


def _taken(s: Session) -> frozenset[str]:
    """All directories in which something of a checkpoint lies, or that were set aside."""
    above = dict[str, None]()
    for path in (*(p.path for p in s.parts), *(f"{f.path}/" for f in s.aside), *s.found.unfinished):
        while (path := os.path.dirname(path)) and path not in above and path != s.root:
            above[path] = None
    return frozenset(above)


def _below(directories: Iterable[str], base: str) -> Iterator[str]:
    """The directories in ``base`` that are, or hold, one of these."""
    for directory in directories:
        if directory.startswith(f"{base}/"):
            yield f"{base}/{directory[len(base) + 1 :].partition('/')[0]}"


def _names_its_save(c: Checkpoint) -> bool:
    """Whether the name of its directory is one that only a save has, or ends with its step (``run_30``)."""
    home = c.parts[0].home
    return _is_called_a_save(home) or (c.step is not None and _number(home) == c.step)


def _is_called_a_save(home: str) -> bool:
    name = os.path.basename(home)
    return is_version(name) or (calls_a_save(name) and _number(home) >= 0)


def _pattern(home: str) -> str:
    return read_version(os.path.basename(home)).pattern


def _number(home: str) -> int:
    """How far training was, in whatever unit; -1 where the name does not tell."""
    said = read_version(os.path.basename(home))
    ending = _ENDING.search(home)
    last = int(ending[0]) if ending else -1  # of a name that may number runs
    return next((n for n in (said.step, said.epoch, said.number) if n is not None), last)


def _counted(home: str) -> _Count:
    """The epoch, and the number: some count steps from the start of each epoch."""
    epoch = read_version(os.path.basename(home)).epoch
    return -1 if epoch is None else epoch, _number(home)


def _alike(s: Session, top: str, c: Checkpoint) -> str:
    """A name that is in both directories, and none of a checkpoint's file; "" where there is none."""
    try:
        here, there = set(names_of(top)), set(names_of(c.parts[0].home))
        there -= {os.path.basename(p.path) for p in s.members(c).parts}  # a save that was cut short has these
    except OSError as e:
        s.unread[top] = e.strerror or str(e)
        return ""
    return min(here & there, default="")


def _rejected(top: str, sibling: Checkpoint, like: str) -> Rejected:
    """A save of the number that its directory tells, in the unit that the sibling's number has."""
    n, its = _number(top), _number(sibling.parts[0].home)
    gone = replace(
        sibling,
        parts=(),
        path=top,
        step=n if its == sibling.step else None,
        epoch=n if its == sibling.epoch and its != sibling.step else None,
        step_in_epoch=None,
        generation=n if sibling.counted else None,
    )
    home = os.path.basename(sibling.parts[0].home)
    text = f"it holds {like}, as {home} does, and nothing of a checkpoint"
    return Rejected(gone, (finding("missing-part", text, severity=Severity.ERROR, path=top, hint=_HINT),))
