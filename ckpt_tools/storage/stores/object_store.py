"""S3, Google Cloud Storage, Azure and HTTP servers, by obstore (Rust's object_store)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ckpt_tools.storage.signed import find_query
from ckpt_tools.storage.stalls import STORE_PAUSES, ask_again, interruptible, wait_for_another
from ckpt_tools.storage.stores.refused import NO_URL, read_code, to_os_error
from ckpt_tools.storage.stores.store import ANOTHER, PAGE, WEAK, Object, Replaced, Store
from ckpt_tools.storage.urls import join

if TYPE_CHECKING:
    from obstore import ObjectMeta

P = ParamSpec("P")
T = TypeVar("T")

BATCH = 1000
"""The most keys in one delete request of S3."""
_ROUND = 100
"""A list that ends at a multiple of so many keys may lack a page: every page size is a multiple of it."""
_RESTARTS = "its list begins again in the middle: a proxy, or a server without ListObjectsV2, answers wrongly"
_CANNOT_TELL = (
    "nothing is listed, and the store answers 403 AccessDenied: these credentials lack the right to read it"
    " (s3:GetObject) or to list the whole bucket (s3:ListBucket), so nobody can tell what is there"
)
_MISSING_KEY = ".ckpt-no-such-object"  # the name of an object that nobody creates
_NO_SUCH_KEY = frozenset({"NoSuchKey", "BlobNotFound", "PathNotFound"})


class ObjectStore(Store):
    """One store by obstore's ``client``. For a web server, ``single`` makes a client for one URL."""

    pins = True

    def __init__(self, url: str, client: Any, single: Callable[[str], Any] | None = None) -> None:
        super().__init__(url)
        self.client, self._single = client, None if single is None else cache(single)
        self.boto: Any = None  # boto3's client, which asks S3 for checksums
        self.cannot_sign = ""

    def objects(self, prefix: str) -> Iterator[Object]:
        self._require_lists(prefix)
        last, pauses = "", iter(STORE_PAUSES)
        while True:
            count = 0
            try:
                for meta in self._pages(prefix, last):
                    last, count = meta["path"], count + 1
                    yield _make_object(meta)
            except OSError as e:
                wait_for_another(e, pauses)
                continue
            if not count or count % _ROUND:
                break
        if last and not count:
            self._require_store(prefix, more=True)

    def _pages(self, prefix: str, after: str) -> Iterator[ObjectMeta]:
        """Yield the objects below a prefix whose keys come after ``after`` in the order of the list."""
        pages = self._request(prefix, self.client.list, prefix or None, chunk_size=PAGE, offset=after or None)
        whole, begun = True, set[str]()
        while whole:  # a page with fewer keys is the last
            self.requests["list"] += 1
            page = self._request(prefix, next, pages, ())
            whole = len(page) == PAGE
            # a cache that ignores page tokens would never end; a server of ListObjects ends after page 1
            first = page[0]["path"] if page else ""
            again = first in begun or any(meta["path"] == first for meta in page[1:])
            if page and (again or first < after):
                raise OSError(errno.EREMOTEIO, _RESTARTS, join(self.url, prefix))
            begun.add(first)
            yield from (meta for meta in page if meta["path"] > after)

    def confirm_nothing(self, prefix: str) -> None:
        self._require_store(prefix)
        if next(self._pages(prefix, ""), None) is not None:
            text = "the store answers a question in two ways: run it again"
            raise OSError(errno.EREMOTEIO, text, join(self.url, prefix))

    def _require_store(self, prefix: str, *, more: bool = False) -> None:
        """Raise OSError unless the answer "no (more) objects" is a store's: obstore takes any page of HTML
        for an empty list. Reading a key that nobody has gives an error that only a store writes. Without the
        right to list the whole bucket it is AccessDenied: then ``more`` objects than listed are ruled out.
        """
        self.requests["get"] += 1
        try:
            interruptible(self.client.get, f"{prefix}/{_MISSING_KEY}" if prefix else _MISSING_KEY)
        except Exception as e:
            error, code = to_os_error(e, join(self.url, prefix)), read_code(e)
            is_missing = isinstance(error, FileNotFoundError)
            is_denied = isinstance(error, PermissionError) and code == "AccessDenied"
            if (is_missing and code in _NO_SUCH_KEY) or (is_denied and more):
                return
            if is_denied:
                raise PermissionError(errno.EACCES, _CANNOT_TELL, error.filename) from None
            if not is_missing:
                raise error from None
        text = "what answers with an empty list is not a store of this kind: check the endpoint"
        raise OSError(errno.EREMOTEIO, text, join(self.url, prefix))

    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        self._require_lists(prefix)
        self.requests["list"] += 1
        found = ask_again(lambda: self._request(prefix, self.client.list_with_delimiter, prefix or None))
        objects = [_make_object(meta) for meta in found["objects"] if meta["path"] != prefix]
        if not objects and not found["common_prefixes"]:
            self._require_store(prefix)
        return objects, [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    def head(self, key: str) -> Object:
        self.requests["head"] += 1
        client, path = self._client_for(key)
        if client is not self.client:  # GET is the method that presigned URLs allow; its body is not read
            return _make_object(self._request(key, client.get, path).meta)._replace(key=key)
        try:
            return _make_object(self._request(key, client.head, path))._replace(key=key)
        except PermissionError as e:
            # without the right to list the bucket, S3 answers 403 for a missing key (API reference,
            # HeadObject, "Permissions"): a list of its directory, if allowed, shows if it is missing
            is_directory = next(self._pages(key, ""), None) is not None
            try:
                listed = () if is_directory else self.directory(key.rpartition("/")[0])[0]
            except OSError:
                raise e from None
            if any(obj.key == key for obj in listed):
                raise
        raise FileNotFoundError(errno.ENOENT, "there is no such object", join(self.url, key))

    def read(self, obj: Object, start: int, length: int) -> tuple[memoryview, Object]:
        self.requests["get"] += 1
        options: dict[str, Any] = {"range": (start, start + length)}
        if obj.etag and not obj.etag.startswith(WEAK):  # a weak ETag never matches: RFC 9110, section 13.1.1
            options["if_match"] = obj.etag
        if obj.version:
            options["version"] = obj.version

        def get() -> tuple[memoryview, Object]:
            client, path = self._client_for(obj.key)
            answer = client.get(path, options=options)
            now = _make_object(answer.meta)._replace(key=obj.key)
            has_tags = obj.etag and now.etag  # some servers ignore If-Match, and some have no ETag
            is_same = now.etag == obj.etag if has_tags else now.mtime_ns == obj.mtime_ns
            if now.size != obj.size or not is_same:
                raise Replaced(join(self.url, obj.key))
            return memoryview(answer.bytes()), now

        return self._request(obj.key, get)

    def write(self, key: str, data: bytes, replacing: Object | None) -> None:
        mode: Any = "create"
        if replacing is not None:
            seen = {"e_tag": replacing.etag, "version": replacing.version}
            mode = {name: value for name, value in seen.items() if value} or "overwrite"
        try:
            self._write(key, data, mode)
        except (Replaced, FileExistsError) as e:
            raise FileExistsError(errno.EEXIST, ANOTHER, e.filename) from None
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP:
                raise
            self._write(key, data, "overwrite")  # the server refuses conditions

    def _write(self, key: str, data: bytes, mode: Any) -> None:
        """Write an object in one request; ``mode`` is obstore's PutMode. Raise OSError."""
        self.requests["put"] += 1
        self._request(key, lambda _: self.client.put(key, data, mode=mode, use_multipart=False), key)

    def delete(self, keys: Sequence[str]) -> dict[str, OSError]:
        """Delete as every store, but in batches; after a failed one one by one, to say which and why."""
        failed: dict[str, OSError] = {}
        for at in range(0, len(keys), BATCH):
            batch = list(keys[at : at + BATCH])
            self.requests["delete"] += 1
            try:
                self._request(batch[0], self.client.delete, batch)
            except OSError:
                failed |= super().delete(batch)
        return failed

    def delete_one(self, key: str) -> None:
        self._request(key, self.client.delete, key)

    def _client_for(self, key: str) -> tuple[Any, str]:
        """Return (client, path) for a key; a URL with a query or escapes has a client of its own."""
        query = "" if self._single is None else find_query(join(self.url, key))
        if self._single is None or (not query and "%" not in key):
            return self.client, key
        return self._single(join(self.url, key) + (f"?{query}" if query else "")), ""

    def _require_lists(self, prefix: str) -> None:
        """Raise OSError for a web server, which cannot list."""
        if self._single is not None:
            text = "a web server cannot list what it has: name each file, or the store behind it"
            raise OSError(errno.EOPNOTSUPP, text, join(self.url, prefix))

    def _request(self, key: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``call(*args)``, a call of the client. Raise OSError."""
        if key.startswith("/") and self._single is None:  # obstore would ask for another key
            raise OSError(errno.EINVAL, NO_URL, join(self.url, key))
        try:
            return interruptible(call, *args, **kwargs)
        except Exception as e:  # obstore's own errors have Exception in common
            raise to_os_error(e, join(self.url, key)) from None
        except BaseException as e:
            if type(e).__name__ != "PanicException":  # of Rust: no Exception, so that nobody goes on
                raise
            raise OSError(errno.EIO, "the store's library failed (obstore)", join(self.url, key)) from None


def _make_object(meta: ObjectMeta) -> Object:
    """Return an Object. Its time is cut to seconds: lists of some stores have more digits than headers."""
    modified, etag = int(meta["last_modified"].timestamp()) * 10**9, meta["e_tag"] or ""
    if etag and not etag.startswith(('"', WEAK)):  # lists of Azure and some S3 servers leave the quotes out
        etag = f'"{etag}"'
    return Object(meta["path"], meta["size"], modified, etag, meta["version"] or "")
