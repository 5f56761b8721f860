"""Who started us: launchers in the order in which they are asked; the first that recognises its own variables
answers. Those of plug-ins (settings/plugins.py) are asked before those of this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import Launcher, LaunchLine, Started
from ckpt_tools.settings import plugins

ORDER = {
    "torchrun": ("TORCHELASTIC_RUN_ID",),
    "msrun": ("MS_ROLE", "MS_WORKER_NUM"),
    "slurm": ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_PROCID"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"),
    "kubernetes": (
        "PET_NODE_RANK",
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "RANK",
        "VC_TASK_INDEX",
        "VK_TASK_INDEX",
        "JOB_COMPLETION_INDEX",
    ),
    "bare": ("CKPT_RANK", "RANK", "RANK_ID", "RANK_SIZE"),
}
"""Each in the file of its name -> the variables without any of which it did not start us: then it is not
imported.
"""

LAUNCHERS: tuple[Launcher, ...]
"""All of them, imported when somebody asks."""

_LINES = ("torchrun",)
"""Those whose command lines are read."""

_PLACES = ("slurm", "kubernetes")
"""They say where a process runs even when they did not start it: a rank that a later one knows for certain
then counts.
"""


def detect(env: Mapping[str, str]) -> Started | None:
    """What the launcher's variables say, or None when no launcher is recognised. Never raises."""
    asked = (name for name, variables in ORDER.items() if not env.keys().isdisjoint(variables))
    known = (one for one in _of_plugins() if not env.keys().isdisjoint(one.variables))
    answers = [s for one in (*known, *_imported(asked)) if (s := one.detect(env)) is not None]
    if not answers:
        return None
    first = answers[0]
    if first.rank or first.launcher not in _PLACES:
        return first
    inner = next((s for s in answers[1:] if s.rank), None)
    if inner is None:
        return first
    return (
        inner if inner.job else replace(inner, job=first.job, job_from=first.job_from, restart=first.restart)
    )


def _imported(names: Iterable[str]) -> Iterator[Launcher]:
    yield from (import_module(f"{__name__}.{name}").LAUNCHER for name in names)


def _of_plugins() -> tuple[Launcher, ...]:
    return tuple(plugin.value for plugin in plugins.added("launchers", ORDER).values())


def package_of(name: str) -> str | None:
    """The package that adds a launcher, None for one of ours."""
    plugin = plugins.added("launchers").get(name)
    return str(plugin.package) if plugin else None


def __getattr__(name: str) -> tuple[Launcher, ...]:
    if name != "LAUNCHERS":
        raise AttributeError(name)
    return (*_of_plugins(), *_imported(ORDER))


def current() -> Started | None:
    """What the launcher of this process says, or None when no launcher is recognised."""
    return detect(os.environ)


def line_of(command: Sequence[str], env: Mapping[str, str]) -> LaunchLine | None:
    """What a command says that starts a launcher on this node; None when it starts something else."""
    if not command:
        return None
    readers = (launcher.read_line for launcher in (*_of_plugins(), *_imported(_LINES)))
    lines = (read_line(command, env) for read_line in readers if read_line)
    return next((line for line in lines if line is not None), None)


__all__ = ["LAUNCHERS", "LaunchLine", "Launcher", "Started", "current", "detect", "line_of", "package_of"]
