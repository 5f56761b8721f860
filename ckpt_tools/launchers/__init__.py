"""The launchers that may have started this process. The first that recognises its own variables answers;
launchers of plug-ins (settings/plugins.py) are asked before the launchers of this package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools.launchers import kubernetes, launcher, mpi, msrun, slurm, torchrun
from ckpt_tools.launchers.launcher import Launcher, LaunchLine, Started
from ckpt_tools.settings import plugins

__all__ = [
    "LAUNCHERS",
    "LaunchLine",
    "Launcher",
    "Started",
    "detect",
    "find_current",
    "list_all",
    "package_of",
    "read_launch_line",
]

LAUNCHERS = tuple(one.LAUNCHER for one in (torchrun, msrun, slurm, mpi, kubernetes, launcher))
_OUTER = ("slurm", "kubernetes")
"""Launchers that say where a process runs even if another launcher started it: without a rank from them, a
later launcher's rank counts.
"""


def list_all() -> tuple[Launcher, ...]:
    """Return the launchers of plug-ins, then the launchers of this package."""
    added = plugins.list_added("launchers", [launcher.name for launcher in LAUNCHERS])
    return (*(plugin.value for plugin in added.values()), *LAUNCHERS)


def detect(env: Mapping[str, str]) -> Started | None:
    """Return what the launcher's variables say; None if no launcher is recognised. Never raises."""
    asked = (one for one in list_all() if one in LAUNCHERS or not env.keys().isdisjoint(one.variables))
    answers = [started for one in asked if (started := one.detect(env)) is not None]
    if not answers:
        return None
    first = answers[0]
    if first.rank or first.launcher not in _OUTER:
        return first
    inner = next((s for s in answers[1:] if s.rank), None)
    if inner is None:
        return first
    if inner.job:
        return inner
    return replace(inner, job=first.job, job_from=first.job_from, restart=first.restart)


def find_current() -> Started | None:
    """Return what the launcher's variables say of this process, as ``detect`` does."""
    return detect(os.environ)


def read_launch_line(command: Sequence[str], env: Mapping[str, str]) -> LaunchLine | None:
    """Return the parts of a command that starts a launcher; None if the command starts another program."""
    lines = (one.read_line(command, env) for one in list_all() if one.read_line) if command else ()
    return next((line for line in lines if line is not None), None)


def package_of(name: str) -> str | None:
    """Return the package whose plug-in the launcher is; None for a launcher of ckpt."""
    plugin = plugins.list_added("launchers").get(name)
    return str(plugin.package) if plugin else None
