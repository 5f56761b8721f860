"""The names of the tensors in an unpickled value: the path of keys, attributes and positions that leads to
each, joined by dots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.pickles.stubs import Call, Global, Key, Number, Persistent
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import Source

# ---- How torch's old format begins, and what else such a beginning may be.


NUMBER = 0x1950A86A20F9469CFC6C
_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # LONG1 0x1950a86a20f9469cfc6c, STOP
_BLOCK = 512
_SUM = slice(148, 156)


def legacy_magic(head: bytes) -> bool:
    """A pickle of torch's magic number, as text or in binary, with a frame around it from protocol 4 on."""
    return head.startswith(b"L%dL\n." % NUMBER) or (is_proto(head) and head.find(_MAGIC) in (2, 11))


def is_proto(head: bytes) -> bool:
    """The opcode PROTO of protocol 2 to 5, with which their pickles begin."""
    return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")


def also_tar(source: Source) -> Iterator[Finding]:
    """What is wrong with a pickle that is a tar as well: torch.load would unpickle the tar's members."""
    block = source.read(0, _BLOCK) if source.size >= _BLOCK else b""
    others = block[: _SUM.start] + b" " * 8 + block[_SUM.stop :]
    unsigned = sum(others)
    signed = unsigned - 256 * sum(b > 127 for b in others)
    if any(block) and _number(block[_SUM]) in (unsigned, signed):  # tarfile.calc_chksums, nti
        why = (
            "the file is a tar archive as well: torch.load would unpickle its members instead of what was"
            " read here"
        )
        yield finding("unsafe-pickle", why, offset=0)


def _number(field: bytes) -> int | None:
    """A number as tar writes it: octal digits, or binary behind a byte of 0x80 or 0xff."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    try:
        return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return None


_V2 = ("torch._utils", "_rebuild_tensor_v2")
_WRAPPERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
_SPARSE = {
    2: ("indices", "values"),
    3: ("compressed_indices", "plain_indices", "values"),
}  # COO; CSR and its kin
_NESTED = ("buffer", "sizes", "strides", "storage_offsets")
_DEEP = 256  # levels of containers below which tensors are not listed
_MANY = 500_000  # containers that are walked: a tensor takes two or three
_CONTAINERS = (dict, list, tuple, Call, Persistent)
FROM_TYPE = ("_rebuild_from_type_v2", "_rebuild_from_type")


def list_tensors(value: Any, made: Mapping[int, Tensor], anatomy: Anatomy, root: str) -> Iterator[Finding]:
    """Walk the value, each container and edge once, bounded in names, depth and total length."""
    visited: set[int] = set()
    left = 64 << 20  # characters of names: real files have a few megabytes
    levels: list[tuple[str, Iterator[tuple[str, Any]]]] = [(root, iter((("", value),)))]
    while levels:
        above, inside = levels[-1]
        found = next(inside, None)
        if found is None:
            levels.pop()
            continue
        name, v = found
        path = ".".join(filter(None, (above, name)))[:4096]
        left -= len(path)
        if left < 0 or len(visited) > _MANY:
            yield finding("too-complex", "the pickle's tensors have more names than are listed")
            return
        tensor = made.get(id(v))
        if tensor is not None:
            t = tensor
            anatomy.tensors.append(
                Tensor(path, t.dtype, t.shape, t.nbytes, t.offset, t.storage, t.pieces)
            )  # replace() takes five times as long
            if type(v) is not Call or v.func == _V2:
                continue  # most tensors: nothing below them
        if id(v) in visited:
            continue
        visited.add(id(v))
        below = _find_children(v) if tensor is None else _find_parts(v)
        first = next(below, None)
        if first and len(levels) > _DEEP + 1:
            yield finding(
                "too-complex",
                f"the pickle is nested more than {_DEEP} levels deep below {path[:80]!r}; tensors there are"
                " not listed",
            )
            return
        if first:
            levels.append((path, chain((first,), below)))


def _find_children(v: Any) -> Iterator[tuple[str, Any]]:
    """The containers and calls directly inside ``v``, with the last part of their names."""
    if isinstance(v, dict):
        yield from ((text(k), c) for k, c in v.items() if isinstance(c, _CONTAINERS))
    elif isinstance(v, (list, tuple)):
        yield from ((str(i), c) for i, c in enumerate(v) if isinstance(c, _CONTAINERS))
    elif type(v) is Call:
        yield from _find_in_call(v)


def _find_in_call(v: Call) -> Iterator[tuple[str, Any]]:
    """The containers and calls directly inside a call: what torch's own functions take has names."""
    name, args = _called(v.func), v.args
    if name in _WRAPPERS:
        yield from (("", c) for c in args[:1] if isinstance(c, _CONTAINERS))
        yield from _find_parts(v)
    elif name in FROM_TYPE and len(args) > 2 and type(args[2]) is tuple:
        yield from _find_children(args[2][0] if len(args[2]) == 1 else args[2])
        yield from _find_parts(v)
    elif name == "_rebuild_sparse_tensor" and len(args) > 1 and type(args[1]) is tuple:
        parts = _find_calls(args[1])  # the tensors that it is made of
        yield from zip(_SPARSE.get(len(parts), ()), parts, strict=False)
    elif name == "_rebuild_nested_tensor":
        yield from zip(_NESTED, args, strict=False)
    else:
        for more in (args, v.items, v.entries, v.state):
            if isinstance(more, (dict, list, tuple)):
                yield from _find_children(more)


def _find_calls(values: tuple[Any, ...]) -> list[Call]:
    return [c for c in values if type(c) is Call]


def _called(func: Any) -> str:
    """The name of a function without its module; "" when no global names it."""
    return func.name if type(func) is Global else ""


def _find_parts(v: Call) -> Iterator[tuple[str, Any]]:
    """What a tensor carries: scales of a quantized one, attributes of a subclass or a parameter."""
    func, inner, state = _called(v.func), v.args, None
    if func in FROM_TYPE and len(v.args) > 3:
        func, inner, state = _called(v.args[0]), v.args[2], v.args[3]
    elif func == "_rebuild_parameter_with_state" and len(v.args) > 3:
        state = v.args[3]
    if func == "_rebuild_qtensor" and type(inner) is tuple and len(inner) > 4 and type(inner[4]) is tuple:
        yield from zip(("scales", "zero_points"), _find_calls(inner[4]), strict=False)
    for attributes in state if type(state) is tuple else (state,):  # (__dict__, __slots__) or __dict__ alone
        if isinstance(attributes, dict):
            yield from _find_children(attributes)


def text(key: Any) -> str:
    """A dict key as a printable name of at most 256 characters."""
    if type(key) is Number:
        key = key.value
    if type(key) is Key and type(key.value) is tuple and len(key.value) < 10:
        out = f"({', '.join(map(_plain, key.value))})"
    else:
        out = key if type(key) is str else _plain(key)
    return out[:256].encode("utf-8", "backslashreplace").decode() if not out.isascii() else out[:256]


def _plain(value: Any) -> str:
    if type(value) is str:
        return repr(value[:256])
    return (
        str(value)
        if value is None or type(value) in (float, bool) or (type(value) is int and value.bit_length() <= 64)
        else "?"
    )
