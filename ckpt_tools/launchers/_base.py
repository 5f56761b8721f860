"""What a launcher is: a value that reads a rank and a world size from the environment, or says that it did not start us."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """One process's place in the job, and the launcher that says so."""

    launcher: str
    rank: int
    world_size: int


@dataclass(frozen=True)
class Launcher:
    """``variables`` are what it sets; ``reference`` is the source of the facts."""

    name: str
    variables: tuple[str, ...]
    detect: Callable[[Mapping[str, str]], Started | None]
    reference: str


def number(env: Mapping[str, str], name: str) -> int | None:
    """A variable as a non-negative int, None when unset or anything else."""
    value = env.get(name, "")
    return int(value) if value.isdigit() and len(value) < 10 else None
