"""Damaged copies of good fixtures for detection.py: which carriers, which kinds of damage, at places drawn
with a fixed seed.
"""

from __future__ import annotations

import pickle
import random
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from helpers import Fixture, look

from ckpt_tools.formats import BY_NAME, Anatomy

ROOT = Path(__file__).parent.parent
SEED = 20240229
SECTOR, PAGE = 512, 4096
Files = dict[str, bytes]

# --- carriers: (good fixture or set; the same part of a checkpoint at two steps, in a directory)

CARRIERS: dict[str, tuple[str, str]] = {
    "torch zip": ("torch_zip/good/dtypes.pt", "layouts/megatron/distopt/tree:iter_0000010/mp_rank_00/model_optim_rng.pt:iter_0000020/mp_rank_00/model_optim_rng.pt"),
    "torch legacy": ("torch_legacy/good/legacy.pt", ""),
    "safetensors": ("safetensors/good/more-dtypes.safetensors", "layouts/mindspore/safetensors/tree:rank_0/resnet-2_3.safetensors:rank_0/resnet-2_5.safetensors"),
    "safetensors with MindSpore's CRC": ("safetensors/good/mindspore-crc.safetensors", ""),
    "MindSpore ckpt with CRC": ("mindspore_ckpt/good/trained-2.10.0-crc.ckpt", ""),
    "MindSpore ckpt without CRC": ("mindspore_ckpt/good/trained-2.0.0.ckpt", "layouts/mindspore/v200/tree:ckpt_0/resnet-1_2.ckpt:ckpt_0/resnet-2_1.ckpt"),
    "TF bundle": ("tf_bundle/good/*", ""),
    "DCP": ("dcp/good/*", ""),
}  # fmt: skip


class Case(NamedTuple):
    """One damaged copy: what is in its directory, and the file in it that a tool for single files is given."""

    kind: str
    files: Files
    file: str
    known: Files | None = None  # the undamaged directory, when it is another than the carrier's
    where: tuple[str, int] = ("", -1)


def fixture(pattern: str) -> list[Path]:
    """The files of a good fixture; [] when there is none."""
    found = sorted((ROOT / "fixtures" / "formats").glob(pattern))
    if not found or pattern.split("/", maxsplit=1)[0] not in BY_NAME:
        return []
    best = max(found, key=lambda p: sum(f.stat().st_size for f in [p, *p.rglob("*")] if f.is_file()))
    return [best] if best.is_file() else sorted(p for p in best.rglob("*") if p.is_file())


def undamaged(carrier: str) -> Files:
    paths = fixture(CARRIERS[carrier][0])
    home = Path(*paths[0].parts[: paths[0].parts.index("good") + 2]) if len(paths) > 1 else paths[0].parent
    return {str(p.relative_to(home)): p.read_bytes() for p in paths}


def tensors(paths: list[Path]) -> dict[str, list[tuple[int, int]]]:
    """File in the set -> (offset, length) of its tensors' bytes, as the structure check finds them."""
    out = {}
    for path in paths:
        f = Fixture(path)
        out[f.own] = sorted(
            (t.offset, t.nbytes)
            for t in f.anatomy()[0].tensors
            if t.offset is not None and t.nbytes > 0 and t.offset < len(f.data)
        )
    return out


def cases(name: str, n: int) -> Iterator[Case]:  # noqa: C901 - one list of damages, in order
    """All damaged copies of a carrier."""
    pattern, swap = CARRIERS[name]
    paths = fixture(pattern)
    if not paths:
        return
    home = Path(*paths[0].parts[: paths[0].parts.index("good") + 2]) if len(paths) > 1 else paths[0].parent
    good: Files = {str(p.relative_to(home)): p.read_bytes() for p in paths}
    data = {own: spans for own, spans in tensors(paths).items() if spans}
    main = max(good, key=lambda own: len(good[own]))
    inside = [
        (own, i)
        for own, spans in data.items()
        for at, length in spans
        for i in range(at, min(at + length, len(good[own])))
    ]
    outside = [
        (own, i)
        for own in good
        for i in sorted({*range(len(good[own]))} - {i for o, i in inside if o == own})
    ]
    r = random.Random(SEED)

    def damaged(kind: str, own: str, new: bytes, at: int) -> Iterator[Case]:
        if new != good[own]:
            yield Case(kind, {**good, own: new}, own if len(good) > 1 else main, where=(own, at))

    for kind, places in (("flip in data", inside), ("flip in header or pickle", outside)):
        for own, i in r.sample(places, min(n, len(places))):
            b = bytearray(good[own])
            b[i] ^= 1 << r.randrange(8)
            yield from damaged(kind, own, bytes(b), i)
    for own, d in good.items():
        if d:
            yield from damaged("last byte cut off", own, d[:-1], len(d) - 1)
            yield from damaged("half cut off", own, d[: len(d) // 2], len(d) // 2)
    ends = [
        (own, at + length)
        for own, spans in data.items()
        for at, length in spans
        if at + length < len(good[own])
    ]
    for own, at in r.sample(ends, min(n, len(ends))):
        yield from damaged("cut at a tensor's end", own, good[own][:at], at)
    sectors = [(own, at) for own in good for at in range(0, len(good[own]), SECTOR)]
    for own, at in r.sample(sectors, len(sectors))[:n]:
        d = good[own]
        hole = min(PAGE, len(d) - at)
        yield from damaged("zero page", own, d[:at] + bytes(hole) + d[at + hole :], at)
        yield from damaged("zero tail", own, d[:at] + bytes(len(d) - at), at)
    for _ in range(n):
        own = r.choice(sorted(good))
        yield from damaged(
            "garbage appended", own, good[own] + r.randbytes(r.randrange(1, PAGE)), len(good[own])
        )
    if swap:
        base, first, second = swap.split(":")
        tree = {
            str(p.relative_to(ROOT / "fixtures" / base)): p.read_bytes()
            for p in sorted((ROOT / "fixtures" / base).rglob("*"))
            if p.is_file()
        }
        yield Case("file of another step", {**tree, second: tree[first]}, second, tree)
        look(tree[second], anatomy=(anatomy := Anatomy()))
        for at in sorted({(t.offset or 0) + t.nbytes for t in anatomy.tensors} - {len(tree[second])})[:n]:
            yield Case(
                "cut at a tensor's end, other steps beside it",
                {**tree, second: tree[second][:at]},
                second,
                tree,
            )
    put = {
        "torch zip": lambda p: {main: repacked(good[main], p)},
        "torch legacy": lambda p: {main: legacy(p)},
        "DCP": lambda p: {**good, ".metadata": p},
    }
    for evil in malicious() if name in put else ():
        known = (
            good if name == "DCP" else put[name](pickle.dumps({"epoch": 1, "model": 0}, 2))
        )  # only the pickle is to make the difference
        yield Case("malicious pickle", put[name](evil), ".metadata" if name == "DCP" else main, known)


# --- pickles that call something when loaded; every call is harmless (true, pass, 0), nobody here loads them


class Call(NamedTuple):
    """``module.function(*args)``; an argument may be a name of its own, as a (module, function) pair."""

    module: str
    function: str
    args: tuple[object, ...] = ()


def _name(module: str, function: str) -> bytes:
    """GLOBAL, or STACK_GLOBAL for a dotted name, which only that can load."""
    if "." not in function:
        return f"c{module}\n{function}\n".encode()
    return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, function)) + b"\x93"


def calling(call: Call) -> bytes:
    """Protocol 4: {"epoch": 1, "model": module.function(*args)}."""
    args = (_name(*a) if isinstance(a, tuple) else pickle.dumps(a, 2)[2:-1] for a in call.args)
    return (
        b"\x80\x04}(\x8c\x05epochK\x01\x8c\x05model"
        + _name(call.module, call.function)
        + b"("
        + b"".join(args)
        + b"tRu."
    )


def malicious() -> list[bytes]:
    """Calls from real finds and from reports about scanners: the plain ones, and ways around block-lists."""
    code, shell = ("eval", "exec"), ("true",)
    plain = [
        *(Call("builtins", f, ("0",)) for f in code),
        *(Call("__builtin__", f, ("0",)) for f in code),
        Call("builtins", "__import__", ("this",)),
    ]
    return [
        calling(c)
        for c in (
            *plain, Call("os", "system", shell), Call("posix", "system", shell), Call("os", "popen", shell), Call("subprocess", "call", shell),
            Call("subprocess", "Popen", shell), Call("pty", "spawn", shell), Call("runpy", "run_path", ("x",)), Call("importlib", "import_module", ("this",)),
            Call("socket", "socket"), Call("webbrowser", "open", ("x",)), Call("timeit", "timeit", ("0",)), Call("cProfile", "run", ("0",)),
            Call("pdb", "run", ("0",)), Call("doctest", "debug_script", ("0",)), Call("ctypes", "CDLL", ("x",)), Call("shutil", "rmtree", ("/nonexistent",)),
            Call("pip", "main"), Call("functools", "partial", (("os", "system"), "true")), Call("builtins", "map", (("os", "system"), "")),
            Call("numpy.testing._private.utils", "runstring", ("0", {})), Call("torch.hub", "load", ("x", "y")), Call("torch.serialization", "load", ("x",)),
            Call("torch._dynamo.guards", "GuardBuilder.get", (None, "0")), Call("asyncio.unix_events", "_UnixSubprocessTransport._start", (None, "true")),
            Call("code", "InteractiveInterpreter.runcode", (None, "0")),
        )
    ]  # fmt: skip


def repacked(data: bytes, evil: bytes) -> bytes:
    """The archive with another data.pkl, CRCs and all right."""
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, evil if info.filename.endswith("/data.pkl") else old.read(info))
    return out.getvalue()


def legacy(evil: bytes) -> bytes:
    head = (
        0x1950A86A20F9469CFC6C,
        1001,
        {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}},
    )
    return b"".join(pickle.dumps(v, 2) for v in head) + evil + pickle.dumps([], 2)
