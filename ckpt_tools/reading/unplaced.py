"""Files in a checkpoint format that no layout places but the last resort."""

from __future__ import annotations

import os
from shlex import quote

from ckpt_tools import formats
from ckpt_tools.reading.session import Session


def unplaced(session: Session) -> list[str]:
    """Their paths below the root, by their names; and those beside them with the same ending."""
    resort = [p.path for p in session.parts if session.layouts.of(p).last_resort]
    bare = [file.path for file in session.found.bare]
    named = [path for path in bare if formats.names.state(os.path.basename(path))]
    known = {*resort, *named}
    places = set(map(_place, known))
    beside = (path for path in bare if _place(path) in places)
    return sorted({os.path.relpath(path, session.root) for path in (*known, *beside)})


def how_to_describe(session: Session) -> str:
    """Return the command that writes their layout where names tell it surely, and no other layout has a file
    that may belong to their saves; else where to read how it is written.
    """
    from ckpt_tools.layouts.guess import guess  # only where a question has no other answer

    alone = all(session.layouts.of(p).last_resort for p in session.parts)
    if alone and guess(unplaced(session)).is_sure:
        return f"'ckpt layouts --guess {quote(session.root)}' writes their layout"
    return "describe them in ckpt.toml: docs/adding-a-layout.md"


def _place(path: str) -> tuple[str, str]:
    return os.path.dirname(path), os.path.splitext(path)[1]
