"""One call of ``save`` when the guarded code raises, and nothing else: the exception goes on unchanged."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ckpt_tools.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")


class Terminated(SystemExit):
    """A watched signal arrived. Unhandled it ends the process with 128 + the signal's number, as a shell
    reports it.
    """


class Guard:
    """A context manager, and by ``wrap`` a decorator, around training. ``signals`` become Terminated inside
    it; without any no handler is touched.
    """

    def __init__(self, signals: Iterable[int] = ()) -> None:
        self._signals = tuple(signals)
        self._before: dict[int, Any] = {}
        self._depth = 0

    def save(self) -> bool:
        """What to do when training raises; must not raise itself."""
        raise NotImplementedError

    def wrap(self, train: Callable[P, R]) -> Callable[P, R]:
        """``train`` that saves when it raises; the exception goes on to the caller unchanged."""

        @wraps(train)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return train(*args, **kwargs)

        return run

    def __enter__(self) -> Self:
        if self._signals and not self._depth:
            if threading.current_thread() is not threading.main_thread():
                raise UsageError(
                    "signals can only be watched in the main thread", "enter there, or leave out signals="
                )
            self._before = {s: signal.signal(s, _terminate) for s in self._signals}
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:  # the outer block meets the same exception: one fault, one save
            return
        try:
            if error is not None and _is_fault(error):
                for s in self._before:
                    signal.signal(
                        s, signal.SIG_IGN
                    )  # a second SIGTERM must not tear the file that is being written
                self.save()
        finally:
            for s, handler in self._before.items():
                signal.signal(s, signal.SIG_DFL if handler is None else handler)
            self._before = {}


def _terminate(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # until the block is left
    raise Terminated(128 + number)


def _is_fault(error: BaseException) -> bool:
    """Not sys.exit() and sys.exit(0), which end a finished job, and not a closed generator."""
    return not isinstance(error, GeneratorExit) and not (
        isinstance(error, SystemExit) and error.code in (None, 0)
    )
