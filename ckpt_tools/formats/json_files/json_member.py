"""JSON files of a checkpoint: trainer_state.json, config.json, tokenizer.json, metadata.json,
Orbax's _CHECKPOINT_METADATA and their like.

Facts: transformers 5.23 (trainer_callback.py, configuration_utils.py), peft 0.19, megatron-core 0.16
(dist_checkpointing/core.py), mindformers 1.7 (checkpoint/utils.py), orbax-checkpoint 0.12.8
(metadata/checkpoint.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, make_format
from ckpt_tools.formats.common.json_text import mapping, read_json, sequence
from ckpt_tools.formats.common.tensors import MAX_TEXT, remember
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_SCALARS = (  # top-level keys that are kept as metadata
    *("global_step", "epoch", "max_steps", "save_steps", "iteration", "step", "last_epoch", "last_step"),
    *("sharded_backend", "sharded_backend_version", "common_backend"),
    "cur_step",  # XTuner's
    *("current_step", "current_epoch"),  # kohya's train_state.json
    "consumed_samples",  # lm-engine's metadata.json
    "num_training_steps",  # LLaMA-Factory's metadata.json
    *("init_timestamp_nsecs", "commit_timestamp_nsecs"),
)
_PATHS = ("best_model_checkpoint", "base_model_name_or_path")
"""Keys whose value is a path: of transformers' Trainer, and of peft's adapters."""
_MAX_KEYS = 10_000
_MAX_STEPS = 32
"""Steps of a LeRobot processor, at most; most have five."""
_MAX_ITEMS = 64
"""Items of an Orbax save, at most; most have one to four."""


def _magic(head: bytes) -> bool:
    """Return whether a file begins like a JSON object or list, and is no equinox model."""
    if b"\n\x93NUMPY" in head:  # the settings of an equinox model, before its arrays
        return False
    return head.lstrip(b" \t\r\n")[:1] in (b"{", b"[") and not head.startswith(b"\n")


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the form as Python's json does; keep the few scalars that tell progress. Reads the whole file."""
    text = read_json(source)
    yield from text.odd
    top = mapping(text.value)
    if len(top) <= _MAX_KEYS:
        anatomy.keys |= top.keys()
    for name, value in _find_scalars(text.value, top):
        if isinstance(value, float) and not abs(value) < float("inf"):
            value = str(value)  # noqa: PLW2901
        if isinstance(value, int | float | str) and value not in ("", 1 << 64) and str(value).isprintable():
            remember(anatomy.metadata, name, value)
    if source.path.rpartition("/")[2] == "trainer_state.json" and "global_step" not in top:
        why = "there is no global_step: this is not what transformers writes as trainer_state.json"
        yield finding("bad-header", why, offset=0)
    if "init_timestamp_nsecs" in top and top.get("commit_timestamp_nsecs", 0) is None:
        at = max(0, text.data.rfind(b'"commit_timestamp_nsecs"'))
        why = "commit_timestamp_nsecs is null: Orbax sets it when the save is complete"
        yield finding("unfinished-save", why, offset=at)
    if "log_history" in top and "global_step" in top and not text.data.endswith(b"\n"):
        why = "the text does not end with the line end that transformers always writes"
        yield finding("odd-header", why, offset=source.size)
    what = "JSON text: only its form is checked, not what it says"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)


def _find_scalars(value: object, top: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield (name, value) of all that is kept of a file: scalars, paths, and names of other files."""
    yield from ((name, top.get(name)) for name in _SCALARS)
    for name in _PATHS:
        yield name, path[-MAX_TEXT:] if isinstance(path := top.get(name), str) else None
    # LeRobot: the state files of a processor's steps; an optimizer's learning rate, the one before any
    # schedule, and the last one that the schedule has set
    for i, step in enumerate(sequence(top.get("steps"))[:_MAX_STEPS]):
        yield f"state_file.{i}", mapping(step).get("state_file")
    rows = sequence(value)
    for group in map(mapping, rows[:1]):
        yield from ((name, group.get(name)) for name in ("lr", "initial_lr"))
    yield from (("lr", rate) for rate in sequence(top.get("_last_lr"))[:1])
    # AXLearn's list of a save: its step, and the number of arrays saved with it, each a pair of its path and
    # {"dtype", "shape"} (axlearn/common/checkpointer.py, TensorStoreStateStorage)
    pairs = [row for row in map(sequence, rows) if len(row) == 2]
    if pairs and len(pairs) == len(rows) and pairs[0][0] == "step":
        yield "step", pairs[0][1]
        yield "stored_arrays", sum({"dtype", "shape"} <= mapping(row[1]).keys() for row in pairs)
    yield from _find_items(top)


def _find_items(top: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield Orbax's items, the first file of each kind of MindFormers, and nanotron's step."""
    handlers = mapping(top.get("item_handlers"))
    yield from ((f"item_handlers.{name}", handlers[name]) for name in list(handlers)[:_MAX_ITEMS])
    kinds = dict[str, str]()
    for row in (row for rows in mapping(top.get("storage_data")).values() for row in sequence(rows)):
        file = mapping(row).get("file_name")
        if isinstance(file, str) and len(kinds) < _MAX_ITEMS:
            kinds.setdefault(file.rsplit("-", 2)[0], file)
    yield from ((f"storage_data.{file}", kind) for kind, file in kinds.items())
    yield "metas.last_train_step", mapping(top.get("metas")).get("last_train_step")


FORMAT = make_format("json_member", _magic, _structure, distinct=False, loader=None)
