"""Directories of tensors with an index: PyTorch's Distributed Checkpoint (``.metadata``, ``__R_K.distcp``),
sets of them, torchsnapshot and PaddlePaddle's distributed checkpoint.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import partial
from itertools import chain

from ckpt_tools.layouts.common.counters import as_int, check_steps, find_foreign, read_by_last_word
from ckpt_tools.layouts.common.layout import Flaws, Found, Metadata, Rows, Saves, Steps, Tracker, read_entry
from ckpt_tools.layouts.common.lost_files import check_optimizer, compare_names, loss
from ckpt_tools.layouts.common.saved_by import MOST_RANKS
from ckpt_tools.layouts.declared import declare
from ckpt_tools.layouts.files import name_saved, read_tracker
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import ranges, words

_WORDS = ("global_step", "step", "iteration", "current_step")
_CALLED_ALONE = {
    r"pytorch_model_fsdp(?:_[0-9]+)?": "it holds a model alone; such saves have an optimizer beside it",
    r"optimizer(?:_[0-9]+)?": "it has the name of an optimizer's state alone, of a model that lies elsewhere",
}
"""Names of the two directories of an Accelerate save with FSDP, and what to say of a lone one."""


def _drop_own_counters(metadata: Metadata) -> Metadata:
    """Return the entries that are not of schedulers and optimizers, which have counters of their own."""
    return {k: v for k, v in metadata.items() if "optim" not in k and "sched" not in k}


def read_step(metadata: Metadata) -> int | None:
    """Return the step that the job saved beside its tensors; None if it saved none."""
    return read_by_last_word(_drop_own_counters(metadata), _WORDS)


def _read_steps_of_dcp(part: Part, metadata: Metadata) -> Steps:
    """Return the step that the job saved, else that in the name; and the epoch in the name."""
    step = read_step(metadata)
    return (part.step if step is None else step), part.epoch, None


def check_common(parts: Rows) -> Found:
    """Yield Megatron-core's metadata.json whose ``common_backend`` tells of a common.pt that is missing."""
    with_common = {p.folder.directory for p, _ in parts if p.name == "common.pt"}
    for p, report in parts:
        backend = report.metadata.get("common_backend") if p.name == "metadata.json" else None
        if backend and p.folder.directory not in with_common:
            text = "common.pt, which it says was saved with it, is not there: it tells the iteration and more"
            yield p.path, loss(text)


def _check_steps_of_dcp(parts: Rows) -> Found:
    """Yield files whose step contradicts their name, other files or other saves, and common.pt if missing."""
    yield from check_common(parts)
    # where meta.pt tells a step, a part's step is that one, so the name is read again
    states = {p.piece: _WORDS for p, _ in parts if p.role == "state"}
    yield from find_foreign(parts, states, _read_number_in_name, growing=False)
    if all(p.step is None for p, _ in parts):
        yield from _find_odd_steps(parts)
        return
    names = {p.step for p, _ in parts}

    def is_certain(p: Part, in_file: int | None) -> bool:
        """Return False if the name may count from the start of its epoch, or from 0 and the file from 1."""
        if in_file is None or p.step is None or in_file in names:
            return True
        return abs(in_file - p.step) != 1 and not (p.epoch and in_file > p.step)

    certain = [(p, r) for p, r in parts if is_certain(p, read_step(r.metadata))]
    yield from check_steps(certain, read_step, "step")
    data = [f"{name}{mark}" for name in ("data", "prefixed") for mark in ("", "_epoch_step", "_any")]
    yield from find_foreign(parts, dict.fromkeys(data, ("optimizer_step",)))


def _find_odd_steps(parts: Rows) -> Found:
    """Yield files whose step is neither their checkpoint's by name nor, if no file has that, most files'."""
    homes = defaultdict[str, list[tuple[Part, int]]](list)
    for part, report in parts:
        if (step := read_step(report.metadata)) is not None:
            homes[part.home or part.path].append((part, step))
    for rows in homes.values():
        steps = [step for _, step in rows]
        usual = max(set(steps), key=lambda step: (step == rows[0][0].step, steps.count(step)))
        for part, step in rows:
            if step != usual:
                text = f"it is of step {step}, other files of its checkpoint are of step {usual}"
                yield part.path, Flaw("step-mismatch", text)


def _read_number_in_name(p: Part) -> int | None:
    """Return the last number in the name of a checkpoint's directory; None without one of up to 18 digits."""
    found = re.findall(r"\d+", p.home.rpartition("/")[2])
    return int(found[-1]) if found and len(found[-1]) <= 18 else None


def _find_model_alone(c: Checkpoint, others: Saves) -> Flaws:
    """Yield a save of the model alone (torchtitan's last_save_model_only) if the run has whole states."""
    full = [o for o in others if (o.layout, o.run, o.kind) == (c.layout, c.run, Kind.PERIODIC)]
    if c.kind is Kind.RELEASE and full:
        other = max(full, key=lambda o: o.order).path.rpartition("/")[2]
        text = f"{c.path.rpartition('/')[2]} holds no optimizer's state, which {other} beside it holds"
        yield loss(text, c.path, hint="a start from the model alone needs --kind")


def _find_lost_files(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that the run's other saves have; of a lone save what its directory's name promises."""
    yield from find_lost_beside(c, beside)
    if beside:
        return
    name = _find_directory(c).rpartition("/")[2]
    if re.search(r"\.(?:ckpt|pth|pt)$", name) and all(p.role != "state" for p in c.parts):
        text = f"{name} has no meta.pt, which Lightning and Fabric save last into directories called so"
        yield loss(text, c.path, sure=False)
    for pattern, text in _CALLED_ALONE.items():
        if re.fullmatch(pattern, c.path.rpartition("/")[2]):
            yield loss(text, c.path, sure=False)


def _find_directory(c: Checkpoint) -> str:
    """Return the directory with ``.metadata`` and the tensors: the checkpoint's own, or one below it."""
    return next((p.path.rpartition("/")[0] for p in c.parts if p.path.endswith("/.metadata")), c.path)


_NAMED_BESIDE = (
    *("state", "told", "plain", "single", "orchestrator", "safetensors", "adapter"),
    *("complete", "pipeline", "metadata_worker"),
)
"""How the names of pieces begin whose files lie beside the tensors, also in the layouts of ``dcp_set``."""


def find_lost_beside(c: Checkpoint, others: Saves) -> Flaws:
    """Yield files beside the tensors that all other saves of the same ranks have: nothing lists them."""

    def list_names(o: Checkpoint) -> frozenset[str]:
        paths = [p.path for p in o.parts if p.piece.startswith(_NAMED_BESIDE)]
        return frozenset(path.removeprefix(f"{o.path}/") for path in paths)

    def list_ranks(o: Checkpoint) -> set[int | None]:
        return {p.rank for p in o.parts if p.path.endswith(".distcp")}

    ranks = list_ranks(c)
    return compare_names(c, [o for o in others if list_ranks(o) == ranks], list_names)


DCP = declare(
    "dcp",
    "dcp",
    lacks=_find_model_alone,
    lost=_find_lost_files,
    resume=lambda c, _path: Resume(_find_directory(c)),  # torch.distributed.checkpoint.load(checkpoint_id=…)
    steps=_read_steps_of_dcp,
    check=_check_steps_of_dcp,
)

_SNAPSHOT_WORDS = ("global_step", "step", "iteration", "current_step", "num_steps_completed")


def _read_steps_of_snapshot(part: Part, metadata: Metadata) -> Steps:
    """Return the step and epoch in the name, else as the script saved them, but not as optimizers count."""
    entries = _drop_own_counters(metadata)
    step = read_by_last_word(entries, _SNAPSHOT_WORDS) if part.step is None else part.step
    if step is None and part.epoch is None:
        return None, read_by_last_word(entries, ("epoch",)), None
    return step, part.epoch, None


def _check_snapshots(parts: Rows) -> Found:
    """Yield indexes of torchsnapshot whose ``progress`` is that of another save of the run."""
    keys = [f"progress.{word}" for word in _SNAPSHOT_WORDS]
    return find_foreign(parts, {p.piece: keys for p, _ in parts if p.role == "metadata"}, growing=False)


TORCHSNAPSHOT = declare("dcp", "torchsnapshot", steps=_read_steps_of_snapshot, check=_check_snapshots)


def _resume_paddle(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Return arguments of ``paddle.distributed.load_state_dict``, which else loads the path's highest id."""
    directory = checkpoint.parts[0].path.rpartition("/")[0]
    return Resume(directory, (f"path={directory}", f"unique_id={checkpoint.generation}"))


PADDLE_DIST = declare("dcp", "paddle-dist", resume=_resume_paddle)


_TRACKED = "latest_checkpointed_iteration"


def _check_set(parts: Rows) -> Found:
    """Yield files of another step than their directory's name, and LLaMA-Factory's unfinished saves."""
    indexes = [row for row in parts if row[0].role.endswith("_index")]
    yield from check_steps(indexes, read_step, "step")
    counters = [row for row in parts if row[0].piece.startswith(("told", "single_counts"))]
    for key in ("global_step", "cur_step"):
        yield from check_steps(counters, key)
    # NeMo AutoModel names its saves after this step
    yield from check_steps([row for row in parts if row[0].name == "step_scheduler.pt"], "step")
    yield from find_foreign(parts, {p.piece: ("optimizer_step",) for p, _ in parts if p.role != "state"})
    finished = {part.home for part, _ in parts if part.role == "complete"}
    for part, report in counters:
        # LLaMA-Factory writes such a metadata.json first, and resumes only from a save with its last file
        if "num_training_steps" in report.metadata and part.home not in finished:
            yield part.path, loss("there is no CHECKPOINT_COMPLETE, which is written last")


def _read_iteration(data: bytes) -> int | None:
    """Return the iteration in lm-engine's tracker file; None if it has none."""
    return as_int(read_entry(data, _TRACKED))


def _find_lost_of_set(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that the run's other saves have, and a lone save without an optimizer."""
    yield from find_lost_beside(c, beside)
    yield from check_optimizer(c, beside, ("model_index", "weights_index", "safetensors"))


def _read_last_number(name: str) -> int | None:
    """Return the number at the end of a name; None if it has none of up to 18 digits."""
    found = re.search(r"(?<![0-9])[0-9]{1,18}$", name)
    return int(found[0]) if found else None


def _read_latest_of_automodel(data: bytes, _base: str) -> int | None:
    """Return the last number in ``LATEST.txt``, which NeMo AutoModel writes where it cannot make a link."""
    return _read_last_number(data[:255].decode(errors="replace").strip())


def _read_xtuner(data: bytes, base: str) -> int | None:
    """Return the higher step of a run's last regular save and its last snapshot, from XTuner's tracker."""
    run = base.rpartition("/")[0].rpartition("/")[2]
    try:
        runs = [exp for exp in json.loads(data)["exps"] if not base or exp["exp_dir"].endswith(f"/{run}")]
        last = [exp[key][-1:] for exp in runs for key in ("checkpoint_list", "snap_checkpoint_list")]
        return max((n for path in chain(*last) if (n := _read_last_number(path)) is not None), default=None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


DCP_SET = declare(
    "dcp_set",
    "dcp-set",
    check=_check_set,
    lost=_find_lost_of_set,
    tracker=Tracker(
        file=f"{_TRACKED}.json",
        read=_read_iteration,
        write=lambda said: json.dumps({_TRACKED: said}).encode(),
        others=(("LATEST.txt", _read_latest_of_automodel), ("../../.xtuner", _read_xtuner)),
        always=False,
    ),
)
COSMOS = declare(
    "dcp_set",
    "cosmos",
    check=partial(check_steps, read=read_step, what="iteration", role="trainer_index"),
    tracker=Tracker(file="latest_checkpoint.txt", read=read_tracker, name=name_saved, always=False),
)


def _check_ranks(parts: Rows) -> Found:
    """Yield ranks without a file (of random numbers), where another rank's ``world_size`` counts them."""
    rows = [(part, report) for part, report in parts if part.role == "trainer"]
    saved = defaultdict[str, set[int]](set)
    for part, _ in rows:
        saved[part.home].add(part.rank or 0)
    for part, report in rows:
        size = as_int(report.metadata.get("world_size")) or 0
        ranks = saved.pop(part.home, None) if 0 < size <= MOST_RANKS else None
        if ranks is not None and (gone := sorted(set(range(size)) - ranks)):
            text = f"its world_size is {size}, but there is no file of rank {words(ranges(gone))}"
            yield part.path, Flaw("missing-rank", text, severity=Severity.WARNING)


def _find_lost_rank_0(c: Checkpoint, _beside: Saves) -> Flaws:
    """Yield a loss without the file of rank 0: OLMo-core takes the directory for no checkpoint then."""
    if not any(p.role == "trainer" and p.rank == 0 for p in c.parts):
        text = "there is no train/rank0.pt, without which OLMo-core does not take it for a checkpoint"
        yield loss(text, c.path)


OLMO_CORE = declare("dcp_set", "olmo-core", check=_check_ranks, lost=_find_lost_rank_0)
