"""Trainers that save each object of a training in a file of its own, in a directory for each save:
SpeechBrain, elements (DreamerV3), LeRobot and torchtune.
"""

from __future__ import annotations

import re
from collections import defaultdict

from ckpt_tools.layouts.common.counters import as_int, count_optimizer_steps, find_foreign
from ckpt_tools.layouts.common.layout import Flaws, Found, Metadata, Rows, Saves, Steps
from ckpt_tools.layouts.common.lost_files import compare_names, list_paths, loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume


def _read_speechbrain(part: Part, metadata: Metadata) -> Steps:
    """Return the steps that the Brain counts of its optimizer, or the epochs that a counter counts."""
    epoch = as_int(metadata.get("value")) if part.role == "counter" else None
    return as_int(metadata.get("optimizer_step")) if part.role == "progress" else None, epoch, None


def _check_speechbrain(parts: Rows) -> Found:
    """Yield files that count other steps than the optimizer beside them, or are of another save."""
    taken = count_optimizer_steps([row for row in parts if row[0].role == "optimizer"])
    rows = [row for row in parts if row[0].home in taken]
    beside = "the optimizer beside it"
    yield from find_foreign(rows, {"brain": ("optimizer_step",)}, lambda p: taken[p.home], beside=beside)
    copied = dict(_find_copied_times(parts))
    yield from copied.items()
    yield from _find_other_epochs([row for row in parts if row[0].path not in copied])


def _find_other_epochs(parts: Rows) -> Found:
    """Yield counters of another epoch than CKPT.yaml beside them notes, if most saves of the run agree."""
    notes = {p.home: as_int(r.metadata.get("epoch")) for p, r in parts if p.piece == "meta"}
    counters = ((p, as_int(r.metadata.get("value"))) for p, r in parts if p.role == "counter")
    rows = [(p, n, noted) for p, n in counters if None not in (n, noted := notes.get(p.home))]
    odd = [row for row in rows if row[1] != row[2]]
    for p, n, noted in odd if 2 * len(odd) < len(rows) else ():
        text = f"it counts epoch {n}, CKPT.yaml beside it notes {noted}, and elsewhere in the run both agree"
        yield p.path, Flaw("epoch-mismatch", text)


def _find_copied_times(parts: Rows) -> Found:
    """Yield notes with the ``unixtime`` of another save of another step: recovery goes by it."""
    steps = {p.home: r.metadata.get("optimizer_step") for p, r in parts if p.role == "progress"}
    mtimes = defaultdict[str, list[int]](list)
    by_unixtime = defaultdict[float, list[Part]](list)
    for p, report in parts:
        if p.piece != "meta":
            mtimes[p.home].append(p.mtime_ns)
        elif isinstance(seconds := report.metadata.get("unixtime"), float):
            by_unixtime[seconds].append(p)
    for seconds, same in by_unixtime.items():
        distance = {p.path: abs(min(mtimes.get(p.home, [p.mtime_ns])) - int(seconds * 1e9)) for p in same}
        original, *others = sorted(same, key=lambda p: (distance[p.path], p.path))
        for p in others:
            if steps.get(p.home) != steps.get(original.home):
                text = "its unixtime is that of another save, as which SpeechBrain would find it"
                yield p.path, Flaw("step-mismatch", text)


def _find_lost_of_speechbrain(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that the saves ``beside`` it have; of a lone save, as a warning, a missing optimizer."""
    yield from compare_names(c, beside, lambda o: frozenset(p.name for p in o.parts))
    if not beside and not any("opt" in p.name.lower() for p in c.parts):  # recipes name their own
        text = "no file has the name of an optimizer's, and no other save tells whether there was one"
        yield loss(text, c.path, sure=False)


SPEECHBRAIN = declare(
    "objects",
    "speechbrain",
    steps=_read_speechbrain,
    check=_check_speechbrain,
    lost=_find_lost_of_speechbrain,
)
_ACTIONS = "counters.actions"


def _read_elements(part: Part, metadata: Metadata) -> Steps:
    """Return the step in the name, else the number that DreamerV3 saves as the steps of environments."""
    counted = as_int(metadata.get("value")) if part.piece == "step" else None
    return part.step if part.step is not None else counted, None, None


def _check_elements(parts: Rows) -> Found:
    """Yield steps other than the actions that the agent counts: each action is a step of an environment."""
    actions = {p.home: n for p, r in parts if (n := as_int(r.metadata.get(_ACTIONS))) is not None}
    counters = [row for row in parts if row[0].home in actions and row[0].piece == "step"]
    steps = {p.home: n for p, r in counters if (n := as_int(r.metadata.get("value"))) is not None}
    beside = "the agent beside it"
    yield from find_foreign(counters, {"step": ("value",)}, lambda p: actions[p.home], beside=beside)
    agents = [row for row in parts if row[0].home in steps and row[0].piece == "agent"]
    keys = {"agent": (_ACTIONS,)}
    yield from find_foreign(agents, keys, lambda p: steps[p.home], beside="the steps beside it")
    for p, _ in counters:
        if p.home not in steps:
            yield p.path, Flaw("bad-pickle", f"it holds no number, as {beside} does")


def _find_lost_of_elements(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield gaps in shards, and files that other saves have."""
    shards = defaultdict[str, set[int]](set)
    for p in c.parts:
        if p.piece == "shard":
            shards[p.name.rpartition("-")[0]].add(dict(p.coords)["shard"])
    for name, numbers in sorted(shards.items()):
        if gone := ranges.gaps(numbers, max(numbers) + 1):
            yield loss(f"there is no {name}-{gone[0][0]:04d}.pkl, although there are later ones", c.path)
    yield from compare_names(c, beside, lambda o: frozenset(p.name for p in o.parts))


ELEMENTS = declare(
    "objects",
    "elements",
    steps=_read_elements,
    check=_check_elements,
    lost=_find_lost_of_elements,
)
_OPTIMIZER = ("optimizer_state.safetensors", "optimizer_param_groups.json")
"""The two files of each optimizer; several optimizers have a directory each."""
_PROCESSOR_STATE = re.compile(r"(policy_(?:pre|post)processor)_step_\d+_.+\.safetensors")


def _check_lerobot(parts: Rows) -> Found:
    """Yield lost files that JSON beside them tells of: states of processors, a schedule."""
    paths = {p.path for p, _ in parts}
    for part, report in parts:
        stem = part.name.removesuffix(".json")
        for name in [str(v) for k, v in report.metadata.items() if k.startswith("state_file.")]:
            if f"{part.folder.directory}{name}" not in paths:
                text = f"there is no {name}, which it says holds the state of one of its steps"
                yield part.path, loss(text)
            elif not name.startswith(stem):
                text = f"it says that {name} holds the state of one of its steps, which is not one of {stem}"
                yield part.path, Flaw("wrong-role", text)
        # if the user asked about one file alone, ``parts`` has nothing beside it
        is_scheduled = part.role == "groups" and "initial_lr" in report.metadata and len(paths) > 1
        if is_scheduled and f"{part.home}/training_state/scheduler_state.json" not in paths:
            text = "there is no scheduler_state.json, although a schedule has set its learning rate"
            yield part.path, loss(text, sure=False)


def _find_lost_of_lerobot(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that other saves have, and the missing one of two files that are saved together."""
    names = list_paths(c)
    yield from compare_names(c, beside, list_paths)
    for name in sorted(() if beside else names):
        home, _, file = name.rpartition("/")
        processor, other = _PROCESSOR_STATE.fullmatch(file), ""
        if file in _OPTIMIZER:
            other = f"{home}/{_OPTIMIZER[1 - _OPTIMIZER.index(file)]}"
        elif processor:
            other = f"{home}/{processor[1]}.json"
        if other and other not in names:
            yield loss(f"there is no {other}, which is saved with {file}", c.path)


LEROBOT = declare("objects", "lerobot", check=_check_lerobot, lost=_find_lost_of_lerobot)
_RECIPE = "recipe"
_ADAPTER = "adapter_model.pt"
"""The file that training resumes from, beside the same adapter for other programs and the merged model."""


def _read_torchtune(part: Part, metadata: Metadata) -> Steps:
    """Return the epoch: the recipe counts the epochs that have run, directories count from 0."""
    done = as_int(metadata.get("epochs_run"))
    return None, done - 1 if part.piece == _RECIPE and done else part.epoch, None


def _find_other_recipes(c: Checkpoint, others: Saves) -> Flaws:
    """Yield a model if recipe_state.pt, the optimizer's state, is of another epoch: it would be loaded."""
    if all(p.piece == _RECIPE for p in c.parts):
        yield loss("recipe_state.pt holds no model", c.path)
        return
    for o in others:
        if o.run == c.run and o.epoch != c.epoch and all(p.piece == _RECIPE for p in o.parts):
            epoch = "an epoch that it does not tell" if o.epoch is None else f"epoch {o.epoch}"
            text = f"recipe_state.pt is of {epoch}: nothing holds the optimizer's state of epoch {c.epoch}"
            hint = "to start from this model with a new optimizer, move recipe_state/ away"
            yield loss(text, c.path, hint=hint)


def _resume_torchtune(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Return arguments that name the files: without them the adapter of the highest epoch is loaded."""
    home, _, epoch = checkpoint.path.rpartition("/")
    names = {p.name for p in checkpoint.parts}
    if _ADAPTER in names:
        files = f"checkpointer.adapter_checkpoint={epoch}/{_ADAPTER}"
    else:
        tensors = (name for name in sorted(names) if name.endswith((".safetensors", ".bin", ".pt")))
        models = [f"{epoch}/{name}" for name in tensors if not name.startswith(("adapter_", "recipe_"))]
        files = f"checkpointer.checkpoint_files=[{','.join(models)}]"
    return Resume(checkpoint.path, ("resume_from_checkpoint=True", f"output_dir={home}", files))


TORCHTUNE = declare(
    "objects", "torchtune", resume=_resume_torchtune, steps=_read_torchtune, lacks=_find_other_recipes
)
