"""The keys of a store as a tree of names: listed once, page by page, and answered from memory until a
refresh. A directory exists as long as a key lies below its name.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Iterable
from threading import RLock

from msgspec import Struct, field

from ckpt_tools.storage import signed
from ckpt_tools.storage.stores.store import CLOUDS, FOLDER, WEAK, Object, Store
from ckpt_tools.storage.urls import joined

_FILE_MODE, _DIRECTORY_MODE = modes.S_IFREG | 0o644, modes.S_IFDIR | 0o755


class _Directory(Struct):
    """The ``objects`` of one directory and the directories ``below`` it; ``whole`` if none is missing."""

    objects: dict[str, Object] = field(default_factory=dict)
    below: set[str] = field(default_factory=set)
    whole: bool = True

    def add(self, of: Object) -> None:
        """Add an object; Hadoop's marker as an empty object with the directory's name, as consoles write."""
        name = of.key.rpartition("/")[2]
        if of.size or not name.endswith(FOLDER):
            self.objects[name] = of
        elif name := name.removesuffix(FOLDER):
            self.objects.setdefault(name, of._replace(key=of.key.removesuffix(FOLDER)))


class Entry:
    """One name in a directory of a store, with the methods of ``os.DirEntry``; ``of`` is None for a
    directory.
    """

    __slots__ = ("_home", "_tree", "name", "of")  # a million are kept, so no derived value is stored

    def __init__(self, tree: Tree, home: str, name: str, of: Object | None) -> None:
        self._tree, self._home, self.name, self.of = tree, home, name, of

    @property
    def path(self) -> str:
        return joined(self._tree.store.url, _join(self._home, self.name))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as of the system
        if self.of is None:
            return self._tree.stat_directory(_join(self._home, self.name))
        return stat_of(self.path, self.of)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self.of is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self.of is not None

    def is_symlink(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return self.path


class Tree:
    """One store as a tree. Methods take keys, and raise as those of ``Store``. Safe for several threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = RLock()  # held during no request: a thread that hangs in one never releases it
        self._whole: set[str] = set()  # keys below which everything was listed
        self._directories: dict[str, _Directory] = {}
        self.late: dict[str, int] = {}
        """Keys that a later list has and an earlier one lacked -> LastModified in ns."""
        self._versions: dict[str, tuple[str, str]] = {}  # key -> (ETag, version), which no listing tells
        self.versioned: bool | None = None  # whether the store keeps versions; None until an answer

    # ---- listing

    def refresh(self, key: str) -> None:
        """List all below a key anew; forget ``late`` keys, and directories that were listed one by one."""
        with self._lock:
            self.late.clear()
            self._whole = {k for k in self._whole if not _is_at_or_below(k, key)}
            self._directories = {k: here for k, here in self._directories.items() if self._is_listed(k)}
        self._list(key)

    def refresh_and_compare(self, key: str) -> None:
        """List all below a key anew, and note objects that the list before lacked in ``late``. The old
        listing stays until then: another thread may compare a part of it.
        """
        with self._lock:
            known, before = self._is_listed(key), self._select(key)
        self._list(key)
        with self._lock:
            for home, here in self._select(key).items() if known else ():
                was = before.get(home, _Directory()).objects
                self.late.update(
                    (of.key, of.mtime_ns) for name, of in here.objects.items() if name not in was
                )

    def refresh_directory(self, key: str) -> None:
        """List one directory anew, and all below it, as ``refresh_and_compare``, if that was listed."""
        if self._is_listed(key):
            self.refresh_and_compare(key)
            return
        with self._lock:
            self._directories.pop(key, None)
        self._get_directory(key)

    def list_below(self, key: str) -> None:
        if not self._is_listed(key):
            self._list(key)

    def refresh_object(self, key: str) -> None:
        """Ask for one object anew; a missing one is removed from its directory, and no error."""
        home, _, name = key.rpartition("/")
        try:
            of = self.store.head(key)
        except FileNotFoundError:
            with self._lock:
                if here := self._directories.get(home):
                    here.objects.pop(name, None)
            return
        with self._lock:
            self._directories.setdefault(home, _Directory(whole=False)).objects[name] = of
        self.heard(of)

    def _list(self, key: str) -> None:
        """List all below a key, in place of what is known of it; a key with nothing below it is asked for."""
        found: dict[str, _Directory] = {}
        try:
            for of in self.store.objects(key):
                if of.key == key:  # an object that stands for the directory, as consoles make them
                    found.setdefault(key, _Directory())
                else:
                    _add_object(found, key, of)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP or not key or not self._has_object(key):  # a web server lists none
                raise
            return
        if not found and not (key and self._has_object(key)):
            self.store.confirm_nothing(key)
        self._replace_listings(key, found)

    def _replace_listings(self, key: str, found: dict[str, _Directory]) -> None:
        home, _, name = key.rpartition("/")
        with self._lock:
            others = {k: here for k, here in self._directories.items() if not _is_at_or_below(k, key)}
            self._directories = others | found
            if key and (above := self._directories.get(home)) is not None:
                (above.below.add if found else above.below.discard)(name)
            elif key and found and self._is_listed(home):  # a new directory in a new one
                self._whole = {k for k in self._whole if not _is_at_or_below(home, k)}
            self._whole.add(key)

    def _has_object(self, key: str) -> bool:
        self.refresh_object(key)
        return self._get_listed(key) is not None

    def _is_listed(self, key: str) -> bool:
        with self._lock:
            return any(_is_at_or_below(key, top) for top in self._whole)

    def count(self, key: str) -> int | None:
        """Return how many objects lie below a key; None if they were not all listed."""
        with self._lock:
            known = self._is_listed(key)
            return sum(len(here.objects) for here in self._select(key).values()) if known else None

    def _select(self, key: str) -> dict[str, _Directory]:
        return {k: here for k, here in self._directories.items() if _is_at_or_below(k, key)}

    # ---- versions

    def heard(self, of: Object) -> None:
        """Note the version of an object from an answer, and thus whether the store keeps versions."""
        with self._lock:
            self.versioned = bool(of.version)
            if of.version:
                self._versions[of.key] = of.etag, of.version

    def version(self, key: str) -> str:
        """Return the version of an object with the listed ETag; "" if no answer has told it."""
        of = self._find_object(key)
        etag, version = self._versions.get(key, ("", ""))
        return version if of is not None and etag == of.etag else ""

    # ---- answers from the listings

    def entries(self, key: str) -> list[Entry]:
        """Return the entries of a directory, sorted by name; an object without bytes has none."""
        here = self._get_directory(key)
        if here is None:
            of, url = self._find_object(key) if key else None, joined(self.store.url, key)
            if of is None:
                raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)
            if of.size:
                raise NotADirectoryError(errno.ENOTDIR, "it is an object, not a directory", url)
            return []
        # an empty object with the name of a directory stands for it
        found = [Entry(self, key, n, of) for n, of in here.objects.items() if of.size or n not in here.below]
        found += (Entry(self, key, name, None) for name in here.below)
        return sorted(found, key=lambda e: e.name)

    def named(self, key: str, start: str) -> list[Object]:
        """Return the objects that begin with ``start`` in a directory, or lie in directories so named."""
        found = [e for e in self.entries(key) if e.name.startswith(start)]
        inner = (self.entries(_join(key, e.name)) if e.of is None else [e] for e in found)
        return [e.of for group in inner for e in group if e.of is not None]

    def stat(self, key: str) -> os.stat_result:
        """Return the stat of the object at a key, else of the directory. A key may be both."""
        url = joined(self.store.url, key)
        if self.is_directory(key):
            of = self._get_listed(key)
            return stat_of(url, of) if of is not None and of.size else self.stat_directory(key)
        if (of := self._find_object(key)) is not None:
            return stat_of(url, of)
        if not self._is_listed(key):
            try:
                if next(iter(self.store.objects(key)), None) is not None:  # one page tells
                    return self.stat_directory(key)
            except OSError as e:
                if e.errno != errno.EOPNOTSUPP:  # a web server: without an object there is nothing
                    raise
        raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)

    def stat_directory(self, key: str) -> os.stat_result:
        """Return the stat of a directory; its time is that of the newest known object below it."""
        with self._lock:
            newest = self._find_newest(key)
        return _make_stat(_DIRECTORY_MODE, joined(self.store.url, key), Object("", 0, newest, ""))

    def object(self, key: str) -> Object:
        """Return the object of a key, as it was listed; one not listed is asked for."""
        of = self._find_object(key)
        if of is None:
            url = joined(self.store.url, key)
            if self.is_directory(key):
                raise IsADirectoryError(errno.EISDIR, "it is a directory", url)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", url)
        return of

    def is_directory(self, key: str) -> bool:
        """Return True if a list had a directory at this key."""
        home, _, name = key.rpartition("/")
        with self._lock:
            here = self._directories.get(home)
            return not key or key in self._directories or (here is not None and name in here.below)

    def is_file(self, key: str) -> bool:
        """Return True if a list had an object at this key, and nothing below it."""
        return self._get_listed(key) is not None and not self.is_directory(key)

    def _get_listed(self, key: str) -> Object | None:
        home, _, name = key.rpartition("/")
        with self._lock:
            here = self._directories.get(home)
            return here.objects.get(name) if here is not None else None

    def _get_directory(self, key: str) -> _Directory | None:
        """Return a whole directory, listed now if need be; None if there is no such directory."""
        with self._lock:
            known = self._directories.get(key)
            if known is not None and known.whole:
                return known
            if self._is_listed(key):
                return None
        try:
            objects, names = self.store.directory(key)
        except OSError as e:
            if e.errno == errno.EOPNOTSUPP and known is not None:  # a web server: known one by one
                return known
            raise
        if not objects and not names and key:
            return None
        here = _Directory(below=set(names))
        for of in objects:
            here.add(of)
        with self._lock:
            self._directories[key] = here
        return here

    def _find_object(self, key: str) -> Object | None:
        """Return the object at this key, None if there is none; asks the store unless a list tells."""
        if (of := self._get_listed(key)) is not None:
            return of
        with self._lock:
            here = self._directories.get(key.rpartition("/")[0])
            if (here is not None and here.whole) or any(_is_below(key, top) for top in self._whole):
                return None
        self.refresh_object(key)
        return self._get_listed(key)

    def _find_newest(self, key: str) -> int:
        """Return the time in ns of the newest known object below a directory; 0 if there is none."""
        here = self._directories.get(key, _Directory())
        times: Iterable[int] = (of.mtime_ns for of in here.objects.values())
        return max((*times, *(self._find_newest(_join(key, name)) for name in here.below)), default=0)


def _add_object(found: dict[str, _Directory], top: str, of: Object) -> None:
    """Put an object into its directory in ``found``, and each directory into the one above, up to ``top``."""
    home = of.key.rpartition("/")[0]
    here = found.get(home)
    if here is None:
        here = found[home] = _Directory()
        new = True
        while new and home not in (top, ""):
            home, _, inner = home.rpartition("/")
            new = home not in found
            found.setdefault(home, _Directory()).below.add(inner)
    here.add(of)


def _join(home: str, name: str) -> str:
    return f"{home}/{name}" if home else name


def _is_at_or_below(key: str, top: str) -> bool:
    return key == top or _is_below(key, top)


def _is_below(key: str, top: str) -> bool:
    return not top or key.startswith(f"{top}/")


def stat_of(url: str, of: Object) -> os.stat_result:
    """Return an object's stat, as ``os.stat`` would of a file."""
    return _make_stat(_FILE_MODE, url, of)


def _make_stat(mode: int, url: str, of: Object) -> os.stat_result:
    """Return a stat whose device and inode are a digest of URL, ETag (else version) and the query's content
    parameters: another object has others. Listings tell no versions, so adding a version to an ETag would
    change the digest when the object is asked for.
    """
    from xxhash import xxh3_128_intdigest

    text = f"{url}\0{of.etag or of.version}{signed.asked_of(url)}"
    digest = xxh3_128_intdigest(text.encode("utf-8", "surrogatepass"))
    device, inode = digest >> 65, digest & (1 << 63) - 1
    ns = of.mtime_ns
    # The ETag of a cloud store shows each change; that of a web server is often made of size and second.
    changed_ns = 0 if of.etag and not of.etag.startswith(WEAK) and url.partition(":")[0] in CLOUDS else ns
    nanoseconds = (ns, ns, changed_ns)
    times = (*(t // 10**9 for t in nanoseconds), *(t / 1e9 for t in nanoseconds), *nanoseconds)
    return os.stat_result((mode, inode, device, 1, 0, 0, of.size, *times))
