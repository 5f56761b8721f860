"""A callback for MindSpore: every file that its ModelCheckpoint saves is sealed."""

from __future__ import annotations

import os
import stat
from typing import Any

from ckpt_tools.guard.callbacks import Save

_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def seal_callback(saves: Any, **options: Any) -> Any:
    """A MindSpore ``Callback`` that follows the ``ModelCheckpoint`` ``saves``; it comes after it in the list
    of callbacks. ``options`` are those of ``ckpt_tools.seal``.

    A file that is saved asynchronously is sealed at the step after it is finished.
    """
    from mindspore.train import Callback

    class SealCallback(Callback):  # type: ignore[misc]  # it has no types here
        def __init__(self) -> None:
            super().__init__()
            self.last, self.waiting = "", list[str]()

        def step_end(self, run_context: Any) -> None:  # noqa: ARG002 - its name is the framework's
            path = saves.latest_ckpt_file_name
            if path and path != self.last:
                self.last = path
                self.waiting.append(path)
            while self.waiting and _is_finished(self.waiting[0]):
                Save(os.path.abspath(self.waiting.pop(0)), None, None, options).seal()

        end = step_end

    return SealCallback()


def _is_finished(path: str) -> bool:
    """Return whether a file is finished: MindSpore takes its write permission away then."""
    try:
        return not stat.S_IMODE(os.stat(path).st_mode) & _WRITE
    except OSError:
        return False
