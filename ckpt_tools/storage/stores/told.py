"""The checksums that a store keeps of an object, asked for without its bytes: one request, or two for an
upload in parts. S3 is asked by boto3, Google Cloud Storage and Azure by a HEAD of a URL that obstore has
signed: obstore's own HEAD tells no checksums.

Sources: HeadObject and GetObjectAttributes of S3's API, and its user guide, "Checking object integrity": a
composite checksum ends with "-" and the number of parts. "Hashes and ETags" of Google's documentation
(``x-goog-hash``: CRC-32C of every object, MD5 of objects that were not composed, both computed by the
service). "Get Blob Properties" of Azure's, which keeps the Content-MD5 of a block blob as the uploader gave
it and compares it with nothing; its CRC-64 is CRC-64/NVME, lowest byte first.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import finalize

from ckpt_tools.model.seal import StoreChecksum, StoreChecksums
from ckpt_tools.storage.stalls import watch_call
from ckpt_tools.storage.stores.options import VARIABLES, is_on
from ckpt_tools.storage.stores.refused import to_os_error
from ckpt_tools.storage.stores.store import CLOUDS, WEAK, Object, Replaced, Store
from ckpt_tools.storage.urls import join

if TYPE_CHECKING:
    from http.client import HTTPMessage

    from ckpt_tools.storage.stores.object_store import ObjectStore

LENGTHS = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32, "sha512": 64, "md5": 16}
"""Bytes of a checksum, by algorithm."""
_ETAG = re.compile(r'"?([0-9a-f]{32})(?:-([1-9]\d{0,4}))?"?')
_PAGES = 10  # pages of a thousand parts: an upload has at most ten thousand
_CREDENTIALS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "token": "aws_session_token",
    "session_token": "aws_session_token",
}
_VALID = timedelta(minutes=5)
_SECONDS = 30.0
_GOOGLE = re.compile(r"(crc32c|md5)=([A-Za-z0-9+/]+={0,2})")
_lock = threading.Lock()


def keeps_checksums(url: str) -> bool:
    """Return True if stores of this kind keep checksums and tell them."""
    return url.partition("://")[0] in CLOUDS


def stored_checksums(store: Store, obj: Object) -> StoreChecksums:
    """Return checksums. Raise FileNotFoundError, PermissionError, Replaced, OSError, all without secrets."""
    url = join(store.url, obj.key)
    if not keeps_checksums(url) or not obj.size:
        return StoreChecksums(url, obj.size)
    client: ObjectStore = store  # type: ignore[assignment]  # mounts.py opens these schemes so
    ask = _ask_s3 if url.startswith("s3") else _ask_signed
    return StoreChecksums(url, obj.size, tuple(ask(client, obj, url)))


def contradicts(store: Store, obj: Object, data: memoryview) -> bool:
    """Return True if a store's checksums deny that ``data`` is the whole object. Raise Replaced."""
    try:
        sums = stored_checksums(store, obj).sums
    except Replaced:
        raise
    except OSError:  # the store does not tell
        return False
    known = [(s, s.value == value) for s in sums if s.whole and (value := _digest(s.algorithm, data))]
    sure = [same for s, same in known if not s.weak and not (same and s.claimed)]
    return not sure[0] if sure else any(not same and s.of_content for s, same in known)


def _digest(algorithm: str, data: memoryview) -> bytes | None:
    """Return the checksum of ``data``; None for an algorithm that needs a package."""
    if algorithm == "crc32":
        return zlib.crc32(data).to_bytes(4, "big")
    if algorithm in ("md5", "sha1", "sha256", "sha512"):
        return hashlib.new(algorithm, data, usedforsecurity=False).digest()
    return None


def decode_base64(text: str, length: int) -> bytes | None:
    """Return the bytes of a base64 text; None if it is none, or not of ``length`` bytes."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == length else None


# ---- S3


def _ask_s3(store: ObjectStore, obj: Object, url: str) -> Iterator[StoreChecksum]:
    """Yield the checksums of an object at S3. Raise OSError, and Replaced if it is another now."""
    with _lock:
        client = store.boto = store.boto or _make_client(store)

    def request(call: Callable[..., Any], **more: Any) -> dict[str, Any]:
        bucket, version = store.url.partition("://")[2], {"VersionId": obj.version} if obj.version else {}
        store.requests["head"] += 1
        try:
            answer: dict[str, Any] = watch_call(call, Bucket=bucket, Key=obj.key, **version, **more)
        except Exception as e:
            raise to_os_error(e, url) from None
        return answer

    same = {"IfMatch": obj.etag} if obj.etag else {}
    head = request(client.head_object, ChecksumMode="ENABLED", **same)
    if head.get("ContentLength") != obj.size or _differ(obj.etag, str(head.get("ETag") or "")):
        raise Replaced(url)
    if not _has_parts(head):
        return read_s3_sums(head, {}, obj.size)
    found = _ask_parts(partial(request, client.get_object_attributes, ObjectAttributes=["ObjectParts"]))
    parts = {"Parts": found} if found else guess_parts(request(client.head_object, PartNumber=1), obj.size)
    return read_s3_sums(head, parts, obj.size)


def _differ(one: str, other: str) -> bool:
    """Return True if two ETags are those of different objects; one may be weak or without quotes."""
    bare = {etag.removeprefix(WEAK).strip('"') for etag in (one, other)}
    return len(bare) > 1 and "" not in bare


def _ask_parts(ask: Callable[..., dict[str, Any]]) -> list[Any]:
    """Return an object's parts, from all pages of GetObjectAttributes; [] if the server refuses it."""
    found, more = list[Any](), dict[str, Any]()
    for _ in range(_PAGES):
        try:
            page = ask(**more).get("ObjectParts") or {}
        except OSError:
            return []
        found += page.get("Parts") or ()
        if not page.get("IsTruncated") or not page.get("NextPartNumberMarker"):
            break
        more = {"PartNumberMarker": page["NextPartNumberMarker"]}
    return found


def guess_parts(first: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the parts of an object of ``size`` bytes by the size of its first part and their number: every
    client makes all but the last equally long. Two parts are no guess.
    """
    count, length = first.get("PartsCount") or 0, first.get("ContentLength") or 0
    last = size - (count - 1) * length
    if count < 1 or length < 1 or not 0 < last <= (length if count > 2 else last):
        return {}
    sizes = [{"Size": length}] * (count - 1) + [{"Size": last}]
    return {"Parts": sizes, "Guessed": count > 2}


def _has_parts(head: Mapping[str, Any]) -> bool:
    """Return True if an answer to HeadObject has only composite checksums, and none of the whole object."""
    values = [str(head[name]) for _, name in _members(head)]
    if any("-" not in value for value in values) and head.get("ChecksumType") != "COMPOSITE":
        return False
    return bool(values) or "-" in str(head.get("ETag"))


def read_s3_sums(head: Mapping[str, Any], parts: Mapping[str, Any], size: int) -> Iterator[StoreChecksum]:
    """Yield the checksums in an answer to HeadObject; ``parts`` are the known parts of the upload."""
    rows = parts.get("Parts") or ()
    sizes = tuple(int(row.get("Size") or 0) for row in rows)
    if sum(sizes) != size or (sizes and min(sizes) < 1):
        rows, sizes = (), ()
    weak = bool(parts.get("Guessed"))
    for algorithm, name in _members(head):
        text, _, count = str(head[name]).partition("-")
        value = decode_base64(text, LENGTHS[algorithm])
        if value is None:
            continue
        if not count and head.get("ChecksumType") != "COMPOSITE":
            yield StoreChecksum(algorithm, value)
        elif sizes and (not count or count == str(len(sizes))):
            of_parts = _decode_parts(rows, name, LENGTHS[algorithm])
            yield StoreChecksum(algorithm, value, sizes, of_parts, weak=weak)
    yield from _read_etag(head, sizes)


def _read_etag(head: Mapping[str, Any], sizes: tuple[int, ...]) -> Iterator[StoreChecksum]:
    """Yield the ETag if it may be an MD5: with keys of KMS or of the client it is none."""
    found = _ETAG.fullmatch(str(head.get("ETag") or ""))
    other = "kms" in str(head.get("ServerSideEncryption") or "") or head.get("SSECustomerAlgorithm")
    if found is None or other:
        return
    value = bytes.fromhex(found[1])
    if found[2] is None:
        # SSE-S3 leaves the ETag an MD5 (API reference, "Object"); other encryption is often not told
        yield StoreChecksum("md5", value, weak=True, of_content=head.get("ServerSideEncryption") == "AES256")
    elif str(len(sizes)) == found[2]:
        yield StoreChecksum("md5", value, sizes, weak=True)


def _members(head: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (algorithm, name of the member with its value) for the checksums in an answer of S3."""
    known = ((algorithm, f"Checksum{algorithm.upper()}") for algorithm in LENGTHS)
    return [(algorithm, name) for algorithm, name in known if head.get(name)]


def _decode_parts(rows: Any, name: str, length: int) -> tuple[bytes, ...]:
    """Return the checksum of each part, from the member ``name`` of its row; () if one is missing."""
    values = [decode_base64(str(row.get(name) or ""), length) for row in rows]
    return tuple(v for v in values if v is not None) if all(values) else ()


def _make_client(store: ObjectStore) -> Any:
    """Return a client of boto3 with the options and credentials of obstore's client. Raise OSError."""
    try:
        from boto3.session import Session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError:
        text = "boto3, which asks S3 for checksums, is not installed: pip install 'ckpt-tools[cloud]'"
        raise OSError(errno.ENOPKG, text, store.url) from None
    own = _read_options(store)
    given = {name: own[k] for k, name in _CREDENTIALS.items() if k in own}
    virtual = is_on(own, "virtual_hosted_style_request")
    endpoint = next((own[k] for k in ("endpoint", "endpoint_url_s3", "endpoint_url") if k in own), None)
    if virtual and endpoint:  # obstore wants the bucket in its host name
        endpoint = endpoint.replace(f"://{store.url.partition('://')[2]}.", "://", 1)
    config = Config(
        s3={"addressing_style": "virtual" if virtual else "path" if endpoint else "auto"},
        retries={"mode": "standard", "max_attempts": 3},
        max_pool_connections=32,
        signature_version=UNSIGNED if is_on(own, "skip_signature") else None,
    )
    region = own.get("region") or own.get("default_region")
    try:
        client = Session().client("s3", endpoint_url=endpoint, region_name=region, config=config, **given)
    except Exception as e:
        text = f"no client for its checksums could be made ({type(e).__name__})"
        raise OSError(errno.EINVAL, text, store.url) from None
    finalize(store, client.close)
    return client


def _read_options(store: ObjectStore) -> dict[str, str]:
    """Return a store's options by their names without a prefix: those of the environment, which obstore's
    ``config`` leaves out, its own, and its provider's credentials. boto3 reads those in the environment.
    """
    prefix = VARIABLES[store.url.partition("://")[0]]

    def shorten(options: Mapping[Any, Any]) -> dict[str, str]:
        names = {str(name).lower().removeprefix(prefix.lower()): value for name, value in options.items()}
        return {name.removeprefix("storage_"): str(value) for name, value in names.items() if value}

    found = shorten({name: value for name, value in os.environ.items() if name.startswith(prefix)})
    provider = getattr(store.client, "credential_provider", None)
    provided = provider() if callable(provider) else None
    own = shorten(dict(store.client.config)) | shorten(provided if isinstance(provided, Mapping) else {})
    return {name: value for name, value in found.items() if name not in _CREDENTIALS} | own


# ---- Google and Azure


def _ask_signed(store: ObjectStore, obj: Object, url: str) -> Iterator[StoreChecksum]:
    """Yield the checksums of an object at Google or Azure. Raise OSError, Replaced if it is another now."""
    if store.cannot_sign:  # obstore tries long before it says so: once is enough
        raise OSError(errno.EACCES, store.cannot_sign, url)
    store.requests["head"] += 1
    try:
        headers = watch_call(_request_headers, *_make_request(store, obj.key))
    except OSError as e:
        raise to_os_error(e, url) from None
    except Exception as e:  # obstore's own errors have Exception in common
        text = "its checksums could not be asked for: no address could be signed"
        store.cannot_sign = f"{text} ({type(e).__name__})"
        raise OSError(errno.EACCES, store.cannot_sign, url) from None
    if _is_other(headers, obj):
        raise Replaced(url)
    together = {name.lower(): ",".join(headers.get_all(name) or ()) for name in headers}
    return (read_google_sums if url.startswith("gs:") else read_azure_sums)(together)


def read_google_sums(headers: Mapping[str, str]) -> Iterator[StoreChecksum]:
    """Yield Google Cloud Storage's checksums; none of an object kept compressed, delivered as other bytes."""
    if headers.get("x-goog-stored-content-encoding", "identity") not in ("identity", ""):
        return
    for algorithm, text in _GOOGLE.findall(headers.get("x-goog-hash", "")):
        if (value := decode_base64(text, LENGTHS[algorithm])) is not None:
            yield StoreChecksum(algorithm, value)


def read_azure_sums(headers: Mapping[str, str]) -> Iterator[StoreChecksum]:
    """Yield Azure's checksums; only block blobs are always written whole, so others have none here."""
    if headers.get("x-ms-blob-type", "BlockBlob") != "BlockBlob":
        return
    if (value := decode_base64(headers.get("x-ms-content-crc64", ""), 8)) is not None:
        yield StoreChecksum("crc64nvme", value[::-1])
    if (value := decode_base64(headers.get("content-md5", ""), 16)) is not None:
        yield StoreChecksum("md5", value, claimed=True)


def _is_other(headers: HTTPMessage, obj: Object) -> bool:
    """Return True if the headers are of another object than ``obj``: by ETag, generation or length."""
    length, generation = headers.get("Content-Length") or "", headers.get("x-goog-generation") or ""
    is_moved = bool(obj.version and generation) and obj.version != generation
    is_resized = length.isdecimal() and int(length) != obj.size
    return is_moved or is_resized or _differ(obj.etag, headers.get("ETag") or "")


def _make_request(store: ObjectStore, key: str) -> tuple[str, dict[str, str]]:
    """Return (URL, headers) of a HEAD request, maybe secret; signed unless a token or skip_signature."""
    own, is_google = _read_options(store), store.url.startswith("gs://")
    token = own.get("bearer_token") if is_google else None
    if token or is_on(own, "skip_signature"):
        return _make_public_url(own, store, key), {"Authorization": f"Bearer {token}"} if token else {}
    from obstore import sign

    # Azure signs rights instead of methods, and obstore 0.12 signs none of them for HEAD.
    method = "HEAD" if is_google else "GET"
    return str(sign(store.client, method, key, _VALID)), {}  # type: ignore[call-overload]


def _make_public_url(own: Mapping[str, str], store: ObjectStore, key: str) -> str:
    """Return the unsigned https:// URL of an object at Google or Azure, with the options ``own``."""
    scheme, _, bucket = store.url.partition("://")
    if scheme == "gs":
        top = own.get("base_url") or "https://storage.googleapis.com"
    else:
        top = own.get("endpoint") or f"https://{quote(own.get('account_name', ''))}.blob.core.windows.net"
        bucket = own.get("container_name", bucket)
    return f"{top.rstrip('/')}/{quote(bucket)}/{quote(key)}"


def _request_headers(address: str, headers: dict[str, str]) -> HTTPMessage:
    """Return the headers of an answer, no redirect followed. Raise OSError, whose text may hold the URL."""
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Here(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    request = Request(address, headers=headers, method="HEAD")  # noqa: S310 - http or https
    with build_opener(Here).open(request, timeout=_SECONDS) as answer:
        found: HTTPMessage = answer.headers
        return found
