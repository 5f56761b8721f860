"""No launcher that we know: CKPT_RANK, the variables of a process that others set in the same way
(DeepSpeed's launcher), or an Ascend rank table's.

RANK alone may be a node or a process. RANK_ID alone is common in scripts as well, and counts only together
with RANK_SIZE.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import SAY, Launcher, Started, known, number, seen, settled

_VARIABLES = (
    "CKPT_RANK",
    "CKPT_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "CROSS_RANK",
    "CROSS_SIZE",
    "RANK_ID",
    "RANK_SIZE",
    "DEVICE_ID",
)


def _detect(env: Mapping[str, str]) -> Started | None:
    if number(env, "CKPT_RANK") is not None:
        return settled(
            Started("bare", known(env, "CKPT_RANK", "bare"), known(env, "CKPT_WORLD_SIZE", "bare"))
        )
    if "RANK" in env:
        return _torch(env)
    if "RANK_ID" in env or "RANK_SIZE" in env:
        return _rank_table(env)
    return None


def _torch(env: Mapping[str, str]) -> Started:
    started = Started(
        "bare", known(env, "RANK", "bare"), known(env, "WORLD_SIZE", "bare"), known(env, "LOCAL_RANK", "bare")
    )
    if not (started.rank and started.world_size and started.local_rank):
        what = seen(env, "RANK", "WORLD_SIZE", "LOCAL_RANK")
        return Started(
            "bare", unclear=f"{what}: without numbers in all three, RANK may be a node or a process", hint=SAY
        )
    return settled(
        replace(
            started,
            local_world_size=known(env, "LOCAL_WORLD_SIZE", "bare") or known(env, "LOCAL_SIZE", "bare"),
            node=known(env, "CROSS_RANK", "bare"),
            nodes=known(env, "CROSS_SIZE", "bare"),
        )
    )


def _rank_table(env: Mapping[str, str]) -> Started:
    started = Started(
        "bare", known(env, "RANK_ID", "bare"), known(env, "RANK_SIZE", "bare")
    )  # DEVICE_ID is a chip's number, no local rank
    if not (started.rank and started.world_size):
        return Started(
            "bare",
            unclear=(
                f"{seen(env, 'RANK_ID', 'RANK_SIZE', 'DEVICE_ID')}: RANK_ID and RANK_SIZE are not both"
                " numbers"
            ),
            hint=SAY,
        )
    return settled(started)


LAUNCHER = Launcher(
    name="bare",
    variables=_VARIABLES,
    detect=_detect,
    reference=(
        "deepspeed/launcher/launch.py; MindSpore's environment variables RANK_ID, RANK_SIZE and DEVICE_ID"
        " (mindspore.cn, env_var_list)"
    ),
)
