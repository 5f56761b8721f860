"""What a store says about the bytes of an object, asked for without any of them: one request, or two where
it was uploaded in parts. Google Cloud Storage and Azure are asked by a HEAD that obstore has signed: its own
does not tell them.

Sources: "Hashes and ETags" of Google's documentation (``x-goog-hash``: CRC-32C of every object, MD5 of those
that were not composed, both worked out by the service), and "Get Blob Properties" of Azure's. Azure keeps the
Content-MD5 of a blob of blocks as the uploader gave it and compares it with nothing; its CRC-64 is
CRC-64/NVME, with the lowest byte first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ckpt_tools.model.store_checksum import StoreChecksum, StoreChecksums
from ckpt_tools.storage.stalls import Stalled, watched
from ckpt_tools.storage.stores.refused import untold
from ckpt_tools.storage.stores.s3_checksums import decoded
from ckpt_tools.storage.stores.store import CLOUDS, Object, Replaced
from ckpt_tools.storage.urls import joined

if TYPE_CHECKING:
    from http.client import HTTPMessage

    from ckpt_tools.storage.stores.object_store import ObjectStore
    from ckpt_tools.storage.stores.store import Object, Store


_S3 = frozenset({"s3", "s3a"})
_SIGNED = CLOUDS - _S3


def keeps_checksums(url: str) -> bool:
    """Whether a store of this kind keeps any that it tells."""
    return url.partition("://")[0] in _S3 | _SIGNED


def stored_checksums(store: Store, of: Object) -> StoreChecksums:
    """What a store says of one version of an object. Raises FileNotFoundError, PermissionError, Replaced
    where there is another object now, and OSError, all without anything secret.
    """
    url = joined(store.url, of.key)
    scheme = url.partition("://")[0]
    if scheme not in _S3 | _SIGNED or not of.size:
        return StoreChecksums(url, of.size)
    client: ObjectStore = store  # type: ignore[assignment]  # of these schemes it is (mounts.py)
    if scheme in _S3:
        from ckpt_tools.storage.stores.s3_checksums import ask

        return StoreChecksums(url, of.size, ask(client, of))
    from ckpt_tools.storage.stores.told import ask_signed

    return StoreChecksums(url, of.size, ask_signed(client, of, scheme))


def contradicts(store: ObjectStore, of: Object, data: memoryview) -> bool:
    """Whether a store says that an object has other bytes than all of these that came of it, as far as the
    standard library can tell. Raises Replaced.
    """
    try:
        told = stored_checksums(store, of).sums
    except Replaced:
        raise
    except OSError:  # nobody can say
        return False
    known = [(s, s.value == value) for s in told if s.whole and (value := _digest(s.algorithm, data))]
    for s, same in known:
        if not s.weak and not (same and s.claimed):
            return not same
    return any(not same and (s.of_content or store.digests) for s, same in known if s.weak)


def _digest(algorithm: str, data: memoryview) -> bytes | None:
    """None for those that need a package."""
    if algorithm == "crc32":
        return zlib.crc32(data).to_bytes(4, "big")
    if algorithm in ("md5", "sha1", "sha256", "sha512"):
        return hashlib.new(algorithm, data, usedforsecurity=False).digest()
    return None


_VALID = timedelta(minutes=5)
_SECONDS = 30.0
_GOOGLE = re.compile(r"(crc32c|md5)=([A-Za-z0-9+/]+={0,2})")
_LENGTHS = {"crc32c": 4, "md5": 16}


def ask_signed(store: ObjectStore, of: Object, scheme: str) -> tuple[StoreChecksum, ...]:
    """What the store says of an object. Raises as ``told.stored_checksums`` does."""
    url = joined(store.url, of.key)
    if store.cannot_sign:  # who may not sign is told so after many attempts: once is enough
        raise OSError(errno.EACCES, store.cannot_sign, url)
    store.requests["head"] += 1
    try:
        headers = watched(_head, _question(store, of.key))
    except (Stalled, OSError) as e:
        raise untold(e, url) from None
    except Exception as e:  # obstore's own errors have Exception in common
        store.cannot_sign = (
            f"its checksums could not be asked for: no address could be signed ({type(e).__name__})"
        )
        raise OSError(errno.EACCES, store.cannot_sign, url) from None
    if _is_other(headers, of):
        raise Replaced(url)
    return tuple((google if scheme == "gs" else azure)({k.lower(): v for k, v in _joined(headers).items()}))


def google(headers: Mapping[str, str]) -> Iterator[StoreChecksum]:
    """Those of Google Cloud Storage. What is kept compressed is delivered otherwise: then there are none."""
    if headers.get("x-goog-stored-content-encoding", "identity") not in ("identity", ""):
        return
    for algorithm, text in _GOOGLE.findall(headers.get("x-goog-hash", "")):
        if (value := decoded(text, _LENGTHS[algorithm])) is not None:
            yield StoreChecksum(algorithm, value)


def azure(headers: Mapping[str, str]) -> Iterator[StoreChecksum]:
    """Those of Azure. Only a blob of blocks is written anew as a whole, so that they are of all of it."""
    if headers.get("x-ms-blob-type", "BlockBlob") != "BlockBlob":
        return
    if (value := decoded(headers.get("x-ms-content-crc64", ""), 8)) is not None:
        yield StoreChecksum("crc64nvme", value[::-1])
    if (value := decoded(headers.get("content-md5", ""), 16)) is not None:
        yield StoreChecksum("md5", value, claimed=True)


def _joined(headers: HTTPMessage) -> dict[str, str]:
    """Headers of one name as one, as they may be sent either way."""
    return {name: ",".join(headers.get_all(name) or ()) for name in headers}


def _is_other(headers: HTTPMessage, of: Object) -> bool:
    etag, length = headers.get("ETag") or "", headers.get("Content-Length") or ""
    bare = [x.removeprefix("W/").strip('"') for x in (etag, of.etag)]
    generation = headers.get("x-goog-generation") or ""
    moved = bool(of.version and generation) and of.version != generation
    return moved or (all(bare) and bare[0] != bare[1]) or (length.isdigit() and int(length) != of.size)


class _Asked(NamedTuple):
    """Where to ask, and with which headers; both may be secret."""

    address: str
    headers: Mapping[str, str]


def _question(store: ObjectStore, key: str) -> _Asked:
    """Signed, unless the store was given a token, or told to sign nothing."""
    own = _options(store)
    token = own.get("bearer_token", "") if store.url.startswith("gs://") else ""
    if token:
        return _Asked(_public(own, store, key), {"Authorization": f"Bearer {token}"})
    if own.get("skip_signature", "").lower() in ("1", "true", "yes", "on"):
        return _Asked(_public(own, store, key), {})
    from obstore import sign

    # Azure signs rights instead of methods, and obstore 0.12 signs none of them for HEAD.
    method = "HEAD" if store.url.startswith("gs://") else "GET"
    return _Asked(str(sign(store.client, method, key, _VALID)), {})  # type: ignore[call-overload]


def _options(store: ObjectStore) -> dict[str, str]:
    """What a store was given, and what obstore reads in the environment, which its ``config`` leaves out."""
    prefix = "GOOGLE_" if store.url.startswith("gs://") else "AZURE_"
    said = {name: value for name, value in os.environ.items() if value and name.startswith(prefix)}
    said |= {str(name): str(value) for name, value in dict(store.client.config).items()}
    short = ((name.lower().removeprefix(prefix.lower()), value) for name, value in said.items())
    return {name.removeprefix("storage_"): value for name, value in short}


def _public(own: Mapping[str, str], store: ObjectStore, key: str) -> str:
    scheme, _, bucket = store.url.partition("://")
    if scheme == "gs":
        top = own.get("base_url") or "https://storage.googleapis.com"
        return f"{top.rstrip('/')}/{quote(bucket)}/{quote(key)}"
    account = own.get("account_name", "")
    top = own.get("endpoint") or f"https://{quote(account)}.blob.core.windows.net"
    container = own.get("container_name", bucket)
    return f"{top.rstrip('/')}/{quote(container)}/{quote(key)}"


def _head(asked: _Asked) -> HTTPMessage:
    """The headers of an answer. Raises OSError, whose text may hold the address."""
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Here(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    request = Request(asked.address, headers=dict(asked.headers), method="HEAD")  # noqa: S310 - http or https
    with build_opener(Here).open(request, timeout=_SECONDS) as answer:
        headers: HTTPMessage = answer.headers
        return headers
