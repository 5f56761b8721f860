"""SIGINT and SIGTERM: exit codes 130 and 143 at any moment, even if inherited as ignored; no traceback.

While the command starts and ends, a signal ends the process at once. While it works, the first signal raises
an exception, so that the work is left in order; a second signal ends the process at once. This module imports
next to nothing: until it runs, Python itself handles signals.
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
    """SIGTERM arrived. A BaseException, so that no handler takes it for an error of a file."""


EXCEPTIONS: dict[int, type[BaseException]] = {INTERRUPTED: KeyboardInterrupt, TERMINATED: Terminated}
_before: dict[int, Any] = {}
"""The signal handlers before begin()."""
_arrived: list[int] = []
"""The exit codes of the signals that came while the command worked."""


def begin() -> None:
    """Make a signal end the process at once."""
    for number in CODES:
        _before[number] = signal.signal(number, _leave)
    sys.unraisablehook = _unraisable


def work() -> None:
    """Make a signal raise KeyboardInterrupt or Terminated."""
    for number in CODES:
        signal.signal(number, _raise)


def end() -> None:
    """Make a signal end the process at once. Raise the exception of an earlier signal if it was lost."""
    for number in CODES:
        signal.signal(number, _leave)
    if _arrived:
        raise EXCEPTIONS[_arrived[0]]


def restore() -> None:
    """Put back the earlier handlers, for the command that replaces this process. Raise as end()."""
    if not _before:  # without begin(), as in a program that calls execute(), the handlers are its own
        return
    end()
    for number, handler in _before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(CODES[number])


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise the exception of a first signal; a second one then ends the process at once."""
    for other in CODES:
        signal.signal(other, _leave)
    _arrived.append(CODES[number])
    raise EXCEPTIONS[_arrived[0]]


def _unraisable(args: Any) -> None:
    """End the process if a signal's exception cannot be raised, as in a destructor."""
    if isinstance(args.exc_value, (KeyboardInterrupt, Terminated)):
        os._exit(_arrived[0] if _arrived else INTERRUPTED)
    sys.__unraisablehook__(args)
