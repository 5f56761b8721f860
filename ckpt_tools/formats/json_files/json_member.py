"""JSON files that checkpoints consist of: trainer_state.json, config.json, tokenizer.json, metadata.json,
Orbax's _CHECKPOINT_METADATA and their like.

Facts: transformers 5.23 (trainer_callback.py, configuration_utils.py), peft 0.19, megatron-core 0.16
(dist_checkpointing/core.py), mindformers 1.7 (checkpoint/utils.py), orbax-checkpoint 0.12.8
(metadata/checkpoint.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, own_format
from ckpt_tools.formats.common.json_text import mapping, read_json, sequence
from ckpt_tools.formats.common.tensors import MAX_TEXT, remember
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import Source

_SCALARS = (
    "global_step",
    "epoch",
    "max_steps",
    "save_steps",
    "iteration",
    "step",
    "sharded_backend",
    "sharded_backend_version",
    "common_backend",
    "last_epoch",
    "last_step",
    "cur_step",  # XTuner's
    "current_step",  # kohya's train_state.json
    "current_epoch",
    "consumed_samples",  # lm-engine's metadata.json
    "num_training_steps",  # LLaMA-Factory's metadata.json
    "init_timestamp_nsecs",
    "commit_timestamp_nsecs",
)
_PATHS = ("best_model_checkpoint", "base_model_name_or_path")
"""Of transformers' Trainer, and of peft's adapters."""
_MAX_KEYS = 10_000
_MAX_STEPS = 32
"""Of a processor; most have five."""
_MAX_ITEMS = 64
"""Of a save; most have one to four."""


def _magic(head: bytes) -> bool:
    if b"\n\x93NUMPY" in head:  # the settings of an equinox model, before its arrays
        return False
    return head.lstrip(b" \t\r\n")[:1] in (b"{", b"[") and not head.startswith(b"\n")


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Well-formed as Python's json reads it, and the few scalars that tell progress. Reads the whole file."""
    found: list[Finding] = []
    text = read_json(source, found)
    yield from found
    top = mapping(text.value)
    if len(top) <= _MAX_KEYS:
        anatomy.keys |= top.keys()
    for name in _SCALARS:
        _remember(top, name, anatomy)
    for name in _PATHS:
        path = top.get(name)
        _remember({name: path[-MAX_TEXT:] if isinstance(path, str) else None}, name, anatomy)
    _remember_training(text.value, anatomy)
    _remember_arrays(sequence(text.value), anatomy)
    _remember_items(top, anatomy)
    last = mapping(top.get("metas")).get("last_train_step")  # nanotron's checkpoint_metadata.json
    _remember({"metas.last_train_step": last}, "metas.last_train_step", anatomy)
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


def _remember_training(value: object, anatomy: Anatomy) -> None:
    """What LeRobot's files tell of others: the steps of a processor with a state of their own, the learning
    rate of an optimizer, the one that it had before a schedule set it, and the one that the schedule has set.
    """
    for i, step in enumerate(sequence(mapping(value).get("steps"))[:_MAX_STEPS]):
        _remember({f"state_file.{i}": mapping(step).get("state_file")}, f"state_file.{i}", anatomy)
    for group in sequence(value)[:1]:
        for name in ("lr", "initial_lr"):
            _remember(mapping(group), name, anatomy)
    for rate in sequence(mapping(value).get("_last_lr"))[:1]:
        _remember({"lr": rate}, "lr", anatomy)


def _remember_arrays(rows: Sequence[object], anatomy: Anatomy) -> None:
    """What AXLearn's list of a save tells: its step, and how many arrays were saved with it, each a pair of
    its path and {"dtype", "shape"} (axlearn/common/checkpointer.py, TensorStoreStateStorage).
    """
    pairs = [row for row in map(sequence, rows) if len(row) == 2]
    if pairs and len(pairs) == len(rows) and pairs[0][0] == "step":
        _remember({"step": pairs[0][1]}, "step", anatomy)
        arrays = sum({"dtype", "shape"} <= mapping(value).keys() for _, value in pairs)
        remember(anatomy.metadata, "stored_arrays", arrays)


def _remember_items(top: Mapping[str, object], anatomy: Anatomy) -> None:
    """What was saved beside this file: the items of Orbax, each a directory, and of each kind of MindFormers'
    files the first.
    """
    handlers = mapping(top.get("item_handlers"))
    for name in list(handlers)[:_MAX_ITEMS]:
        _remember({f"item_handlers.{name}": handlers[name]}, f"item_handlers.{name}", anatomy)
    kinds = dict[str, str]()
    for rows in mapping(top.get("storage_data")).values():
        for file in (mapping(row).get("file_name") for row in sequence(rows)):
            if isinstance(file, str) and len(kinds) < _MAX_ITEMS:
                kinds.setdefault(file.rsplit("-", 2)[0], file)
    for kind, file in kinds.items():
        _remember({f"storage_data.{file}": kind}, f"storage_data.{file}", anatomy)


def _remember(top: Mapping[str, object], name: str, anatomy: Anatomy) -> None:
    """Keep a scalar that can be shown."""
    value = top.get(name)
    if isinstance(value, float) and not abs(value) < float("inf"):
        value = str(value)
    if not isinstance(value, int | float | str) or value in ("", 1 << 64):
        return
    if not isinstance(value, str) or value.isprintable():
        remember(anatomy.metadata, name, value)


FORMAT = own_format(
    name="json_member",
    magic=_magic,
    distinct=False,
    checks={Level.STRUCTURE: _structure},
    protects="nothing; the text must be well-formed",
    limits=(
        (
            "a change that leaves well-formed JSON is not seen: another digit, another letter in a text, a"
            " cut that takes only the last line end"
        ),
        "files of more than 64 MiB are not read",
    ),
    loader=None,
    reference=(
        "transformers 5.23: trainer_callback.py; megatron-core 0.16: dist_checkpointing/core.py;"
        " orbax-checkpoint 0.12.8: metadata/checkpoint.py"
    ),
)
