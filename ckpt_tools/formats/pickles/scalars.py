"""The scalars of an unpickled value that matter to a job: those of its top level, those of ``args``,
and the counters that frameworks keep deeper.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.common.tensors import MAX_TEXT
from ckpt_tools.formats.pickles.stubs import Call, Global
from ckpt_tools.formats.torch.names import text
from ckpt_tools.model.report import Scalar

_MANY = 5000  # entries of one level that are looked at
_DIGITS = 7  # of the number of a layer, below
_NUMPY = {
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "b1": "?",
}

_BEST, _CALLBACKS = "best_model_path", 16
"""What Lightning's ModelCheckpoint keeps of itself in each save."""
_PICKLED = "pickles"
"""Where Diffusion Policy keeps what its workspace counts, each a pickle of its own."""
_PICKLED_INT = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?(?:K(.)|M(..)|J(....))\.", re.DOTALL)
_COUNTING = (
    "meta",  # MMEngine, MMCV
    "train_state",
    "optimizer_history",  # fairseq
    "extra_state.train_iterator",
    "reporter",  # ESPnet
    "state.timestamp",  # Composer
    "state.timestamp.Timestamp",
    "counters",  # DreamerV3's agent
    "trainer",  # Ignite, MONAI: the engine
    "variable_state",  # robomimic
    "_snapshot",  # torchdata's loaders
    _PICKLED,
)
"""Where frameworks keep whole numbers that say how far training was, below the top level."""


def members(value: Any) -> dict[Any, Any]:
    """What ``value`` holds by name: a dict's items, an object's attributes."""
    if type(value) is Call:
        value = value.state if isinstance(value.state, dict) else value.entries
    return value if isinstance(value, dict) else {}


def scalar(value: Any) -> tuple[Scalar] | None:
    """The value in a tuple if it is a plain scalar or a numpy one, None otherwise. Strings are cut at 256
    characters.
    """
    if value is None or type(value) in (bool, float):
        return (value,)
    if type(value) is int:
        return (value,) if value.bit_length() <= 64 else None
    if type(value) is str:
        return (text(value),)
    if (
        type(value) is Call
        and type(value.func) is Global
        and value.func.name == "scalar"
        and value.func.module.startswith("numpy")
    ):
        return _numpy(value.args)
    return None


def _numpy(args: tuple[Any, ...]) -> tuple[Scalar] | None:
    """numpy._core.multiarray.scalar(dtype, bytes); the dtype is dtype("f8", …) with the state (3, "<", …)."""
    if len(args) != 2 or type(args[0]) is not Call or not args[0].args or type(args[1]) is not bytes:
        return None
    kind, state = args[0].args[0], args[0].state
    order = ">" if type(state) is tuple and len(state) > 1 and state[1] == ">" else "<"
    code = _NUMPY.get(kind) if type(kind) is str else None
    if code is None or struct.calcsize(order + code) != len(args[1]):
        return None
    out: Scalar = struct.unpack(order + code, args[1])[0]
    return (out,)


def _pickled_int(value: Any) -> tuple[Scalar] | None:
    """The whole number that bytes are the pickle of; None for any others."""
    found = _PICKLED_INT.fullmatch(value) if type(value) is bytes else None
    number = next((n for n in found.groups() if n is not None), b"") if found else b""
    return (int.from_bytes(number, "little", signed=len(number) > 2),) if number else None


def scalars(value: Any, anatomy: Anatomy) -> None:
    """Fill ``metadata`` and ``keys`` from the top level of ``value``; the attributes of ``args`` become
    ``args.<name>``, whole numbers of ``_COUNTING`` likewise, the numbers of a stage's layers
    ``param_shapes.layers``. ``lr`` is an optimizer's or a schedule's,
    ``initial_lr`` the one that an optimizer had before a schedule set its own.
    """
    top = members(value) or _in_common(value)
    for k, v in list(top.items())[:_MANY]:
        anatomy.keys.add(text(k))
        got = scalar(v)
        if got:
            anatomy.metadata[text(k)] = got[0]
    for k, v in list(members(top.get("args")).items())[:_MANY]:
        got = scalar(v)
        if got:
            anatomy.metadata[f"args.{text(k)}"] = got[0]
    for home in _COUNTING:
        for k, v in list(members(_below(top, home.split("."))).items())[:_MANY]:
            got = _pickled_int(v) if home == _PICKLED else scalar(v)
            if got and type(got[0]) is int:
                anatomy.metadata[f"{home}.{text(k)}"] = got[0]
    anatomy.metadata.update(_bests(top))
    if layers := sorted(_stage_layers(top)):
        anatomy.metadata["param_shapes.layers"] = ",".join(map(str, layers))
    for name, held in _rates(value, top).items():
        rate = scalar(held)
        if rate and type(rate[0]) is float:
            anatomy.metadata.setdefault(name, rate[0])


def _bests(top: dict[Any, Any]) -> Iterator[tuple[str, Scalar]]:
    """The best save of each callback; a long path is known by its end."""
    for i, held in enumerate(list(members(top.get("callbacks")).values())[:_CALLBACKS]):
        best = members(held).get(_BEST)
        if type(best) is str and best:
            yield f"{_BEST}:{i}" if i else _BEST, text(best[-MAX_TEXT:])


def _rates(value: Any, top: dict[Any, Any]) -> dict[str, Any]:
    """The learning rates of an optimizer's first group of parameters (torch/optim/optimizer.py), also where
    the groups are a file of their own (ColossalAI), or the one that a schedule has set last
    (torch/optim/lr_scheduler.py). Where that is 0, the highest of all groups.
    """
    groups, last = top.get("param_groups"), top.get("_last_lr")
    if type(value) is list and value and "params" in members(value[0]):
        groups = value
    if type(groups) is list and groups:
        held = [members(group) for group in groups[:_MANY]]
        return {"lr": _highest([g.get("lr") for g in held]), "initial_lr": held[0].get("initial_lr")}
    return {"lr": _highest(last[:_MANY])} if type(last) is list and last else {}


def _highest(rates: list[Any]) -> Any:
    """The first of the rates, unless it is 0 and others are not."""
    return rates[0] or max((rate for rate in rates if type(rate) is float), default=rates[0])


def _stage_layers(top: dict[Any, Any]) -> set[int]:
    """The numbers before the names of a pipeline stage's parameters, as DeepSpeed keeps their shapes: its
    PipelineEngine saves each layer in a file of its own, and None in place of the module
    (runtime/engine.py _save_checkpoint; runtime/pipe/module.py _build calls each layer by its number).
    """
    groups = top.get("param_shapes") if top.get("module", 0) is None else None
    found = set[int]()
    for group in groups[:_MANY] if type(groups) is list else ():
        for name in list(members(group))[:_MANY]:
            number, dot, _ = str(name).partition(".") if type(name) is str else ("", "", "")
            if dot and number.isascii() and number.isdecimal() and len(number) < _DIGITS:
                found.add(int(number))
    return found


def _in_common(value: Any) -> dict[Any, Any]:
    """What Megatron-core keeps of all ranks, without a file of its own: a list of one dict."""
    held = members(value[0]) if type(value) is list and len(value) == 1 else {}
    return held if "iteration" in held else {}


def _below(top: dict[Any, Any], path: Sequence[str]) -> Any:
    """What lies at a path of names; of a list on the way its last entry counts."""
    value: Any = top
    for name in path:
        value = members(value).get(name)
        if type(value) is list:
            value = value[-1] if value else None
    return value
