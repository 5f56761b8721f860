"""Orbax' CheckpointManager with max_to_keep: latest_step and restore, by the manager that saved and a new one.

python orbax_manager.py OUT SEALED    # jax, orbax-checkpoint; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

import ckpt_tools


def state(step: int) -> dict[str, Any]:
    return {"w": jax.numpy.full((8, 4), step / 7), "step": step}


def save(manager: Any, out: Path, sealed: bool, step: int) -> None:
    manager.save(step, args=ocp.args.StandardSave(state(step)))
    manager.wait_until_finished()
    if sealed:
        ckpt_tools.seal(f"{out}/{step}", background=True)


def main(out: Path, sealed: bool) -> dict[str, Any]:
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    found: list[Any] = []
    for steps in ((1, 2, 3), (4, 5)):
        with ocp.CheckpointManager(out, options=options) as manager:
            found.append(manager.latest_step())
            for step in steps:
                save(manager, out, sealed, step)
    with ocp.CheckpointManager(out, options=options) as manager:
        newest, kept = manager.latest_step(), [str(step) for step in manager.all_steps()]
        loaded = manager.restore(newest, args=ocp.args.StandardRestore(state(0)))
    ckpt_tools.seal(out, background=True).wait() if sealed else None
    return {
        "by": f"orbax-checkpoint {ocp.__version__}",
        "kept": sorted(kept),
        "newest": [*found, newest],
        "loaded": [float(loaded["w"].sum()), int(loaded["step"])],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
