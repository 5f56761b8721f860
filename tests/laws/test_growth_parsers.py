"""What a file costs grows as its bytes do, in every format, also where its parts collide, nest or overlap:
calls are counted at two sizes.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import small_files
import torch
import torch.distributed.checkpoint as saver
from counted import calls
from mindspore_writer import record
from msgpack_writer import array, packed
from safetensors_writer import made
from small_files import tf

from ckpt_tools.api import verify
from ckpt_tools.formats.archives import zip_directory
from ckpt_tools.formats.common import json_text, tensors
from ckpt_tools.formats.hdf5.blocks import lookup3
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level

FLOATS = struct.pack("<f", 0.5)
LIST = b'{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'


def safetensors(*entries: bytes, data: int) -> bytes:
    header = b"{" + b",".join(entries) + b"}"
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + FLOATS * data


def listed(names: Iterable[str], data: int | None = None, apart: int = 4, backwards: bool = False) -> bytes:
    """Vectors of one number, in this order; all in one place where they lie ``apart`` by nothing."""
    rows = [b'"%s":' % name.encode() + LIST % (apart * k, apart * k + 4) for k, name in enumerate(names)]
    return safetensors(*rows[:: -1 if backwards else 1], data=len(rows) if data is None else data)


def archive(*records: tuple[str, bytes]) -> bytes:
    with io.BytesIO() as out:
        with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as z:
            warnings.simplefilter("ignore")  # two records of one name are what is wanted
            for name, data in records:
                z.writestr(zipfile.ZipInfo(f"f/{name}"), data)
        return out.getvalue()


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\6\0\0\0%06dX\3\0\0\0cpuK\1tQK\0K\1\x85K\1\x85\x89NtR"


def pickled(n: int, storage: Callable[[int], int]) -> bytes:
    return b"\x80\x02}(" + b"".join(b"X\6\0\0\0%06d" % i + TENSOR % storage(i) for i in range(n)) + b"u."


def torch_zip(
    n: int, storage: Callable[[int], int] = lambda i: i, records: int | None = None, twice: int = 0
) -> dict[str, bytes]:
    data = [(f"data/{i:06}", FLOATS) for i in range(n if records is None else records)]
    return {"x.pt": archive(("data.pkl", pickled(n, storage)), ("version", b"3\n"), *data, *(data * twice))}


def legacy(n: int) -> dict[str, bytes]:
    out = io.BytesIO()
    torch.save({f"w{i}": small_files.tensor(i) for i in range(n)}, out, _use_new_zipfile_serialization=False)
    return {"x.pt": out.getvalue()}


def mindspore(names: list[str], dims: tuple[int, ...] = (1,)) -> dict[str, bytes]:
    data = b"".join(record(name, dims, "Float32", FLOATS) for name in names)
    return {"x.ckpt": data + b"crc_num" + zlib.crc32(data).to_bytes(10, "big")}


def bundle(n: int, apart: int = 4, per_block: int = 1 << 30) -> dict[str, bytes]:
    entries = {f"w{i:06}".encode(): tf.entry(1, [1], apart * i, 4, tf.crc32c(FLOATS)) for i in range(n)}
    return {
        "ckpt-1.index": tf.bundle(entries, per_block=per_block),
        "ckpt-1.data-00000-of-00001": FLOATS * (n if apart else 1),
    }


def dcp(n: int, files: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saver.save(
            {f"w{i}": small_files.tensor(i) for i in range(n)},
            storage_writer=saver.FileSystemWriter(name, thread_count=files),
            no_dist=True,
        )
        return {p.name: p.read_bytes() for p in Path(name).iterdir()}


def zarr(n: int) -> dict[str, bytes]:
    head = {"zarr_format": 2, "shape": [n], "chunks": [1], "dtype": "<f4", "order": "C"}
    none = dict.fromkeys(("compressor", "fill_value", "filters"))
    return {".zarray": json.dumps(head | none).encode(), **{str(i): FLOATS for i in range(n)}}


def shards(n: int, files: int) -> dict[str, bytes]:
    weights = {f"w{i}": f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i in range(n)}
    each: dict[str, list[str]] = {}
    for name, file in weights.items():
        each.setdefault(file, []).append(name)
    index = json.dumps({"metadata": {"total_size": 4 * n}, "weight_map": weights}).encode()
    bodies = {file: listed(ws) for file, ws in each.items()}
    return {"model.safetensors.index.json": index, **bodies}


def hdf5(*bodies: Callable[[list[int]], bytes]) -> dict[str, bytes]:
    """An HDF5 file of structures that are each told where all of them lie; the first is the root group."""
    places, at = list[int](), 48
    for body in bodies:
        places.append(at)
        at += len(body([0] * len(bodies))) + 4
    super_block = b"\x89HDF\r\n\x1a\n\3\x08\x08\0" + struct.pack("<4Q", 0, (1 << 64) - 1, at, 48)
    blocks = [super_block, *(body(places) for body in bodies)]
    return {"x.h5": b"".join(block + struct.pack("<I", lookup3(block)) for block in blocks)}


def hdf5_group(*links: bytes) -> bytes:
    """The header of a group with these links."""
    info = b"\x02\x12\0\0\0\0" + b"\xff" * 16
    return b"OHDR\2\2" + struct.pack("<I", sum(map(len, (info, *links)))) + info + b"".join(links)


def hdf5_link(name: str, to: int) -> bytes:
    body = b"\1\0" + bytes([len(name)]) + name.encode() + struct.pack("<Q", to)
    return struct.pack("<BHB", 6, len(body), 0) + body


def named(n: int) -> list[str]:
    return [f"w{i}" for i in range(n)]


def one(name: str, make: Callable[[int], bytes]) -> Callable[[int], dict[str, bytes]]:
    return lambda n: {name: make(n)}


TENSORS, BY_KEY, KEPT = "x.safetensors", "config.json", "x.msgpack"
VALUE = array((1,), "float32", FLOATS)
CHUNKED = "__msgpack_chunked_array__"
FILES: dict[str, Callable[[int], dict[str, bytes]]] = {
    "torch": torch_zip,
    "torch, one storage": lambda n: torch_zip(n, lambda _: 0, 1),
    "torch, no storage": lambda n: torch_zip(n, records=0),
    "torch, storages of nobody": lambda n: {"x.pt": torch_zip(1, records=n)["x.pt"]},
    "torch, records twice": lambda n: torch_zip(n, twice=1),
    "torch, one name": one("x.pt", lambda n: archive(("data.pkl", b"\x80\x02}."), ("version", b"3\n"), *[("data/0", b"")] * n)),
    "torch, old format": legacy,
    "zip": one("x.npz", lambda n: archive(*((f"{i}.npy", b"x") for i in range(n)))),
    "pickle": one("x.pkl", lambda n: b"\x80\x02](" + b"}" * n + b"e."),
    "safetensors": one(TENSORS, lambda n: listed(named(n))),
    "safetensors, one place": one(TENSORS, lambda n: listed(named(n), data=1, apart=0)),
    "safetensors, backwards": one(TENSORS, lambda n: listed(named(n), backwards=True)),
    "safetensors, one name": one(TENSORS, lambda n: listed(["w"] * n)),
    "safetensors, metadata": one(TENSORS, lambda n: made({"__metadata__": dict.fromkeys(named(n), "v")})),
    "safetensors, braces": one(TENSORS, lambda n: safetensors(*(b'"w%d":{"x":"%s"}' % (i, b"}" * 40) for i in range(n)), data=0)),
    "safetensors, set": lambda n: shards(n, 4),
    "safetensors, many files": lambda n: shards(n, n),
    "JSON": one(BY_KEY, lambda n: json.dumps({f"k{i}": i for i in range(n)}).encode()),
    "JSON, one key": one(BY_KEY, lambda n: b"{" + b",".join([b'"k":1'] * n) + b"}"),
    "JSON, deep": one(BY_KEY, lambda n: b'{"k":' + b"[" * n + b"]" * n + b"}"),
    "JSON, numbers": one(BY_KEY, lambda n: b'{"k":[' + b",".join([b"9" * 400] * n) + b"]}"),
    "MindSpore": lambda n: mindspore(named(n)),
    "MindSpore, one name": lambda n: mindspore(["w"] * n),
    "MindSpore, dimensions": lambda n: mindspore(named(n // 8), (1,) * 8),
    "TensorFlow": bundle,
    "TensorFlow, blocks": lambda n: bundle(n, per_block=2),
    "TensorFlow, one place": lambda n: bundle(n, 0),
    "DCP": lambda n: dcp(n, 2),
    "DCP, many files": lambda n: dcp(n, n),
    "zarr": zarr,
    "HDF5, beside": lambda n: hdf5(lambda at: hdf5_group(*map(hdf5_link, named(n), at[1:])), *[lambda _: hdf5_group()] * n),
    "HDF5, one group": lambda n: hdf5(lambda at: hdf5_group(*(hdf5_link(name, at[0]) for name in named(n)))),
    "HDF5, deep": lambda n: hdf5(*(lambda at, i=i: hdf5_group(hdf5_link("g", at[i])) for i in range(1, n)), lambda _: hdf5_group()),
    "msgpack": one(KEPT, lambda n: packed(dict.fromkeys(named(n), VALUE))),
    "msgpack, one name": one(KEPT, lambda n: b"\xde" + n.to_bytes(2, "big") + b"\xa1w\x01" * n),
    "msgpack, numbers": one(KEPT, lambda n: packed({"w": [*range(200)] * n})),
    "msgpack, chunks": one(KEPT, lambda n: packed({"w": {CHUNKED: True, "shape": {"0": n}, "chunks": {str(i): VALUE for i in range(n)}}})),
    "msgpack, stream": one("streaming_params", lambda n: b"".join(packed([[name], packed(VALUE)]) for name in named(n))),
}  # fmt: skip
SMALL = 40


@pytest.mark.share(18)
@pytest.mark.parametrize("name", FILES)
def test_a_file_costs_what_its_bytes_cost(name: str, tmp_path: Path) -> None:
    counted = []
    for size in (8, SMALL, 4 * SMALL):  # the first one imports what is imported once
        home = tmp_path / str(size)
        home.mkdir()
        made = FILES[name](size)
        for file, data in made.items():
            (home / file).write_bytes(data)
        path = str(home if len(made) > 1 else home / next(iter(made)))
        counted.append(calls(lambda path=path: verify([path], Level.CONTENT, jobs=1)))
    assert counted[2] < 6 * counted[1], counted


# -- bounds --------------------------------------------------------------------------------------------------


def test_a_bound_that_is_hit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More records, tensors or values than are kept: never sound; and unknown where a pickle among them was
    not read.
    """
    monkeypatch.setattr(zip_directory, "MAX_RECORDS", 50)
    for bounded in ("safetensors.safetensors", "mindspore.mindspore_ckpt"):
        monkeypatch.setattr(f"ckpt_tools.formats.{bounded}.MAX_TENSORS", 50)
    monkeypatch.setattr(json_text, "MAX_MEMORY", 2000)
    unread, part = (Verdict.UNKNOWN, "unread-pickle"), (Verdict.SUSPECT, "too-complex")
    said = {"torch": unread, **dict.fromkeys(("safetensors", "MindSpore", "JSON"), part)}
    for name, (verdict, code) in said.items():
        for n in (10, 60):
            ((file, data),) = FILES[name](n).items()
            (tmp_path / file).write_bytes(data)
            report = verify([str(tmp_path / file)]).files[0].report
            assert report.verdict in ({verdict} if n == 60 else {Verdict.OK, Verdict.SUSPECT}), report
            assert (code in {f.code for f in report.findings}) == (n == 60)


def test_the_bounds_are_those_that_memory_was_measured_with() -> None:
    """500 bytes of memory for a tensor, 700 for a record, beside 200 MB for the text of the largest header."""
    assert tensors.MAX_TENSORS * 500 + (200 << 20) < 300 << 20
    assert zip_directory.MAX_RECORDS * 700 + (16 << 20) < 300 << 20
