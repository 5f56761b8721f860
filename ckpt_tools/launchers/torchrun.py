"""torchrun (torch elastic): its workers have a run id. RANK is not stable: a restart may give a worker
another one, and another WORLD_SIZE.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers import torchrun_line
from ckpt_tools.launchers.launcher import SAY, Launcher, Started, blank, known, number, seen, settled

_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_VARIABLES = (
    *_PLACE,
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)


def _detect(env: Mapping[str, str]) -> Started | None:
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    run = env["TORCHELASTIC_RUN_ID"]
    named = run not in ("", "none")  # "none" is the default of --rdzv-id when a master address is given
    started = Started(
        "torchrun",
        rank=known(env, "RANK", "torchrun"),
        world_size=known(env, "WORLD_SIZE", "torchrun"),
        local_rank=known(env, "LOCAL_RANK", "torchrun"),
        local_world_size=known(env, "LOCAL_WORLD_SIZE", "torchrun"),
        node=known(env, "GROUP_RANK", "torchrun"),
        nodes=known(env, "GROUP_WORLD_SIZE", "torchrun"),
        job=run if named else "",
        job_from="TORCHELASTIC_RUN_ID" if named else "",
        restart=known(env, "TORCHELASTIC_RESTART_COUNT", "torchrun"),
        max_restarts=known(env, "TORCHELASTIC_MAX_RESTARTS", "torchrun"),
    )
    if any(number(env, name) is None for name in _PLACE):
        what = seen(env, *_PLACE, "TORCHELASTIC_RUN_ID")
        return settled(
            blank(
                started,
                f"{what}: torchrun gives its workers RANK, WORLD_SIZE and LOCAL_RANK, and not all are numbers"
                " here",
                SAY,
            )
        )
    if (
        started.rank
        and started.local_rank
        and started.local_world_size
        and started.rank.value % (started.local_world_size.value or 1) != started.local_rank.value
    ):
        started = replace(started, local_rank=None)  # --virtual-local-rank says 0 to all
    return settled(started)


LAUNCHER = Launcher(
    name="torchrun",
    variables=_VARIABLES,
    detect=_detect,
    read_line=torchrun_line.read_line,
    reference=(
        "torch 2.13: torch/distributed/run.py, section Environment Variables;"
        " torch/distributed/elastic/agent/server/local_elastic_agent.py, _start_workers"
    ),
)
