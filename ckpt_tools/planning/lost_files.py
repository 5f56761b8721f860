"""Files of a checkpoint that are gone, or hold only zeros, as the saves of its run beside it tell."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

from ckpt_tools.formats import format_of
from ckpt_tools.formats.common.zeros import ZEROS, all_zero
from ckpt_tools.layouts.common import arrays
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.planning.rules.choice import unfinished_newer
from ckpt_tools.planning.rules.save import missing_part, sibling_has_role, unfinished, values
from ckpt_tools.planning.unfinished import is_tracked
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import opened
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.urls import inside

_ALIKE = 8
"""Files that a directory has in common with a checkpoint, to be called one that lost its index."""
_CHUNK = re.compile(r"\d+(?:\.\d+)*")
_OTHERS = 2
"""Other saves that have a text: one alone may have it by chance."""
_ZEROED = r"(?i:(?:^|[/._])(?:opt|optim|optimizer|param_states)(?:[/._]|_?state))"
"""States of optimizers: gradients that are collected over several steps are zeros again after them."""


def lost(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What is gone of a checkpoint, beside others of its run."""
    if not c.unfinished:
        yield from s.layouts.of(c).lost(c, beside)
        yield from list(_unwritten(s, c)) or _left_out(s, c, beside)
        yield from _undescribed(s, c) if s.found.strange else ()


def unlike_list(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """What a checkpoint's own list names, and of which nothing is there that could be loaded."""
    lists = s.layouts.of(c).lists
    if c.unfinished or lists is None:
        return
    loaded = [f"{p.path}/" for p in c.parts if s.layouts.piece_of(p).loaded]
    idle = {p.path for p in c.parts}
    for part in [p for p in c.parts if p.role == lists[0]]:
        named = filter(None, map(lists[1].fullmatch, s.report(part, Level.STRUCTURE).metadata))
        for path in filter(None, (inside(os.path.dirname(part.path), m[1]) for m in named)):
            if not any(file.startswith(f"{path}/") for file in loaded) and _nothing_in(s, path, idle):
                name = path.removeprefix(f"{c.path}/")
                yield missing_part.describe_unlisted(name, part.name, c.path)


def _nothing_in(s: Session, path: str, idle: Collection[str]) -> bool:
    """Whether neither a file nor a directory with one that is not ``idle`` is there."""
    try:
        return all(f"{path}/{name}" in idle for name in names_of(path))
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False


def zeroed(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Raw tensors that are zeros from end to end, and something else in the saves before and after. ``c`` is
    with what its indexes add; its files were looked at.
    """
    for part in c.parts if beside and not c.unfinished else ():
        report = s.reports.get(part.path)
        if report is None or not report.metadata.get(ZEROS) or not part.path.startswith(f"{c.path}/"):
            continue
        name = part.path.removeprefix(f"{c.path}/")
        others = [os.path.join(o.path, name) for o in beside]
        unlike = all(_there(s, path) for path in others) and not any(_zeros(s, path) for path in others)
        if unlike and _confirmed(s, part.path):
            yield values.describe_zero_file(part.path, _severity(name))


def _zeros(s: Session, path: str) -> bool:
    """Whether a tensor of another save is zeros, or nothing can be said of it."""
    report = s.report_file(path, Level.STRUCTURE)
    return report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or bool(report.metadata.get(ZEROS))


def _confirmed(s: Session, path: str) -> bool:
    """Whether all of a file is zeros; read only where its ends are."""
    try:
        with closing(opened(path)) as source:
            return all_zero(source)
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False


def _severity(name: str) -> Severity:
    return Severity.WARNING if re.search(_ZEROED, name) else Severity.ERROR


def _unwritten(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Chunks of arrays that their framework writes in full: elsewhere one of zeros alone is no file. At step
    0 a counter is zero, too.
    """
    written = s.layouts.of(c).written
    if written is None or not c.step:
        return
    above = f"{c.path}/"
    for p in c.parts:
        names = [path.removeprefix(above) for path in s.indexes.left_out.get(p.path, ())]
        if names and written.fullmatch(os.path.dirname(p.path).removeprefix(above)):
            yield missing_part.describe_unwritten(names, p.path)


def _left_out(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Files that their index does not ask for (a chunk that only holds zeros), and that the others have."""
    above = f"{c.path}/"
    for index in [p.path for p in c.parts if beside and p.path in s.indexes.left_out]:
        names = [p.removeprefix(above) for p in s.indexes.left_out[index] if p.startswith(above)]
        gone = [name for name in names if all(_there(s, os.path.join(o.path, name)) for o in beside)]
        if gone:
            yield missing_part.describe_left_out(gone, index, _severity(gone[0]))


def _undescribed(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Chunks of an array of which the file that describes them is gone."""
    described = {os.path.dirname(p.path) for p in c.parts if arrays.is_array(s.layouts.piece_of(p))}
    for home in s.found.strange if described else ():
        above = home
        while len(above) > len(c.path) and above not in described:  # there may be one for each axis
            above = os.path.dirname(above)
        try:
            if above == c.path and all(map(_CHUNK.fullmatch, names_of(home))):
                yield missing_part.describe_undescribed(home)
        except OSError as e:
            s.unread[home] = e.strerror or str(e)


def headless(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Directories beside a checkpoint that hold such data files, and nothing that describes them. ``c`` is
    with what its indexes add.
    """
    above = f"{c.path}/"
    data = [p.path.removeprefix(above) for p in c.parts if p.role == "data" and p.path.startswith(above)]
    known = {p.home for p in s.parts} | {
        _home(f.path, c) for f in s.aside
    }  # a copy that was set aside is no save
    below = {os.path.dirname(name) for name in data}
    for home in dict.fromkeys(_homes(s.found.strange, below, os.path.dirname(c.path))):
        alike = home not in known and all(_there(s, os.path.join(home, name)) for name in data[:_ALIKE])
        if alike and not is_tracked(s, c, home):
            yield unfinished_newer.describe_headless(home, c)


def _home(path: str, c: Checkpoint) -> str:
    """The directory beside a checkpoint that a path lies in, or is."""
    base = os.path.dirname(c.path)
    return f"{base}/{path.removeprefix(f'{base}/').partition('/')[0]}"


def _homes(directories: Iterable[str], below: Collection[str], base: str) -> Iterator[str]:
    """Directories in ``base`` in which one of the ``directories`` lies where one of ``below`` does."""
    for directory in directories:
        home, _, rest = directory.removeprefix(f"{base}/").partition("/")
        if directory.startswith(f"{base}/") and rest in below:
            yield f"{base}/{home}"


def _there(s: Session, path: str) -> bool:
    try:
        return there(path)
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False


def find_lost_texts(s: Session) -> Iterator[Finding]:
    """Return warnings about directories of saves without a file that each other one of their run has."""
    runs = defaultdict[str, set[str]](set)
    for p in s.parts:
        if p.home and s.layouts.of(p).last_resort:
            runs[p.run].add(p.home)
    beside = defaultdict[str, set[str]](set)
    texts = (*(f.path for f in s.found.bare), *s.found.trackers.values(), *s.found.texts) if runs else ()
    for path in texts:
        beside[os.path.dirname(path)].add(os.path.basename(path))
    for homes in runs.values():
        for home in sorted(homes) if len(homes) > _OTHERS else ():
            others = [beside[o] for o in homes if o != home]
            for name in sorted(set.intersection(*others) - beside[home]):
                yield sibling_has_role.describe_no_text(name, home)


def without_model(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Nothing where other files lie in its directory: a script's own hooks save models under any name."""
    layout, home = s.layouts.of(c), c.parts[0].home
    if c.unfinished or not home or not layout.needs_any:
        return
    if any(p.role in layout.needs_any for p in c.parts) or _holds_others(s, c):
        return
    yield missing_part.describe_no_role(c, layout.needs_any[0], home)


def _holds_others(s: Session, c: Checkpoint) -> bool:
    """Whether files that are none of its own lie in its directory."""
    home = c.parts[0].home
    mine, above = {p.path for p in c.parts}, f"{home}/"
    others = [p.path for p in s.parts] + [file.path for file in s.found.bare]
    return home in s.found.strange or any(path.startswith(above) and path not in mine for path in others)


def unlike_run(rows: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Yield (path, finding) for the files of one run that most of its other files show to be odd: by their
    format, or without the mode that their framework gives a finished file.
    """
    of_format = defaultdict[str, list[tuple[Part, Report]]](list)
    for part, report in rows:
        if report.format is not None:
            of_format[report.format].append((part, report))
    modes = defaultdict[int, list[tuple[Part, Report]]](list)
    for name, same in of_format.items():
        yield from format_of(name).crosscheck(same)
        if (mode := format_of(name).final_mode) is not None:
            modes[mode] += same
    for final, same in modes.items():
        without = [(part, report) for part, report in same if report.mode != final]
        if 2 * len(without) < len(same):
            for part, report in without:
                yield part.path, unfinished.describe_mode(part.path, report.mode, final)
