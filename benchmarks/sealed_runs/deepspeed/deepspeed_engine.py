"""DeepSpeed's save_checkpoint on two processes, ZeRO stage 2: the tag in ``latest`` is loaded, older ones go.

python deepspeed_engine.py OUT SEALED    # deepspeed, torch; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

WORLD = 2
os.environ |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": f"{sys.prefix}/extensions"}
os.environ["LOCAL_SIZE"] = str(WORLD)


def engine_of(width: int) -> Any:
    import deepspeed
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(width, width)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def rank(out: Path, sealed: bool) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist

    from ckpt_tools.guard import finish
    from ckpt_tools.guard.callbacks import saving

    deepspeed.init_distributed(dist_backend="gloo")
    engine = engine_of(8)
    for step in range(1, 5):
        engine.backward(engine(torch.ones(1, 8, dtype=torch.bfloat16)).square().mean())
        engine.step()
        tag = f"global_step{step}"
        ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        with saving(out / tag, **ranks) if sealed else nullcontext():
            engine.save_checkpoint(str(out), tag)
        if step > 2:
            finish()
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(out / f"global_step{step - 2}")
    finish()
    dist.barrier()
    again = engine_of(8)
    path, _ = again.load_checkpoint(str(out))
    total = float(sum(p.double().sum() for p in again.module.parameters()))
    return {
        "by": f"deepspeed {deepspeed.__version__}, ZeRO-2 on {WORLD} ranks",
        "kept": sorted(p.name for p in out.iterdir() if p.is_dir() and not p.name.startswith(".")),
        "newest": [Path(path).parent.name, (out / "latest").read_text()],
        "loaded": [again.global_steps, total],
    }


def main(out: Path, sealed: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    words = [sys.executable, __file__, str(out), sealed]
    ranks = [
        subprocess.Popen(words, env=os.environ | shared | {"RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(WORLD)
    ]
    codes = [r.wait() for r in ranks]
    if any(codes):
        sys.exit("a rank failed")


if __name__ == "__main__":
    if "RANK" not in os.environ:
        main(Path(sys.argv[1]), sys.argv[2])
    else:
        answer = rank(Path(sys.argv[1]), sys.argv[2] == "1")
        if os.environ["RANK"] == "0":
            print(json.dumps(answer))
