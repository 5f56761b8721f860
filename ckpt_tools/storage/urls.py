"""Names of files and directories in a store: URLs, which stand wherever an absolute local path may stand.

A URL is kept as its store writes it, except for trailing slashes and names ``.``: keys are plain texts, so
nothing else between two slashes is folded, decoded or followed. ``file://`` names a local path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_URL = r"[A-Za-z][A-Za-z0-9+.-]*://"  # RFC 3986, section 3.1; compiled by re at the first "://"
_WITHOUT_HOST = frozenset({"memory", "hf"})
"""Schemes whose first name is no server or bucket: the whole scheme is one store."""

READ_ONLY = frozenset({"hf"})
"""Schemes to which nothing is ever written: each write would be a commit that others see."""


def is_url(path: str) -> bool:
    """Return True if a text names a file in a store. A text that begins with "/" or "." is a local path."""
    return not path.startswith("/") and "://" in path and re.match(_URL, path) is not None


def to_absolute(path: str) -> str:
    """Return the absolute path, or the URL without trailing slashes and names ``.`` (RFC 3986, 5.2.4)."""
    if not is_url(path):
        return os.path.abspath(path)
    scheme, _, rest = path.partition("://")
    if scheme.lower() == "file":
        from urllib.parse import unquote

        return os.path.abspath(unquote("/" + rest.partition("/")[2]))
    names = "/".join(name for name in rest.split("/") if name != ".")
    return f"{scheme.lower()}://{names.rstrip('/')}"


def real_path(path: str) -> str:
    """Return the path with all links followed; a URL as it is, since a store has no links."""
    return path if is_url(path) else os.path.realpath(path)


def mirror_path(path: str) -> str:
    """Return the absolute path that stands for ``path`` below another directory, as ``/s3:/bucket/key``."""
    return f"/{path.replace('://', ':/', 1)}" if is_url(path) else os.path.realpath(path)


def join_inside(base: str, name: str) -> str | None:
    """Return ``name`` joined to the directory ``base``; None if that leads out of ``base``."""
    if "\0" in name or os.path.isabs(name) or is_url(name):
        return None
    if is_url(base):
        store, key = split(base)
        path = join_inside(f"/store/{key}", name)  # on "/" alone ".." would have no effect
        return None if path is None else join(store, path.removeprefix("/store/"))
    path = os.path.normpath(os.path.join(base, name))
    return path if path.startswith(base.rstrip("/") + "/") else None


def find_common(paths: Sequence[str]) -> str:
    """Return the deepest directory above all paths; "/" if only that, or no store, is common to them."""
    stores = {split(path)[0] if is_url(path) else "" for path in paths}
    if stores == {""}:
        return os.path.commonpath(paths)
    if len(stores) > 1:
        return "/"
    store = stores.pop()
    return join(store, os.path.commonpath([f"/{split(path)[1]}" for path in paths])[1:])


def is_normal(path: str) -> bool:
    """Return True if a path or URL has no redundant part, such as ``..`` and ``//``."""
    rest = f"/{path.partition('://')[2]}" if is_url(path) else path
    return rest == os.path.normpath(rest)


def normalize(path: str) -> str:
    """Return a path or URL without ``..`` and ``//``; the scheme of a URL stays."""
    store, separator, rest = path.partition("://")
    return f"{store}{separator}{os.path.normpath(rest)}" if is_url(path) else os.path.normpath(path)


def split(url: str) -> tuple[str, str]:
    """Return (store, key) of a URL, such as ``s3://bucket`` and ``run/file``."""
    scheme, _, rest = url.partition("://")
    if scheme in _WITHOUT_HOST:
        return f"{scheme}://", rest
    host, _, key = rest.partition("/")
    return f"{scheme}://{host}", key


def join(store: str, key: str) -> str:
    return f"{store}{key}" if store.endswith("/") or not key else f"{store}/{key}"
