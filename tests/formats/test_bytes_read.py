"""Bytes are counted: the structure level reads kilobytes, whatever a file's size, and a file whose end is known
to be missing is not read to the end. Sparse files of gigabytes take no disk.
"""

from __future__ import annotations

import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from mindspore_writer import varint
from places import FORMAT_FILES, LAYOUT_TREES
from safetensors_writer import beginning

from ckpt_tools import Selection, errors, plan, verify
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.report import Level

LIMIT = 1 << 20
GIB = 1 << 30
GOOD = sorted(p for p in FORMAT_FILES.glob("*/good/**/*") if p.is_file() and p.stat().st_size > 2000)


def safetensors(path: Path, size: int = 2 * GIB, missing: int = 0) -> None:
    with path.open("wb") as f:
        f.write(beginning(size))
        f.seek(size - missing - 1, 1)
        f.write(b"\1")


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


@pytest.mark.slow
def test_no_format_reads_what_is_left_of_a_cut_file(tmp_path: Path) -> None:
    """Where the structure shows that the end is missing, level content reads no byte more."""
    more: dict[str, int] = {}
    for path in GOOD:
        size, name = path.stat().st_size, path.relative_to(FORMAT_FILES).parts[0]
        for left in (size - 1, size - 300, size * 3 // 4, size // 2):
            (cut := tmp_path / path.name).write_bytes(path.read_bytes()[:left])
            shallow, deep = (inspect(str(cut), level)[0] for level in (Level.STRUCTURE, Level.CONTENT))
            ends = [f for f in shallow.findings if f.code == "truncated" and f.severity is Severity.ERROR]
            if any((f.offset or left) >= left for f in ends):
                assert deep.verdict is Verdict.BROKEN
                more[name] = more.get(name, 0) + deep.bytes_read - shallow.bytes_read
    assert len(more) >= 8 and not any(more.values()), more


def test_kilobytes_of_gigabytes_that_are_cut(tmp_path: Path) -> None:
    safetensors(path := tmp_path / "model.safetensors", missing=1)
    found = verify(path)
    assert found.verdict is Verdict.BROKEN and found.summary.bytes_read < LIMIT
    assert [f.code for f in found.files[0].report.findings] == ["truncated"]


def test_also_where_many_processes_read(tmp_path: Path) -> None:
    for i in range(70):
        safetensors(tmp_path / f"model{i}.safetensors", 8 << 20, 1)
    assert verify(tmp_path, jobs=2).summary.bytes_read < 70 << 12


def test_a_plan_reads_none_of_it(tmp_path: Path) -> None:
    tree = LAYOUT_TREES / "lightning"
    source = next(p for p in sorted(tree.rglob("*.ckpt")) if p.stat().st_size > 2000)
    home = tmp_path / "run" / source.parent.name
    home.mkdir(parents=True)
    path = Path(shutil.copy(source, home))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(errors.NoneUsable) as caught:
        plan(tmp_path / "run", Selection(settle=0))
    structure = inspect(str(path), Level.STRUCTURE)[0]
    assert caught.value.plan is not None and caught.value.plan.bytes_read <= 2 * structure.bytes_read
