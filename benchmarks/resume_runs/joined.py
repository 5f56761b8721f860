"""Two ranks on this machine: the same script once more for each of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORLD = 2


def _leave() -> None:
    """End this rank at once. Threads of gloo outlive destroy_process_group where a device mesh holds the group,
    and now and then abort an interpreter that takes itself apart ("terminate called without an active
    exception").
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def on_ranks(main: Callable[[Path], dict[str, Any]]) -> None:
    """Run ``main`` on all ranks; rank 0 prints what it says, and all must say the same."""
    out = Path(sys.argv[1])
    if "RANK" in os.environ:
        answer = json.dumps(main(out))
        (out / f"said-{os.environ['RANK']}").write_text(answer)
        _leave()
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_SIZE": str(WORLD),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], str(out)],
            env=os.environ | shared | {"RANK": str(r), "LOCAL_RANK": str(r)},
        )
        for r in range(WORLD)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit("a rank failed")
    said = {(out / f"said-{r}").read_text() for r in range(WORLD)}
    if len(said) > 1:
        sys.exit(f"the ranks say different things: {said}")
    print(*said)
