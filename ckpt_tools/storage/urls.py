"""Names of what lies in a store: URLs, which stand wherever an absolute path of this machine may stand.

A URL is kept as its store writes it but for slashes at its end and names ``.``: keys are texts, so nothing
else between two slashes is folded, decoded or followed. ``file://`` names a path of this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_URL = r"[A-Za-z][A-Za-z0-9+.-]*://"  # RFC 3986, section 3.1; compiled where a text is no path at first sight
_WITHOUT_HOST = frozenset({"memory", "hf"})
"""Schemes in which the first name is no server or bucket: all that they have is one store."""

READ_ONLY = frozenset({"hf"})
"""Schemes in which nothing is ever written: there each write is a commit that others see."""


def is_url(path: str) -> bool:
    """Whether a text names something in a store. What begins with "/" or "." is a path of this machine."""
    return not path.startswith("/") and "://" in path and re.match(_URL, path) is not None


def absolute(path: str) -> str:
    """The path from the root, or the URL without slashes at its end and names ``.`` (RFC 3986, 5.2.4)."""
    if not is_url(path):
        return os.path.abspath(path)
    scheme, _, rest = path.partition("://")
    if scheme.lower() == "file":
        from urllib.parse import unquote

        return os.path.abspath(unquote("/" + rest.partition("/")[2]))
    names = "/".join(name for name in rest.split("/") if name != ".")
    return f"{scheme.lower()}://{names.rstrip('/')}"


def real_path(path: str) -> str:
    """Where a path leads when all links are followed; a store has none."""
    return path if is_url(path) else os.path.realpath(path)


def mirror_path(path: str) -> str:
    """The absolute path that stands for one below another directory: ``/s3:/bucket/key`` of a URL."""
    return f"/{path.replace('://', ':/', 1)}" if is_url(path) else os.path.realpath(path)


def inside(base: str, name: str) -> str | None:
    """The path of ``name`` from the directory ``base``; None when that lies elsewhere."""
    if "\0" in name or os.path.isabs(name) or is_url(name):
        return None
    if is_url(base):
        store, key = split(base)
        path = inside(f"/store/{key}", name)  # "/.." is "/", but above a store there is nothing of it
        return None if path is None else joined(store, path.removeprefix("/store/"))
    path = os.path.normpath(os.path.join(base, name))
    return path if path.startswith(base.rstrip("/") + "/") else None


def common(paths: Sequence[str]) -> str:
    """The directory that all of these lie in; "/" where only that, or no store, is common to them."""
    stores = {split(path)[0] if is_url(path) else "" for path in paths}
    if stores == {""}:
        return os.path.commonpath(paths)
    if len(stores) > 1:
        return "/"
    store = stores.pop()
    return joined(store, os.path.commonpath([f"/{split(path)[1]}" for path in paths])[1:])


def is_normal(path: str) -> bool:
    """Whether nothing in a path or URL leads up or nowhere, such as ``..`` and ``//``."""
    rest = f"/{path.partition('://')[2]}" if is_url(path) else path
    return rest == os.path.normpath(rest)


def normal(path: str) -> str:
    """A path without ``..`` and ``//``; of a URL what follows the scheme."""
    store, separator, rest = path.partition("://")
    return f"{store}{separator}{os.path.normpath(rest)}" if is_url(path) else os.path.normpath(path)


def split(url: str) -> tuple[str, str]:
    """(the store, the key in it): ``s3://bucket`` and ``run/file``."""
    scheme, _, rest = url.partition("://")
    if scheme in _WITHOUT_HOST:
        return f"{scheme}://", rest
    host, _, key = rest.partition("/")
    return f"{scheme}://{host}", key


def joined(store: str, key: str) -> str:
    """The URL of a key."""
    return f"{store}{key}" if store.endswith("/") or not key else f"{store}/{key}"
