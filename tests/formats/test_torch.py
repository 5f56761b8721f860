"""torch's formats where the laws of test_formats.py cannot look: sizes beyond 4 GiB, ids, hostile archives,
every kind of tensor.
"""

from __future__ import annotations

import argparse
import io
import pickle
import random
import re
import signal
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from counted import at_most, calls, memory_below
from examples import examples
from helpers import bad, codes, flipped, look, zipped
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.formats import BY_NAME, FORMATS, HEAD, Anatomy, structure
from ckpt_tools.formats.archives.zip_directory import Record
from ckpt_tools.formats.torch import contents
from ckpt_tools.formats.torch.torch_legacy import encode_plain
from ckpt_tools.formats.torch.torch_zip import check_serialization_id, hash_name, order_hashes
from ckpt_tools.inspection.check import inspect, regions_of
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import BytesSource, LocalSource, ShortRead

ZIP, TAR, PLAIN, ARCHIVE = (BY_NAME[n] for n in ("torch_zip", "torch_tar", "pickle_plain", "zip_archive"))
MASK, TOP = (1 << 64) - 1, 0xFFFFFFFF


class Sparse:
    """A file of ``size`` bytes that are zero except for ``pieces``; counts what is read of it."""

    path = "sparse"

    def __init__(self, pieces: Mapping[int, bytes], size: int) -> None:
        self.pieces, self.size, self.bytes_read = sorted(pieces.items()), size, 0

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset + length > self.size:
            raise ShortRead(offset, length, max(0, self.size - offset))
        self.bytes_read += length
        out = bytearray(length)
        for at, data in self.pieces:
            start, stop = max(at, offset), min(at + len(data), offset + length)
            if start < stop:
                out[start - offset : stop - offset] = data[start - at : stop - at]
        return bytes(out)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


def combined(hashes: Sequence[int]) -> int:
    """As torch's hash_combine() puts them together."""
    out = 0
    for h in hashes:
        out ^= (h + 0x9E3779B9 + (out << 6) + (out >> 2)) & MASK
    return out


def sparse_archive(
    records: Sequence[tuple[str, bytes | int]], crcs: Mapping[int, int] | None = None
) -> Sparse:
    """What torch's miniz writes, also beyond 4 GiB; an int in place of bytes stands for as many zeros, with
    the CRC that ``crcs`` gives for it.
    """
    pieces, directory, at, crcs_of, n = {}, bytearray(), 0, list[int](), 0
    for name, content in [*records, (".data/serialization_id", b"")]:
        raw, data = b"f/" + name.encode(), content
        if name == ".data/serialization_id":
            names = combined(order_hashes([hash_name(r[0].encode()) for r in records]))
            data = b"%020d%020d" % (names, combined(crcs_of))
        size = data if isinstance(data, int) else len(data)
        crc = zlib.crc32(data) if isinstance(data, bytes) else (crcs or {}).get(size, 0) if size else 0
        crcs_of += [crc] * bool(size)
        sizes = (struct.pack("<2Q", size, n) if size >= TOP else b"" for n in (0, size))
        far = struct.pack("<Q", at) if at >= TOP else b""
        local, central = (struct.pack("<2H", 1, len(s + far)) + s + far if s + far else b"" for s in sizes)
        pad, flags = -(at + 34 + len(raw) + len(local)) % 64, 0x0808 if size else 0x0800
        local += b"FB" + struct.pack("<H", pad) + b"Z" * pad
        told = (0, flags, 0, 0, 0, 0, 0, 0, len(raw), len(local))
        head = struct.pack("<4s5H3I2H", b"PK\3\4", *told) + raw + local
        small, where = min(size, TOP), min(at, TOP)
        fields = (0, 0, flags, 0, 0, 0, crc, small, small, len(raw), len(central), 0, 0, 0, 0, where)
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", *fields) + raw + central
        pieces[at] = head + (b"" if isinstance(data, int) else data)
        end = at + len(head) + size
        if size:
            wide = size >= TOP or at >= TOP
            pieces[end] = b"PK\7\x08" + struct.pack("<I2Q" if wide else "<3I", crc, size, size)
            end += len(pieces[end])
        at, n = end, n + 1
    few, size = min(n, 0xFFFF), len(directory)
    pieces[at] = (
        bytes(directory)
        + struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 798, 45, 0, 0, n, n, size, at)
        + struct.pack("<4sIQI", b"PK\6\7", 0, at + size, 1)
        + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, few, few, min(size, TOP), min(at, TOP), 0)
    )
    return Sparse(pieces, at + len(pieces[at]))


def state(sizes: Sequence[int]) -> bytes:
    """The pickle of a dict of byte tensors "0", "1", … with the storages "0", "1", …."""
    out = b"\x80\2}("
    for i, n in enumerate(sizes):
        key = b"X" + struct.pack("<I", len(str(i))) + str(i).encode()
        numel = b"\x8a\x06" + n.to_bytes(6, "little")
        storage = b"storagectorch\nByteStorage\n" + key + b"X\3\0\0\0cpu" + numel
        out += key + b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0" + storage + b"tQK\0"
        out += numel + b"\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR"
    return out + b"u."


def around(sizes: Sequence[int]) -> list[tuple[str, bytes | int]]:
    """The records of a torch archive with storages of these sizes, all zero."""
    return [
        ("data.pkl", state(sizes)),
        (".format_version", b"1"),
        (".storage_alignment", b"64"),
        ("byteorder", b"little"),
        *((f"data/{i}", n) for i, n in enumerate(sizes)),
        ("version", b"3\n"),
    ]


def checked(source: Any, anatomy: Anatomy | None = None) -> list[Finding]:
    return list(structure(source, Anatomy() if anatomy is None else anatomy, ZIP.checks[Level.STRUCTURE]))


def test_records_of_four_gigabytes_and_beyond() -> None:
    sizes = [3, TOP - 1, TOP, TOP + 1, 2**33, 0, 7]
    source = sparse_archive(around(sizes), {n: 0x1234 + i for i, n in enumerate(sizes)})
    anatomy = Anatomy(regions=[])
    assert checked(source, anatomy) == []
    assert [t.nbytes for t in anatomy.tensors] == sizes and source.bytes_read < 64 * 1024
    assert all(t.offset is not None and t.offset % 64 == 0 for t in anatomy.tensors)
    sums = {s.what: s.expected for s in anatomy.sums}
    assert sums["f/data/4"] == 0x1234 + 4
    assert not any(r.what == "unexplained" for r in regions_of(anatomy, source.size))


@pytest.mark.exhaustive
def test_a_flip_in_each_byte_of_a_zip64_archive_is_seen() -> None:
    # 2**32: its one bit flipped gives 0, which is what miniz writes for a size it does not know
    sizes = [TOP + 1, 7, 0]
    source = sparse_archive(around(sizes), dict.fromkeys(sizes, 4660))
    missed = []
    for i, (at, data) in enumerate(source.pieces):
        for k in range(len(data)):
            source.pieces[i] = (at, flipped(data, 8 * k + k % 8))
            anatomy = Anatomy()
            if not bad(checked(source, anatomy)) and not any(
                zlib.crc32(source.read(p.offset, p.length)) != s.expected
                for s in anatomy.sums
                for p in s.pieces
                if not isinstance(p, bytes) and p.length < 4096 and s.expected != 0x1234
            ):
                missed.append(at + k)
        source.pieces[i] = (at, data)
    assert missed == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_more_records_than_sixteen_bits_count() -> None:
    extra = [(f"data/{i}", b"") for i in range(70_000)]
    source, anatomy = sparse_archive([("data.pkl", b"\x80\2}."), *extra, ("version", b"3\n")]), Anatomy()
    with at_most(12_000_000):
        # not from the Sparse: a search through all its pieces for each read is slow
        found = checked(BytesSource(source.read(0, source.size)), anatomy)
        assert {f.code for f in bad(found)} == {"extra-storage"}
        assert len(found) < 30


@pytest.mark.torch
def test_torch_s_own_sparse_file_beyond_four_gigabytes(tmp_path: Path) -> None:
    torch, path = pytest.importorskip("torch"), tmp_path / "big.pt"
    big = torch.empty(2**32 + 64, dtype=torch.uint8)
    with torch.serialization.skip_data():
        torch.save({"a": torch.ones(3), "big": big, "after": torch.ones(5), "none": torch.ones(0)}, path)
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("the file system has no sparse files")
    with LocalSource(str(path)) as source:
        anatomy = Anatomy()
        assert {f.code for f in checked(source, anatomy)} == {"skeleton", "not-checksummed"}
        assert source.bytes_read < 64 * 1024
    assert {t.name: t.nbytes for t in anatomy.tensors} == {"a": 12, "big": 2**32 + 64, "after": 20, "none": 0}


def ids(digits: bytes) -> list[str]:
    """What is wrong with the id of an archive of one record."""
    own = Record("f/.data/serialization_id", 0, 0, len(digits), len(digits), 0, 0, 0)
    records = [Record("f/a", 0, -1, 4, 4, 0, 0, 0), own]
    return [f.code for f in check_serialization_id(BytesSource(digits), records, own, "f/", Anatomy())]


REAL = (FORMAT_FILES / "torch_zip" / "good" / "nocrc.pt").read_bytes()


def own_digits(data: bytes) -> tuple[int, bytes]:
    """Where the digits of a torch archive's id lie, and the digits."""
    *_, found = re.finditer(rb"[0-9]{40}", data)
    return found.start(), found[0]


@pytest.mark.slow
def test_one_digit_is_damage_and_all_digits_are_another_system() -> None:
    at, digits = own_digits(REAL)
    for i in range(20):
        for digit in set(b"0123456789") - {digits[i]}:
            new = REAL[: at + i] + bytes([digit]) + REAL[at + i + 1 :]
            assert codes(look(new, ZIP)) == {"odd-header"}
    foreign = REAL[:at] + b"12345678901234567890" + REAL[at + 20 :]
    anatomy = Anatomy(regions=[])
    found = look(foreign, ZIP, anatomy)
    assert bad(found) == []
    (note,) = [f for f in found if f.code == "odd-header"]
    assert "another system" in note.message and note.severity is Severity.NOTE
    assert next(r.guard for r in regions_of(anatomy, len(foreign)) if r.offset == at) is Guard.UNPROTECTED


@pytest.mark.slow
@pytest.mark.torch
def test_ids_of_real_archives() -> None:
    """Digits that torch wrote, for sets of all sizes: the names' half is right for all of them."""
    torch = pytest.importorskip("torch")
    larger = (n + d for n in (127, 257, 541, 1109, 2357) for d in (-1, 0, 1))
    for n in (*range(1, 70), *larger, 2000):
        stream = io.BytesIO()
        writer = torch._C.PyTorchFileWriter(stream)
        for i in range(n):
            writer.write_record(f"data/{i}", b"", 0)
        writer.write_end_of_file()
        data = stream.getvalue()
        names = [name.encode() for name, _ in records_of(data)]
        assert b"%020d" % combined(order_hashes(list(map(hash_name, names)))) == own_digits(data)[1][:20], n


def test_an_id_that_is_no_number() -> None:
    assert ids(b"x" * 40) == ids(b"1" * 39) == ["bad-header"]


def records_of(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        return [(i.partition("/")[2], z.read(i)) for i in z.namelist() if not i.endswith("serialization_id")]


@pytest.mark.parametrize("name", ["data.pkl", "data/0", "data/1", "version", "byteorder"])
def test_a_single_checksum_of_zero_is_damage(name: str) -> None:
    """It is stored in both places, and the id agrees."""
    data = (FORMAT_FILES / "torch_zip" / "good" / "tiny.pt").read_bytes()
    crcs = {n: zlib.crc32(content) for n, content in records_of(data)}
    at, digits = own_digits(data)
    other = digits[:20] + b"%020d" % combined(list((crcs | {name: 0}).values()))
    for old, new in ((zlib.crc32(digits), zlib.crc32(other)), (crcs[name], 0)):
        data = data.replace(struct.pack("<I", old), struct.pack("<I", new))
    assert "crc-mismatch" in codes(look(data[:at] + other + data[at + 40 :], ZIP))


@pytest.mark.torch
def test_a_single_storage_filled_in_later() -> None:
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    with torch.serialization.skip_data():
        torch.save({"w": torch.ones(64)}, stream)
    data, anatomy = stream.getvalue(), Anatomy()
    assert {f.code for f in look(data, ZIP, anatomy)} == {"skeleton", "not-checksummed"}
    at = anatomy.tensors[0].offset or 0
    assert {f.code for f in look(data[:at] + b"\0\0\x80\x3f" + data[at + 4 :], ZIP)} == {"not-checksummed"}


def archived(pickled: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    return zipped({"f/data.pkl": pickled, "f/version": b"3\n"}, method)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "again", "size", "said", "found", "mebibytes"),
    [
        (b"", b"\0", 200 << 20, None, {"unread-pickle"}, 20),
        (b"\x80\x02", b"]", 2_000_000, None, {"unread-pickle"}, 10),  # each byte would cost an object
        (b"\x80\x02", b"]", 7_000_000, None, {"unread-pickle"}, 10),
        (b"\x80\x02", b"]", 50_000_000, None, {"unread-pickle"}, 10),
        (b"", b"\0", 50_000_000, 1000, {"crc-mismatch"}, 20),  # it inflates further than it says
    ],
)
def test_a_compressed_pickle_is_bounded(
    begin: bytes, again: bytes, size: int, said: int | None, found: set[str], mebibytes: int
) -> None:
    """torch itself stores its pickles."""
    data = archived(begin + again * size + b"." * bool(begin))
    if said is not None:
        data = data.replace(struct.pack("<I", size), struct.pack("<I", said))
    with memory_below(mebibytes << 20):
        assert codes(look(data, ZIP)) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "method"),
    [(1 << 19, zipfile.ZIP_DEFLATED), (7 << 20, zipfile.ZIP_DEFLATED), (12 << 20, zipfile.ZIP_STORED)],
)
def test_other_pickles_are_read(size: int, method: int) -> None:
    text = bytes(1 << 19) + random.Random(1).randbytes(1 << 20) if size > 1 << 20 else b""
    value = b"\x80\x02B" + struct.pack("<I", size) + text.ljust(size, b"a") + b"."
    assert bad(look(archived(value, method), ZIP)) == []


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [ZIP, ARCHIVE], ids=lambda f: f.name)
def test_entries_that_share_one_payload_do_not_multiply(fmt: Any) -> None:
    """The overlapping bomb: thousands of directory entries for the same megabytes of zeros."""
    data = zipped({"f/k" if fmt is ZIP else "k": bytes(30 << 20)}, zipfile.ZIP_DEFLATED)
    central, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    entry, n = data[central:end], 5000
    ends = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, n, n, n * len(entry), central, 0)
    bomb = data[:central] + entry * n + ends
    anatomy = Anatomy()
    with at_most(1_000_000):
        found = look(bomb, fmt, anatomy)
    assert "bad-header" in {f.code for f in bad(found)}
    assert len(anatomy.sums) <= 1
    assert len(found) < 60


def test_rubbish_between_two_good_ends_costs_little() -> None:
    tail = (FORMAT_FILES / "torch_zip" / "good" / "tiny.pt").read_bytes()
    with at_most(10_000):
        look(b"PK\3\4" + random.Random(0).randbytes(1 << 20) + tail, ZIP)


def flat(value: Any, torch: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Strided tensors with their dotted names."""
    if isinstance(value, torch.Tensor):
        odd = value.is_quantized or value.is_nested or value.device.type == "meta"
        if value.layout is torch.strided and not odd:
            yield path, value
    elif isinstance(value, dict):
        for k, v in value.items():
            name = repr(k) if isinstance(k, tuple) else str(k)
            yield from flat(v, torch, f"{path}.{name}" if path else name)


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path",
    sorted(
        {*FORMAT_FILES.glob("torch_*/good/*"), FORMAT_FILES / "pickle_plain/good/tensors.pkl"}
        - {FORMAT_FILES / "torch_zip/good/package.pt"}
    ),
    ids=lambda p: f"{p.parts[-3]}/{p.name}",
)
def test_tensors_lie_where_torch_finds_them(path: Path) -> None:
    torch = pytest.importorskip("torch")
    data, anatomy = path.read_bytes(), Anatomy()
    fmt = BY_NAME[path.parts[-3]]
    look(data, fmt, anatomy)
    value = pickle.loads(data) if fmt is PLAIN else torch.load(path, weights_only=False)
    listed = {t.name: t for t in anatomy.tensors}
    strided = dict(flat(value, torch))
    assert path.stem not in ("tiny", "views.pth", "v3-dtypes") or listed.keys() == strided.keys()
    for name, real in strided.items():
        t, width = listed[name], real.element_size()
        assert (t.dtype, t.shape) == (str(real.dtype).removeprefix("torch."), tuple(real.shape))
        assert t.nbytes == real.numel() * width
        if t.offset is not None and real.numel() and path.name != "big-endian.pt":
            raw = bytes(real.untyped_storage())[real.storage_offset() * width :][:width]
            assert data[t.offset : t.offset + width] == raw


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_what_torch_writes_beside_state_dicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole modules, compiled ones, scripts, packages, exported programs, enums in args: nothing of it is
    damaged or unsafe.
    """
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    args = argparse.Namespace(exit_signal=signal.SIGTERM, dtype=torch.bfloat16, device=torch.device("cpu"))
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "rng": torch.get_rng_state(), "args": args}, "job.pt")
    torch.save(net, "module.pt")
    torch.save(net, "module-legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.compile(net), "compiled.pt")
    torch.save({"w": torch.empty(3, device="meta")}, "meta.pt")
    torch.save({"w": torch.ones(3)}, "\u00fc.pt")
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    torch.save({"loader": torch.utils.data.DataLoader(data, shuffle=True)}, "loader.pt")
    script = torch.jit.script(net)
    torch.jit.save(script, "script.pt", _extra_files={"a.txt": "x", "b/c.json": "{}"})
    script._save_for_lite_interpreter("lite.pt", _extra_files={"a.txt": "x"})
    torch.jit.save(torch.jit.trace(net.eval(), torch.ones(2, 2)), "trace.pt")
    program = torch.export.export(net, (torch.ones(2, 2),))
    torch.export.save(program, "program.pt2")
    for path in tmp_path.iterdir():
        data, anatomy = path.read_bytes(), Anatomy(regions=[])
        found = look(data, anatomy=anatomy)
        assert bad(found) == [], path.name
        assert not any(r.what == "unexplained" for r in regions_of(anatomy, len(data))), path.name
        assert anatomy.tensors or path.suffix == ".pt2", path.name


@examples(200)
@given(
    st.lists(st.integers(0, 2**48).map(str), max_size=30)
    | st.integers(0, 3000).map(lambda n: [str(i) for i in range(n)]),
    st.integers(2, 5),
)
def test_canonical_pickles_are_python_s(value: list[str], protocol: int) -> None:
    assert encode_plain(value, protocol) in (pickle.dumps(value, protocol), None)
    assert encode_plain({"a": True, "b": {"c": 8}}, protocol) == pickle.dumps(
        {"a": True, "b": {"c": 8}}, protocol
    )


def test_a_tar_of_many_members_costs_little() -> None:
    head = (FORMAT_FILES / "torch_tar" / "good" / "tiny.pth.tar").read_bytes()[:512]
    with at_most(10_000):
        assert bad(look(head * 4000, TAR))


VALUES = [
    {}, {"a": 1}, [1, 2], (1, 2, 3), {"epoch": 3, "h": [1, 2.5, None, True]}, "a name", b"bytes", {1, 2},
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_are_recognised(protocol: int) -> None:
    for data in (pickle.dumps(value, protocol) for value in VALUES):
        assert next(f for f in FORMATS if f.magic(data[:HEAD])) is PLAIN
        assert bad(look(data, PLAIN)) == []


TEXTS = ["count\nvalue\n1\n2\n", "(a, b)\n", "]\n", "}", "name,age\n", "I,1\n2", "N\n\n\n", "Price\n", "S3 bucket\n"]  # fmt: skip


@examples(300)
@given(st.text(min_size=3) | st.sampled_from(TEXTS))
def test_text_is_no_pickle(text: str) -> None:
    data = text.encode("utf-8", "replace")[:HEAD]
    if PLAIN.magic(data) and data[:1] != b"\x80":  # then it really is one, to its last byte
        pickle.loads(data) if data.endswith(b".") else None


@pytest.mark.torch
@pytest.mark.parametrize("disk", [0, 1, 2, 3, 0xFFFF])
def test_a_record_on_another_disk_is_one_that_torch_finds_or_damage(disk: int) -> None:
    import torch

    torch.save({"w": torch.zeros(3)}, buffer := io.BytesIO())
    data = buffer.getvalue()
    for found in re.finditer(rb"PK\x01\x02", data):
        at = found.start() + 34
        copy = data[:at] + struct.pack("<H", disk) + data[at + 2 :]
        errors = [f for f in look(copy) if f.severity is Severity.ERROR]
        try:
            torch.load(io.BytesIO(copy), weights_only=True)
        except RuntimeError:
            assert errors
        else:
            assert not errors


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_pickle_that_weights_only_refuses_is_told(zipped: bool, protocol: int, tmp_path: Path) -> None:
    """Users may choose the protocol, and torch.load reads that of its own files alone by default."""
    torch = pytest.importorskip("torch")
    path, state = tmp_path / "a.pt", {"w": torch.ones(3), "step": 4}
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    refused = protocol > 3
    with warnings.catch_warnings(), pytest.raises(pickle.UnpicklingError) if refused else nullcontext():
        warnings.simplefilter("ignore")
        torch.load(path, weights_only=True)
    report = verify([str(path)]).files[0].report
    assert report.verdict is Verdict.OK
    assert ("needs-trust" in {f.code for f in report.findings}) is refused


@pytest.mark.torch
def test_the_second_file_of_a_job_takes_few_calls(tmp_path: Path) -> None:
    """Of 1 MiB with 16 tensors, at level content: 3,600 where each header is a read of its own."""
    import torch

    paths = [str(tmp_path / f"{rank}.pt") for rank in range(2)]
    for rank, path in enumerate(paths):
        torch.save({f"layer{i}.weight": torch.full((128, 128), rank + 1.0) for i in range(16)}, path)
    assert inspect(paths[0], Level.CONTENT, jobs=1)[0].verdict is Verdict.OK
    assert calls(lambda: inspect(paths[1], Level.CONTENT, jobs=1)) < 2000


# A pickle that was read before tells of its file what it would tell anew.

FILES = sorted((FORMAT_FILES / "torch_zip").glob("*/*"))


def told(data: bytes) -> tuple[list[Finding], dict[str, object]]:
    found = checked(BytesSource(data), anatomy := Anatomy())
    return found, {name: getattr(anatomy, name) for name in Anatomy.__match_args__}


def anew(data: bytes) -> tuple[list[Finding], dict[str, object]]:
    contents.forget()
    return told(data)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_file_tells_the_same_however_often_it_was_read(path: Path) -> None:
    data = path.read_bytes()
    first = anew(data)
    assert told(data) == told(data) == first


GOOD = [pytest.param(p, id=p.name) for p in FILES if p.parent.name == "good"]


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("path", GOOD)
def test_what_another_file_told_changes_nothing(path: Path) -> None:
    """Neighbours: equal but for one byte, anywhere, also in the directory that says where the storages lie."""
    data, some = path.read_bytes(), random.Random(0)
    contents.forget()
    for _ in range(60):
        changed = flipped(data, 8 * some.randrange(len(data)) + some.randrange(8))
        warm = told(changed)
        assert anew(changed) == warm
        told(data)
