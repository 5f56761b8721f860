"""What work costs, counted: calls are the same on a busy machine, seconds are not."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TooMuchWork(BaseException):
    """No Exception, which the limits around a check catch."""


class Calls:
    """A count of calls of Python functions and of C functions. Raises TooMuchWork at the first above ``most``."""

    def __init__(self, most: int) -> None:
        self.count, self.most = 0, most

    def hook(self, frame: object, event: str, arg: object) -> None:
        self.count += event in ("call", "c_call")
        if self.count > self.most:
            raise TooMuchWork(f"more than {self.most} calls")


@contextmanager
def at_most(most: int) -> Iterator[Calls]:
    """Ends what is done here as soon as it makes more calls: work without end has one, and how fast the
    machine is changes nothing.
    """
    made = Calls(most)
    sys.setprofile(made.hook)
    try:
        yield made
    finally:
        sys.setprofile(None)


def calls(work: Callable[[], object]) -> int:
    """Calls that some work makes."""
    with at_most(sys.maxsize) as made:
        work()
    return made.count


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """What is done here never has so many bytes of Python's at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most
