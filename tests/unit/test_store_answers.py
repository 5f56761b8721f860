"""The answers of stores about their checksums, as their documentation has them: most of it no server for tests
says.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, ClassVar

import pytest

from ckpt_tools.checksum.combine import CRC32, CRC32C, CRC64NVME
from ckpt_tools.checksum.store_sums import add_whole_checksums, work_out
from ckpt_tools.model.seal import StoreChecksums
from ckpt_tools.storage import BytesSource
from ckpt_tools.storage.stores import told
from ckpt_tools.storage.stores.object_store import ObjectStore
from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.stores.told import stored_checksums

DATA = bytes(range(256)) * 11
ALGORITHMS = {
    "crc32": lambda data: CRC32.update(data, 0).to_bytes(4, "big"),
    "crc32c": lambda data: CRC32C.update(data, 0).to_bytes(4, "big"),
    "crc64nvme": lambda data: CRC64NVME.update(data, 0).to_bytes(8, "big"),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def aws_answer(parts: list[bytes], algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """HeadObject and ObjectParts of an upload in parts with a composite checksum."""
    name, of = f"Checksum{algorithm.upper()}", ALGORITHMS[algorithm]
    values = [of(p) for p in parts]
    etag = hashlib.md5(b"".join(hashlib.md5(p).digest() for p in parts)).hexdigest()
    head = {name: f"{b64(of(b''.join(values)))}-{len(parts)}", "ChecksumType": "COMPOSITE"}
    head |= {"ETag": f'"{etag}-{len(parts)}"', "ContentLength": sum(map(len, parts))}
    of_part = zip(range(1, 1 + len(parts)), parts, values, strict=True)
    return head, {"Parts": [{"PartNumber": i, "Size": len(p), name: b64(v)} for i, p, v in of_part]}


@pytest.mark.parametrize("algorithm", ["crc32", "crc32c", "sha256"])
def test_parts_of_unequal_lengths(algorithm: str) -> None:
    parts = [b"a" * 700, b"b" * 300, b"c" * 900]
    head, rows = aws_answer(parts, algorithm)
    body = b"".join(parts)
    found = StoreChecksums("s3://b/k", len(body), tuple(told.read_s3_sums(head, rows, len(body))))
    for s in found.sums:
        assert s.parts == (700, 300, 900) and work_out(BytesSource(body), s) == s.value
    whole = [s for s in add_whole_checksums(found).sums if s.whole]
    assert [s.value for s in whole] == ([] if algorithm == "sha256" else [ALGORITHMS[algorithm](body)])


def test_pages_of_parts_are_joined() -> None:
    head, rows = aws_answer([b"1" * 9, b"2" * 8, b"3" * 7], "crc32c")

    class Client:
        asked: ClassVar[list[dict[str, Any]]] = []

        def head_object(self, **kwargs: Any) -> dict[str, Any]:
            return head

        def get_object_attributes(self, **kwargs: Any) -> dict[str, Any]:
            self.asked.append(kwargs)
            at = int(kwargs.get("PartNumberMarker", 0))
            more = {"IsTruncated": at + 2 < 3, "NextPartNumberMarker": at + 2}
            return {"ObjectParts": {"Parts": rows["Parts"][at : at + 2], "TotalPartsCount": 3, **more}}

    store = ObjectStore("s3://b", None)
    store.boto = Client()
    found = stored_checksums(store, Object("k", 24, 0, head["ETag"], "v7"))
    assert next(s for s in found.sums if s.algorithm == "crc32c").parts == (9, 8, 7)
    assert len(Client.asked) == 2 and all(a["VersionId"] == "v7" for a in Client.asked)
    assert store.requests["head"] == 3


@pytest.mark.parametrize(
    "odd",
    [
        {"ChecksumCRC32": "not base64!"},
        {"ChecksumCRC32": b64(b"12345")},
        {"ChecksumCRC32": f"{b64(b'1234')}-3"},  # of three parts, and two are told
        {"ChecksumCRC32": b64(b"1234"), "ChecksumType": "COMPOSITE", "Sizes": (1, 1)},
        {"ETag": '"d41d8cd98f00b204e9800998ecf8427e"', "ServerSideEncryption": "aws:kms"},
        {"ETag": '"d41d8cd98f00b204e9800998ecf8427e"', "SSECustomerAlgorithm": "AES256"},
        {"ETag": '"D41D8CD98F00B204E9800998ECF8427E"'},
        {"ETag": '"d41d8cd98f00b204e9800998ecf8427e-3"'},
        {"ETag": '"0x8DCAFE"'},
        {},
    ],
)
def test_odd_answers_are_no_checksums(odd: dict[str, Any]) -> None:
    sizes = odd.pop("Sizes", (4, 6))
    rows = {"Parts": [{"Size": n} for n in sizes]}
    assert list(told.read_s3_sums(odd, rows, 10)) == []


@pytest.mark.parametrize(
    ("first", "size", "sizes", "guess"),
    [
        ({"PartsCount": 2, "ContentLength": 5}, 14, [5, 9], False),
        ({"PartsCount": 3, "ContentLength": 5}, 14, [5, 5, 4], True),
        ({"PartsCount": 3, "ContentLength": 5}, 16, [], False),  # the last is never longer
        ({"PartsCount": 3, "ContentLength": 5}, 10, [], False),
        ({"PartsCount": 1, "ContentLength": 5}, 5, [5], False),
        ({}, 5, [], False),
    ],
)
def test_sizes_of_parts(first: dict[str, int], size: int, sizes: list[int], guess: bool) -> None:
    found = told.guess_parts(first, size)
    assert [row["Size"] for row in found.get("Parts", ())] == sizes
    assert bool(found.get("Guessed")) is guess


def test_headers_of_google_and_azure() -> None:
    crc, md5 = ALGORITHMS["crc32c"](DATA), hashlib.md5(DATA).digest()
    hashes = {"x-goog-hash": f"crc32c={b64(crc)},md5={b64(md5)}"}
    assert [s.value for s in told.read_google_sums(hashes)] == [crc, md5]
    assert list(told.read_google_sums({**hashes, "x-goog-stored-content-encoding": "gzip"})) == []
    assert list(told.read_google_sums({"x-goog-hash": "crc32c=####,sha=AAAA"})) == []
    crc64 = ALGORITHMS["crc64nvme"](DATA)
    azure = {"x-ms-content-crc64": b64(crc64[::-1]), "content-md5": b64(md5)}
    said = [(s.algorithm, s.value, s.claimed) for s in told.read_azure_sums(azure)]
    assert said == [("crc64nvme", crc64, False), ("md5", md5, True)]
    assert list(told.read_azure_sums({**azure, "x-ms-blob-type": "AppendBlob"})) == []
