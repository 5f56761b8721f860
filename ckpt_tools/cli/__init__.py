"""Arguments in, exit codes out. ``main`` imports other modules only after it has set the signal handlers."""

from __future__ import annotations

import gc
import os
import sys

from ckpt_tools.cli import signals

TYPE_CHECKING = False  # as in signals.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def main() -> NoReturn:
    """The command ``ckpt``."""
    signals.begin()
    if "_CKPT_COMPLETE" in os.environ:
        from ckpt_tools.cli.app import complete

        complete()
    # Results are trees without cycles: searching them for cycles takes a quarter of a plan for 2,000 ranks.
    gc.set_threshold(100_000)
    from ckpt_tools.cli import console
    from ckpt_tools.cli.dispatch import execute as dispatch

    try:
        signals.work()
        code = dispatch(sys.argv[1:])
        signals.end()
    except KeyboardInterrupt:
        code = signals.INTERRUPTED
    except signals.Terminated:
        code = signals.TERMINATED
    if code in (signals.INTERRUPTED, signals.TERMINATED):
        # A thread that hangs in a read of a dead file system would keep a normal exit waiting for ever.
        console.flush()
        os._exit(code)
    sys.exit(code)


def execute(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    from ckpt_tools.cli.dispatch import execute as dispatch

    return dispatch(argv)
