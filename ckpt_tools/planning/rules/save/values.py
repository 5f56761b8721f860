"""``save/values``."""

from __future__ import annotations

from collections.abc import Collection

from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part, shown
from ckpt_tools.model.ranges import tensor_names
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_zero_file(path: str, severity: Severity) -> Finding:
    text = "all of its bytes are zero, and in the run's other checkpoints they are not"
    return finding_of(RULE, Hit(path, text, severity=severity, offset=0))


def describe_zeros(names: Collection[str], path: str, other: Part) -> Finding:
    text = f"nothing but zeros: {tensor_names(names)}, and in {shown(other)} there are numbers"
    return finding_of(RULE, Hit(path, text))


def describe_no_tensors(path: str, full: Part | None = None, *, elements: bool = False) -> Finding:
    """Return the finding that a model's file has no tensors, or none with ``elements``; ``full`` has some."""
    text = f"it holds no tensors{' with elements' if elements else ''}"
    text = f"{text}, and {shown(full)} does" if full else f"it is a file of a model, and {text}"
    return finding_of(RULE, Hit(path, text, code="missing-tensor"))


def describe_without_elements(path: str, names: Collection[str]) -> Finding:
    why = "ZeRO-3 leaves this of weights that it did not gather"
    text = f"tensors without elements: {tensor_names(names)} ({why})"
    return finding_of(RULE, Hit(path, text, code="missing-tensor"))


RULE = Rule(
    id="save/values",
    codes=(
        *("zero-filled", "missing-tensor", "extra-tensor", "newer-index", "zero-tail", "zero-pages"),
        *("skeleton", "nan-values", "inf-values", "absurd-values"),
    ),
    effect=Effect.REJECT,
    answer="restore the file, with index and shards of one save; look at the loss before it if they are NaN",
    why="""\
Weights are not in the file that should hold them, or they are zeros that were never written, or NaN,
infinite or absurdly large. The file is well formed and the model in it is dead: loaders leave a weight
that is not there as it was initialised.
For: huggingface/transformers#26729: a stale index beside whole weights; tloen/alpaca-lora#293: an
adapter without tensors; bghira/SimpleTuner#2714; sparse files after a crash of the file system.
""",
)
