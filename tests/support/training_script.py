"""A training job as users write them: model parallel, one file per rank under Megatron-LM's names, resumed by
--load and --ckpt-step.

Every rank trains a shard of its own and the loss couples them, so a rank that starts from another step
changes everybody's weights.
Faults are asked for by variables: FAULT="generation:step:what" with what one of kill-in-save,
corrupt-and-kill; they strike rank FAULT_RANK.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from slurm_keeper import free_ports

SAVE_EVERY = 2
PLACE = (
    ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
)
"""Rank, world size and generation, as torchrun, mpirun and srun say them."""


def shard(base: Path, step: int, rank: int) -> Path:
    return base / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"


def strike(what: str, path: Path, data: bytes, base: Path, step: int, rank: int) -> None:
    if what == "corrupt-and-kill":  # the newest finished save has rotted meanwhile
        before = shard(base, step - SAVE_EVERY, rank)
        weight = torch.load(before, weights_only=True)["model"]["weight"]
        old = bytearray(before.read_bytes())
        # torch.load accepts that in silence
        old[old.find(bytes(weight.flatten().view(torch.uint8).tolist())) + 5] ^= 4
        before.write_bytes(old)
    with path.open("wb") as f:  # a save in place, as torch.save does it, that ends half way
        f.write(data[: len(data) // 2])
        f.flush()
        os.fsync(f.fileno())
        os.kill(os.getpid(), signal.SIGKILL)


def save(base: Path, step: int, rank: int, state: dict[str, object], fault: list[str]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path = shard(base, step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    if fault and int(fault[1]) == step and rank == int(os.environ["FAULT_RANK"]):
        strike(fault[2], path, buffer.getvalue(), base, step, rank)
    path.write_bytes(buffer.getvalue())
    dist.barrier()
    if rank == 0:
        (base / "latest_checkpointed_iteration.txt").write_text(str(step))
    dist.barrier()


class Shard:
    """What one rank trains. The optimizer is written out: torch's own would first load the compiler, for as
    long as all the rest takes.
    """

    def __init__(self, rank: int, world: int) -> None:
        torch.manual_seed(1234 + rank)
        self.rank, self.world, self.layer = rank, world, torch.nn.Linear(8, 4)
        self.momenta = [torch.zeros_like(p) for p in self.layer.parameters()]

    def forward(self, step: int) -> torch.Tensor:
        """The loss of this rank, which ``update`` multiplies by everybody's: in a precision in which their
        order does not matter.
        """
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * self.world + self.rank))
        self.loss = self.layer(inputs).square().mean()
        return self.loss.detach().double()

    def update(self, total: torch.Tensor) -> None:
        parameters = list(self.layer.parameters())
        for p, momentum, gradient in zip(
            parameters, self.momenta, torch.autograd.grad(self.loss * total.float(), parameters), strict=True
        ):
            momentum.mul_(0.9).add_(gradient)
            p.data.sub_(momentum, alpha=0.05)

    def state(self, step: int) -> dict[str, object]:
        return {"iteration": step, "model": self.layer.state_dict(), "optimizer": {"momenta": self.momenta}}

    def load(self, state: dict[str, Any]) -> None:
        self.layer.load_state_dict(state["model"])
        self.momenta = state["optimizer"]["momenta"]

    @property
    def weights(self) -> list[object]:
        return [p.detach().flatten().tolist() for p in self.layer.parameters()]


def uninterrupted(world: int, steps: int) -> list[list[object]]:
    """By rank, the weights in which a training that nothing interrupts ends: all ranks in this process."""
    with torch.random.fork_rng():
        shards = [Shard(rank, world) for rank in range(world)]
        for step in range(1, steps + 1):
            total = torch.stack([shard.forward(step) for shard in shards]).sum()
            for shard in shards:
                shard.update(total)
    return [shard.weights for shard in shards]


class Training:
    """A job of this script below ``tmp``, and what it left."""

    steps = 8

    def __init__(self, tmp: Path) -> None:
        self.root, self.notes = tmp / "ckpt", tmp / "log"
        self.root.mkdir()
        self.notes.mkdir()
        where = ("--save", self.root, "--steps", self.steps, "--notes", self.notes)
        self.words = [__file__, *map(str, where)]

    @staticmethod
    def env(fault: str = "", rank: int = 1) -> dict[str, str]:
        """The variables of ranks that meet without torchrun."""
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
        return {**where, "FAULT": fault, "FAULT_RANK": str(rank)}

    def starts(self, rank: int) -> list[dict[str, Any]]:
        """What each start of a rank wrote."""
        return [json.loads(line) for line in (self.notes / f"rank-{rank}.jsonl").read_text().splitlines()]

    def weights(self, ranks: int) -> list[object]:
        return [json.loads((self.notes / f"final-{rank}.json").read_text()) for rank in range(ranks)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--ckpt-step", type=int)
    args = parser.parse_args()
    rank, world, generation = (
        next((int(os.environ[k]) for k in names if k in os.environ), 0) for names in PLACE
    )
    # torchrun's store outlives its workers (torch 2.13), and gloo would look for those of the generation
    # before. Others keep none for them.
    keeps = "TORCHELASTIC_RUN_ID" not in os.environ and rank == 0
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=keeps)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"generation-{generation}", store), rank=rank, world_size=world
    )
    wanted = os.environ.get("FAULT", "").split(":")
    fault = wanted if len(wanted) == 3 and int(wanted[0]) == generation else []

    mine, first = Shard(rank, world), 0
    if args.load is not None:
        state = torch.load(shard(args.load, args.ckpt_step, rank), weights_only=True)
        mine.load(state)
        first = state["iteration"]
    with (args.notes / f"rank-{rank}.jsonl").open("a") as f:
        ours = {k: v for k, v in os.environ.items() if k.startswith("CKPT_")}
        f.write(json.dumps({"generation": generation, "resumed": first, **ours}) + "\n")
    for step in range(first + 1, args.steps + 1):
        dist.all_reduce(total := mine.forward(step))
        mine.update(total)
        if step % SAVE_EVERY == 0:
            save(args.save, step, rank, mine.state(step), fault)
    (args.notes / f"final-{rank}.json").write_text(json.dumps(mine.weights))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
