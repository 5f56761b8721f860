"""Tries candidates with a loader until one loads, and keeps a trail of the ones that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar, cast

from msgspec import Struct

from ckpt_tools.errors import LoadFailed, NoCheckpoint, UsageError

C = TypeVar("C")
T = TypeVar("T")


class Attempt(Struct, Generic[C], frozen=True):
    """A candidate that did not load, and why."""

    candidate: C
    error: Exception


class Loaded(Struct, Generic[C, T], frozen=True):
    """What the loader returned for ``candidate``, and the ``trail`` of those that failed before it."""

    value: T
    candidate: C
    trail: tuple[Attempt[C], ...] = ()


def try_load(candidates: Iterable[C], loader: Callable[[C], T], max_attempts: int = 5) -> Loaded[C, T]:
    """Call ``loader`` with each candidate, best first, and return the first result. A single path (text,
    bytes or a path object) is one candidate.

    When the loader raises an Exception, its candidate is added to the trail and the next one is tried, up to
    ``max_attempts``. KeyboardInterrupt, SystemExit and other BaseExceptions pass through, because they are
    not about the checkpoint. ``None`` is a value like any other: a loader that cannot load must raise.

    Raises NoCheckpoint when there is no candidate at all, and LoadFailed, chained to the last error and with
    the whole trail, when none loads. ``_try_to_init_weight`` of the Ascend samples differs exactly here: it
    gives up silently after five attempts, so that training continues from random weights.

    Every rank must try the same candidates and agree on the result: let one rank decide and tell the others.
    """
    if max_attempts < 1:
        text = f"max_attempts is {max_attempts}: at least one attempt is needed"
        raise UsageError(text, "leave it out, or use 1 or more")
    trail: list[Attempt[C]] = []
    is_path = isinstance(candidates, (str, bytes)) or hasattr(candidates, "__fspath__")
    left = iter(cast("Iterable[C]", (candidates,)) if is_path else candidates)
    for candidate in islice(left, max_attempts):
        try:
            return Loaded(loader(candidate), candidate, tuple(trail))
        except Exception as error:
            trail.append(Attempt(candidate, error))
    if not trail:
        text = "there is no candidate to load"
        raise NoCheckpoint(text, "a first launch may start fresh; 'ckpt ls' shows what is there")
    last, several, stopped = trail[-1], "s" if len(trail) > 1 else "", ""
    if next(left, trail) is not trail:
        stopped = f"; more candidates exist, but max_attempts={max_attempts} stopped the search"
    raise LoadFailed(
        f"none of {len(trail)} candidate{several} loads; the last one,"
        f" {last.candidate}, failed with {type(last.error).__name__}: {last.error}{stopped}",
        tuple((str(a.candidate), a.error) for a in trail),
    ) from last.error
