"""Warnings about links beside a choice, and among its files: what they lead to is not there, or an older save
under the name of a later one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpt_tools.crosscheck.emptied import is_called_alike, numbers_in, pattern_of
from ckpt_tools.discovery.found import Discovery
from ckpt_tools.discovery.unrecognised import is_other
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage.retry import is_link, lstat
from ckpt_tools.storage.urls import is_url, real_path


def lost_links(found: Discovery, c: Checkpoint, tracker: str | None) -> Iterator[Finding]:
    """Links that lead nowhere, and are not older than the choice or called as it is but for higher numbers;
    of its own ``tracker`` more is said elsewhere.
    """
    text = "it leads to what is not there, and what was saved there may be newer than the choice"
    for path in found.dangling:
        name = os.path.basename(path)
        if name != tracker and not is_other(name) and (_is_newer(path, c) or is_called_alike(path, c)):
            yield finding("dangling-link", text, path=path, severity=Severity.WARNING)


def _is_newer(link: str, c: Checkpoint) -> bool:
    try:
        return lstat(link).st_mtime_ns >= c.mtime_ns
    except OSError:  # gone since
        return False


def links_to_others(links: Mapping[str, str], c: Checkpoint, step: int | None) -> Iterator[Finding]:
    """Links to directories that are called as what they lead to but for a number, which is no lower than the
    choice's: an earlier save lies where a later one was, or belongs.
    """
    for path, to in sorted(links.items()):
        told = [n for n in (step, c.step, c.epoch) if n is not None]
        if _are_two_saves(path, to) and max(numbers_in(path)) >= max(told, default=0):
            yield _of_another(path, os.path.basename(to))


def files_of_others(files: Iterable[str], c: Checkpoint, step: int | None) -> Iterator[Finding]:
    """The same of those ``files`` of the choice that are links: by their names, or by those of the
    directories in which they lie.
    """
    for path in files:
        to = real_path(path)
        mine, theirs = path.split("/"), to.split("/")
        while mine and theirs and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
        if mine and theirs and _are_two_saves(mine[-1], theirs[-1]) and _tells(mine[-1], c, step):
            yield _of_another(path, "/".join(to.split("/")[len(theirs) - 1 :]))


def are_one_file(c: Checkpoint, other: Checkpoint) -> bool:
    """Whether both are one file under two names, of which one is a link to the other."""
    paths = [p.path for p in (*c.parts, *other.parts)]
    if len(c.parts) != 1 or len(other.parts) != 1 or is_url(paths[0]) or not any(map(is_link, paths)):
        return False
    return len(set(map(real_path, paths))) == 1


def runs_of_links(runs: Mapping[tuple[str, str], Sequence[Checkpoint]]) -> set[tuple[str, str]]:
    """Those of which every file is a link to one of another run (``wandb/run-1/files/model.pt``)."""
    linked = {run for run, members in runs.items() if all(is_link(p.path) for c in members for p in c.parts)}
    others = {real_path(p.path) for run in runs.keys() - linked for c in runs[run] for p in c.parts if linked}
    return {run for run in linked if others.issuperset(real_path(p.path) for c in runs[run] for p in c.parts)}


def _of_another(path: str, of: str) -> Finding:
    text = f"it leads to {of}: a save of its own name may be lost, or was never there"
    return finding("step-mismatch", text, path=path, severity=Severity.WARNING)


def _are_two_saves(name: str, of: str) -> bool:
    """Whether two names are the same but for their numbers."""
    return pattern_of(name) == pattern_of(of) and numbers_in(name) != numbers_in(of)


def _tells(name: str, c: Checkpoint, step: int | None) -> bool:
    """Whether the number in a name is that of the choice, and not of a rank or a part."""
    return not {*numbers_in(name)}.isdisjoint({step, c.step, c.epoch})
