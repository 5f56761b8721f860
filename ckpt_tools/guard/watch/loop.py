"""``ckpt watch``: passes over the roots, one after the other, until a signal ends them."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain

from ckpt_tools.discovery.walk import is_absent, is_tree, require_file
from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.guard.watch.metrics import Metrics
from ckpt_tools.guard.watch.root import WatchedRoot
from ckpt_tools.guard.writing import SEAL_ELSEWHERE, require_writable
from ckpt_tools.model.answers import Event
from ckpt_tools.storage.trust import Untrusted
from ckpt_tools.storage.urls import is_url

_SIGNALS = {"KeyboardInterrupt": "SIGINT", "Terminated": "SIGTERM"}


class Watcher:
    """Watches the absolute ``roots``; ``say`` gets each event, and ``sleep`` waits between two passes."""

    def __init__(
        self,
        roots: Sequence[str],
        options: WatchOptions,
        say: Callable[[Event], object],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.options, self._say, self._sleep = options, say, sleep
        self.roots = [WatchedRoot(root, options, say) for root in dict.fromkeys(roots)]
        self._failed = False

    def run(self) -> int:
        """Watch until a signal ends it; with ``once`` make one pass and return 0 (all finished checkpoints
        are good), 1 (damage), 3 (nothing is there) or 5 (something could not be looked at). Raises CannotLook
        and UsageError if a root is missing or watched already, or records cannot be written.
        """
        paths, options = [root.root for root in self.roots], self.options
        if options.seal and options.read.seal_dir is None:
            require_writable(paths, SEAL_ELSEWHERE)
        for path in paths:
            _require_listable(path)
        with ExitStack() as stack:
            for root in self.roots:
                stack.enter_context(root.records.hold())
                root.load()
            metrics = Metrics(options, [root.tally for root in self.roots])
            stack.callback(metrics.close)
            fields = {
                "roots": paths,
                "state_dirs": [root.records.directory for root in self.roots],
                "process": os.getpid(),
                "events": False,
                "metrics_port": metrics.port,
            }
            self._say(Event("started", time.time(), None, fields))
            why = "done"
            try:
                while True:
                    soon = min(self._look(root) for root in self.roots)
                    self.roots[0].write("metrics-not-written", options.metrics_file, metrics.write)
                    if soon > 0 and options.once:
                        return self._find_exit_code()
                    if soon > 0:
                        self._sleep(soon)
            except BaseException as e:
                why = _SIGNALS.get(type(e).__name__, type(e).__name__)
                raise
            finally:
                for root in self.roots:
                    root.save()
                self._say(Event("stopped", time.time(), None, {"why": why}))

    def _find_exit_code(self) -> int:
        """Return how one pass over all roots ends: 5, 1, 3 or 0, as ``run`` says."""
        states = Counter(chain.from_iterable(root.tally.states.elements() for root in self.roots))
        if self._failed or states["unknown"] or any(r.blind or not r.tally.up for r in self.roots):
            return 5
        if states["bad"]:
            return 1
        return 0 if states else 3

    def _look(self, root: WatchedRoot) -> float:
        """Make one pass over a root, which may be gone for a while; return the seconds until the next one."""
        try:
            soon = root.look()
        except (CannotLook, Untrusted) as e:
            self._failed, root.tally.up, soon = True, False, self.options.rescan
            root.report_problem("cannot-look", str(e))
        root.save()
        return soon


def _require_listable(root: str) -> None:
    """Raise UsageError for a file, and CannotLook for a missing directory. A store has a directory only from
    its first object on, so there it may be still to come.
    """
    with explain_refusal(f"cannot list {root}"):
        if not is_url(root):
            if stat.S_ISDIR(os.stat(root).st_mode):
                os.scandir(root).close()
                return
        elif is_absent(root) or is_tree(root):
            return
        else:
            require_file(root)
    raise UsageError(f"{root} is not a directory", "name the directory in which checkpoints are saved")
