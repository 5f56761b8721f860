"""The scalars of an unpickled value that matter to a job: those of its top level, those of ``args``,
and the counters that frameworks keep deeper.

NumPy arrays in a pickle: their names, types and shapes, and whether each has the bytes that it needs.

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
from ckpt_tools.formats.common.tensors import MAX_TEXT
from ckpt_tools.formats.pickles.joblib_arrays import WRAPPER
from ckpt_tools.formats.pickles.stubs import Call, Filled, Global, Long, Pickled
from ckpt_tools.formats.torch.tensors import list_tensors, text
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Scalar, Tensor

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
)
"""Where frameworks keep whole numbers that say how far training was, below the top level."""


def members(value: Any) -> dict[Any, Any]:
    """What ``value`` holds by name: a dict's items, an object's attributes."""
    if type(value) is Call:
        value = value.state if isinstance(value.state, dict) else value.entries
    return value if isinstance(value, dict) else {}


def scalar(value: Any) -> tuple[Scalar] | None:
    """The value in a tuple if it is a plain scalar or a numpy one, else None; a text has 256 characters."""
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


def scalars(value: Any, anatomy: Anatomy) -> None:
    """Fill ``metadata`` and ``keys`` from the top level of ``value``; the attributes of ``args`` become
    ``args.<name>``, whole numbers of ``_COUNTING`` likewise, the numbers of a stage's layers
    ``param_shapes.layers``. ``lr`` is an optimizer's or a schedule's,
    ``initial_lr`` the one that an optimizer had before a schedule set its own.
    """
    top = members(value)
    if not top and type(value) is list and len(value) == 1 and "iteration" in members(value[0]):
        top = members(value[0])  # what Megatron-core keeps of all ranks, without a file of its own
    anatomy.keys.update(map(text, list(top)[:_MANY]))
    _keep(top, "", anatomy)
    _keep(members(top.get("args")), "args.", anatomy)
    for home in _COUNTING:
        path = home.split(".")
        if path[0] in top:
            _keep(members(_find_below(top, path)), f"{home}.", anatomy, whole=True)
    _keep_pickled(members(_find_below(top, (_PICKLED,))), anatomy)
    _keep_best(members(top.get("callbacks")), anatomy)
    if layers := sorted(_find_stage_layers(top)):
        anatomy.metadata["param_shapes.layers"] = ",".join(map(str, layers))
    for name, held in _find_rates(value, top).items():
        rate = scalar(held)
        if rate and type(rate[0]) is float:
            anatomy.metadata.setdefault(name, rate[0])


def _keep(held: dict[Any, Any], prefix: str, anatomy: Anatomy, *, whole: bool = False) -> None:
    """Keep the scalars of one level, only ``whole`` numbers if that is asked for."""
    for k, v in list(held.items())[:_MANY]:
        got = scalar(v)
        if got and (not whole or type(got[0]) is int):
            anatomy.metadata[prefix + text(k)] = got[0]


def _keep_pickled(held: dict[Any, Any], anatomy: Anatomy) -> None:
    """Keep the whole numbers of which each is a pickle of its own."""
    for k, v in list(held.items())[:_MANY]:
        found = _PICKLED_INT.fullmatch(v) if type(v) is bytes else None
        if found and (number := next((n for n in found.groups() if n is not None), b"")):
            anatomy.metadata[f"{_PICKLED}.{text(k)}"] = int.from_bytes(
                number, "little", signed=len(number) > 2
            )


def _keep_best(callbacks: dict[Any, Any], anatomy: Anatomy) -> None:
    """The best save of each callback; a long path is known by its end."""
    for i, held in enumerate(list(callbacks.values())[:_CALLBACKS]):
        best = members(held).get(_BEST)
        if type(best) is str and best:
            anatomy.metadata[f"{_BEST}:{i}" if i else _BEST] = text(best[-MAX_TEXT:])


def _find_rates(value: Any, top: dict[Any, Any]) -> dict[str, Any]:
    """The learning rates of an optimizer's first group (torch/optim/optimizer.py; ColossalAI: in a file
    alone), or a schedule's (torch/optim/lr_scheduler.py). Where that is 0, the highest of all groups.
    """
    groups, last = top.get("param_groups"), top.get("_last_lr")
    if type(value) is list and value and "params" in members(value[0]):
        groups = value
    if type(groups) is list and groups:
        held = [members(group) for group in groups[:_MANY]]
        rates, more = [g.get("lr") for g in held], {"initial_lr": held[0].get("initial_lr")}
    elif type(last) is list and last:
        rates, more = last[:_MANY], {}
    else:
        return {}
    return {"lr": rates[0] or max((r for r in rates if type(r) is float), default=rates[0]), **more}


def _find_stage_layers(top: dict[Any, Any]) -> set[int]:
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


def _find_below(top: dict[Any, Any], path: Sequence[str]) -> Any:
    """What lies at a path of names; of a list on the way its last entry counts."""
    value: Any = top
    for name in path:
        value = members(value).get(name)
        if type(value) is list:
            value = value[-1] if value else None
    return value


_MAKERS = {Global(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_DTYPE = Global("numpy", "dtype")
_TYPES = {
    **{f"f{n}": f"float{8 * n}" for n in (2, 4, 8)},
    **{f"i{n}": f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{f"u{n}": f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{f"c{n}": f"complex{8 * n}" for n in (8, 16)},
    "b1": "bool",
}
"""Types of one number; arrays of others (texts, records, objects) are not listed."""
_DIMENSIONS, _HUGE = 64, 1 << 62


def arrays(pickled: Pickled, anatomy: Anatomy) -> Iterator[Finding]:
    """List the arrays that the value reaches, by dotted name; of a damaged one say what is wrong."""
    filled = {id(f.call): f for f in pickled.filled}
    made: dict[int, Tensor] = {}
    for call in pickled.calls:
        if call.func not in _MAKERS and call.func != WRAPPER:
            continue
        array = _read_array(call, filled.get(id(call)))
        if isinstance(array, Finding):
            yield array
        elif array is not None:
            made[id(call)] = array
    if made:
        yield from list_tensors(pickled.value, made, anatomy, "")


def _read_array(call: Call, filled: Filled | None) -> Tensor | Finding | None:
    """The array that a call and its state describe; None for one whose type is not looked at."""
    state = _find_state(call, filled)
    if len(state) != 4:
        return finding("bad-pickle", "an array has no state as numpy writes it", offset=call.offset)
    shape, dtype, _, data = state
    code = _find_code(dtype)
    if code is None:
        return finding("bad-pickle", "an array's type is none of numpy's", offset=call.offset)
    if code not in _TYPES or not isinstance(data, bytes):
        return None
    if type(shape) is not tuple or len(shape) > _DIMENSIONS or not all(map(_is_length, shape)):
        return finding("bad-pickle", "an array's shape is not a tuple of lengths", offset=call.offset)
    nbytes = min(math.prod(shape) * int(code[1:]), _HUGE)
    have = filled.nbytes if filled else len(data)
    if have != nbytes and (filled or type(data) is not Long):  # of a long one the bytes were not kept
        why = f"an array of {_TYPES[code]} {list(shape)} needs {nbytes:,} bytes and has {have:,}"
        return finding("tensor-size", why, offset=call.offset)
    order = dtype.state[1:2] if type(dtype.state) is tuple else ()
    offset = filled.offset if filled and order in (("<",), ("|",)) else None  # as this machine has numbers
    return Tensor("", _TYPES[code], shape, nbytes, offset)


def _find_state(call: Call, filled: Filled | None) -> tuple[Any, ...]:
    """(shape, type, order, bytes) of an array; those of joblib, which the machine counted, without bytes."""
    if call.func == WRAPPER and isinstance(call.state, dict):
        return call.state.get("shape"), call.state.get("dtype"), False, b"" if filled else None
    return call.state[-4:] if type(call.state) is tuple else ()


def _is_length(n: Any) -> bool:
    return type(n) is int and 0 <= n < _HUGE


def _find_code(dtype: Any) -> str | None:
    """What numpy calls an element type ("f4"), None where it is none."""
    if type(dtype) is not Call or dtype.func != _DTYPE or not dtype.args:
        return None
    kind = dtype.args[0]
    return str(kind) if type(kind) in (str, Global) else None
