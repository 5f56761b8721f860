"""torchrun (torch elastic): RANK alone is ambiguous (a node or a process), so its run id and the local rank must be there too."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.launchers._base import Launcher, Started, number


def _detect(env: Mapping[str, str]) -> Started | None:
    rank, world = number(env, "RANK"), number(env, "WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" not in env or number(env, "LOCAL_RANK") is None or rank is None or not world or rank >= world:
        return None
    return Started("torchrun", rank, world)


LAUNCHER = Launcher(
    name="torchrun",
    variables=("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"),
    detect=_detect,
    reference="torch/distributed/run.py, section Environment Variables",
)
