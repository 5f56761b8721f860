"""No launcher that we know: CKPT_RANK, the variables of a process that others set in the same way
(DeepSpeed's launcher), or an Ascend rank table's.

RANK alone may be a node or a process. RANK_ID alone is common in scripts as well, and counts only together
with RANK_SIZE.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.launchers.launcher import PLACE, SAY, Launcher, Started, number, read, seen, settled

_WORDS = (
    "CKPT_RANK CKPT_WORLD_SIZE RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE CROSS_RANK"
    " CROSS_SIZE RANK_ID RANK_SIZE DEVICE_ID"
)
_VARIABLES = tuple(_WORDS.split())


def _detect(env: Mapping[str, str]) -> Started | None:
    if number(env, "CKPT_RANK") is not None:
        return settled(read(env, "bare", rank="CKPT_RANK", world_size="CKPT_WORLD_SIZE"))
    if "RANK" in env:
        started = read(
            env,
            "bare",
            **PLACE,
            local_world_size="LOCAL_WORLD_SIZE LOCAL_SIZE",
            node="CROSS_RANK",
            nodes="CROSS_SIZE",
        )
        if started.rank and started.world_size and started.local_rank:
            return settled(started)
        what = seen(env, *PLACE.values())
        unclear = f"{what}: without numbers in all three, RANK may be a node or a process"
        return Started("bare", unclear=unclear, hint=SAY)
    if "RANK_ID" in env or "RANK_SIZE" in env:  # DEVICE_ID is a chip's number, no local rank
        started = read(env, "bare", rank="RANK_ID", world_size="RANK_SIZE")
        if started.rank and started.world_size:
            return settled(started)
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
