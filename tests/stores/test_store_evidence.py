"""The checksums of stores as evidence: a body that is read is compared with them, a sealed upload and a copy of a
local file are judged without any body.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import flipped
from stores.asking import TREE
from stores.bucket import Bucket
from stores.faults import Corrupt, denied
from stores.proxy import Proxy, Rule, Seen
from stores.s3 import of_s3, s3_of

import ckpt_tools
from ckpt_tools.checksum.combine import CRC32C
from ckpt_tools.comparison.compare import diff as compare
from ckpt_tools.comparison.difference import Difference
from ckpt_tools.errors import UsageError
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.output import difference as output
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.object_store import ObjectStore
from ckpt_tools.storage.stores.tree import Tree

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_trees", {})


def safetensors(size: int) -> bytes:
    """A file of one tensor of about ``size`` bytes."""
    n = size // 4
    header = json.dumps({"w": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}).encode()
    header += b" " * (-len(header) % 8)
    body = struct.pack("<1024f", *range(1, 1025)) * (n // 1024 + 1)
    return struct.pack("<Q", len(header)) + header + body[: 4 * n]


def codes(result: Verification) -> list[str]:
    return [f.code for file in result.files for f in file.report.findings]


@pytest.fixture
def seen(s3: Bucket, proxy_of: Callable[[Bucket], Proxy], monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """A proxy through which ckpt asks, as a user says where the store is; what is uploaded goes past it."""
    proxy = proxy_of(s3)
    own = {**of_s3(s3.through(proxy.endpoint)), "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return proxy


@pytest.fixture
def azure(azurite: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", azurite.options["account_name"])
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azurite.options["account_key"])
    before = mounts.get_options()
    mounts.configure(StoreOptions((("endpoint", azurite.options["endpoint"]), ("allow_http", "true"))))
    yield azurite
    mounts.configure(before)


def bodies_of(proxy: Proxy) -> list[Seen]:
    """The answers with bodies of objects."""
    return [r for r in proxy.seen if r.method == "GET" and "list-type" not in r.query]


def gets(proxy: Proxy) -> list[str]:
    """The objects whose bodies were asked for."""
    return [r.path for r in bodies_of(proxy)]


# ---- a body that is read is compared


@pytest.mark.parametrize("size", [100_000, 9 * MIB], ids=["small", "large"])
def test_a_body_is_read_once_and_compared(s3: Bucket, seen: Proxy, size: int) -> None:
    """So a bit that flips on the way is seen."""
    s3.put("run/model.safetensors", safetensors(size))
    result = ckpt_tools.verify(f"{s3.url}/run")
    assert (str(result.verdict), codes(result)) == ("ok", ["not-checksummed"])
    assert size <= sum(r.sent for r in bodies_of(seen)) < size + 6 * 65536
    assert [r.method for r in seen.seen].count("HEAD") == 1
    seen.add(Rule(Corrupt(size // 2), method="GET", path="model"))
    result = ckpt_tools.verify(f"{s3.url}/run")
    # alone, where a small one is compared at once
    assert (str(result.verdict), codes(result)[-1]) == ("unknown", "unreadable")


def put(bucket: Bucket, key: str, data: bytes, algorithm: str, **more: str) -> None:
    there = s3_of(bucket)
    there.client.put_object(Bucket=there.bucket, Key=key, Body=data, ChecksumAlgorithm=algorithm, **more)


def test_a_bit_that_flipped_between_upload_and_store(s3: Bucket, seen: Proxy) -> None:
    good = safetensors(100_000)
    crc = CRC32C.update(good, 0).to_bytes(4, "big")
    flip = flipped(good, 8 * len(good) - 6)
    put(s3, "run/model.safetensors", flip, "CRC32C", ChecksumCRC32C=base64.b64encode(crc).decode())
    found = {f.code: f for file in ckpt_tools.verify(f"{s3.url}/run").files for f in file.report.findings}
    told = found["store-checksum-mismatch"]
    assert crc.hex() in told.message and "CRC-32C" in told.message
    assert codes(ckpt_tools.verify(f"{s3.url}/run", Level.STRUCTURE)) == ["not-checksummed"]


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA256"])
def test_an_upload_in_parts(s3: Bucket, seen: Proxy, algorithm: str) -> None:
    data = safetensors(7 * MIB)
    s3_of(s3).put_parts("run/model.safetensors", [data[: 5 * MIB], data[5 * MIB :]], algorithm, "COMPOSITE")
    assert codes(ckpt_tools.verify(f"{s3.url}/run")) == ["not-checksummed"]
    seen.add(Rule(Corrupt(6 * MIB), method="GET", path="model"))
    assert "store-checksum-mismatch" in codes(ckpt_tools.verify(f"{s3.url}/run"))


def test_where_the_store_does_not_tell_content_is_judged_by_itself(s3: Bucket, seen: Proxy) -> None:
    s3.put("run/model.safetensors", safetensors(100_000))
    seen.add(Rule(denied(), method="HEAD"))
    assert codes(ckpt_tools.verify(f"{s3.url}/run")) == ["not-checksummed"]


# ---- the upload is the file


def header_alone(proxy: Proxy) -> bool:
    """Of a file whose name tells nothing the header is read, to see what it is."""
    return sum(r.sent for r in bodies_of(proxy)) <= 4 * 65536


def diff(a: str | Path, b: str, level: Level = Level.STRUCTURE) -> Difference:
    return compare(str(a), b, level)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks."""
    return Path(shutil.copytree(TREE, tmp_path / "run"))


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT])
@pytest.mark.parametrize("turned", [False, True])
def test_an_upload_is_the_files(s3: Bucket, seen: Proxy, tree: Path, level: Level, turned: bool) -> None:
    s3.upload(tree, "run")
    a, b = str(tree), f"{s3.url}/run"
    found = diff(b, a, level) if turned else diff(a, b, level)
    assert {str(f.change) for f in found.files} == {"same"} and not found.differs
    assert {(f.bytes_same, f.by_store) for f in found.files} == {(True, "crc32")}
    assert gets(seen) == []
    assert "the uploads are the files, byte for byte: by CRC-32 of the store" in output.render(found)
    document = json.loads(output.json(found))
    assert document["same"] is True and document["files"][0]["store_checksum"] == "crc32"
    urls = {(f.a if turned else f.b).path for f in found.files if f.a and f.b}
    assert urls and all(url.startswith(f"{s3.url}/run/") for url in urls)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_one_file_and_what_its_local_bytes_cost(s3: Bucket, seen: Proxy, model: Path) -> None:
    model.write_bytes(data := safetensors(3 * MIB))
    s3.put("other-name.safetensors", data)
    found = diff(model, f"{s3.url}/other-name.safetensors")
    assert "the upload is the file, byte for byte: by CRC-32 of the store" in output.render(found)
    assert header_alone(seen) and len(data) <= found.bytes_read < len(data) + 3 * 65536


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "SHA256"])
def test_an_upload_in_parts_is_the_file(s3: Bucket, seen: Proxy, model: Path, algorithm: str) -> None:
    model.write_bytes(data := safetensors(12 * MIB))
    parts = [data[at : at + 5 * MIB] for at in range(0, len(data), 5 * MIB)]
    s3_of(s3).put_parts("model.safetensors", parts, algorithm, "COMPOSITE")
    found = diff(model, f"{s3.url}/model.safetensors")
    assert [(f.bytes_same, f.by_store) for f in found.files] == [(True, algorithm.lower())]
    assert header_alone(seen)


def test_a_bit_that_is_not_the_files(s3: Bucket, seen: Proxy, model: Path) -> None:
    model.write_bytes(data := safetensors(MIB))
    s3.put("model.safetensors", flipped(data, 8 * (len(data) - 9) + 4))
    found = diff(model, f"{s3.url}/model.safetensors")
    assert found.differs and found.files[0].bytes_same is False
    assert "other bytes (CRC-32 of the store)" in output.render(found)
    deep = diff(model, f"{s3.url}/model.safetensors", Level.CONTENT)
    assert [str(t.change) for f in deep.files for t in f.tensors] == ["changed"]


def test_two_objects(s3: Bucket, seen: Proxy, tree: Path) -> None:
    for name in ("one", "two"):
        s3.upload(tree, name)
    found = diff(f"{s3.url}/one", f"{s3.url}/two", Level.CONTENT)
    assert {(f.bytes_same, f.by_store) for f in found.files} == {(True, "crc32")}
    assert "the objects are the same" in output.render(found)


def test_without_a_checksum_the_files_are_compared_themselves(azure: Bucket, tree: Path) -> None:
    """Azure's MD5 is what the uploader said."""
    azure.upload(tree, "run")
    found = diff(tree, f"{azure.url}/run", Level.CONTENT)
    assert not found.differs and {f.by_store for f in found.files} == {""}


def test_google_says_it_too(gcs: Bucket, tree: Path) -> None:
    gcs.upload(tree, "run")
    tree_of = ObjectStore(gcs.url, gcs.store())
    place = (gcs.url, tuple(sorted(mounts.get_options().of(f"{gcs.url}/run").items())))
    mounts._trees[place] = Tree(tree_of)
    found = diff(tree, f"{gcs.url}/run")
    assert {(f.bytes_same, f.by_store) for f in found.files} == {(True, "crc32c")}
    assert tree_of.requests["get"] == 0


def test_where_nobody_may_ask_the_files_are_compared_themselves(s3: Bucket, seen: Proxy, tree: Path) -> None:
    s3.upload(tree, "run")
    seen.add(Rule(denied(), method="HEAD", path=r"\.pt"))
    found = diff(str(tree), f"{s3.url}/run", Level.CONTENT)
    assert not found.differs and {f.by_store for f in found.files} == {""} and gets(seen)


# ---- a sealed upload, by metadata requests alone


def sealed(tree: Path, **how: Any) -> Path:
    assert ckpt_tools.seal(str(tree), **how).count("sealed") > 0
    return tree


def bodies(proxy: Proxy) -> list[str]:
    """Seals apart, which say what the others must be, and the run's tracker."""
    return [path for path in gets(proxy) if path.endswith(".pt")]


def by_store(url: str) -> Verification:
    return ckpt_tools.verify(url, by_store=True)


def parts(result: Verification) -> dict[str, Report]:
    reports = (f.report for f in result.files)
    return {r.path.rpartition("/run/")[2]: r for r in reports if "ckpt-seal" not in r.path}


def test_a_sealed_upload_needs_no_body(s3: Bucket, seen: Proxy, tree: Path) -> None:
    s3.upload(sealed(tree), "run")
    result = by_store(f"{s3.url}/run")
    assert str(result.verdict) == "ok" and result.summary.below_level == 0 and codes(result) == []
    found = parts(result)
    assert len(found) == sum(1 for _ in tree.rglob("*.pt"))
    assert {(str(r.level), r.coverage, r.bytes_read) for r in found.values()} == {("content", 1.0, 0)}
    assert bodies(seen) == []
    assert sum(r.method == "HEAD" and r.path.endswith(".pt") for r in seen.seen) == len(found)


@pytest.mark.parametrize("same_size", [True, False])
def test_an_object_that_is_not_what_was_sealed(s3: Bucket, seen: Proxy, tree: Path, same_size: bool) -> None:
    s3.upload(sealed(tree), "run")
    name = "iter_0000020/mp_rank_01/model_optim_rng.pt"
    data = (tree / name).read_bytes()
    s3.put(f"run/{name}", flipped(data, 8 * (len(data) // 2)) + b"more" * (not same_size))
    found = parts(by_store(f"{s3.url}/run"))
    assert [path for path, r in found.items() if str(r.verdict) == "broken"] == [name]
    (wrong,) = found[name].findings
    assert wrong.code == "seal-mismatch" and ("CRC-32" if same_size else "were sealed") in wrong.message


def test_a_checksum_that_no_seal_has_proves_nothing(s3: Bucket, seen: Proxy, tree: Path) -> None:
    """SHA-256 of the object, and the seal has XXH3, CRC-32 and CRC-32C."""
    s3.upload(sealed(tree), "run")
    name = "iter_0000020/mp_rank_01/model_optim_rng.pt"
    put(s3, f"run/{name}", (tree / name).read_bytes(), "SHA256")
    result = by_store(f"{s3.url}/run")
    report = parts(result)[name]
    assert (str(report.level), str(report.verdict), result.summary.below_level) == ("structure", "ok", 1)
    assert "unproven-content" in {f.code for f in report.findings}
    assert {str(r.level) for path, r in parts(result).items() if path != name} == {"content"}


@pytest.mark.parametrize("how", [{"digest": "sha256"}, {"also": ("sha256",)}], ids=["digest", "also"])
def test_a_seal_with_a_sha256(s3: Bucket, seen: Proxy, tree: Path, how: dict[str, Any]) -> None:
    sealed(tree, **how)
    for path in (p for p in tree.rglob("*") if p.is_file()):
        put(s3, f"run/{path.relative_to(tree)}", path.read_bytes(), "SHA256")
    result = by_store(f"{s3.url}/run")
    assert {str(r.level) for r in parts(result).values()} == {"content"} and bodies(seen) == []


def test_what_was_never_sealed_is_not_proven(s3: Bucket, seen: Proxy, tree: Path) -> None:
    s3.upload(tree, "run")
    result = by_store(f"{s3.url}/run")
    found = parts(result)
    assert {str(r.level) for r in found.values()} == {"structure"}
    assert codes(result).count("unproven-content") == result.summary.below_level == len(found)


@pytest.mark.parametrize("name", ["model.safetensors", "odd.name.safetensors", "data.bin"])
def test_a_manifest_is_as_good(s3: Bucket, seen: Proxy, name: str) -> None:
    data, key = safetensors(100_000), f"run/{name}"
    s3.put("run/SHA256SUMS", f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode())
    put(s3, key, data, "SHA256")
    found = parts(by_store(f"{s3.url}/run"))[name]
    assert str(found.level) == "content", found.findings
    put(s3, key, data[:-1] + b"x", "SHA256")
    result = by_store(f"{s3.url}/run")
    assert "checksum-mismatch" in codes(result) and str(result.verdict) == "broken"
    seen.add(Rule(denied(), method="HEAD", path=name))
    result = by_store(f"{s3.url}/run")
    assert "unreadable" in codes(result) and str(result.verdict) == "unknown"


def test_an_uploaders_word_proves_nothing(azure: Bucket, tree: Path) -> None:
    azure.upload(sealed(tree, also=("md5",)), "run")
    result = by_store(f"{azure.url}/run")
    found = parts(result).values()
    assert {str(r.level) for r in found} == {"structure"}, codes(result)
    assert "compared with its bytes" in str([f.message for r in found for f in r.findings])


def test_it_is_asked_of_stores_alone(tree: Path) -> None:
    url, more = "s3://bucket/run", ({"level": Level.STRUCTURE}, {"sample": "1/7"})
    for root, how, says in (
        (str(tree), {}, "lies in no store"),
        *((url, how, "whole contents") for how in more),
    ):
        with pytest.raises(UsageError, match=says):
            ckpt_tools.verify(root, by_store=True, **how)
