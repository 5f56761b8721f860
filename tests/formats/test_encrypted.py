"""MindSpore's encrypted .ckpt, with a key and without: what is decrypted, what a wrong key leads to, and that
the key shows nowhere.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import helpers
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from examples import examples
from helpers import bad, findings, flipped
from hypothesis import given
from hypothesis import strategies as st
from mindspore_writer import record, table, tensor
from places import FORMAT_FILES

from ckpt_tools.formats.common import crypto
from ckpt_tools.formats.common.crypto import Block, Decrypted, Scheme, Tag, count_padding, decrypt, is_noise
from ckpt_tools.formats.common.format import HEAD, Anatomy
from ckpt_tools.formats.mindspore import mindspore_encrypted
from ckpt_tools.inspection.check import inspect as verify_look
from ckpt_tools.inspection.check import regions_of
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import BytesSource, LocalSource, ShortRead, Source

FMT = mindspore_encrypted.FORMAT
GOOD = FORMAT_FILES / "mindspore_encrypted" / "good"
KEYED = sorted(FORMAT_FILES.glob("mindspore_encrypted/*.key"))
KEY = b"0123456789abcdef"
GCM, CBC, SM4 = 0x7F3A5ED8, 0x7F3A5ED9, 0x7F3A5EDA
MAGIC = {"AES-GCM": GCM, "AES-CBC": CBC, "SM4-CBC": SM4}
COUNTED = record("epoch_num", (), "Int64", struct.pack("<q", 3))
PLAIN = record("w", (20, 8), "Float32", b"\x3f\x80\0\1" * 160) + COUNTED + record("b", (5,), "Int8", b"abcde")


def look(data: bytes | Source, key: bytes | None = None, anatomy: Anatomy | None = None) -> list[Finding]:
    """All findings of the structure check and of the tags."""
    anatomy = anatomy or Anatomy()
    anatomy.key = key
    if isinstance(data, bytes):
        return list(findings(data, FMT, anatomy))
    return list(FMT.checks[Level.STRUCTURE](data, anatomy))


def codes(data: bytes, key: bytes | None = None) -> set[str]:
    return helpers.codes(look(data, key))


# An independent writer; ``nonce`` is how many bytes of the IV GCM uses, ``old`` leaves out the tag and the
# magic of CBC.


def header(magic: int, tag: bytes, iv: bytes, size: int) -> bytes:
    """That of a block of ``size`` cipher bytes."""
    return struct.pack("<I", magic) + tag + struct.pack("<II16sI", 24 + size, 16, iv, size)


def sealed(
    mode: str, plain: bytes, key: bytes, *, size: int = 64 << 20, nonce: int = 12, old: bool = False, seed: int = 0
) -> bytes:  # fmt: skip
    algorithm: Any = algorithms.AES(key) if mode.startswith("AES") else algorithms.SM4(key)
    out = b""
    for at in range(0, len(plain), size):
        piece, iv = plain[at : at + size], struct.pack("<QQ", seed * 7919 + at, (seed << 40) + 5)
        if mode == "AES-GCM":
            encryptor = Cipher(algorithm, modes.GCM(iv[:nonce])).encryptor()
            cipher = encryptor.update(piece) + encryptor.finalize()
            tag = b"" if old else encryptor.tag
        else:
            pad = 16 - len(piece) % 16
            cipher, tag = Cipher(algorithm, modes.CBC(iv)).encryptor().update(piece + bytes([pad]) * pad), b""
        out += header(GCM if old else MAGIC[mode], tag, iv, len(cipher)) + cipher
    return out


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of 160 bytes instead of 64 MiB."""
    monkeypatch.setattr("ckpt_tools.formats.mindspore.mindspore_encrypted.PLAIN", 160)
    return 160


@pytest.mark.parametrize("path", KEYED, ids=lambda p: p.name)
def test_a_real_file_is_read_like_a_plain_one(path: Path) -> None:
    anatomy, key = Anatomy(), path.read_bytes()
    found = look((GOOD / path.stem).read_bytes(), key, anatomy)
    tagged = "gcm" in path.name and "1.x" not in path.name
    assert [f.code for f in found] == ([] if tagged else ["not-checksummed"])
    assert len(anatomy.sums) == tagged
    names = ["0.weight", "0.bias", "moments.0.weight", "moments.0.bias", "global_step"]
    assert [t.name for t in anatomy.tensors][:5] == names and {t.offset for t in anatomy.tensors} == {None}
    assert anatomy.tensors[0].shape == (8, 6) and anatomy.metadata["global_step"] == 12
    assert anatomy.keys >= set(names) and "crc_trailer" not in anatomy.metadata
    if "1.x" not in path.name:
        assert (anatomy.metadata["epoch_num"], anatomy.metadata["step_num"]) == (3, 12)
    kind = path.name.partition("-")[0]
    assert anatomy.metadata["encryption"].startswith("SM4" if kind == "sm4" else "AES")
    assert anatomy.metadata["encryption"].endswith("GCM" if "gcm" in path.name else "CBC")


def test_the_report_of_a_real_file() -> None:
    path = str(GOOD / "aes-gcm-key.ckpt")
    report, _ = verify_look(path, Level.CONTENT, key=KEY, require=("0.weight", "epoch_num"))
    found = (report.verdict, report.level, report.tensors, report.findings)
    assert found == (Verdict.OK, Level.CONTENT, 7, ())
    assert report.coverage > 0.9 and report.signature
    lost, _ = verify_look(path, Level.CONTENT, key=KEY, require=("lost",))
    assert {f.code for f in lost.findings} == {"missing-key"}
    assert not verify_look(path, Level.CONTENT)[0].coverage


GCM_CASES = [("AES-GCM", n, nonce) for n in (16, 24, 32) for nonce in (12, 16)]
CASES = [*GCM_CASES, *(("AES-CBC", n, 12) for n in (16, 24, 32)), ("SM4-CBC", 16, 12)]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("mode", "length", "nonce"), CASES)
def test_every_mode_and_key_in_several_blocks(
    mode: str, length: int, nonce: int, old: bool, small_blocks: int
) -> None:
    key, anatomy = bytes(range(length)), Anatomy()
    data = sealed(mode, PLAIN, key, size=small_blocks, nonce=nonce, old=old)
    found = look(data, key, anatomy)
    odd = {"odd-header"} if old and mode == "SM4-CBC" else set()
    assert {f.code for f in bad(found)} == odd
    assert [t.name for t in anatomy.tensors] == ["w", "epoch_num", "b"] and anatomy.metadata["epoch_num"] == 3
    assert anatomy.metadata["encrypted_blocks"] == -(-len(PLAIN) // small_blocks)
    assert len(anatomy.sums) == (0 if old or mode != "AES-GCM" else anatomy.metadata["encrypted_blocks"])
    assert not bad(look(data))
    assert codes(data, bytes(length)) == {"wrong-key"}


@pytest.mark.slow
@examples(150)
@given(st.binary(min_size=1, max_size=400), st.sampled_from(CASES), st.data())
def test_any_range_of_the_plaintext(plain: bytes, case: tuple[str, int, int], data: st.DataObject) -> None:
    mode, length, nonce = case
    key, size = os.urandom(length), data.draw(st.sampled_from([16, 48, 160]))
    scheme, blocks, paddings, at = Scheme(mode, key, nonce), list[Block](), list[int](), 0
    raw = sealed(mode, plain, key, size=size, nonce=nonce, seed=data.draw(st.integers(0, 99)))
    source, tag = BytesSource(raw), 16 if mode == "AES-GCM" else 0
    while at < len(raw):
        here = at + 32 + tag
        n = int.from_bytes(raw[here - 4 : here], "little")
        iv, of_tag = here - 20, slice(at + 4, at + 4 + tag)
        blocks.append(Block(here, n, raw[iv : iv + 16], iv, raw[of_tag], at + 4))
        paddings.append(0 if tag else count_padding(source, scheme, blocks[-1]))
        at = here + n
    source_of = Decrypted(source, scheme, blocks, paddings)
    assert source_of.size == len(plain) and source_of.read(0, len(plain)) == plain
    start = data.draw(st.integers(0, len(plain)))
    stop = data.draw(st.integers(start, len(plain)))
    assert source_of.read(start, stop - start) == plain[start:stop]
    buffer = bytearray(stop - start)
    source_of.readinto(start, memoryview(buffer))
    assert bytes(buffer) == plain[start:stop]
    if mode == "AES-GCM" and stop > start:
        place = source_of.place(start)
        block = next(b for b in blocks if b.at <= place < b.at + b.size)
        assert decrypt(source, scheme, block, place - block.at, 1) == plain[start : start + 1]
    for offset, n in (0, len(plain) + 1), (-1, 1), (len(plain), 1):
        with pytest.raises(ShortRead):
            source_of.read(offset, n)


def test_the_counter_wraps_in_its_low_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    high = 0x1234 << 32
    monkeypatch.setattr(crypto, "_find_first_counter", lambda *_: high | 0xFFFFFFFE)
    cipher = os.urandom(80)
    ecb = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    counted = (0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2)
    stream = b"".join(ecb.update((high | low).to_bytes(16, "big")) for low in counted)
    block = Block(0, 80, bytes(16), 0)
    wanted = bytes(a ^ b for a, b in zip(cipher, stream, strict=True))
    assert decrypt(BytesSource(cipher), Scheme("AES-GCM", KEY, 16), block, 0, 80) == wanted
    assert decrypt(BytesSource(cipher), Scheme("AES-GCM", KEY, 16), block, 49, 20) == wanted[49:69]


@pytest.mark.slow
@given(st.lists(st.binary(max_size=40), max_size=8), st.sampled_from([12, 16]))
def test_a_tag_is_right_however_the_bytes_come(parts: list[bytes], nonce: int) -> None:
    iv, plain = os.urandom(16), b"".join(parts)
    encryptor = Cipher(algorithms.AES(KEY), modes.GCM(iv[:nonce])).encryptor()
    stream = iv[:nonce] + encryptor.update(plain) + encryptor.finalize()
    for flip in (None, 0, len(stream) - 1):
        data = stream if flip is None else flipped(stream, 8 * flip + 2)
        running, at = Tag(Scheme("AES-GCM", KEY, nonce), encryptor.tag), 0
        for part in [*parts, stream]:
            running.update(memoryview(data)[at : at + len(part)])
            at += len(part)
        assert running.digest() == (encryptor.tag if flip is None else b"")


@pytest.mark.slow
def test_every_flip_of_a_file_of_several_blocks(small_blocks: int) -> None:
    """With tags nothing passes but the four bytes of the IV that MindSpore's OpenSSL does not use."""
    data, anatomy = sealed("AES-GCM", PLAIN, KEY, size=small_blocks), Anatomy(regions=[])
    assert not look(data, KEY, anatomy)
    regions = regions_of(anatomy, len(data))
    loose = {i for r in regions if r.guard is Guard.UNPROTECTED for i in range(r.offset, r.offset + r.length)}
    assert len(loose) == 4 * len(anatomy.sums) and "unexplained" not in {r.what for r in regions}
    for i in set(range(len(data))) - loose:
        assert codes(flipped(data, 8 * i + i % 8), KEY), i


@pytest.mark.parametrize("mode", list(MAGIC))
def test_a_damaged_beginning_is_no_wrong_key(mode: str) -> None:
    data = sealed(mode, PLAIN, KEY)
    start = data.index(struct.pack("<I", 16)) + 24
    for at in range(start, start + 6):
        found = codes(flipped(data, 8 * at), KEY)
        assert found and "wrong-key" not in found, at
    assert codes(data[:start] + bytes(64) + data[start + 64 :], KEY) - {"wrong-key"}


@pytest.mark.parametrize("mode", ["AES-CBC", "SM4-CBC"])
def test_the_padding_of_every_block(mode: str, small_blocks: int) -> None:
    data = sealed(mode, PLAIN, KEY, size=small_blocks)
    for block in range(len(data) // 208):
        end = 208 * (block + 1) if block < len(data) // 208 else len(data)
        # the last cipher block but one: flips one bit of the padding
        broken = flipped(data, 8 * (end - 17))
        (found,) = [f for f in bad(look(broken, KEY)) if "padding" in f.message]
        assert found.code == "bad-header" and found.offset == end - 32
    assert [f.code for f in bad(look(flipped(data, 8 * (len(data) - 17)), KEY))] == ["bad-header"]


def test_what_is_wrong_with_the_plaintext_is_said_where_its_ciphertext_lies(small_blocks: int) -> None:
    data = sealed("AES-GCM", PLAIN + b"garbage", KEY, size=small_blocks)
    (found,) = bad(look(data, KEY))
    assert (found.code, found.offset) == ("bad-header", len(data) - 7)
    assert found.message.startswith("decrypted: ")
    twice = PLAIN + record("w", (1,), "Int8", b"a")
    for mode, plain, code in ("AES-CBC", PLAIN[:-2], "truncated"), ("AES-GCM", twice, "duplicate-tensor"):
        assert codes(sealed(mode, plain, KEY, size=small_blocks), KEY) == {code}


def test_a_crc_trailer_after_the_ciphertext_is_the_same_with_a_key() -> None:
    (found,) = bad(look(sealed("AES-GCM", PLAIN, KEY) + b"crc_num" + bytes(10), KEY))
    assert found.code == "trailing-data" and "17 bytes" in found.message


@pytest.mark.parametrize("mode", list(MAGIC))
@pytest.mark.parametrize("key", [b"", b"short", KEY[::-1], bytes(24), bytes(range(100, 132)), b"x" * 1000])
def test_a_wrong_key_is_one_warning(mode: str, key: bytes) -> None:
    anatomy = Anatomy(regions=[])
    found = look(sealed(mode, PLAIN, KEY), key, anatomy)
    assert [(f.code, f.severity) for f in found] == [("wrong-key", Severity.WARNING)]
    assert not anatomy.sums and not anatomy.tensors
    assert "unexplained" not in {r.what for r in regions_of(anatomy, len(sealed(mode, PLAIN, KEY)))}


def test_noise_and_what_is_none() -> None:
    assert all(is_noise(os.urandom(n)) for n in (0, 1, 10, 100, 1000, 10_000) for _ in range(50))
    floats = b"".join(struct.pack("<f", 0.01 * (i - 150)) for i in range(300))
    assert not is_noise(floats) and not is_noise(PLAIN)


def test_the_key_shows_nowhere(small_blocks: int) -> None:
    secret, shown = b"SECRETsecret1234", list[object]()
    tagged = sealed("AES-GCM", PLAIN, secret, size=small_blocks)
    for key in secret, secret + secret[:3]:
        for data in (tagged, sealed("AES-CBC", PLAIN, KEY), sealed("SM4-CBC", PLAIN, secret)):
            anatomy = Anatomy()
            shown += [look(data, key, anatomy), anatomy, *((s, s.hash, s.hash and s.hash()) for s in anatomy.sums)]  # fmt: skip
    shown.append(Decrypted(BytesSource(b""), Scheme("AES-GCM", secret), [], []))
    assert "SECRET" not in repr(shown) and secret.hex() not in repr(shown).lower()


def test_without_the_package_only_the_framing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sealed("AES-GCM", PLAIN, KEY)
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # how Python marks a module that cannot be imported
    found = look(data, KEY)
    assert [f.code for f in found] == ["needs-extra", "not-checksummed"] and not bad(found)
    assert "pip install 'ckpt-tools[encrypted]'" in found[0].message
    assert {f.code for f in look(data)} == {"needs-key", "not-checksummed"}
    assert codes(data[:-1], KEY) == {"truncated"}


def test_a_build_without_sm4_needs_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm

    def refused(*_: object) -> None:
        raise UnsupportedAlgorithm("cipher sm4 is not supported")

    data = sealed("SM4-CBC", PLAIN, KEY)
    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.Cipher.decryptor", refused)
    found = look(data, KEY)
    assert found[0].code == "needs-extra" and "SM4" in found[0].message and not bad(found)


FRAMED = {"gcm": GCM, "old": GCM, "old-cbc": GCM, "cbc": CBC, "sm4": SM4}


def block(mode: str, plain: int) -> tuple[bytes, int]:
    """The header of a block and its number of cipher bytes."""
    cipher = plain if mode in ("gcm", "old") else plain // 16 * 16 + 16
    return header(FRAMED[mode], b"T" * 16 if mode == "gcm" else b"", b"I" * 16, cipher), cipher


def encrypted(mode: str, plain: int) -> bytes:
    head, cipher = block(mode, plain)
    return head + b"C" * cipher


@pytest.mark.parametrize("plain", [100, 96])
@pytest.mark.parametrize("mode", FRAMED)
def test_framing_without_a_key(mode: str, plain: int) -> None:
    data = encrypted(mode, plain)
    assert {f.code for f in look(data)} == {"needs-key", "not-checksummed"} and FMT.magic(data[:HEAD])
    assert all(codes(data[:n]) for n in range(1, len(data)))
    assert codes(data + b"\0") == codes(data + data) == {"trailing-data"}


@pytest.mark.parametrize(("mode", "lengths"), [("gcm", 20), ("cbc", 4), ("sm4", 4), ("old", 4)])
def test_every_bit_of_the_framing_counts(mode: str, lengths: int) -> None:
    """But the one that turns the magic of a lone CBC block into that of MindSpore 1.x."""
    data, head = encrypted(mode, 100), block(mode, 100)[0]
    places = [*range(4), *range(lengths, lengths + 8), *range(len(head) - 4, len(head))]
    unseen = {(i, b) for i in places for b in range(8) if not codes(flipped(data, 8 * i + b))}
    assert unseen == {"cbc": {(0, 0)}, "sm4": {(0, 1)}}.get(mode, set())


def test_blocks_of_64_mib_and_of_512(tmp_path: Path) -> None:
    """Sparse files of two and more blocks: every block but the last is full, and a full last one is
    suspicious.
    """
    full = 64 << 20

    def file(*plain: int, mode: str = "cbc") -> list[Finding]:
        path = tmp_path / "x.ckpt"
        with path.open("wb") as f:
            for n in plain:
                head, cipher = block(mode, n)
                f.write(head)
                f.truncate(f.tell() + cipher)
                f.seek(0, 2)
        with LocalSource(str(path)) as source:
            try:
                found = look(source)
            except Exception as e:
                found = [e.finding]  # type: ignore[attr-defined]
            assert source.bytes_read < 400
        return [f for f in found if f.severity > Severity.NOTE]

    assert not file(full, full, 12345)
    assert [f.code for f in file(full, 12345, full)] == ["trailing-data"]
    assert [(f.code, f.severity) for f in file(full, full)] == [("truncated", Severity.WARNING)]
    assert [f.code for f in file(full + 16)] == ["bad-header"]
    for mode in "old", "old-cbc":
        assert not file(full, full, 12345, mode=mode)
        assert not file(8 * full, 8 * full, 12345, mode=mode)
        assert [f.code for f in file(8 * full, full, 12345, mode=mode)] == ["trailing-data"]
    assert [f.code for f in file(8 * full, 5, mode="gcm")] == ["bad-header"]


@pytest.mark.slow
def test_structure_reads_little_of_a_big_file(tmp_path: Path) -> None:
    """Two blocks: the records are followed through the ciphertext, their contents are skipped; the tags are
    then checked in bounded memory.
    """
    path = tmp_path / "big.ckpt"
    plain = b"".join(record(f"w{i}", (17, 1 << 20), "Int8", b"\1" * (17 << 20)) for i in range(4))
    path.write_bytes(sealed("AES-GCM", plain, KEY))
    with LocalSource(str(path)) as source:
        anatomy = Anatomy()
        assert not look(source, KEY, anatomy)
        assert len(anatomy.tensors) == 4 and len(anatomy.sums) == 2 and source.bytes_read < 16384
    report, _ = verify_look(str(path), Level.CONTENT, key=KEY, jobs=2)
    assert report.verdict is Verdict.OK and report.coverage > 0.999
    with path.open("r+b") as f:
        f.seek(-5, 2)
        f.write(b"\xff")
    report, _ = verify_look(str(path), Level.CONTENT, key=KEY, jobs=2)
    wrong = ("crc-mismatch", "the tag of block 1: does not match")
    assert [(f.code, f.message) for f in report.findings] == [wrong]


@examples(100)
@given(st.binary(max_size=200), st.sampled_from(list(MAGIC)))
def test_any_plaintext_does_not_surprise(data: bytes, mode: str) -> None:
    keys = tensor((3,), "int32", bytes(12))
    m = table("m", keys, tensor((3, 2), "float32", bytes(24)), keys)
    assert not codes(sealed(mode, PLAIN + m, KEY), KEY)
    codes(sealed(mode, PLAIN + data, KEY), KEY)
    if data:
        assert codes(sealed(mode, data + PLAIN, KEY), KEY)
