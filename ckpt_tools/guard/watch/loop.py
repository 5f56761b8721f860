"""``ckpt watch``: passes over the roots, one after the other, until a signal ends them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ckpt_tools.discovery.roots import absent, is_tree, require_file
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard.watch.metrics import Metrics
from ckpt_tools.guard.watch.options import WatchOptions
from ckpt_tools.guard.watch.root import WatchedRoot
from ckpt_tools.guard.writing import DELETE_ELSEWHERE, SEAL_ELSEWHERE, require_writable
from ckpt_tools.model.answers import Event
from ckpt_tools.storage.trust import Untrusted
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


_SHARE = 20.0
"""Events lead to a pass after so many times as long as the last one took: one CPU in twenty at most."""
_SIGNALS = {"KeyboardInterrupt": "SIGINT", "Terminated": "SIGTERM"}
_SAVED = 10.0
"""Seconds after which what is known is written again while much is verified."""


def watch(roots: Sequence[str], options: WatchOptions, say: Callable[[Event], object]) -> int:
    """Watch directories, which are absolute paths, and give every event to ``say``. It ends with ``once``
    (0: all that is finished is good; 1: damage; 3: nothing is there; 5: something could not be looked at) or
    by the exception of a signal.

    Raises CannotLook and UsageError where it cannot begin: a directory is not there, is watched already, or
    what is known of it cannot be kept.
    """
    return Watcher(tuple(dict.fromkeys(roots)), options, say).run()


class Watcher:
    """All roots of one process."""

    def __init__(self, roots: Sequence[str], options: WatchOptions, say: Callable[[Event], object]) -> None:
        self.options, self._say = options, say
        self.roots = [WatchedRoot(root, options, say) for root in roots]
        self._saved_at = time.monotonic()
        self._failed = False

    def run(self) -> int:
        paths, options = [root.root for root in self.roots], self.options
        if options.seal and options.read.seal_dir is None:
            require_writable(paths, SEAL_ELSEWHERE)
        if options.prune is not None and options.apply:
            require_writable(paths, DELETE_ELSEWHERE)
        for path in paths:
            _require_listable(path)
        with ExitStack() as held:
            for root in self.roots:
                held.enter_context(root.records.held())
                root.load()
            metrics = held.enter_context(Metrics(self.options, [root.tally for root in self.roots]))
            wake = None if self.options.once else Wake(paths)
            self._say_started(metrics, wake)
            why = "done"
            try:
                return self._look_once(metrics) if wake is None else self._look_for_ever(metrics, wake)
            except BaseException as e:
                why = _SIGNALS.get(type(e).__name__, type(e).__name__)
                raise
            finally:
                if wake is not None:
                    wake.end()
                self._save(metrics)
                self._say(Event("stopped", time.time(), None, {"why": why}))

    def _say_started(self, metrics: Metrics, wake: Wake | None) -> None:
        fields = {
            "roots": [root.root for root in self.roots],
            "state_dirs": [root.records.directory for root in self.roots],
            "process": os.getpid(),
            "events": wake is not None and wake.any and not wake.why_not,
            "metrics_port": metrics.port,
        }
        self._say(Event("started", time.time(), None, fields))
        if wake is not None and wake.why_not:
            rescan = f"{self.options.rescan:g}"
            text = f"no events of the file system: {wake.why_not}; it is listed every {rescan} s all the same"
            for root in (root for root in self.roots if not is_url(root.root)):
                root.problem("no-events", text)

    def _look_once(self, metrics: Metrics) -> int:
        for root in self.roots:
            while self._look(root) <= 0:
                self._save(metrics)
        states = [root.tally.states for root in self.roots]
        blind = self._failed or any(r.blind or not r.tally.up for r in self.roots)
        if blind or any(s["unknown"] for s in states):
            return 5
        if any(s["bad"] for s in states):
            return 1
        return 0 if any(sum(s.values()) for s in states) else 3

    def _look_for_ever(self, metrics: Metrics, wake: Wake) -> int:
        while True:
            started, down = time.monotonic(), [root for root in self.roots if not root.tally.up]
            soon = min(self._look(root) for root in self.roots)
            if any(root.tally.up for root in down) and wake.why_not != "":
                wake.start()
            self._save(metrics)
            took = time.monotonic() - started
            if soon > 0:
                wake.wait(min(soon, self.options.rescan), least=_SHARE * took)

    def _look(self, root: WatchedRoot) -> float:
        """One pass over a root, which may be gone for a while."""
        try:
            soon = root.look()
        except (CannotLook, Untrusted) as e:
            self._failed = True
            root.problem("cannot-look", str(e))
            return self.options.rescan
        if time.monotonic() - self._saved_at > _SAVED:
            root.save()
        return soon

    def _save(self, metrics: Metrics) -> None:
        """Write what is known and what is counted; where that fails it is said, and it goes on."""
        for root in self.roots:
            root.save()
        try:
            metrics.write()
        except (OSError, Untrusted) as e:
            text = f"{self.options.metrics_file} cannot be written: {getattr(e, 'strerror', None) or e}"
            self.roots[0].problem("metrics-not-written", text)
        else:
            self.roots[0].solved("metrics-not-written")
        self._saved_at = time.monotonic()


def _require_listable(root: str) -> None:
    """Raises UsageError for a file, and CannotLook for what is not there. In a store a directory is there
    from its first object on, so it may be still to come.
    """
    if is_url(root):
        if not absent(root) and not is_tree(root):
            try:
                require_file(root)
            except OSError as e:
                raise CannotLook(f"cannot look at {root}: {e.strerror}") from e
            raise UsageError(f"{root} is no directory", "name the directory in which checkpoints are saved")
        return
    try:
        with os.scandir(root):
            return
    except NotADirectoryError:
        text = f"{root} is no directory"
        raise UsageError(text, "name the directory in which checkpoints are saved") from None
    except OSError as e:
        raise CannotLook(f"cannot list {root}: {e.strerror}") from e
