"""Which store a URL belongs to: one client per bucket, with the options that the command was given."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stalls import do_each
from ckpt_tools.storage.stores.options import open_options
from ckpt_tools.storage.stores.refused import client_error
from ckpt_tools.storage.stores.store import OBJECT_STORES, PAGE, Object, Store
from ckpt_tools.storage.urls import join, split

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.tree import Tree

_lock = RLock()
_trees: dict[tuple[str, tuple[tuple[str, str], ...]], Tree] = {}
_options = [StoreOptions()]


def configure(options: StoreOptions = StoreOptions()) -> None:  # noqa: B008 - a frozen value
    """Set the options of every store opened from now on; other options than before forget all stores."""
    with _lock:
        if options != _options[0]:
            _options[0] = options
            _trees.clear()


def forget() -> None:
    """Open every store anew at its next use: the environment may have changed."""
    with _lock:
        _trees.clear()


def get_options() -> StoreOptions:
    """Return the options of every store that is opened from now on."""
    return _options[0]


def tree_of(url: str) -> tuple[Tree, str]:
    """Return the tree of a URL's store, and the URL's key in it. Raise OSError, UsageError and CannotLook."""
    from ckpt_tools.storage.stores.tree import Tree

    name, key = split(url)
    with _lock:
        options = _options[0]
        place = (name, tuple(sorted(options.of(url).items())))
        tree = _trees.get(place)
        if tree is None:
            tree = _trees[place] = Tree(open_store(name, options, url))
        return tree, key


def refresh(url: str) -> None:
    """List all keys below a URL anew, and forget the late keys of its store. Raise OSError."""
    tree, key = tree_of(url)
    tree.refresh(key)


def store_of(url: str) -> tuple[Store, str]:
    """Return the store of a URL, and the URL's key in it. Raise OSError."""
    tree, key = tree_of(url)
    return tree.store, key


def open_store(name: str, options: StoreOptions, url: str = "") -> Store:
    """Return a store with the options that hold for ``url``. Raise OSError, and as ``open_options``."""
    scheme = name.partition("://")[0]
    try:
        given = open_options(url or name, options, os.environ)
        if scheme not in OBJECT_STORES:
            from ckpt_tools.storage.stores.filesystem import open_filesystem

            return open_filesystem(name, given)
        import obstore.store

        from ckpt_tools.storage.stores.object_store import ObjectStore
    except ImportError as e:
        extra = "cloud" if scheme in OBJECT_STORES else "fsspec"
        text = f"{e.name} is not installed: pip install 'ckpt-tools[{extra}]'"
        raise OSError(errno.ENOPKG, text, name) from None

    def make_client(address: str) -> Any:
        try:
            return obstore.store.from_url(address, **given)  # {} would hide the environment
        except Exception as e:
            raise client_error(e, address.partition("?")[0].rstrip("/"), given) from None

    return ObjectStore(name, make_client(name), make_client if scheme in ("http", "https") else None)


FEW = 8
"""Up to so many objects are asked for one by one if nobody knows how many others their directory has."""
_THREADS = 16
Asked = tuple[Sequence[str], Callable[[], None]]
"""The URLs that a request is about, and the function that makes the request."""


def refresh_objects(urls: Iterable[str], *, are_directories: bool = False) -> dict[str, OSError]:
    """Ask the stores for these objects anew: by one list below their common directory, or one by one, by the
    fewest requests. Return the errors of those that failed, by URL.
    """
    stores: dict[Tree, dict[str, str]] = defaultdict(dict)
    failed: dict[str, OSError] = {}
    for url in urls:
        try:
            tree, key = tree_of(url)
        except OSError as e:
            failed[url] = e
        else:
            stores[tree][key] = url
    due = list[Asked]()
    for tree, keys in stores.items():
        homes = defaultdict(list)
        for key, url in keys.items():
            homes[key if are_directories else key.rpartition("/")[0]].append(url)
        top = os.path.commonpath([f"/{home}" for home in homes])[1:]
        known = tree.count(top)
        # a single directory costs one list either way, and its own list is shorter
        if known is not None and known // PAGE < len(keys) - are_directories:
            due.append(([*keys.values()], partial(tree.relist, top)))
        elif are_directories or (known is None and len(keys) > FEW):
            due += [(here, partial(tree.refresh_directory, home)) for home, here in homes.items()]
        else:
            due += [([url], partial(tree.refresh_object, key)) for key, url in keys.items()]
    return failed | _request_all(due)


def find_late(root: str, below: Iterable[str], written: Callable[[int], bool]) -> str | None:
    """Return the URL of a key below ``root`` that an earlier list lacked and whose time is not ``written``
    meanwhile, None if there is none: a list had lost it. Lists anew all in ``below``, and beside files in it.
    Raise OSError.
    """
    tree, top = tree_of(root)
    keys = (tree_of(url)[1] for url in below)
    for home in dict.fromkeys(key if tree.is_directory(key) else key.rpartition("/")[0] for key in keys):
        tree.relist(home)
    late = ((key, ns) for key, ns in list(tree.late.items()) if not top or f"{key}/".startswith(f"{top}/"))
    return next((join(tree.store.url, key) for key, ns in late if not written(ns)), None)


def learn_versions(urls: Iterable[str]) -> None:
    """Ask for the versions of these objects that are unknown, if their store keeps versions."""

    def ask(url: str) -> None:
        tree, key = tree_of(url)
        if tree.versioned is not False and not object_of(url).version:
            tree.note_version(tree.store.head(key))  # the answer tells its version

    heads = [([url], partial(ask, url)) for url in dict.fromkeys(urls)]
    _request_all(heads[:1])  # it shows if there are any
    _request_all(heads[1:])


def object_of(url: str) -> Object:
    """Return an object as it was listed, with its version if known. Raise OSError."""
    tree, key = tree_of(url)
    return tree.object(key)._replace(version=tree.version(key))


def _request_all(asked: Iterable[Asked]) -> dict[str, OSError]:
    """Make requests, up to ``_THREADS`` at a time. Return the errors of the failed ones, by URL."""
    failed: dict[str, OSError] = {}

    def answer(one: Asked) -> None:
        urls, request = one
        try:
            request()
        except OSError as e:
            failed.update(dict.fromkeys(urls, e))

    do_each(answer, asked, _THREADS)
    return failed
