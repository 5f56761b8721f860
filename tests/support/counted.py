"""What work costs, counted: calls are the same on a busy machine, seconds are not."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls(work: Callable[[], object]) -> int:
    """Calls of Python functions and of C functions that some work makes."""
    count = 0

    def hook(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(hook)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
