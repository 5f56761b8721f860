"""SIGINT and SIGTERM: 130 and 143 at any moment, also where they were inherited as ignored, and never a
traceback.

While the command starts and ends, a signal ends the process where it stands. While it works, a signal is an
exception, so that what was begun is left in order;
a second one ends the process where it stands. Imports next to nothing: what comes before is answered by
Python itself.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

INTERRUPTED, TERMINATED = 130, 143
CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class Terminated(BaseException):
    """SIGTERM arrived. No Exception, so that nothing on the way mistakes it for a problem of a file."""


class _State:
    """What the signals did ``before`` this process, and the exit code of the first that ``arrived``."""

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.arrived = 0


_state = _State()


def begin() -> None:
    """From here on a signal ends the process where it stands."""
    for number in CODES:
        _state.before[number] = signal.signal(number, _leave)
    sys.unraisablehook = _unraisable


def work() -> None:
    """From here on a signal is a KeyboardInterrupt, or Terminated."""
    for number in CODES:
        signal.signal(number, _raise)


def end() -> None:
    """From here on a signal ends the process where it stands. Raise the exception of one that was lost."""
    for number in CODES:
        signal.signal(number, _leave)
    if _state.arrived:
        _arrived()


def restore() -> None:
    """Let the signals do what they did before: what this process becomes inherits that. Raise as ``end``."""
    if not _state.before:  # whoever runs a command line inside a program of theirs has signals of their own
        return
    end()
    for number, handler in _state.before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(CODES[number])


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    for other in CODES:
        signal.signal(other, _leave)
    _state.arrived = CODES[number]
    _arrived()


def _arrived() -> NoReturn:
    if _state.arrived == TERMINATED:
        raise Terminated
    raise KeyboardInterrupt


def _unraisable(args: Any) -> None:
    """End the process where the exception of a signal cannot be raised, such as in a destructor."""
    if isinstance(args.exc_value, (KeyboardInterrupt, Terminated)):
        os._exit(_state.arrived or INTERRUPTED)
    sys.__unraisablehook__(args)
