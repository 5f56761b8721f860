"""Objects of stores asked about a second time: whether they are still what was listed, and which versions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.storage.stores.mounts import tree_of
from ckpt_tools.storage.stores.store import PAGE, Object
from ckpt_tools.storage.urls import joined

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.tree import Tree

FEW = 8
"""Objects that are asked for one by one where nobody knows how many others lie beside them."""
_THREADS = 16


def refresh_objects(urls: Iterable[str]) -> dict[str, OSError]:
    """Ask the stores what they have under these names now: one list request for the objects of a directory,
    or of all directories below one, or one for each object, whatever is least. What could not be asked about,
    and why; who asks for the others then is told what they are now.
    """
    homes: dict[tuple[Tree, str], list[str]] = defaultdict(list)
    failed: dict[str, OSError] = {}
    for url in dict.fromkeys(urls):
        try:
            tree, key = tree_of(url)
        except OSError as e:
            failed[url] = e
        else:
            homes[tree, key.rpartition("/")[0]].append(url)
    asked: dict[Tree, dict[str, list[_Asked]]] = defaultdict(dict)
    for (tree, home), here in homes.items():
        known = tree.size_of(home)
        if len(here) <= (FEW if known is None else known // PAGE) or not tree.lists:
            one_by_one = [_Asked([url], partial(tree.refresh_object, tree_of(url)[1])) for url in here]
            asked[tree][home] = one_by_one
        else:
            asked[tree][home] = [_Asked(here, partial(tree.refresh_directory, home))]
    return failed | _answers(asked)


def refresh_directories(directories: Iterable[str]) -> dict[str, OSError]:
    """List directories of stores anew, without what lies below them; what could not be listed, and why."""
    asked: dict[Tree, dict[str, list[_Asked]]] = defaultdict(dict)
    for url in dict.fromkeys(directories):
        tree, key = tree_of(url)
        if tree.lists:
            asked[tree][key] = [_Asked([url], partial(tree.refresh_directory, key))]
    return _answers(asked)


def late(root: str, below: Iterable[str], written: Callable[[int], bool]) -> str | None:
    """Something that lies below ``root`` and was missing in an earlier list, although nobody has ``written``
    it meanwhile, by its time; all that lies below the directories ``below`` is listed again for that, and
    what lies beside the files among them. Raises OSError.
    """
    tree, top = tree_of(root)
    _list_about(tree, dict.fromkeys(tree_of(url)[1] for url in below))
    for key, mtime_ns in list(tree.late.items()):
        if key != top and top and not key.startswith(f"{top}/"):
            continue
        times = [mtime_ns] if mtime_ns is not None else (of.mtime_ns for of in tree.store.objects(key))
        if not all(written(at) for at in times):
            return joined(tree.store.url, key)
    return None


def _list_about(tree: Tree, keys: Iterable[str]) -> None:
    """List anew what lies below directories, and beside files."""
    files, directories = dict[str, None](), list[str]()
    for key in keys:
        if tree.lists and tree.is_file(key):
            files[key.rpartition("/")[0]] = None
        else:
            directories.append(key)
    for home in files:
        tree.refresh_directory(home)
    for key in directories:
        tree.refresh_and_compare(key)


def listing_of(url: str) -> str:
    """A digest of all that lies below a URL at this moment: keys, sizes, times, ETags. Raises OSError."""
    from xxhash import xxh3_128_intdigest

    tree, key = tree_of(url)
    digest = 0  # whatever their order: a million keys are not to be kept for it
    for of in tree.store.objects(key):
        digest ^= xxh3_128_intdigest(repr(of).encode("utf-8", "surrogatepass"))
    return f"{digest:032x}"


def learn_versions(urls: Sequence[str]) -> None:
    """See that the versions of these objects are known, where their store keeps any: one request for each
    that nothing was read of in this process. What cannot be asked for has none.
    """
    rest = [url for url in dict.fromkeys(urls) if not _told(url)]
    first = 1 if rest and tree_of(rest[0])[0].versioned is None else 0  # the first answer tells of all
    for some in (rest[:first], rest[first:]):
        if some and tree_of(some[0])[0].versioned is not False:
            _made([_Asked([url], partial(_hear, url)) for url in some])


def object_of(url: str) -> Object:
    """An object as it was listed, with its version where that is known. Raises OSError."""
    tree, key = tree_of(url)
    of = tree.object(key)
    return of._replace(version=tree.version(key))


def _told(url: str) -> bool:
    """Whether the version of an object is known, or nobody can say."""
    try:
        return bool(object_of(url).version)
    except OSError:
        return True


def _hear(url: str) -> None:
    tree, key = tree_of(url)
    tree.heard(tree.store.head(key))


class _Asked(NamedTuple):
    """One request, and the objects that it is about."""

    urls: Sequence[str]
    request: Callable[[], None]


def _answer(one: _Asked) -> Mapping[str, OSError]:
    try:
        one.request()
    except OSError as e:
        return dict.fromkeys(one.urls, e)
    return {}


def _answers(asked: Mapping[Tree, Mapping[str, Sequence[_Asked]]]) -> dict[str, OSError]:
    """What failed, by URL, of requests for the objects of directories."""
    return _made([one for tree, homes in asked.items() for one in _fewest(tree, homes)])


def _fewest(tree: Tree, homes: Mapping[str, Sequence[_Asked]]) -> Sequence[_Asked]:
    """Requests for several directories, and one for all that lies below a directory where that has fewer
    pages: a checkpoint may have a directory for each of its thousand ranks.
    """
    waiting = defaultdict(list, {home: list(asked) for home, asked in homes.items()})
    for depth in range(max(map(_depth, waiting), default=0), -1, -1):
        for key in [key for key in waiting if _depth(key) == depth]:
            here = waiting.pop(key)
            if tree.lists and tree.has_fewer_below(key, (len(here) - 1) * PAGE):
                urls = [url for one in here for url in one.urls]
                here = [_Asked(urls, partial(tree.refresh_and_compare, key))]
            if not key:
                return here
            waiting[key.rpartition("/")[0]] += here
    return ()


def _depth(key: str) -> int:
    return key.count("/") + bool(key)


def _made(asked: Sequence[_Asked]) -> dict[str, OSError]:
    """What failed, by URL; many requests at a time."""
    if len(asked) < 2:
        return dict(_answer(asked[0])) if asked else {}
    failed: dict[str, OSError] = {}
    with ThreadPoolExecutor(min(_THREADS, len(asked))) as pool:
        for found in pool.map(_answer, asked):
            failed.update(found)
    return failed
