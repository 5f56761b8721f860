"""Which store a URL belongs to: one client per bucket, with the options that the command was given."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stores.options import open_options
from ckpt_tools.storage.stores.store import OBJECT_STORES, PAGE, Object
from ckpt_tools.storage.threads import do_each
from ckpt_tools.storage.urls import joined, split

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Store
    from ckpt_tools.storage.stores.tree import Tree

_lock = RLock()
_trees: dict[tuple[str, tuple[tuple[str, str], ...]], Tree] = {}
_told = [StoreOptions()]


def configure(options: StoreOptions = StoreOptions()) -> None:  # noqa: B008 - a frozen value
    """Options for every store that is opened from now on."""
    with _lock:
        if options != _told[0]:
            _told[0] = options
            _trees.clear()


def forget() -> None:
    """Open every store anew: the environment may say something else by now."""
    with _lock:
        _trees.clear()


def configured() -> StoreOptions:
    """The options that stores are opened with."""
    return _told[0]


def tree_of(url: str) -> tuple[Tree, str]:
    """The tree of a URL's store, and its key there. Raises OSError, UsageError and CannotLook."""
    from ckpt_tools.storage.stores.tree import Tree

    name, key = split(url)
    with _lock:
        options = _told[0]
        place = (name, tuple(sorted(options.of(url).items())))
        tree = _trees.get(place)
        if tree is None:
            tree = _trees[place] = Tree(opened(name, options, url))
        return tree, key


def refresh(url: str) -> None:
    """Forget what the store of a URL has, and list what lies below it now. Raises OSError."""
    tree, key = tree_of(url)
    tree.late.clear()
    tree.refresh(key)


def store_of(url: str) -> tuple[Store, str]:
    """The store of a URL, and the key of the URL in it. Raises OSError."""
    tree, key = tree_of(url)
    return tree.store, key


def opened(name: str, options: StoreOptions, url: str = "") -> Store:
    """A store with the options for what lies at ``url``. Raises OSError, and as ``open_options``."""
    scheme = name.partition("://")[0]
    given = open_options(url or name, options, os.environ)
    try:
        if scheme in OBJECT_STORES:
            import obstore.store

            from ckpt_tools.storage.stores.object_store import ObjectStore
            from ckpt_tools.storage.stores.refused import not_opened

            def client(address: str) -> Any:
                try:
                    return obstore.store.from_url(address, **given)  # {} would hide the environment
                except Exception as e:
                    raise not_opened(e, address.partition("?")[0].rstrip("/"), given) from None

            return ObjectStore(name, client(name), client if scheme in ("http", "https") else None)
        from ckpt_tools.storage.stores.filesystem import open_filesystem

        return open_filesystem(name, given)
    except ImportError as e:
        extra = "cloud" if scheme in OBJECT_STORES else "fsspec"
        text = f"{e.name} is not installed: pip install 'ckpt-tools[{extra}]'"
        if e.name is None:  # what fsspec says of a package that one of its file systems needs
            text = f"a package that {scheme}:// needs is not installed: {e}"
        raise OSError(errno.ENOPKG, text, name) from None


FEW = 8
"""Objects that are asked for one by one where nobody knows how many others lie beside them."""
_THREADS = 16
Asked = tuple[Sequence[str], Callable[[], None]]
"""The objects that a request is about, and the request."""


def refresh_objects(urls: Iterable[str]) -> dict[str, OSError]:
    """Ask the stores what they have under these names now. What could not be asked about, and why; who asks
    for the others then is told what they are now.
    """
    return _refresh(urls, are_directories=False)


def refresh_directories(directories: Iterable[str]) -> dict[str, OSError]:
    """List directories of stores anew; what could not be listed, and why."""
    return _refresh(directories, are_directories=True)


def _refresh(urls: Iterable[str], *, are_directories: bool) -> dict[str, OSError]:
    """By one list of all that lies below the directory that they have in common, or by one request for each
    object or directory, whatever is least.
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
    asked = list[Asked]()
    for tree, keys in stores.items():
        homes = defaultdict(list)
        for key, url in keys.items():
            homes[key if are_directories else key.rpartition("/")[0]].append(url)
        top = os.path.commonpath([f"/{home}" for home in homes])[1:]
        known = tree.count(top)
        # of a single directory its own list tells as much
        if known is not None and known // PAGE < len(keys) - are_directories:
            asked.append(([*keys.values()], partial(tree.refresh_and_compare, top)))
        elif are_directories or (known is None and len(keys) > FEW):
            asked += [(here, partial(tree.refresh_directory, home)) for home, here in homes.items()]
        else:
            asked += [([url], partial(tree.refresh_object, key)) for key, url in keys.items()]
    return failed | _ask(asked)


def late(root: str, below: Iterable[str], written: Callable[[int], bool]) -> str | None:
    """Something that lies below ``root`` and was missing in an earlier list, although nobody has ``written``
    it meanwhile, by its time; all that lies below the directories ``below`` is listed again for that, and
    what lies beside the files among them. Raises OSError.
    """
    tree, top = tree_of(root)
    keys = dict.fromkeys(tree_of(url)[1] for url in below)
    files = [key for key in keys if tree.is_file(key)]
    for home in dict.fromkeys(key.rpartition("/")[0] for key in files):
        tree.refresh_directory(home)
    for key in keys:
        if key not in files:
            tree.refresh_and_compare(key)
    for key, mtime_ns in list(tree.late.items()):
        if top in ("", key) or key.startswith(f"{top}/"):
            times = [of.mtime_ns for of in tree.store.objects(key)] if mtime_ns is None else [mtime_ns]
            if not all(map(written, times)):
                return joined(tree.store.url, key)
    return None


def learn_versions(urls: Sequence[str]) -> None:
    """See that the versions of these objects are known, where their store keeps any."""
    rest = list[str]()
    for url in dict.fromkeys(urls):
        with suppress(OSError):
            if not object_of(url).version:
                rest.append(url)
    first = 1 if rest and tree_of(rest[0])[0].versioned is None else 0  # it tells of all others
    asked = [([url], partial(_hear, url)) for url in rest]
    _ask(asked[:first])
    if rest and tree_of(rest[0])[0].versioned is not False:
        _ask(asked[first:])


def object_of(url: str) -> Object:
    """An object as it was listed, with its version where that is known. Raises OSError."""
    tree, key = tree_of(url)
    return tree.object(key)._replace(version=tree.version(key))


def _hear(url: str) -> None:
    tree, key = tree_of(url)
    tree.heard(tree.store.head(key))


def _ask(asked: Iterable[Asked]) -> dict[str, OSError]:
    """Make requests, many at a time; what failed, by URL."""
    failed: dict[str, OSError] = {}

    def answer(one: Asked) -> None:
        urls, request = one
        try:
            request()
        except OSError as e:
            failed.update(dict.fromkeys(urls, e))

    do_each(answer, asked, _THREADS)
    return failed
