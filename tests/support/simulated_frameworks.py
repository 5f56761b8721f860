"""How each framework saves, prunes and restarts, as calls of its processes: names, order, temporary files and
renames are those of the frameworks (docs of each layout).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import small_files
from simulated_job import Job, Op, Save, Streams, remove, rename, rmtree, streams, write

from ckpt_tools.model.selection import Selection


class Framework:
    """``every`` steps a save; ``keep`` saves are kept. A restarted job calls ``restart``; ``faults`` are the
    ranks that failed last.
    """

    every, keep, world = 10, 4, 1

    def __init__(self, job: Job) -> None:
        self.job, self.rng = job, job.rng
        self.faults: frozenset[int] = frozenset()

    def restart(self) -> None:
        pass

    def save(self, step: int) -> Save:
        raise NotImplementedError

    def gasp(self, step: int) -> Save | None:
        return None

    def prune(self) -> Streams:
        """Remove the oldest directories, one process alone."""
        homes = list(dict.fromkeys(s.home for s in reversed(self.job.saves) if self.job.below(s.home)))
        return [[op for home in homes[self.keep :] for op in rmtree(self.job, home)]]

    def selection(self) -> Selection:
        return Selection()

    def lost(self) -> list[str]:
        """Files whose writers are not trusted."""
        return []

    def of_faults(self, pattern: str) -> list[str]:
        """Files in whose names a rank that failed is found."""
        found = ((p, re.search(pattern, p)) for p in self.job.content)
        return [p for p, m in found if m and int(m[1]) in self.faults]


class Megatron(Framework):
    """Two tensor parallel ranks, two data parallel ones, a distributed optimizer gathered on the first of
    these.
    """

    world = 4
    tracker = "latest_checkpointed_iteration.txt"

    def told(self, step: int) -> Streams:
        return [[write(self.tracker, str(step).encode())]]

    def save(self, step: int) -> Save:
        home, parts = f"iter_{step:07d}", list[tuple[int, Op]]()
        for tp in range(2):
            place, model = f"{home}/mp_rank_{tp:02d}", small_files.megatron(step, tp, 2, 1, 4)
            parts.append((tp, write(f"{place}/distrib_optim.pt", small_files.megatron_optimizer(step, tp))))
            parts.append((tp, write(f"{place}/model_optim_rng.pt", model)))
        return Save(step, [streams(parts), self.told(step)], [[op.path] for _, op in parts], home)


class Ascend(Megatron):
    """Every rank writes a file; when some fail, the others write theirs once more."""

    def name(self, step: int, rank: int) -> str:
        return f"iter_{step:07d}/mp_rank_{rank % 2:02d}/model_optim_rng_{rank}.pt"

    def by(self, step: int, writers: Sequence[int]) -> tuple[Streams, list[list[str]]]:
        """What these ranks write, and what is needed of it."""
        parts = [(r, write(self.name(step, r), small_files.megatron(step, r, 2, 1, 4))) for r in writers]
        needs = [[self.name(step, r) for r in (tp, tp + 2) if r in writers] for tp in range(2)]
        return streams(parts), needs

    def save(self, step: int) -> Save:
        written, needs = self.by(step, range(4))
        return Save(step, [written, self.told(step)], needs, f"iter_{step:07d}", everyone=True)

    def gasp(self, step: int) -> Save | None:
        self.faults = frozenset(self.rng.sample(range(4), self.rng.choice((1, 1, 2))))
        if step % self.every == 0:
            return None
        # one that failed may have written all the same
        writers = [r for r in range(4) if r not in self.faults or self.rng.random() < 0.5]
        written, needs = self.by(step, writers)
        return Save(step, [written], needs, f"iter_{step:07d}", gasp=True)

    def selection(self) -> Selection:
        return Selection(fault_ranks=self.faults, save_interval=self.every)

    def lost(self) -> list[str]:
        return self.of_faults(r"_rng_(\d+)\.pt$")


VERSIONS = (
    b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1,'
    b' "common_backend": "torch", "common_backend_version": 1}'
)


def dcp(job: Job, home: str, made: Mapping[str, bytes]) -> list[Streams]:
    """Each rank its own file, and then FileSystemWriter.finish: a temporary file, written through; an existing
    index is removed before the rename.
    """
    files = ((name, data) for name, data in made.items() if name != ".metadata")
    parts = ((i, write(f"{home}/{name}", data, synced=True)) for i, (name, data) in enumerate(files))
    index, temp = f"{home}/.metadata", f"{home}/.metadata.tmp"
    old = [remove(index)] if job.exists(index) else []
    return [streams(parts), [[write(temp, made[".metadata"], synced=True), *old, rename(temp, index)]]]


class MegatronCore(Megatron):
    world = 1

    def save(self, step: int) -> Save:
        home, files = f"iter_{step:07d}", small_files.dcp(step, 2, "iteration")
        common = write(f"{home}/common.pt", small_files.megatron_common(step, 2))
        last = write(f"{home}/metadata.json", VERSIONS)
        phases = [[[common]], *dcp(self.job, home, files), [[last]], self.told(step)]
        needs = [[f"{home}/{name}"] for name in (*files, "common.pt", "metadata.json")]
        return Save(step, phases, needs, home)


class Dcp(Framework):
    """torchtitan's ``step-N``; a restarted job may have another number of ranks."""

    files = 2

    def restart(self) -> None:
        self.files = self.rng.choice((1, 2, 3))

    def save(self, step: int) -> Save:
        home, made = f"checkpoint/step-{step}", small_files.dcp(step, self.files)
        return Save(step, dcp(self.job, home, made), [[f"{home}/{name}"] for name in made], home)


class DeepSpeed(Framework):
    """ZeRO-1 on two ranks; rank 0 writes ``latest`` when its own files are done."""

    world = 2

    def save(self, step: int) -> Save:
        home = f"global_step{step}"
        parts = [(0, write(f"{home}/mp_rank_00_model_states.pt", small_files.deepspeed_model(step, 2, 1, 0)))]
        for d in range(2):
            path = f"{home}/bf16_zero_pp_rank_{d}_mp_rank_00_optim_states.pt"
            parts.append((d, write(path, small_files.deepspeed_zero(step, 2, d))))
        needs = [[op.path] for _, op in parts]
        return Save(step, [streams([*parts, (0, write("latest", home.encode()))])], needs, home)


class Trainer(Framework):
    def save(self, step: int) -> Save:
        home, files = f"checkpoint-{step}", small_files.trainer(step)
        aside = ("config.json", "training_args.bin")
        phases = [[[write(f"{home}/{name}", data) for name, data in files.items()]]]
        needs = [[f"{home}/{n}"] for n in files if n not in aside]
        return Save(step, phases, needs, home, others=[f"{home}/{n}" for n in aside])


class Lightning(Framework):
    """ModelCheckpoint(save_last=True): a temporary file moved into place, or copied when /tmp is another file
    system; an existing name gets a version.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.copied = self.rng.random() < 0.5

    def put(self, path: str, data: bytes) -> list[Op]:
        if self.copied:
            return [write(path, data)]
        return [write(f"{path}.part", data), rename(f"{path}.part", path)]

    def save(self, step: int) -> Save:
        name, versions = f"epoch={step // 50}-step={step}", ("", *(f"-v{i}" for i in range(1, 99)))
        path = next(f"{name}{v}.ckpt" for v in versions if not self.job.exists(f"{name}{v}.ckpt"))
        data = small_files.lightning(step // 50, step)
        ops = [*self.put(path, data), *self.put("last.ckpt", data)]
        return Save(step, [[ops]], [[path, "last.ckpt"]], path)

    def prune(self) -> Streams:
        files = [s.home for s in reversed(self.job.saves) if s.home in self.job.content]
        return [[remove(p) for p in files[self.keep :]]]


class MindSpore(Framework):
    """ModelCheckpoint of three ranks, each with its own directory, count of restarts and list of files to
    keep.
    """

    world, crc = 3, True
    groups: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.prefix: dict[int, str] = {}
        self.restart()

    def restart(self) -> None:
        for r in range(self.world):
            names = (re.match(rf"rank_{r}/net((?:_\d+)?)-\d+_\d+\.ckpt$", p) for p in self.job.content)
            have = [int(m[1][1:] or 0) for m in names if m]
            self.prefix[r] = f"net_{max(have) + 1}" if have else "net"

    def selection(self) -> Selection:
        return Selection(world_size=self.world)

    def at(self, step: int) -> tuple[int, int]:
        return (step - 1) // 40 + 1, (step - 1) % 40 + 1

    def save(self, step: int) -> Save:
        epoch, inside = self.at(step)
        parts = list[tuple[int, Op]]()
        for r in range(self.world):
            path = f"rank_{r}/{self.prefix[r]}-{epoch}_{inside}.ckpt"
            temp = path.replace(".ckpt", ".tmp")
            data = small_files.mindspore(self.crc, r % len(self.groups), epoch_num=epoch, step_num=step)
            old = [remove(path)] if self.job.exists(path) else []
            ops = [*old, write(temp, data), rename(temp, path), Op("chmod", path)]
            by_save = sorted(self.job.content.items(), key=lambda row: row[1][0])
            begins = f"rank_{r}/{self.prefix[r]}-"
            mine = [p for p, _ in by_save if p.startswith(begins) and p.endswith(".ckpt")]
            ops += map(remove, mine[: max(0, len(mine) + 1 - self.keep)])
            parts += ((r, op) for op in ops)
        needs = [[f"rank_{r}/{self.prefix[r]}-{epoch}_{inside}.ckpt" for r in group] for group in self.groups]
        return Save(step, [streams(parts)], needs, f"{self.prefix}-{epoch}_{inside}")

    def prune(self) -> Streams:
        return []  # each rank's save does


class MindIO(MindSpore):
    """Four ranks in two groups of the same state; when some fail, one live member of each group saves."""

    world = 4
    groups = ((0, 2), (1, 3))

    def gasp(self, step: int) -> Save | None:
        self.faults = frozenset(self.rng.sample(range(4), self.rng.choice((1, 1, 2))))
        alive = [next((r for r in g if r not in self.faults), None) for g in self.groups]
        if any(r is None for r in alive) or self.job.exists(f"tft_saved_checkpoints-step_{step}"):
            return None
        (epoch, inside), home = self.at(step), f"tft_saved_checkpoints-step_{step}"
        names = {r: f"rank_{r}/ttp_rank_{r}-{epoch}_{inside}.ckpt" for r in alive if r is not None}
        told = {"epoch_num": epoch, "step_num": step, "batch_num": 40}
        parts = [
            (r, write(f"{home}_tmp/{name}", small_files.mindspore(False, r % 2, cur_rank=r, **told)))
            for r, name in names.items()
        ]
        phases = [streams(parts), [[rename(f"{home}_tmp", home)]]]
        return Save(step, phases, [[f"{home}/{name}"] for name in names.values()], home, gasp=True)

    def selection(self) -> Selection:
        return Selection(
            world_size=4, replica_groups={"": self.groups}, fault_ranks=self.faults, save_interval=self.every
        )

    def lost(self) -> list[str]:
        return self.of_faults(r"ttp_rank_(\d+)-")


class TensorFlow(Framework):
    """CheckpointManager: the data is moved into place before the index, ``checkpoint`` is replaced last;
    names count saves.
    """

    count = 0

    def save(self, step: int) -> Save:
        self.count = step // self.every  # restored with the rest: it never differs
        name, (data, index) = f"ckpt-{self.count}", small_files.bundle(self.count, step)
        temp, final = f"{name}_temp/part-00000-of-00001", f"{name}.data-00000-of-00001"
        homes = dict.fromkeys(s.home for s in reversed(self.job.saves))
        kept = [n for n in homes if n != name and f"{n}.index" in self.job.content]
        names = [*reversed(kept[: self.keep - 1]), name]
        listed = "".join(f'all_model_checkpoint_paths: "{n}"\n' for n in names)
        state = f'model_checkpoint_path: "{name}"\n{listed}'
        ops = [
            write(f"{temp}.data-00000-of-00001.tempstate123", data), rename(f"{temp}.data-00000-of-00001.tempstate123", f"{temp}.data-00000-of-00001"),
            write(f"{temp}.index.tempstate123", index), rename(f"{temp}.index.tempstate123", f"{temp}.index"),
            rename(f"{temp}.data-00000-of-00001", final), rename(f"{temp}.index", f"{name}.index"), Op("rmdir", f"{name}_temp"),
            *(remove(f"{n}.{end}") for n in kept[self.keep - 1 :] for end in ("index", "data-00000-of-00001")),
            write("checkpoint.tmp0123456789abcdef", state.encode()), rename("checkpoint.tmp0123456789abcdef", "checkpoint"),
        ]  # fmt: skip
        return Save(step, [[ops]], [[final], [f"{name}.index"]], name)

    def prune(self) -> Streams:
        return []


class Orbax(Framework):
    """CheckpointManager: a temporary directory renamed; leftovers are cleaned up at the start, and a step
    that exists is not saved again.

    ``merged`` are files of the process's own tree to which that of the checkpoint refers.
    """

    merged = ("default/ocdbt.process_0/d/0182cce30dae7951d6604f4a8cabfe54",)

    def restart(self) -> None:
        for home in {p.split("/")[0] for p in self.job.content if ".orbax-checkpoint-tmp" in p}:
            for op in rmtree(self.job, home):
                self.job.do(op, -1)

    def save(self, step: int) -> Save:
        while self.job.exists(f"{step}"):
            step += 1
        temp, files = f"{step}.orbax-checkpoint-tmp", self.files(step)
        ops = [write(f"{temp}/{name}", data) for name, data in files.items()]
        ends = ("_CHECKPOINT_METADATA", "commit_success.txt")
        own = {name for name in files if "ocdbt.process_0" in name and name not in self.merged}
        aside = [name for name in files if name.endswith(ends) or name in own]
        needs = [[f"{step}/{n}"] for n in files if n not in aside]
        others = [f"{step}/{n}" for n in aside]
        return Save(step, [[[*ops, rename(temp, str(step))]]], needs, str(step), others=others)

    def files(self, step: int) -> Mapping[str, bytes]:
        return small_files.orbax(step)


FRAMEWORKS: dict[str, type[Framework]] = {
    "megatron": Megatron, "ascend": Ascend, "megatron-core": MegatronCore, "dcp": Dcp, "deepspeed": DeepSpeed, "hf-trainer": Trainer, "lightning": Lightning,
    "mindspore": MindSpore, "mindio-ttp": MindIO, "tensorflow": TensorFlow, "orbax": Orbax,
}  # fmt: skip
