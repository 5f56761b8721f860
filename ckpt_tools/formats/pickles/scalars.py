"""The scalars of an unpickled value that matter to a job, at its top level, in ``args`` and in the counters
that frameworks keep deeper.

Also its NumPy arrays: their names, types and shapes, and whether each has the bytes that it needs.

Facts: numpy/_core/src/multiarray/methods.c (array_reduce: version, shape, dtype, order, data), descriptor.c
(arraydescr_reduce) of numpy 2.4.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.common.tensors import MAX_TEXT, STRUCT_CODES
from ckpt_tools.formats.numpy.header import HUGE, NUMBERS
from ckpt_tools.formats.pickles.reader import DTYPE, WRAPPER, is_shape
from ckpt_tools.formats.pickles.stubs import Call, Global, Long, Pickled, StateBytes
from ckpt_tools.formats.torch.tensors import list_tensors, text
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Scalar, Tensor

_MANY = 5000  # entries of one level that are looked at
_DIGITS = 7  # a layer's number has fewer
_BEST, _CALLBACKS = "best_model_path", 16
"""The entry in which Lightning's ModelCheckpoint keeps its best save; the most callbacks looked at."""
_PICKLED = "pickles"
"""The entry in which Diffusion Policy keeps the counters of its workspace, each as a pickle of its own."""
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
)
"""Paths below the top level where frameworks keep whole numbers that say how far training was."""


def find_members(value: Any) -> dict[Any, Any]:
    """Return the items of a dict or the attributes of an object by name; empty for any other value."""
    if type(value) is Call:
        value = value.state if isinstance(value.state, dict) else value.entries
    return value if isinstance(value, dict) else {}


def read_scalar(value: Any) -> tuple[Scalar] | None:
    """Return ``(value,)`` for a plain or NumPy scalar, else None; a text is cut to 256 characters."""
    if value is None or type(value) in (bool, float):
        return (value,)
    if type(value) is int:
        return (value,) if value.bit_length() <= 64 else None
    if type(value) is str:
        return (text(value),)
    if type(value) is Call and type(value.func) is Global and value.func.name == "scalar":
        return _read_numpy(value.args) if value.func.module.startswith("numpy") else None
    return None


def _read_numpy(args: tuple[Any, ...]) -> tuple[Scalar] | None:
    """Return the number of ``scalar(dtype("f8", …), bytes)``, None if it is damaged."""
    if len(args) != 2 or type(args[0]) is not Call or not args[0].args or type(args[1]) is not bytes:
        return None
    kind, state = args[0].args[0], args[0].state
    order = ">" if type(state) is tuple and len(state) > 1 and state[1] == ">" else "<"
    code = STRUCT_CODES.get(NUMBERS.get(kind, "")) if type(kind) is str else None
    if code is None or struct.calcsize(order + code) != len(args[1]):
        return None
    out: Scalar = struct.unpack(order + code, args[1])[0]
    return (out,)


def add_scalars(value: Any, anatomy: Anatomy) -> None:
    """Add the names at the top level of ``value`` to ``keys``, its scalars to ``metadata``; also attributes
    of ``args`` as ``args.<name>``, whole numbers below ``_COUNTING`` likewise, a pipeline stage's layers as
    ``param_shapes.layers``, the learning rate as ``lr``, and as ``initial_lr`` that before a schedule's.
    """
    top = find_members(value)
    if not top and type(value) is list and len(value) == 1 and "iteration" in find_members(value[0]):
        top = find_members(value[0])  # Megatron-core's state common to all ranks, without a file of its own
    anatomy.keys.update(map(text, list(top)[:_MANY]))
    _add_scalars(top, "", anatomy)
    _add_scalars(find_members(top.get("args")), "args.", anatomy)
    for path in _COUNTING:
        names = path.split(".")
        if names[0] in top:
            _add_scalars(find_members(_find_value_at(top, names)), f"{path}.", anatomy, whole=True)
    _add_pickled(find_members(_find_value_at(top, (_PICKLED,))), anatomy)
    # each callback may know the path of the best save; of a long path its end is kept
    callbacks = find_members(top.get("callbacks"))
    for i, callback in enumerate(list(callbacks.values())[:_CALLBACKS]):
        best = find_members(callback).get(_BEST)
        if type(best) is str and best:
            anatomy.metadata[f"{_BEST}:{i}" if i else _BEST] = text(best[-MAX_TEXT:])
    if layers := sorted(_find_stage_layers(top)):
        anatomy.metadata["param_shapes.layers"] = ",".join(map(str, layers))
    for name, held in _find_learning_rates(value, top).items():
        rate = read_scalar(held)
        if rate and type(rate[0]) is float:
            anatomy.metadata.setdefault(name, rate[0])


def _add_scalars(entries: dict[Any, Any], prefix: str, anatomy: Anatomy, *, whole: bool = False) -> None:
    """Add the scalars among ``entries`` to ``metadata``; if ``whole``, only whole numbers."""
    for k, v in list(entries.items())[:_MANY]:
        found = read_scalar(v)
        if found and (not whole or type(found[0]) is int):
            anatomy.metadata[prefix + text(k)] = found[0]


def _add_pickled(entries: dict[Any, Any], anatomy: Anatomy) -> None:
    """Add to ``metadata`` the whole numbers among ``entries`` that are each a pickle of its own."""
    for k, v in list(entries.items())[:_MANY]:
        found = _PICKLED_INT.fullmatch(v) if type(v) is bytes else None
        if found and (number := next((n for n in found.groups() if n is not None), b"")):
            signed = len(number) > 2  # BININT; BININT1 and BININT2 have no sign
            anatomy.metadata[f"{_PICKLED}.{text(k)}"] = int.from_bytes(number, "little", signed=signed)


def _find_learning_rates(value: Any, top: dict[Any, Any]) -> dict[str, Any]:
    """Return ``lr`` and ``initial_lr`` of an optimizer's first group (torch/optim/optimizer.py; ColossalAI:
    in a file alone), or a schedule's ``lr`` (torch/optim/lr_scheduler.py); {} if ``value`` is neither. Where
    ``lr`` is 0, it is the highest of all groups.
    """
    groups, last = top.get("param_groups"), top.get("_last_lr")
    if type(value) is list and value and "params" in find_members(value[0]):
        groups = value
    if type(groups) is list and groups:
        groups = [find_members(group) for group in groups[:_MANY]]
        rates, more = [g.get("lr") for g in groups], {"initial_lr": groups[0].get("initial_lr")}
    elif type(last) is list and last:
        rates, more = last[:_MANY], {}
    else:
        return {}
    return {"lr": rates[0] or max((r for r in rates if type(r) is float), default=rates[0]), **more}


def _find_stage_layers(top: dict[Any, Any]) -> set[int]:
    """Return the numbers of the layers of a pipeline stage, which begin the names in ``param_shapes``:
    DeepSpeed's PipelineEngine saves each layer in a file of its own, and None in place of the module
    (runtime/engine.py _save_checkpoint; runtime/pipe/module.py _build calls each layer by its number).
    """
    groups = top.get("param_shapes") if top.get("module", 0) is None else None
    found = set[int]()
    for group in groups[:_MANY] if type(groups) is list else ():
        for name in list(find_members(group))[:_MANY]:
            number, dot, _ = str(name).partition(".") if type(name) is str else ("", "", "")
            if dot and number.isascii() and number.isdecimal() and len(number) < _DIGITS:
                found.add(int(number))
    return found


def _find_value_at(top: dict[Any, Any], path: Sequence[str]) -> Any:
    """Return the value at a path of names, None if there is none; a list on it stands for its last item."""
    value: Any = top
    for name in path:
        value = find_members(value).get(name)
        if type(value) is list:
            value = value[-1] if value else None
    return value


_MAKERS = {Global(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


def add_arrays(pickled: Pickled, anatomy: Anatomy) -> Iterator[Finding]:
    """Add the arrays in the pickle's value to ``anatomy``, by dotted name; yield findings for bad ones."""
    elements = {id(f.call): f for f in pickled.state_bytes}
    made: dict[int, Tensor] = {}
    for call in pickled.calls:
        if call.func not in _MAKERS and call.func != WRAPPER:
            continue
        array = _read_array(call, elements.get(id(call)))
        if isinstance(array, Finding):
            yield array
        elif array is not None:
            made[id(call)] = array
    if made:
        yield from list_tensors(pickled.value, made, anatomy, "")


def _read_array(call: Call, elements: StateBytes | None) -> Tensor | Finding | None:
    """Return the array of a call and its state, a Finding if damaged, None if its items are no numbers."""
    state = _find_state(call, elements)
    if len(state) != 4:
        return finding("bad-pickle", "an array has no state as numpy writes it", offset=call.offset)
    shape, dtype, _, data = state
    code = _find_type_code(dtype)
    if code is None:
        return finding("bad-pickle", "an array's type is none of numpy's", offset=call.offset)
    if code not in NUMBERS or not isinstance(data, bytes):
        return None
    if not is_shape(shape):
        return finding("bad-pickle", "an array's shape is not a tuple of lengths", offset=call.offset)
    nbytes = min(math.prod(shape) * int(code[1:]), HUGE)
    have = elements.nbytes if elements else len(data)
    if have != nbytes and (elements or type(data) is not Long):  # a Long has lost its true length
        why = f"an array of {NUMBERS[code]} {list(shape)} needs {nbytes:,} bytes and has {have:,}"
        return finding("tensor-size", why, offset=call.offset)
    order = dtype.state[1:2] if type(dtype.state) is tuple else ()
    native = order in (("<",), ("|",))  # in this machine's byte order
    offset = elements.offset if elements and native else None
    return Tensor("", NUMBERS[code], shape, nbytes, offset)


def _find_state(call: Call, elements: StateBytes | None) -> tuple[Any, ...]:
    """Return (shape, type, order, bytes) of an array, or (); the bytes of joblib's are b"" or None."""
    if call.func == WRAPPER and isinstance(call.state, dict):
        return call.state.get("shape"), call.state.get("dtype"), False, b"" if elements else None
    return call.state[-4:] if type(call.state) is tuple else ()


def _find_type_code(dtype: Any) -> str | None:
    """Return NumPy's code of an element type ("f4"), None if ``dtype`` is not a call of numpy.dtype."""
    if type(dtype) is not Call or dtype.func != DTYPE or not dtype.args:
        return None
    kind = dtype.args[0]
    return str(kind) if type(kind) in (str, Global) else None
