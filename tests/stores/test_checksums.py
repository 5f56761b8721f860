"""What stores say of the bytes that they keep: asked for by metadata requests alone, of one version, and without
a secret in any error.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from dataclasses import replace
from typing import Any

import obstore
import pytest
from stores.bucket import Bucket
from stores.faults import denied, expired_token
from stores.proxy import Proxy, Rule
from stores.s3 import ACCESS, SECRET, s3_of

from ckpt_tools.checksum.combine import CRC32, CRC32C, CRC64NVME
from ckpt_tools.checksum.store_sums import choose_sum, work_out
from ckpt_tools.model.seal import StoreChecksum, StoreChecksums
from ckpt_tools.storage import BytesSource
from ckpt_tools.storage.stores import told as answers
from ckpt_tools.storage.stores.object_store import ObjectStore
from ckpt_tools.storage.stores.store import Object, Replaced
from ckpt_tools.storage.stores.told import stored_checksums

DATA = bytes(range(256)) * 11
PARTS = [bytes(5 << 20), b"second" * 1000]
ALGORITHMS = {
    "crc32": lambda data: CRC32.update(data, 0).to_bytes(4, "big"),
    "crc32c": lambda data: CRC32C.update(data, 0).to_bytes(4, "big"),
    "crc64nvme": lambda data: CRC64NVME.update(data, 0).to_bytes(8, "big"),
    "sha1": lambda data: hashlib.sha1(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


def store_of(bucket: Bucket) -> ObjectStore:
    return ObjectStore(bucket.url, bucket.store())


def told(bucket: Bucket, key: str) -> StoreChecksums:
    store = store_of(bucket)
    found = stored_checksums(store, store.head(key))
    assert store.requests["get"] == 0
    return found


def by_name(found: StoreChecksums) -> dict[str, StoreChecksum]:
    return {s.algorithm: s for s in found.sums}


# ---- S3


def put(bucket: Bucket, algorithm: str) -> None:
    there = s3_of(bucket)
    there.client.put_object(Bucket=there.bucket, Key="k", Body=DATA, ChecksumAlgorithm=algorithm.upper())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_s3_keeps_what_it_was_sent(s3: Bucket, algorithm: str) -> None:
    put(s3, algorithm)
    found = by_name(told(s3, "k"))
    own, md5 = found[algorithm], found["md5"]
    assert (own.value, own.whole, own.weak) == (ALGORITHMS[algorithm](DATA), True, False)
    assert (md5.value, md5.weak) == (hashlib.md5(DATA).digest(), True)


IN_PARTS = [(a, k) for a in ("crc32", "crc32c", "crc64nvme", "sha256") for k in ("FULL_OBJECT", "COMPOSITE")]
NO_SUCH = {("crc64nvme", "COMPOSITE"), ("sha256", "FULL_OBJECT")}


@pytest.mark.share(2)
@pytest.mark.parametrize(("algorithm", "kind"), [row for row in IN_PARTS if row not in NO_SUCH])
def test_an_upload_in_parts(s3: Bucket, algorithm: str, kind: str) -> None:
    s3_of(s3).put_parts("k", PARTS, algorithm.upper(), kind)
    found, body = by_name(told(s3, "k")), b"".join(PARTS)
    sizes = tuple(map(len, PARTS)) if kind == "COMPOSITE" else ()
    assert found[algorithm].parts == sizes and not found[algorithm].weak
    assert work_out(BytesSource(body), found[algorithm]) == found[algorithm].value
    assert work_out(BytesSource(b"x" + body[1:]), found[algorithm]) != found[algorithm].value
    if kind == "COMPOSITE":  # its sizes also explain the ETag
        assert found["md5"].parts == sizes
        assert work_out(BytesSource(body), found["md5"]) == found["md5"].value


def test_of_more_than_two_parts_the_sizes_are_a_guess(s3: Bucket) -> None:
    parts = [PARTS[0], PARTS[0], PARTS[1]]
    s3_of(s3).put_parts("k", parts, "SHA256", "COMPOSITE")
    found = by_name(told(s3, "k"))["sha256"]
    assert found.weak and found.parts == tuple(map(len, parts))
    assert work_out(BytesSource(b"".join(parts)), found) == found.value


def test_rclone_s3_keeps_what_it_was_sent(rclone_s3: Bucket) -> None:
    rclone_s3.put("k", DATA)
    found = told(rclone_s3, "k")
    of = choose_sum(found, to_prove=True)
    assert of is not None and work_out(BytesSource(DATA), of) == of.value


def test_the_version_that_was_listed_is_asked_about(versioned_s3: Bucket) -> None:
    store = store_of(versioned_s3)
    versioned_s3.put("k", DATA)
    first = store.head("k")
    assert first.version
    versioned_s3.put("k", DATA[::-1])
    found = StoreChecksums("", 0, stored_checksums(store, first).sums)
    assert by_name(found)["crc32"].value == ALGORITHMS["crc32"](DATA)


@pytest.mark.parametrize("bucket", ["s3", "gcs", "azurite"], indirect=True)
def test_another_object_is_another_object(bucket: Bucket) -> None:
    store = store_of(bucket)
    bucket.put("k", DATA)
    first = store.head("k")
    bucket.put("k", DATA[::-1])
    with pytest.raises(Replaced):
        stored_checksums(store, first)
    if bucket.url.startswith("s3"):
        with pytest.raises(Replaced):  # also where a server knows no If-Match
            stored_checksums(store, first._replace(etag="", size=first.size + 1))
    bucket.delete("k")
    with pytest.raises(FileNotFoundError):
        stored_checksums(store, first)


@pytest.mark.parametrize("fault", [denied(), expired_token()], ids=["denied", "expired"])
def test_what_was_refused_names_no_secret(s3: Bucket, proxy: Proxy, through: Bucket, fault: Any) -> None:
    s3.put("k", DATA)
    store = store_of(through)
    of = store.head("k")
    proxy.add(Rule(fault))
    with pytest.raises(PermissionError) as e:
        stored_checksums(store, of)
    text = f"{e.value!r} {e.value} {e.value.filename} {e.value.__cause__!r}"
    assert SECRET not in text and ACCESS not in text and "403" in str(e.value)
    assert e.value.filename == f"{s3.url}/k"
    assert {seen.method for seen in proxy.seen} == {"HEAD"}


def test_nobody_answers(s3: Bucket) -> None:
    s3.put("k", DATA)
    of = store_of(s3).head("k")
    gone = store_of(s3.through("http://127.0.0.1:9"))
    with pytest.raises(OSError, match="nothing answers") as e:
        stored_checksums(gone, of)
    assert SECRET not in str(e.value)


def test_nothing_is_asked_of_an_empty_object_or_a_store_without_checksums(
    s3: Bucket, http_server: Bucket
) -> None:
    s3.put("k", b"")
    http_server.put("k", DATA)
    store = store_of(s3)
    of = store.head("k")
    before = store.requests.total()
    assert stored_checksums(store, of).sums == () and store.requests.total() == before
    assert stored_checksums(store_of(http_server), Object("k", 3, 0, "")).sums == ()


def test_without_boto3_it_is_said(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("k", DATA)
    store = store_of(s3)
    of = store.head("k")
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(OSError, match=r"pip install 'ckpt-tools\[cloud\]'"):
        stored_checksums(store, of)


# ---- Google and Azure


def test_google_keeps_two(gcs: Bucket) -> None:
    gcs.put("odd name+é%", DATA)
    found = by_name(told(gcs, "odd name+é%"))
    assert found["crc32c"].value == ALGORITHMS["crc32c"](DATA)
    assert found["md5"].value == hashlib.md5(DATA).digest() and not found["md5"].weak


def test_a_token_in_the_environment_needs_no_signature(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """To sign without a key Google's services are asked, many times where they do not answer."""
    monkeypatch.setattr(obstore, "sign", lambda *_: pytest.fail("it was signed"))
    gcs.put("k", DATA)
    for name, value in gcs.options.items():
        monkeypatch.setenv(f"GOOGLE_{name.upper()}", value)
    store = store_of(replace(gcs, options={}))
    assert {s.algorithm for s in stored_checksums(store, store.head("k")).sums} == {"crc32c", "md5"}


def test_who_may_not_sign_is_asked_once(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sign(_: object, __: str, key: str, ___: object) -> str:
        asked.append(key)
        raise obstore.exceptions.GenericError("nobody answers")

    monkeypatch.setattr(obstore, "sign", sign)
    for key in ("a", "b"):
        gcs.put(key, DATA)
    store = store_of(gcs)
    monkeypatch.setattr(answers, "_read_options", lambda _: {})
    for key in ("a", "b"):
        with pytest.raises(PermissionError, match="could be signed"):
            stored_checksums(store, store.head(key))
    assert asked == ["a"]


def test_azure_keeps_what_the_uploader_said(azurite: Bucket) -> None:
    azurite.put("run/step_1+2.pt", DATA)
    found = by_name(told(azurite, "run/step_1+2.pt"))
    assert found["md5"].value == hashlib.md5(DATA).digest() and found["md5"].claimed
    assert choose_sum(StoreChecksums("", 9, tuple(found.values())), to_prove=True) is None


def test_azure_without_rights(azurite: Bucket) -> None:
    azurite.put("k", DATA)
    first = store_of(azurite).head("k")
    azurite.put("a b", DATA)  # obstore 0.12 signs the escapes of such a key
    with pytest.raises(PermissionError):
        told(azurite, "a b")
    key = base64.b64encode(os.urandom(32)).decode()
    wrong = replace(azurite, options={**azurite.options, "account_key": key})
    with pytest.raises(PermissionError) as e:
        stored_checksums(store_of(wrong), first)
    assert "sig" not in str(e.value) and "http" not in str(e.value.strerror)
