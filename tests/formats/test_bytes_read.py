"""The structure level reads kilobytes, whatever a file's size: counted on sparse files of 2 GiB and more,
which take no disk.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from mindspore_writer import varint
from safetensors_writer import entry, made

from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level

LIMIT = 1 << 20
GIB = 1 << 30


def safetensors(path: Path) -> None:
    head = made({f"layer.{i}.weight": entry("F32", [1024, 65536], i << 28, (i + 1) << 28) for i in range(8)})
    with path.open("wb") as f:
        f.write(head)
        f.truncate(len(head) + 2 * GIB)
        for i in range(8):  # no zero tail
            f.seek(len(head) + ((i + 1) << 28) - 4)
            f.write(b"\1\2\3\4")


def mindspore(path: Path) -> None:
    with path.open("wb") as f:
        for i in range(5):  # records of 512 MiB, as its writer splits them
            name, size = f"layer.{i}.weight".encode(), 512 << 20
            tensor = b"\x08" + varint(size // 4) + b"\x12\x07Float32\x1a" + varint(size)
            value = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(tensor) + size) + tensor
            f.write(b"\x0a" + varint(len(value) + size) + value)
            f.seek(size - 1, 1)
            f.write(b"\1")


def torch_legacy(path: Path) -> None:
    """What torch.save with ``_use_new_zipfile_serialization=False`` writes, of one storage of 512 Mi floats."""
    sizes = {"short": 2, "int": 4, "long": 4}
    told = {"protocol_version": 1001, "little_endian": True, "type_sizes": sizes}
    head = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, told))
    n = 2 * GIB // 4
    count = b"J" + struct.pack("<i", n)
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpu" + count + b"NtQK\0"
    shape = count + b"\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + shape
    with path.open("wb") as f:
        f.write(head + b"\x80\2}X\1\0\0\0w" + tensor + b"s." + pickle.dumps(["0"], 2) + struct.pack("<q", n))
        f.seek(2 * GIB - 1, 1)
        f.write(b"\1")


@pytest.mark.parametrize(
    ("name", "write"), [("a.safetensors", safetensors), ("a.ckpt", mindspore), ("a.pt", torch_legacy)]
)
def test_structure_reads_kilobytes(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    path = tmp_path / name
    write(path)
    report, anatomy = inspect(str(path), Level.STRUCTURE)
    assert report.size >= 2 * GIB
    assert report.verdict is Verdict.OK, report.findings
    assert sum(t.nbytes for t in anatomy.tensors) >= 2 * GIB
    assert report.bytes_read < LIMIT
