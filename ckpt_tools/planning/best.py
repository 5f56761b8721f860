"""What a checkpoint names as the best of its run: its framework loads that when training ends."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.choice import tracker_stale
from ckpt_tools.planning.rules.rule import finding_of
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.stalls import away
from ckpt_tools.storage.urls import is_url, real_path


def named_as_best(s: Session, c: Checkpoint) -> dict[str, str]:
    """Return the paths that its files name, as they were when it was saved, and the file that names each."""
    entry, found = s.layouts.of(c).best, dict[str, str]()
    for part in [p for p in c.parts if s.layouts.piece_of(p).loaded] if entry else ():
        metadata = s.report(part, Level.STRUCTURE).metadata
        told = (value for key, value in metadata.items() if key.partition(":")[0] == entry)
        found |= {path.rstrip("/"): part.path for path in told if isinstance(path, str) and path}
    return found


def named_as_base(s: Session, c: Checkpoint) -> list[str]:
    """Return the paths of the models that its adapters were trained on, as peft writes them."""
    configs = [part for part in c.parts if part.role == "config"]
    told = (s.report(part, Level.STRUCTURE).metadata.get("base_model_name_or_path") for part in configs)
    return [path.rstrip("/") for path in told if isinstance(path, str) and path]


def places_of(named: str, paths: Collection[str], beside: str) -> list[str]:
    """Return those of ``paths`` that a name may mean after a move: those with the longest end in common, of
    several those in the same directory as ``beside``.
    """
    ends = {path: _same_ends(named.split("/"), path.split("/")) for path in paths}
    longest = max(ends.values(), default=0)
    like = [path for path, n in ends.items() if n == longest > 0]
    return [path for path in like if os.path.dirname(path) == os.path.dirname(beside)] or like


def _same_ends(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many components two paths have in common at their ends."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def best_is_gone(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield a note for each path that it names as its best and that is not there."""
    for named, by in named_as_best(s, c).items():
        beside = os.path.join(os.path.dirname(c.path), os.path.basename(named))
        try:
            here = beside == c.path or there(beside)
            if (here and _in_place(named, beside, c)) or (os.path.isabs(named) and away(there, named)):
                continue
        except OSError:
            continue  # nothing that is loaded depends on it
        hit = tracker_stale.find_lost_best(s.layouts.of(c).best, named, by, beside=here)
        yield finding_of(tracker_stale.RULE, hit)


def _in_place(named: str, beside: str, c: Checkpoint) -> bool:
    """Whether a name means what lies beside the checkpoint, or the checkpoint itself."""
    if beside == c.path or is_url(beside) or not os.path.isabs(named):
        return True
    return os.path.dirname(named) in (os.path.dirname(beside), real_path(os.path.dirname(beside)))
