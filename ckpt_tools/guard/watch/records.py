"""What is known of each checkpoint of a root, kept between runs outside the tree, by one process at a
time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools.errors import UsageError
from ckpt_tools.planning.decision_log import place
from ckpt_tools.settings import checked_json, directories
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import hold_lock, replace_file

State = Literal["good", "suspect", "bad", "unknown"]
NAME, LOCK = "watch.json", "watch.lock"
_MOST = 256 << 20


class Record(Struct, frozen=True):
    """What the last verification of a checkpoint came to. ``stamp`` tells its files from other ones of the
    same names, ``checked_at`` is in seconds since the epoch, ``state`` is good, suspect, bad or unknown;
    ``codes`` are those of its findings; ``unsealed`` is what was to be sealed and could not be.
    """

    stamp: str
    state: State
    checked_at: float
    path: str
    step: int | None = None
    saved_at: float = 0.0
    codes: tuple[str, ...] = ()
    unsealed: bool = False


class Starts(Struct, frozen=True):
    """The starts of jobs that were seen: when the last one was, the step that it resumed from, and how many
    in a row before it had resumed from the same.
    """

    decided_at: float = 0.0
    step: int | None = None
    again: int = 0


class _Watched(Struct, frozen=True):
    """What is kept of a root between runs."""

    schema: Literal["ckpt-tools/watched/v1"]
    checkpoints: dict[str, Record]
    starts: Starts


class Records:
    """``known`` maps a checkpoint (the path of its first file, relative to the root) to its record;
    ``starts`` are those of jobs.
    """

    def __init__(self, root: str, state_dir: str | None, trusted: Trust) -> None:
        home = state_dir or directories.watched()
        try:
            self.directory = place(home, root)
        except UsageError as e:
            text = f"the state directory {home} lies inside {root}, where nothing is written"
            raise UsageError(text, "name one outside it with CKPT_STATE_DIR") from e
        self.trusted = trusted
        self.known: dict[str, Record] = {}
        self.starts = Starts()
        self._written = self._encode()

    def load(self) -> str:
        """Read what an earlier run has left. Why nothing of it can be used, or "": then everything is checked
        again. Raises Untrusted: whoever writes there could call damage good.
        """
        path = os.path.join(self.directory, NAME)
        try:
            data = checked_json.parsed(trust.read(path, _MOST, self.trusted))
            said, now = checked_json.checked(data, _Watched), time.time()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as e:
            self.known, self.starts = {}, Starts()
            return f"{path} cannot be used: {getattr(e, 'strerror', None) or e}"
        # a clock that was ahead must not put the next scrub off
        self.known = {
            key: replace(r, checked_at=min(r.checked_at, now)) for key, r in said.checkpoints.items()
        }
        self.starts = said.starts
        self._written = self._encode()
        return ""

    def save(self) -> None:
        """Write what has changed aside, sync it, and rename it. Raises OSError and Untrusted."""
        if (data := self._encode()) != self._written:
            replace_file(self.directory, NAME, data, self.trusted)
            self._written = data

    def _encode(self) -> bytes:
        value = to_builtins(_Watched("ckpt-tools/watched/v1", self.known, self.starts))
        return json.dumps(value).encode("ascii")

    @contextmanager
    def held(self) -> Iterator[None]:
        """The only process that watches this root, until it ends. Raises UsageError where another one does,
        and CannotLook.
        """
        said = f"watches this directory already ({os.path.join(self.directory, LOCK)})"
        hint = "end it first; two that are to watch one directory need a CKPT_STATE_DIR each"
        with hold_lock(self.directory, LOCK, self.trusted, lambda who: UsageError(f"{who} {said}", hint)):
            yield
