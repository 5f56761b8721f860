"""``save/index-member``."""

from __future__ import annotations

from collections.abc import Collection

from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part, shown
from ckpt_tools.model.ranges import tensor_names
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_hollow(path: str, full: Part, *, tensors: bool) -> Finding:
    """Return that a file has no ``tensors``, or none with elements, and that the ``full`` one has."""
    text = f"it holds no tensors{' with elements' if tensors else ''}, and {shown(full)} does"
    return finding_of(RULE, Hit(path, text))


def describe_no_tensors(path: str) -> Finding:
    """Return that a file of a model has no tensors."""
    return finding_of(RULE, Hit(path, "it is a file of a model, and it holds no tensors"))


def describe_without_elements(path: str, names: Collection[str]) -> Finding:
    """Return which tensors have no elements although they should."""
    why = "ZeRO-3 leaves this of weights that it did not gather"
    return finding_of(RULE, Hit(path, f"tensors without elements: {tensor_names(names)} ({why})"))


RULE = Rule(
    id="save/index-member",
    code="missing-tensor",
    more=("extra-tensor", "newer-index"),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="restore index and shards of one save",
    why="""\
An index and the files that it describes do not agree: a tensor that should be in a file is not in
it, or the index is of another save. Loaders leave such weights as they were initialised.
For: huggingface/transformers#26729: a stale index beside whole weights; tloen/alpaca-lora#293: an
adapter without tensors.
""",
)
