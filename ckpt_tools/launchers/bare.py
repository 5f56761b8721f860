"""No launcher that we know: CKPT_RANK, the variables of a process that others set in the same way
(DeepSpeed's launcher), or an Ascend rank table's.

RANK alone may be a node or a process. RANK_ID alone is common in scripts as well, and counts only together
with RANK_SIZE.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.launchers import launcher
from ckpt_tools.launchers.launcher import SAY, Launcher, Started, seen, settled
from ckpt_tools.model.plan import Known

_WORDS = (
    "CKPT_RANK CKPT_WORLD_SIZE RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE CROSS_RANK"
    " CROSS_SIZE RANK_ID RANK_SIZE DEVICE_ID"
)
_VARIABLES = tuple(_WORDS.split())


def _detect(env: Mapping[str, str]) -> Started | None:
    def known(name: str) -> Known | None:
        return launcher.known(env, name, "bare")

    if known("CKPT_RANK"):
        return settled(Started("bare", known("CKPT_RANK"), known("CKPT_WORLD_SIZE")))
    if "RANK" in env:
        rank, world, local_rank = known("RANK"), known("WORLD_SIZE"), known("LOCAL_RANK")
        if rank and world and local_rank:
            return settled(
                Started(
                    "bare",
                    rank,
                    world,
                    local_rank,
                    local_world_size=known("LOCAL_WORLD_SIZE") or known("LOCAL_SIZE"),
                    node=known("CROSS_RANK"),
                    nodes=known("CROSS_SIZE"),
                )
            )
        what = seen(env, "RANK", "WORLD_SIZE", "LOCAL_RANK")
        unclear = f"{what}: without numbers in all three, RANK may be a node or a process"
        return Started("bare", unclear=unclear, hint=SAY)
    if "RANK_ID" in env or "RANK_SIZE" in env:  # DEVICE_ID is a chip's number, no local rank
        rank, world = known("RANK_ID"), known("RANK_SIZE")
        if rank and world:
            return settled(Started("bare", rank, world))
        what = seen(env, "RANK_ID", "RANK_SIZE", "DEVICE_ID")
        return Started("bare", unclear=f"{what}: RANK_ID and RANK_SIZE are not both numbers", hint=SAY)
    return None


LAUNCHER = Launcher(
    name="bare",
    variables=_VARIABLES,
    detect=_detect,
    reference=(
        "deepspeed/launcher/launch.py; MindSpore's environment variables RANK_ID, RANK_SIZE and DEVICE_ID"
        " (mindspore.cn, env_var_list)"
    ),
)
