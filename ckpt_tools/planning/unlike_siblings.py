"""Files beside what the layout of the choice loads, where they are unlike those of its run's other saves:
what a training loop of one's own saves with a framework's checkpoint, and what describes a model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os.path import basename, dirname

from ckpt_tools import formats
from ckpt_tools.discovery.file_stat import stat_of
from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.bare_names import METRICS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.report import Level, Report
from ckpt_tools.planning.counts_beside import counts_of_another
from ckpt_tools.reading.session import Session

_LEAST = 2
"""Other saves that have such a file: one alone may have it by chance, unless it describes the model."""
_NAMED = 3
"""Lost files that have a line of their own."""
_MOST = 64
"""Texts of the choice that are read."""
_LARGEST = 1 << 20
"""Bytes of a text that is read: counters and settings are small; a vocabulary would take a start a second.
"""
_YAML = (".yaml", ".yml")
_DESCRIBING = frozenset(("config", "tokenizer", "args"))
"""Roles of files that say how a model is built, and how it is trained."""
_NUMBER = re.compile(r"\d+")
_RESULTS = METRICS | {
    *("results", "predictions", "samples", "outputs", "generations", "completions", "log", "logs"),
    *("history", "losses", "metrics", "scores", "evaluation", "benchmark", "report", "summary", "stats"),
}
"""Words in the names of what is written when a save is there already."""


def unlike_siblings(
    s: Session, c: Checkpoint, saves: Sequence[Checkpoint], unplaced: Collection[str], *, level: Level
) -> Iterator[Finding]:
    """Warnings about files of those that no layout places (``unplaced``): those that are gone, are damaged,
    or tell another step; and about damaged texts that the layout places, and of which it loads nothing.
    """
    yield from lost_beside(c, saves, unplaced)
    if level > Level.PRESENCE:
        told = {path: s.inspect(path, Level.STRUCTURE)[0] for path in _texts(s, c, unplaced)}
        yield from _damaged({p: r for p, r in told.items() if not formats.names.beside(basename(p))})
        yield from counts_of_another(s, c, unplaced, told)
        yield from _settings(c, saves, unplaced)
        small = [path for path in islice(_not_loaded(s, c), _MOST) if stat_of(path)[0] <= _LARGEST]
        yield from _damaged({path: s.inspect(path, Level.STRUCTURE)[0] for path in small})


def _not_loaded(s: Session, c: Checkpoint) -> Iterator[str]:
    """What describes its model, and its framework does not load: nothing else looks at it."""
    described = (p for p in c.parts if p.role in _DESCRIBING and p.path.endswith((".json", ".bin")))
    return (p.path for p in described if not s.layouts.piece_of(p).loaded)


def lost_beside(c: Checkpoint, saves: Sequence[Checkpoint], unplaced: Iterable[str]) -> Iterator[Finding]:
    """Warnings about files that every other save of the run has, and the choice has not."""
    siblings = [o for o in saves if o.key != c.key and _alike(o, c)]
    if not siblings or not _alike(c, c):
        return
    names: dict[str, dict[str, str]] = {o.path: {} for o in (c, *siblings)}
    for path in unplaced:
        home = next((above for above in _above(path) if above in names), None)
        if home is not None and _is_of_a_save(basename(path), len(siblings)):
            names[home][_NUMBER.sub("", path[len(home) + 1 :])] = path
    in_all = set.intersection(*(set(names[o.path]) for o in siblings)) - set(names[c.path])
    for pattern in sorted(in_all)[:_NAMED]:
        example = names[siblings[0].path][pattern]
        text = f"it has no file like {basename(example)}, which each other save of the run has"
        yield finding("missing-part", text, path=c.path, severity=Severity.WARNING)


def _is_of_a_save(name: str, siblings: int) -> bool:
    """Whether a file that so many saves have was written with them."""
    if formats.names.beside(name):
        return siblings >= _LEAST
    return _RESULTS.isdisjoint(re.findall("[a-z]+", name.lower()))


def _texts(s: Session, c: Checkpoint, unplaced: Iterable[str]) -> list[str]:
    """Those that lie beside its files, and that describe it or tell how far it was."""
    homes = {p.home for p in c.parts if p.home}
    shared = {dirname(p.path) for p in c.parts} - homes
    notes = {path for path in s.found.trackers.values() if dirname(path) not in homes}

    def is_of_it(path: str) -> bool:
        at = dirname(path)
        return at in homes or (at in shared and formats.names.known(basename(path)))

    texts = (path for path in unplaced if path.endswith(".json") and path not in notes and is_of_it(path))
    return [path for path in islice(texts, _MOST) if stat_of(path)[0] <= _LARGEST]


def _damaged(told: Mapping[str, Report]) -> Iterator[Finding]:
    """Files that are cut or empty, of those whose names say what they are. States are looked at as such."""
    for path, report in told.items():
        if report.verdict is Verdict.BROKEN and formats.names.known(basename(path)):
            wrong = next(f for f in report.findings if f.severity is Severity.ERROR)
            yield replace(wrong, path=path, severity=Severity.WARNING)


def _settings(c: Checkpoint, saves: Sequence[Checkpoint], unplaced: Collection[str]) -> Iterator[Finding]:
    """Those in YAML beside its files that a killed job or a copy that stopped has left damaged."""
    if texts := [path for path in unplaced if path.endswith(_YAML)]:
        from ckpt_tools.planning.damaged_yaml import damaged_yaml  # many saves have none

        yield from damaged_yaml(c, [o for o in saves if o.key != c.key and _alike(o, c)], texts)


def _alike(o: Checkpoint, c: Checkpoint) -> bool:
    """Whether it is a save of the same run in a directory of its own."""
    same = (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)
    return same and not o.unfinished and all(p.home == o.path for p in o.parts)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
