"""What a tracker names was finished: where its pieces are gone, that is damage, and neither a save that never finished nor a first launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME, Layout, active
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Rejected
from ckpt_tools.reading.session import Session


def declared(session: Session, c: Checkpoint) -> str | None:
    """The tracker beside a checkpoint that names it, whichever layout's it is: of a damaged one only files of another layout may be left."""
    base = c.parts[0].base
    for layout in active():
        if (
            not layout.tracker
            or (layout.tracker, base) not in session.found.trackers
            or any(p.unfinished for p in c.parts)
        ):
            continue
        said = session.tracker(layout.name, base)
        if (
            said is not None
            and not isinstance(said[1], Finding)
            and said[1] is not None
            and _named(layout, c) == said[1]
        ):
            return said[0]
    return None


def _named(layout: Layout, c: Checkpoint) -> int | str | None:
    """What the tracker of a layout would hold if it named a checkpoint, which need not be of that layout."""
    try:
        return layout.tracked(c)
    except (KeyError, IndexError):  # it has none of the pieces that the name is made from
        return None


def lost(session: Session, chosen: Sequence[Checkpoint], begun: Sequence[Checkpoint]) -> Iterator[Rejected]:
    """What the trackers beside the ``chosen`` checkpoints name although it is not among them; ``begun`` are saves without the file that is written last."""
    for name, base in dict.fromkeys((c.layout, c.parts[0].base) for c in chosen):
        layout, said = BY_NAME[name], session.tracker(name, base)
        if said is None or said[1] is None or isinstance(said[1], Finding) or said[1] == "release":
            continue
        here = [c for c in chosen if c.parts[0].base == base]
        if any(_named(layout, c) == said[1] for c in here):
            continue
        rest = next(
            (
                c
                for c in begun
                if c.parts[0].base == base
                and not any(p.unfinished for p in c.parts)
                and _named(layout, c) == said[1]
            ),
            None,
        )
        yield _rejected(here[0], said[0], said[1], rest)


def _rejected(sibling: Checkpoint, tracker: str, said: int | str, rest: Checkpoint | None) -> Rejected:
    base = sibling.parts[0].base
    c = replace(rest, unfinished=False) if rest else _gone(sibling, said)
    what = missing(rest) if rest else "but nothing of it is there"
    return Rejected(c, (_damage(tracker, said, what, c.path if rest else base),))


def _damage(tracker: str, said: int | str, what: str, path: str) -> Finding:
    text = f"{tracker.rpartition('/')[2]} names {said}, so it was finished, {what}"
    return finding("missing-part", text, severity=Severity.ERROR, path=path)


def as_told(session: Session, c: Checkpoint) -> tuple[Checkpoint, tuple[Finding, ...]]:
    """A checkpoint as a listing shows it: what looks like an unfinished save and is named by its tracker was finished."""
    tracker = declared(session, c) if c.unfinished else None
    if tracker is None:
        return c, ()
    return replace(c, unfinished=False), (_damage(tracker, c.label, missing(c), c.path),)


def missing(c: Checkpoint) -> str:
    """What a checkpoint lacks that was finished: the second half of a sentence about it."""
    commit = BY_NAME[c.layout].commit
    return f"but its {commit} file is gone" if commit else "but pieces of it are gone"


def _gone(sibling: Checkpoint, said: int | str) -> Checkpoint:
    """A checkpoint of which nothing but its name is left; the name's last number is its step, or which save it is."""
    digits = re.search(r"(\d{1,18})\D*$", str(said))
    n = int(digits[1]) if digits else None
    counted = sibling.counted
    path = f"{sibling.parts[0].base}/{said}" if isinstance(said, str) else sibling.parts[0].base
    return Checkpoint(
        sibling.layout, sibling.run, Kind.PERIODIC, (), path, 0, None if counted else n, None, sibling.epoch_base, None, n if counted else None
    )  # fmt: skip
