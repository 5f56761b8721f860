"""What wakes a process that watches: events of the file system, or the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_STEP_MS = 500
"""How often the thread of the events looks up; the kernel keeps them meanwhile."""
_TOGETHER_MS = 2000
"""Events of so long are one."""


class Wake:
    """Events of some directories. ``why_not`` says why there are none, or is ""; ``any``: whether any of the
    directories could have some, which those in stores cannot.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.why_not = ""
        self._changed, self._stop = threading.Event(), threading.Event()
        self._roots = [root for root in roots if not is_url(root)]
        self.any = bool(self._roots)
        self.start()

    def start(self) -> None:
        """Begin anew, also where a directory was put in the place of another one."""
        if not self.any:
            return
        self._stop.set()
        self._stop = threading.Event()
        try:
            # Not ``watchfiles.watch``: it begins with its first event, so that what is written between the
            # first listing and then would be seen by nobody.
            from watchfiles._rust_notify import RustNotify

            source = RustNotify(list(self._roots), False, False, 1000, True, True)
        except ImportError:
            self.why_not = "watchfiles is not installed (pip install 'ckpt-tools[watch]')"
        except Exception as e:  # OSError, and errors of its own: no more inotify watches, no such directory
            self.why_not = str(e)
        else:
            self.why_not = ""
            listen = threading.Thread(target=self._listen, args=(source, self._stop), daemon=True)
            listen.start()

    def _listen(self, source: RustNotify, stop: threading.Event) -> None:
        with source:
            while not stop.is_set():
                try:
                    seen = source.watch(_TOGETHER_MS, _STEP_MS, 0, stop)
                except Exception as e:
                    self.why_not = str(e)
                    return
                if seen != "stop":
                    self._changed.set()

    def wait(self, seconds: float, least: float = 0.0) -> bool:
        """Until something changes, for ``seconds`` at most, by a clock that never jumps; events count after
        ``least`` seconds. Whether something has changed.
        """
        started = time.monotonic()
        self._changed.wait(max(0.0, seconds))
        left = min(least, seconds) - (time.monotonic() - started)
        if left > 0:
            threading.Event().wait(left)
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def end(self) -> None:
        self._stop.set()
