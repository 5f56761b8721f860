"""Files that run code, write or read outside in other ways than by what a pickle itself calls: by known names that
call what they are given, TorchScript, HDF5, Keras, tar archives and NumPy's.

Each makes the file that it is given, and nothing else; what reads outside is told by its loader.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import marshal
import os
import pickle
import shutil
import struct
import tarfile
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _payloads import P2, STOP, Payload, Raw, archive, call, dcp, index_with, legacy, listed, name, push, tar

HDF5 = Path(__file__).resolve().parent.parent / "fixtures/formats/hdf5/bad"
LOAD = "torch.storage:_load_from_bytes"
LOADER = "torch.utils.data.dataloader:DataLoader"


def raw(data: bytes) -> Raw:
    """Bytes as BINBYTES has them."""
    return Raw(b"B" + struct.pack("<I", len(data)) + data)


def bad(mark: str) -> bytes:
    return P2 + call("os:mkdir", mark) + STOP


def loader(mark: str) -> Raw:
    """A DataLoader that hands each item of its data to what unpickles it."""
    data = listed(raw(legacy(bad(mark))))
    return call(LOADER, data, None, Raw(b"\x89"), None, None, 0, name(LOAD))


def built(mark: str) -> Raw:
    """The same as pickle writes one: without a call."""
    import torch

    made = torch.utils.data.DataLoader([legacy(bad(mark))], None, collate_fn=torch.storage._load_from_bytes)  # noqa: SLF001
    return Raw(pickle.dumps(made, 2)[2:-1])


def handed(mark: str) -> Iterator[tuple[str, bytes]]:
    """Known names that go over what they are given."""
    for f in ("builtins:list", "builtins:tuple", "builtins:set", "collections:deque", "torch:Size"):
        yield f"{f} of a DataLoader", P2 + call(f, loader(mark)) + STOP
    yield "a DataLoader by NEWOBJ and BUILD", P2 + call("builtins:list", built(mark)) + STOP
    batches = call("torch.utils.data.sampler:BatchSampler", loader(mark), 1, Raw(b"\x89"))
    yield "a DataLoader in a BatchSampler", P2 + call("builtins:list", batches) + STOP


def handed_in_torch(mark: str) -> Iterator[tuple[str, bytes]]:
    gone_over = P2 + call("builtins:list", loader(mark)) + STOP
    yield "DataLoader in an archive", archive(gone_over)
    yield "DataLoader in the old format", legacy(gone_over)
    yield "DataLoader in a tar", tar(pickle=gone_over)


def buffers(mark: str) -> Iterator[tuple[str, bytes]]:
    """Files in BytesIO, as Transformer Engine's _extra_state is, which it hands to torch.load."""
    for what, data in (
        ("archive", archive(bad(mark))),
        ("old format", legacy(bad(mark))),
        ("pickle", bad(mark)),
    ):
        state = Raw(b"}" + push("_extra_state") + call("_io:BytesIO", raw(data)) + b"s")
        yield f"BytesIO, {what}", archive(P2 + state + STOP)
    yield "BytesIO by its state", archive(pickle.dumps({"_extra_state": io.BytesIO(archive(bad(mark)))}, 2))


def script(line: str) -> bytes:
    """A TorchScript archive with a line of code more in its ``__setstate__``."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(2))

        @torch.jit.export
        def __getstate__(self) -> tuple[torch.Tensor, bool]:
            return (self.w, self.training)

        @torch.jit.export
        def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
            self.w = state[0]
            self.training = state[1]

    made = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Net()), made)
    with zipfile.ZipFile(made) as z:
        records = {n.partition("/")[2]: z.read(n) for n in z.namelist()}
    out = io.BytesIO()
    with torch.serialization._open_zipfile_writer_buffer(out) as writer:  # noqa: SLF001
        for record, content in records.items():
            if record.endswith(".py"):
                records[record] = content.replace(b"[1]\n", b"[1]\n    " + line.encode() + b"\n")
            if not record.endswith(("debug_pkl", "serialization_id", "version", "byteorder")):
                writer.write_record(record, records[record], len(records[record]))
    return out.getvalue()


def scripts(mark: str) -> Iterator[tuple[str, bytes]]:
    for what, line in (
        ("from_file", f'self.w = torch.from_file("{mark}", True, 4)'),
        ("save", f'torch.save(self.w, "{mark}")'),
        ("ops.aten.from_file", f'self.w = ops.aten.from_file("{mark}", True, 4)'),
        ("another name for torch", f't = torch\n    t.save(self.w, "{mark}")'),
        ("another name for save", f'f = torch.save\n    f(self.w, "{mark}")'),
        ("getattr with a name in pieces", f'getattr(torch, "sa" "ve")(self.w, "{mark}")'),
        ("getattr", f'f = getattr(torch, "save")\n    f(self.w, "{mark}")'),
        ("parentheses", f'(torch).save(self.w, "{mark}")'),
    ):
        yield f"TorchScript: {what}", script(line)


def packed(members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as t:
        for info, data in members:
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(
    title: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, leads: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(title)
    info.type, info.linkname, info.mode = kind, leads, 0o755
    return info, data if kind == tarfile.REGTYPE else b""


def nemo(*more: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """What NeMo writes, with more members: it is unpacked beside its mark."""
    config = member("./model_config.yaml", b"target: x\n")
    weights = member("./model_weights.ckpt", archive(pickle.dumps({}, 2)))
    return packed([member(".", kind=tarfile.DIRTYPE), config, weights, *more], form)


def tars(mark: str) -> Iterator[tuple[str, bytes]]:
    long = f"./{'./' * 60}../mark"
    home = os.path.dirname(mark)
    yield "nemo: ..", nemo(member("./../mark"))
    yield "nemo: an absolute name", nemo(member(mark))
    yield "nemo: .. in a long name of pax", nemo(member(long))
    yield "nemo: .. in a long name of GNU", nemo(member(long), form=tarfile.GNU_FORMAT)
    yield "nemo: .. in a prefix of ustar", nemo(member(f"../{'mark/' * 25}x"), form=tarfile.USTAR_FORMAT)
    yield "nemo: a link out", nemo(member("out", kind=tarfile.SYMTYPE, leads=".."), member("out/mark"))
    yield "nemo: an absolute link", nemo(member("out", kind=tarfile.SYMTYPE, leads=home), member("out/mark"))
    chain = member("a", kind=tarfile.SYMTYPE, leads="."), member("b", kind=tarfile.SYMTYPE, leads="a/..")
    yield "nemo: a link over a link", nemo(*chain, member("b/mark"))
    yield "nemo: .., compressed", gzip.compress(nemo(member("./../mark")))
    yield "nemo: a pickle of any name", nemo(member("./artifact", bad(mark)))
    yield "nemo: a pickle, compressed", gzip.compress(nemo(member("./artifact", bad(mark))))
    old = member("./model_weights.ckpt", legacy(bad(mark)))
    yield "nemo: weights of the old format", nemo(old)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for n, data in members.items():
            z.writestr(zipfile.ZipInfo(n), data, method)
    return out.getvalue()


def arrays(mark: str) -> Iterator[tuple[str, bytes]]:
    """Arrays of objects in members of any name, as numpy.load finds them."""
    import numpy as np

    plain = io.BytesIO()
    np.save(plain, np.arange(3.0))
    good, head = plain.getvalue(), "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    evil = b"\x93NUMPY\1\0" + struct.pack("<H", 118) + head.ljust(117).encode() + b"\n" + bad(mark)
    yield "npz: a member without .npy", zipped({"w.npy": good, "step": evil})
    yield "npz: a member called .txt", zipped({"w.npy": good, "notes.txt": evil})
    yield "npz: a deflated member", zipped({"w.npy": good, "step": evil}, zipfile.ZIP_DEFLATED)
    yield "npz: the first member", zipped({"step": evil, "w.npy": good})
    yield "npz: the first in a directory", zipped({"a/step": evil, "w.npy": good})
    yield "npz: named as an array", zipped({"w.npy": good, "step.npy": evil})


def lambda_layer(mark: str) -> dict[str, Any]:
    """A model of one layer whose function is marshalled code."""

    def function(x: Any) -> Any:
        __import__("os").makedirs("MARK", exist_ok=True)
        return x

    code = function.__code__.replace(
        co_consts=tuple(mark if c == "MARK" else c for c in function.__code__.co_consts)
    )
    assert isinstance(code, types.CodeType)
    text = base64.b64encode(marshal.dumps(code)).decode()
    told = {"class_name": "__lambda__", "config": {"code": text, "defaults": None, "closure": None}}
    shape = {"batch_shape": [None, 2], "dtype": "float32", "name": "input"}
    layers = [
        {"module": "keras.layers", "class_name": "InputLayer", "config": shape, "registered_name": None},
        {
            "module": "keras.layers",
            "class_name": "Lambda",
            "config": {"name": "l", "function": told},
            "registered_name": None,
        },
    ]
    config = {"name": "s", "layers": layers, "build_input_shape": [None, 2]}
    return {"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None}


def keras(mark: str) -> Iterator[tuple[str, bytes]]:
    text, rest = json.dumps(lambda_layer(mark)), {"metadata.json": b'{"keras_version": "3.15.1"}'}
    hidden = text.replace("__lambda__", "\\u005f_lambda__").replace('"Lambda"', '"\\u004cambda"')
    for what, config, method in (
        ("a Lambda layer", text.encode(), zipfile.ZIP_STORED),
        ("a Lambda layer, deflated", text.encode(), zipfile.ZIP_DEFLATED),
        ("a Lambda layer with escapes", hidden.encode(), zipfile.ZIP_STORED),
        ("a Lambda layer in UTF-16", text.encode("utf-16"), zipfile.ZIP_STORED),
    ):
        yield f"keras: {what}", zipped({**rest, "config.json": config}, method)


MAKERS: tuple[tuple[str, str, Callable[[str], Iterator[tuple[str, bytes]]]], ...] = (
    ("pickle", ".pkl", handed),
    ("torch", ".pt", handed_in_torch),
    ("buffer", ".pt", buffers),
    ("torch", ".pt", scripts),
    ("nemo", ".nemo", tars),
    ("numpy", ".npz", arrays),
    ("keras", ".keras", keras),
)


def other_payloads(directory: Path) -> Iterator[Payload]:
    """The payloads that lie in HDF5 and DCP; those of MAKERS are built as all others."""
    for title in (
        "external-data--array-beside",
        "path-escape--array-above",
        "external-data--link-beside",
        "external-data--view",
    ):
        home = directory / title / "below"
        home.mkdir(parents=True)
        for place in (home, home.parent):
            (place / "other.raw").write_bytes(b"ckpt" * 6)
            shutil.copyfile(HDF5 / "external-data--array-beside.h5", place / "other.h5")
        shutil.copyfile(HDF5 / f"{title}.h5", home / "file.h5")
        yield Payload(f"hdf5: {title}", "hdf5", home / "file.h5", home / "mark")
    cases: tuple[tuple[str, bool, Callable[[str, Path], bytes]], ...] = (
        (".metadata, DataLoader", True, lambda mark, path: index_with(path, Gone(mark))),
        (
            "an object, DataLoader",
            False,
            lambda mark, _: archive(P2 + call("builtins:list", loader(mark)) + STOP),
        ),
        (
            "an object, DataLoader in the old format",
            False,
            lambda mark, _: legacy(P2 + call("builtins:list", loader(mark)) + STOP),
        ),
    )
    for n, (what, metadata, make) in enumerate(cases):
        home = directory / f"dcp-handed-{n:02d}"
        home.mkdir()
        mark = str(home / "mark")
        dcp(home / "step-1", lambda path, make=make, mark=mark: make(mark, path), metadata)  # type: ignore[misc]
        yield Payload(f"dcp: {what}", "dcp", home / "step-1", Path(mark))


class Gone:
    """A list of what a DataLoader gives."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        import torch

        data, load = [legacy(bad(self.mark))], torch.storage._load_from_bytes  # noqa: SLF001
        return list, (torch.utils.data.DataLoader(data, None, collate_fn=load),)
