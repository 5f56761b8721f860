"""Directories beside those of saves, called as these are but for a higher number, in which nothing of a save
lies: one that was cut short at its beginning, or is lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common import under_way
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.reading.session import Session

_HINT = "bring back what was removed; if nothing was saved there, move the directory away"
_NUMBER = re.compile(r"[0-9]+")


def begun_later(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Return warnings about such directories of a higher number than all saves beside ``c``, and about those
    called as a save that is not done in which something was written since. Of what a tracker names more is
    said elsewhere.
    """
    home = c.parts[0].home
    base = os.path.dirname(home or c.parts[0].path)
    there = (*s.found.empty, *s.found.strange, *(os.path.dirname(f.path) for f in s.found.bare))
    taken = _taken(s)
    below = [top for top in dict.fromkeys(_below(there, base)) if top not in taken]
    for top in _find_emptied(s, c, below):
        text = f"it is called as a later save than {os.path.basename(home)} is, and holds none"
        yield finding("unfinished-save", text, path=top, hint=_HINT, rule="choice/unfinished-newer")
    late = set(_below((f.path for f in s.found.bare if f.mtime_ns >= c.mtime_ns), base))
    for top in below:
        if under_way.is_begun(os.path.basename(top)) and top in late:
            text = f"it is called as a save that is not done, and was written no earlier than {c.label}"
            yield finding("unfinished-save", text, path=top, rule="choice/unfinished-newer")


def _find_emptied(s: Session, c: Checkpoint, below: Iterable[str]) -> Iterator[str]:
    """Return the directories of a higher number than those of all saves, with nothing of one in them."""
    home, told = c.parts[0].home, {c.step, c.epoch, c.generation} - {None}
    if told.isdisjoint(numbers_in(home)) and (told or not home):
        return
    highest = max(numbers_in(at) for at in (home, *_homes(s, os.path.dirname(home), home)))
    for top in below:
        later = pattern_of(top) == pattern_of(home) and numbers_in(top) > highest
        if later and not s.found.leaves_out(top) and not is_tracked(s, c, top):
            yield top


def is_called_alike(path: str, c: Checkpoint) -> bool:
    """Return True if a path is beside a save's own file or directory, and called as that is but for higher
    numbers.
    """
    own = c.parts[0].home or c.parts[0].path
    beside = os.path.dirname(path) == os.path.dirname(own)
    return beside and pattern_of(path) == pattern_of(own) and numbers_in(path) > numbers_in(own)


def is_tracked(s: Session, c: Checkpoint, top: str) -> bool:
    """Return True if a tracker beside ``c`` names the directory, its last number, or the end of its name."""
    name, numbers = os.path.basename(top), numbers_in(top)
    said = {says for _, says in s.trackers(c.layout, os.path.dirname(top))}
    return not said.isdisjoint((name, *numbers[-1:])) or any(
        isinstance(says, str) and name.endswith(f"-{says}") for says in said
    )


def pattern_of(path: str) -> str:
    """Return the name at the end of a path, without its numbers."""
    return _NUMBER.sub("#", os.path.basename(path))


def numbers_in(path: str) -> tuple[int, ...]:
    """Return the numbers in the name at the end of a path."""
    return tuple(int(n[:18]) for n in _NUMBER.findall(os.path.basename(path)))


def _homes(s: Session, base: str, home: str) -> set[str]:
    homes = {p.home for p in s.parts if p.home and os.path.dirname(p.home) == base}
    return {at for at in homes if pattern_of(at) == pattern_of(home)}


def _below(directories: Iterable[str], base: str) -> Iterator[str]:
    """The directories in ``base`` that are, or hold, one of these."""
    for directory in directories:
        if directory.startswith(f"{base}/"):
            yield f"{base}/{directory[len(base) + 1 :].partition('/')[0]}"


def _taken(s: Session) -> set[str]:
    """All directories in which something of a checkpoint lies, or that were set aside."""
    above = set[str]()
    for path in (*(p.path for p in s.parts), *(f"{f.path}/" for f in s.aside), *s.found.unfinished):
        while (path := os.path.dirname(path)) and path not in above and path != s.root:
            above.add(path)
    return above
