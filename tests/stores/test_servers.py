"""The test servers and the clients that the package uses work together; what a server does otherwise than
the real service is held too, so that a new version of it is noticed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stores.bucket import Bucket
from stores.process import program, server
from stores.proxy import Proxy
from stores.s3_contents import S3Contents

CONDITIONS = ["s3", "azurite", "gcs", "http_server"]
LISTS = ["s3", "rclone_s3", "azurite", "gcs"]


def contents_of(bucket: Bucket) -> S3Contents:
    assert isinstance(bucket.contents, S3Contents)
    return bucket.contents


@pytest.mark.parametrize("bucket", LISTS, indirect=True)
def test_a_directory_is_uploaded_listed_and_read(bucket: Bucket, tmp_path: Path) -> None:
    import obstore

    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "deep" / "b c+é%").write_bytes(bytes(range(256)))
    (tmp_path / "run" / "a").write_bytes(b"")
    bucket.upload(tmp_path / "run", "jobs/1")
    assert bucket.keys() == ["jobs/1/a", "jobs/1/deep/b c+é%"]
    store = bucket.store()
    rows = [row for page in obstore.list(store, "jobs") for row in page]
    assert sorted((row["path"], row["size"]) for row in rows) == [
        ("jobs/1/a", 0),
        ("jobs/1/deep/b c+é%", 256),
    ]
    level = obstore.list_with_delimiter(store, "jobs/1")
    assert list(level["common_prefixes"]) == ["jobs/1/deep"]
    assert [row["path"] for row in level["objects"]] == ["jobs/1/a"]
    assert obstore.get_range(store, "jobs/1/deep/b c+é%", start=5, length=3).to_bytes() == b"\5\6\7"
    bucket.delete("jobs/1/a")
    assert bucket.keys() == ["jobs/1/deep/b c+é%"]


@pytest.mark.parametrize("bucket", CONDITIONS, indirect=True)
def test_a_read_is_held_to_the_object_that_was_seen(bucket: Bucket) -> None:
    import obstore
    from obstore.exceptions import PreconditionError

    bucket.put("k", b"first")
    store = bucket.store()
    etag = obstore.head(store, "k")["e_tag"]
    again = obstore.get(store, "k", options={"if_match": etag, "range": (1, 3)})
    assert bytes(again.bytes()) == b"ir"
    bucket.put("k", b"other")
    with pytest.raises(PreconditionError):
        obstore.get(store, "k", options={"if_match": etag, "range": (1, 3)})


@pytest.mark.parametrize("bucket", [*CONDITIONS, "rclone_s3"], indirect=True)
def test_what_is_not_there_is_not_found(bucket: Bucket) -> None:
    import obstore

    with pytest.raises(FileNotFoundError):
        obstore.head(bucket.store(), "nothing")


@pytest.mark.parametrize("bucket", ["s3", "azurite", "gcs"], indirect=True)
def test_an_object_is_put_only_where_none_is(bucket: Bucket) -> None:
    import obstore
    from obstore.exceptions import AlreadyExistsError

    obstore.put(bucket.store(), "k", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(bucket.store(), "k", b"2", mode="create")
    assert bytes(obstore.get(bucket.store(), "k").bytes()) == b"1"


@pytest.mark.parametrize(
    "bucket",
    [*(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("s3", "rclone_s3")), "gcs"],
    indirect=True,
)
def test_a_list_has_pages(bucket: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> None:
    import obstore

    keys = [f"p/{number:04}" for number in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: bucket.put(key, b""), keys))
    proxy = proxy_of(bucket)
    found = obstore.list(bucket.through(proxy.endpoint).store(), "p")
    assert [row["path"] for page in found for row in page] == keys
    assert proxy.count("GET") == 2


@pytest.mark.parametrize("bucket", LISTS, indirect=True)
def test_a_list_begins_where_it_is_told(bucket: Bucket) -> None:
    import obstore

    for name in "abc":
        bucket.put(f"p/{name}", b"")
    rows = [row["path"] for page in obstore.list(bucket.store(), "p", offset="p/a") for row in page]
    assert rows == ["p/b", "p/c"]


@pytest.mark.parametrize("bucket", LISTS, indirect=True)
def test_a_large_object_is_put_in_parts_and_deleted(bucket: Bucket) -> None:
    import obstore

    data = bytes(range(256)) * (11 << 12)
    obstore.put(bucket.store(), "large", data, use_multipart=True)
    got = obstore.get_ranges(bucket.store(), "large", starts=[0, len(data) - 4], lengths=[4, 4])
    assert [bytes(part) for part in got] == [data[:4], data[-4:]]
    obstore.delete(bucket.store(), ["large"])
    assert bucket.keys() == []


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA256"])
def test_s3_tells_the_checksum_that_was_sent(s3: Bucket, algorithm: str) -> None:
    held = contents_of(s3)
    told = held.client.put_object(Bucket=held.bucket, Key="k", Body=b"data", ChecksumAlgorithm=algorithm)
    head = held.client.head_object(Bucket=held.bucket, Key="k", ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == told[f"Checksum{algorithm}"]
    assert f"Checksum{algorithm}" not in held.client.head_object(Bucket=held.bucket, Key="k")


def test_s3_knows_both_checksums_of_an_upload_in_parts(s3: Bucket) -> None:
    import base64

    parts = [b"\1" * (5 << 20), b"\2" * 1000]
    held = contents_of(s3)
    sums = {}
    for kind in ("FULL_OBJECT", "COMPOSITE"):
        assert held.put_parts(kind, parts, "CRC32", kind)["ETag"].endswith('-2"')
        head = held.client.head_object(Bucket=held.bucket, Key=kind, ChecksumMode="ENABLED")
        assert head["ChecksumType"] == kind
        sums[kind] = int.from_bytes(base64.b64decode(head["ChecksumCRC32"]), "big")
    of_parts = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
    assert sums == {"FULL_OBJECT": zlib.crc32(b"".join(parts)), "COMPOSITE": zlib.crc32(of_parts)}


def test_s3_keeps_versions(versioned_s3: Bucket) -> None:
    import obstore

    versioned_s3.put("k", b"first")
    version = obstore.head(versioned_s3.store(), "k")["version"]
    versioned_s3.put("k", b"other")
    old = obstore.get(versioned_s3.store(), "k", options={"version": version})
    assert (bytes(old.bytes()), bytes(obstore.get(versioned_s3.store(), "k").bytes())) == (b"first", b"other")


def test_gcs_keeps_generations_and_tells_checksums(gcs: Bucket) -> None:
    import http.client

    import obstore

    gcs.put("a/k", b"123456789")
    first = obstore.head(gcs.store(), "a/k")["version"]
    gcs.put("a/k", b"other")
    assert bytes(obstore.get(gcs.store(), "a/k", options={"version": first}).bytes()) == b"123456789"
    connection = http.client.HTTPConnection(gcs.endpoint.removeprefix("http://"))
    connection.request("HEAD", f"/{gcs.url.removeprefix('gs://')}/a%2Fk?generation={first}")
    told = connection.getresponse().getheader("x-goog-hash") or ""
    connection.close()
    assert told.startswith("crc32c=4waSgw==,md5=")  # the check value of CRC32C, e3069283


def test_azurite_tells_the_md5_of_what_was_put_at_once(azurite: Bucket) -> None:
    import base64
    import hashlib

    from stores.azure_contents import AzureContents

    azurite.put("k", b"data")
    assert isinstance(azurite.contents, AzureContents)
    headers, _ = azurite.contents.ask("HEAD", "k")
    assert base64.b64decode(headers["content-md5"]) == hashlib.md5(b"data").digest()


def test_rclone_itself_answers_a_range_as_if_it_were_the_whole(rclone_s3: Bucket, rclone_server) -> None:
    import obstore

    rclone_s3.put("k", b"0123456789")
    plain = rclone_s3.through(rclone_server.plain)
    with pytest.raises(Exception, match="non-partial response"):
        obstore.get_range(plain.store(), "k", start=2, length=3)
    assert obstore.get_range(rclone_s3.store(), "k", start=2, length=3).to_bytes() == b"234"


def test_rclone_verifies_signatures_and_moto_does_not(rclone_s3: Bucket, s3: Bucket) -> None:
    import dataclasses

    import obstore

    for bucket in (rclone_s3, s3):
        bucket.put("k", b"data")
    wrong = [
        dataclasses.replace(b, options={**b.options, "secret_access_key": "wrong"}) for b in (rclone_s3, s3)
    ]
    with pytest.raises(Exception, match="403"):
        list(obstore.list(wrong[0].store()))
    assert [len(page) for page in obstore.list(wrong[1].store())] == [1]


def test_a_web_server_without_ranges_sends_all(http_without_ranges: Bucket) -> None:
    import obstore

    http_without_ranges.put("k", b"0123456789")
    assert bytes(obstore.get(http_without_ranges.store(), "k").bytes()) == b"0123456789"
    with pytest.raises(Exception, match="Range request not supported"):
        obstore.get_range(http_without_ranges.store(), "k", start=2, length=3)


def test_a_web_server_with_ranges_sends_them(http_server: Bucket) -> None:
    import obstore

    http_server.put("a/k é", b"0123456789")
    assert obstore.get_range(http_server.store(), "a/k é", start=2, length=3).to_bytes() == b"234"
    assert len(obstore.get_range(http_server.store(), "a/k é", start=8, length=3)) == 2
    with pytest.raises(Exception, match="416"):
        obstore.get_range(http_server.store(), "a/k é", start=10, length=3)


@pytest.mark.parametrize("bucket", ["sftp", "memory_store"], indirect=True)
def test_fsspec_lists_and_reads(bucket: Bucket, tmp_path: Path) -> None:
    import fsspec

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "k").write_bytes(b"0123456789")
    bucket.upload(tmp_path, "run")
    files, path = fsspec.core.url_to_fs(bucket.url, skip_instance_cache=True, **bucket.options)
    try:
        assert files.find(path) == [f"{path}/run/d/k"]
        assert files.info(f"{path}/run/d/k")["size"] == 10
        with files.open(f"{path}/run/d/k", "rb") as file:
            file.seek(2)
            assert file.read(3) == b"234"
    finally:
        if hasattr(files, "client"):
            files.ftp.close()
            files.client.close()


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="no such port"),
        server(["/bin/sh", "-c", "echo no such port; exit 3"], tmp_path / "log"),
    ):
        pass


def test_a_missing_program_says_how_it_is_installed() -> None:
    with pytest.raises(FileNotFoundError, match=r"run it for real: \.ci/packages"):
        program("no-such-program", install=".ci/packages")
