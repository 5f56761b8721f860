"""The checksums that S3 keeps, by boto3: obstore's HEAD does not tell them.

Sources: the API's HeadObject and GetObjectAttributes, and the user guide, "Checking object integrity". A
composite checksum has "-" and the number of parts behind it. Of the sizes of parts, GetObjectAttributes tells
each where the upload had additional checksums, and HeadObject with a part's number that of any part.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from ckpt_tools.model.store_checksum import StoreChecksum
from ckpt_tools.storage.stalls import watched
from ckpt_tools.storage.stores.refused import untold
from ckpt_tools.storage.stores.store import Object, Replaced
from ckpt_tools.storage.urls import joined

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.object_store import ObjectStore

LENGTHS = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32, "sha512": 64, "md5": 16}
"""Bytes of each."""
_ETAG = re.compile(r'"?([0-9a-f]{32})(?:-([1-9]\d{0,4}))?"?')
_PAGES = 10
"""Pages of a thousand parts: an upload has ten thousand at most."""
_CREDENTIALS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "token": "aws_session_token",
    "session_token": "aws_session_token",
}
_ENVIRONMENT = frozenset({"AWS_ENDPOINT", "AWS_SKIP_SIGNATURE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"})
"""Variables that obstore reads and boto3 does not."""
_clients: WeakKeyDictionary[ObjectStore, Any] = WeakKeyDictionary()
_lock = threading.Lock()


def ask(store: ObjectStore, of: Object) -> tuple[StoreChecksum, ...]:
    """What S3 says of one version of an object. Raises as ``told.stored_checksums`` does."""
    client, url = _client(store), joined(store.url, of.key)
    at = {"Bucket": store.url.partition("://")[2], "Key": of.key}
    if of.version:
        at["VersionId"] = of.version
    same = {"IfMatch": of.etag} if of.etag else {}
    head = _asked(store, client.head_object, url, ChecksumMode="ENABLED", **at, **same)
    if head.get("ContentLength") != of.size or (of.etag and _bare(head.get("ETag")) != _bare(of.etag)):
        raise Replaced(url)
    if not _has_parts(head):
        return tuple(sums_of(head, {}, of.size))
    try:
        parts = _parts(store, client, url, at)
    except (PermissionError, FileNotFoundError):
        parts = {}
    except OSError:  # a server that does not know the request
        parts = {}
    if not parts.get("Parts"):
        first = _asked(store, client.head_object, url, PartNumber=1, **at)
        parts = guessed(first, of.size)
    return tuple(sums_of(head, parts, of.size))


def _parts(store: ObjectStore, client: Any, url: str, at: Mapping[str, str]) -> dict[str, Any]:
    """``ObjectParts`` of GetObjectAttributes, with all pages of its ``Parts``."""
    found: list[Any] = []
    more: dict[str, Any] = {}
    for _ in range(_PAGES):
        told = _asked(
            store, client.get_object_attributes, url, ObjectAttributes=["ObjectParts"], **at, **more
        )
        page = told.get("ObjectParts") or {}
        found += page.get("Parts") or ()
        if not page.get("IsTruncated") or not page.get("NextPartNumberMarker"):
            break
        more = {"PartNumberMarker": page["NextPartNumberMarker"]}
    return {"Parts": found}


def guessed(first: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The parts of an object of ``size`` bytes from the size of its first one and their number: all but the
    last are taken for equally long, as every client makes them. Of two it is no guess.
    """
    count, length = first.get("PartsCount") or 0, first.get("ContentLength") or 0
    last = size - (count - 1) * length
    if count < 1 or length < 1 or not 0 < last <= (length if count > 2 else last):
        return {}
    sizes = [{"Size": length}] * (count - 1) + [{"Size": last}]
    return {"Parts": sizes, "Guessed": count > 2}


# ---- what the answers say


def _has_parts(head: Mapping[str, Any]) -> bool:
    """Whether any checksum in an answer to HEAD is of the checksums of parts, and nothing else is usable."""
    values = [(a, str(head[name])) for a, name in _names(head)]
    if any("-" not in value for _, value in values) and head.get("ChecksumType") != "COMPOSITE":
        return False
    return bool(values) or "-" in str(head.get("ETag"))


def sums_of(head: Mapping[str, Any], parts: Mapping[str, Any], size: int) -> Iterator[StoreChecksum]:
    """The checksums in an answer to HeadObject; ``parts`` is what is known of the parts of the upload."""
    rows = parts.get("Parts") or ()
    sizes = tuple(int(row.get("Size") or 0) for row in rows)
    if sum(sizes) != size or (sizes and min(sizes) < 1):
        rows, sizes = (), ()
    weak = bool(parts.get("Guessed"))
    for algorithm, name in _names(head):
        text, _, count = str(head[name]).partition("-")
        value = decoded(text, LENGTHS[algorithm])
        if value is None:
            continue
        if not count and head.get("ChecksumType") != "COMPOSITE":
            yield StoreChecksum(algorithm, value)
        elif sizes and (not count or count == str(len(sizes))):
            yield StoreChecksum(algorithm, value, sizes, _values(rows, name, LENGTHS[algorithm]), weak=weak)
    yield from _of_etag(head, sizes)


def _of_etag(head: Mapping[str, Any], sizes: tuple[int, ...]) -> Iterator[StoreChecksum]:
    """The ETag, where it may be an MD5: with keys of KMS or of the client it is not."""
    found = _ETAG.fullmatch(str(head.get("ETag") or ""))
    other = "kms" in str(head.get("ServerSideEncryption") or "") or head.get("SSECustomerAlgorithm")
    if found is None or other:
        return
    value = bytes.fromhex(found[1])
    if found[2] is None:
        # SSE-S3 leaves the ETag an MD5 (API reference, "Object"); who encrypts otherwise often says nothing
        yield StoreChecksum("md5", value, weak=True, of_content=head.get("ServerSideEncryption") == "AES256")
    elif str(len(sizes)) == found[2]:
        yield StoreChecksum("md5", value, sizes, weak=True)


def _names(head: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(algorithm, member) of the checksums in an answer."""
    known = ((algorithm, f"Checksum{algorithm.upper()}") for algorithm in LENGTHS)
    return [(algorithm, name) for algorithm, name in known if head.get(name)]


def _values(rows: Any, name: str, length: int) -> tuple[bytes, ...]:
    """The checksum of every part; () where one is not told."""
    values = [decoded(str(row.get(name) or ""), length) for row in rows]
    return tuple(v for v in values if v is not None) if all(values) else ()


def decoded(text: str, length: int) -> bytes | None:
    """Base64 of so many bytes, or None."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == length else None


def _bare(etag: Any) -> str:
    return str(etag or "").removeprefix("W/").strip('"')


# ---- asking


def _client(store: ObjectStore) -> Any:
    """A client of boto3 for the same endpoint, and with the same credentials; where the store was given none,
    both libraries look for them in the same places.
    """
    with _lock:
        if store not in _clients:
            made = _clients[store] = _made(store)
            finalize(store, made.close)
        return _clients[store]


def _made(store: ObjectStore) -> Any:
    try:
        from boto3.session import Session
        from botocore.config import Config
    except ImportError:
        text = "boto3, which asks S3 for checksums, is not installed: pip install 'ckpt-tools[cloud]'"
        raise OSError(errno.ENOPKG, text, store.url) from None
    own = _options(store)
    provider = getattr(store.client, "credential_provider", None)
    given = {_CREDENTIALS[k]: v for k, v in _credentials(own, provider).items() if k in _CREDENTIALS and v}
    virtual = _is_on(own, "virtual_hosted_style_request")
    endpoint = own.get("endpoint") or own.get("endpoint_url")
    if virtual and endpoint:  # obstore wants the bucket in it
        endpoint = endpoint.replace(f"://{store.url.partition('://')[2]}.", "://", 1)
    options: dict[str, Any] = {
        "s3": {"addressing_style": "virtual" if virtual else "path" if endpoint else "auto"},
        "retries": {"mode": "standard", "max_attempts": 3},
        "max_pool_connections": 32,
    }
    if _is_on(own, "skip_signature"):
        from botocore import UNSIGNED

        options["signature_version"] = UNSIGNED
    region = own.get("region") or own.get("default_region") or None
    try:
        return Session().client(
            "s3", endpoint_url=endpoint or None, region_name=region, config=Config(**options), **given
        )
    except Exception as e:
        text = f"no client for its checksums could be made ({type(e).__name__})"
        raise OSError(errno.EINVAL, text, store.url) from None


_TRUE = frozenset({"1", "true", "yes", "on"})


def _options(store: ObjectStore) -> dict[str, str]:
    """What the environment and the store's own client say, by names without aws_."""
    found = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT} | dict(store.client.config)
    return {str(k).lower().removeprefix("aws_"): str(v) for k, v in found.items()}


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() in _TRUE


def _credentials(own: Mapping[str, str], provider: Any) -> Mapping[str, Any]:
    if provider is None or not callable(provider):
        return own
    found = provider()
    return found if isinstance(found, Mapping) else own


def _asked(store: ObjectStore, call: Callable[..., Any], url: str, **kwargs: Any) -> dict[str, Any]:
    """One request. Raises OSError."""
    store.requests["head"] += 1
    try:
        answer: dict[str, Any] = watched(call, **kwargs)
    except Exception as e:
        raise untold(e, url) from None
    return answer
