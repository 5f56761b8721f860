"""Whether the list of a store by which a plan was made had all that was there: one that lacks objects makes
an older checkpoint the choice, or a first launch, and a second one tells.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ckpt_tools.errors import CannotLook
from ckpt_tools.model.plan import Rejected
from ckpt_tools.planning.other_writers import SKEW_NS
from ckpt_tools.storage.stores.refresh import late

_MISSING = ("missing-rank", "missing-part")
_MOST = 8
"""Checkpoints at most that are listed again."""


def require_whole(root: str, started_ns: int, rejected: Sequence[Rejected], *, chosen: bool) -> None:
    """Raises CannotLook where something is there that the first list lacked, and that nobody has written
    meanwhile. What lost because a file was missing is listed again, and all of ``root`` where nothing was
    ``chosen``.
    """
    lost = [r.checkpoint.path for r in rejected if any(f.code in _MISSING for f in r.findings)]

    def written(mtime_ns: int) -> bool:
        return started_ns - SKEW_NS <= mtime_ns <= time.time_ns() + SKEW_NS

    try:
        found = late(root, lost[:_MOST] if chosen else [root], written)
    except OSError as e:
        raise CannotLook(f"{e.filename or root} cannot be listed again: {e.strerror}", _HINT) from e
    if found is not None:
        raise CannotLook(f"{found} is there, but the store's first list did not have it", _HINT)


_HINT = "run it again: a list was not whole, or a cache between here and the store gave an old one"
