"""Objects of stores asked about a second time: whether they are still what was listed, and which versions."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ckpt_tools.storage.stores.mounts import tree_of
from ckpt_tools.storage.stores.store import PAGE, Object
from ckpt_tools.storage.threads import Threads
from ckpt_tools.storage.urls import joined

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.tree import Tree

FEW = 8
"""Objects that are asked for one by one where nobody knows how many others lie beside them."""
_THREADS = 16
Asked = tuple[Sequence[str], Callable[[], None]]
"""The objects that a request is about, and the request."""


def refresh_objects(urls: Iterable[str]) -> dict[str, OSError]:
    """Ask the stores what they have under these names now: one list of the directory that all lie in, or one
    request for each object or directory, whatever is least. What could not be asked about, and why; who asks
    for the others then is told what they are now.
    """
    stores, failed = _by_store(urls)
    asked = list[Asked]()
    for tree, keys in stores.items():
        homes = defaultdict(list)
        for key, url in keys.items():
            homes[key.rpartition("/")[0]].append(url)
        if (pages := _count_pages(tree, top := _common(homes))) is not None and pages <= len(keys):
            asked.append(([*keys.values()], partial(tree.refresh_and_compare, top)))
        elif pages is None and len(keys) > FEW:
            asked += [(here, partial(tree.refresh_directory, home)) for home, here in homes.items()]
        else:
            asked += [([url], partial(tree.refresh_object, key)) for key, url in keys.items()]
    return failed | _ask(asked)


def refresh_directories(directories: Iterable[str]) -> dict[str, OSError]:
    """List directories of stores anew, with what lies below them where that takes fewer requests; what could
    not be listed, and why.
    """
    stores, failed = _by_store(directories)
    asked = list[Asked]()
    for tree, keys in stores.items():
        if (pages := _count_pages(tree, top := _common(keys))) is not None and pages < len(keys):
            asked.append(([*keys.values()], partial(tree.refresh_and_compare, top)))
        else:
            asked += [([url], partial(tree.refresh_directory, key)) for key, url in keys.items()]
    return failed | _ask(asked)


def _by_store(urls: Iterable[str]) -> tuple[dict[Tree, dict[str, str]], dict[str, OSError]]:
    """Return the keys in each store, with their URLs, and why a store cannot be opened."""
    stores: dict[Tree, dict[str, str]] = defaultdict(dict)
    failed: dict[str, OSError] = {}
    for url in urls:
        try:
            tree, key = tree_of(url)
        except OSError as e:
            failed[url] = e
        else:
            stores[tree][key] = url
    return stores, failed


def _common(directories: Iterable[str]) -> str:
    return os.path.commonpath([f"/{key}" for key in directories])[1:]


def _count_pages(tree: Tree, top: str) -> int | None:
    """Return how many requests list all that lies below a directory, as far as is known."""
    known = tree.count(top)
    return None if known is None else known // PAGE + 1


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

    def answer(urls: Sequence[str], request: Callable[[], None]) -> None:
        try:
            request()
        except OSError as e:
            failed.update(dict.fromkeys(urls, e))

    pool = Threads(_THREADS)
    try:
        for done in [pool.submit(answer, *one) for one in asked]:
            done.result()
    finally:
        pool.close(wait=False)
    return failed
