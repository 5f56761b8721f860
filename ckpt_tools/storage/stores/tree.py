"""The keys of a store as a tree of names: listed once, page by page, and answered from memory until a
refresh. A directory exists as long as a key lies below its name.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from bisect import bisect_left
from collections.abc import Iterable
from threading import RLock

from ckpt_tools.storage import signed
from ckpt_tools.storage.stalls import watch_call
from ckpt_tools.storage.stores.store import CLOUDS, FOLDER, WEAK, Object, Store
from ckpt_tools.storage.urls import join

_FILE_MODE, _DIRECTORY_MODE = modes.S_IFREG | 0o644, modes.S_IFDIR | 0o755
_BEHIND = "0"  # the character that follows the slash: "run0" comes right behind all keys below "run/"


class Entry:
    """One name in a directory of a store, with the methods of ``os.DirEntry``; ``obj`` is None for a
    directory.
    """

    __slots__ = ("_home", "_tree", "name", "obj")  # a million are kept, so no derived value is stored

    def __init__(self, tree: Tree, home: str, name: str, obj: Object | None) -> None:
        self._tree, self._home, self.name, self.obj = tree, home, name, obj

    @property
    def path(self) -> str:
        return join(self._tree.store.url, _join(self._home, self.name))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as of the system
        if self.obj is None:
            return self._tree.stat_directory(_join(self._home, self.name))
        return stat_of(self.path, self.obj)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self.obj is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self.obj is not None

    def is_symlink(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return self.path


class Tree:
    """One store as a tree. Methods take keys, and raise as those of ``Store``. Safe for several threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = RLock()  # held during no request: a thread that hangs in one never releases it
        self._listing = RLock()
        self._objects: dict[str, Object] = {}
        self._keys: list[str] | None = []  # of all objects, sorted; None until they are sorted again
        self._whole: set[str] = set()  # keys below which everything was listed
        self._directories: dict[str, set[str]] = {}  # listed one by one -> names of the directories in it
        self.late: dict[str, int] = {}
        """Keys that a later list has and an earlier one lacked -> LastModified in ns."""
        self._versions: dict[str, tuple[str, str]] = {}  # key -> (ETag, version), which no listing tells
        self.versioned: bool | None = None  # whether the store keeps versions; None until an answer

    # ---- listing

    def refresh(self, key: str) -> None:
        """List all below a key anew; forget directories listed one by one, and ``late`` keys. A missing key
        is no error; a web server, which cannot list, is asked for the one file.
        """
        with self._lock:
            self._whole = {k for k in self._whole if not _is_at_or_below(k, key)}
            self._forget_below(key)
            deep = ((k, names) for k, names in self._directories.items() if self._is_listed(k))
            self._directories = dict(deep)
        self.relist(key)
        self.late.clear()

    def list_below(self, key: str) -> None:
        """List all keys below a key, unless that is done already. Raise OSError."""
        if self._is_listed(key):
            return
        watch_call(self._listing.acquire)  # the thread that holds it may hang in a list
        try:
            if not self._is_listed(key):
                self.relist(key)
        finally:
            self._listing.release()

    def relist(self, key: str) -> None:
        """List all below a key, and note in ``late`` what an earlier list of it lacked. What is known stays
        until then: another thread may compare a part of it.
        """
        try:
            found = _read_marks(self.store.objects(key))
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP or not key or not self._has_object(key):  # else a web server
                raise
            return
        is_marked = found.pop(key, None) is not None  # an object for the directory, as consoles make them
        if not found and not is_marked and not (key and self._has_object(key)):
            self.store.confirm_nothing(key)
        home, _, name = key.rpartition("/")
        with self._lock:
            if self._is_listed(key):
                self._note_late(found)
            self._forget_below(key)
            self._objects |= found
            self._keys = None
            self._whole.add(key)
            if is_marked:
                self._directories[key] = set()
            if key and home in self._directories:
                (self._directories[home].add if found or is_marked else self._directories[home].discard)(name)

    def refresh_directory(self, key: str) -> None:
        """List one directory anew, and what is new below it; note in ``late`` what the list before lacked."""
        objects, listed = self.store.directory(key)
        found, names = _read_marks(objects), set(listed)
        with self._lock:
            before, directories = self._list_children(key)
            is_deep = self._is_listed(key)
            if is_deep or key in self._directories:
                self._note_late(found)
            for name in directories - names:
                self._forget_below(_join(key, name))
            for obj in before:
                del self._objects[obj.key]
            self._objects |= found
            self._keys = None
            if found or names or not key:
                self._directories[key] = names
            else:
                self._directories.pop(key, None)
                self._whole.discard(key)
        for name in names - directories if is_deep else ():
            self.relist(_join(key, name))

    def refresh_object(self, key: str) -> None:
        """Ask for one object anew; a missing one is forgotten, and no error."""
        try:
            obj = self.store.head(key)
        except FileNotFoundError:
            with self._lock:
                if self._objects.pop(key, None) is not None:
                    self._keys = None
            return
        with self._lock:
            if key not in self._objects:
                self._keys = None
            self._objects[key] = obj
        self.note_version(obj)

    def count(self, key: str) -> int | None:
        """Return how many objects lie below a directory; None if they were not all listed."""
        with self._lock:
            first, behind = self._find_range(key)
            return behind - first if self._is_listed(key) else None

    def _note_late(self, found: dict[str, Object]) -> None:
        late = ((key, obj.mtime_ns) for key, obj in found.items() if key not in self._objects)
        self.late.update(late)

    def _forget_below(self, key: str) -> None:
        first, behind = self._find_range(key)
        for k in self._sort_keys()[first:behind]:
            del self._objects[k]
        self._directories = {k: v for k, v in self._directories.items() if not _is_at_or_below(k, key)}
        self._keys = None

    def _has_object(self, key: str) -> bool:
        """Return True if the store has an object at this key now."""
        self.refresh_object(key)
        return key in self._objects

    def _is_listed(self, key: str) -> bool:
        """Return True if everything below a key was listed, with it or with a key above it."""
        with self._lock:
            return any(_is_at_or_below(key, top) for top in self._whole)

    # ---- what is known

    def _sort_keys(self) -> list[str]:
        if self._keys is None:
            self._keys = sorted(self._objects)
        return self._keys

    def _find_range(self, key: str) -> tuple[int, int]:
        """Return the places among the sorted keys of the first one below a key, and of the first behind."""
        keys = self._sort_keys()
        return (bisect_left(keys, f"{key}/"), bisect_left(keys, key + _BEHIND)) if key else (0, len(keys))

    def _list_children(self, key: str) -> tuple[list[Object], set[str]]:
        """Return the known objects directly in a directory, and the names of the directories in it."""
        keys, (at, behind) = self._sort_keys(), self._find_range(key)
        objects, names = list[Object](), set(self._directories.get(key, ()))
        while at < behind:
            name, slash, _ = keys[at][len(key) + bool(key) :].partition("/")
            if slash:
                names.add(name)
                at = bisect_left(keys, _join(key, name) + _BEHIND, at + 1)
            else:
                objects.append(self._objects[keys[at]])
                at += 1
        return objects, names

    # ---- versions, which no listing tells

    def note_version(self, obj: Object) -> None:
        """Note the version of an object from an answer, and thus whether the store keeps versions."""
        with self._lock:
            self.versioned = bool(obj.version)
            if obj.version:
                self._versions[obj.key] = obj.etag, obj.version

    def version(self, key: str) -> str:
        """Return the version of an object with the listed ETag; "" if no answer has told it."""
        obj = self._find_object(key)
        etag, version = self._versions.get(key, ("", ""))
        return version if obj is not None and etag == obj.etag else ""

    # ---- answers from the listings

    def entries(self, key: str) -> list[Entry]:
        """Return the entries of a directory, sorted by name."""
        if not self._is_listed(key) and key not in self._directories:
            try:
                self.refresh_directory(key)
            except OSError as e:
                if e.errno != errno.EOPNOTSUPP or not self.is_directory(key):  # else known one by one
                    raise
        with self._lock:
            objects, names = self._list_children(key)
            is_known = bool(objects or names) or key in self._directories
        if not is_known:
            self._require_mark(key)
        named = ((obj.key.rpartition("/")[2], obj) for obj in objects)
        # an empty object that stands for a directory, as consoles make them, is no entry
        found = [Entry(self, key, name, obj) for name, obj in named if obj.size or name not in names]
        found += (Entry(self, key, name, None) for name in names)
        return sorted(found, key=lambda e: e.name)

    def _require_mark(self, key: str) -> None:
        """Raise OSError unless an empty object may stand for a directory with nothing in it."""
        obj, url = self._find_object(key) if key else None, join(self.store.url, key)
        if obj is None:
            raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)
        if obj.size:
            raise NotADirectoryError(errno.ENOTDIR, "it is an object, not a directory", url)

    def named(self, key: str, start: str) -> list[Object]:
        """Return the objects that begin with ``start`` in a directory, or lie in directories so named."""
        found = [e for e in self.entries(key) if e.name.startswith(start)]
        inner = (self.entries(_join(key, e.name)) if e.obj is None else [e] for e in found)
        return [e.obj for entries in inner for e in entries if e.obj is not None]

    def stat(self, key: str) -> os.stat_result:
        """Return the stat of the object at a key, else of the directory. A key may be both."""
        url = join(self.store.url, key)
        if self.is_directory(key):
            obj = self._objects.get(key)
            return stat_of(url, obj) if obj is not None and obj.size else self.stat_directory(key)
        if (obj := self._find_object(key)) is not None:
            return stat_of(url, obj)
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
            first, behind = self._find_range(key)
            times = (self._objects[k].mtime_ns for k in self._sort_keys()[first:behind])
            newest = max(times, default=0)
        return stat_of(join(self.store.url, key), Object("", 0, newest, ""), _DIRECTORY_MODE)

    def object(self, key: str) -> Object:
        """Return the object of a key, as it was listed; one not listed is asked for."""
        obj = self._find_object(key)
        if obj is None:
            url = join(self.store.url, key)
            if self.is_directory(key):
                raise IsADirectoryError(errno.EISDIR, "it is a directory", url)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", url)
        return obj

    def is_directory(self, key: str) -> bool:
        """Return True if a list had a directory at this key."""
        home, _, name = key.rpartition("/")
        with self._lock:
            first, behind = self._find_range(key)
            is_named = key in self._directories or name in self._directories.get(home, ())
            return not key or first < behind or is_named

    def _find_object(self, key: str) -> Object | None:
        """Return the object at this key, None if there is none; asks the store unless a list tells."""
        with self._lock:
            obj, is_listed = self._objects.get(key), key.rpartition("/")[0] in self._directories
            if obj is not None or is_listed or any(_is_below(key, top) for top in self._whole):
                return obj
        self.refresh_object(key)
        return self._objects.get(key)


def _read_marks(objects: Iterable[Object]) -> dict[str, Object]:
    """Return objects by key; Hadoop's mark of a directory as an empty object with the directory's name, as
    consoles write it.
    """
    found: dict[str, Object] = {}
    for obj in objects:
        home, _, name = obj.key.rpartition("/")
        if obj.size or not name.endswith(FOLDER):
            found[obj.key] = obj
        elif name != FOLDER:
            key = _join(home, name.removesuffix(FOLDER))
            found.setdefault(key, obj._replace(key=key))
    return found


def _join(home: str, name: str) -> str:
    return f"{home}/{name}" if home else name


def _is_at_or_below(key: str, top: str) -> bool:
    return key == top or _is_below(key, top)


def _is_below(key: str, top: str) -> bool:
    return not top or key.startswith(f"{top}/")


def stat_of(url: str, obj: Object, mode: int = _FILE_MODE) -> os.stat_result:
    """Return an object's stat, as ``os.stat`` would of a file. Its device and inode are a digest of URL, ETag
    (else version) and the query's content parameters: another object has others. Listings tell no versions,
    so adding a version to an ETag would change the digest when the object is asked for.
    """
    from xxhash import xxh3_128_intdigest

    text = f"{url}\0{obj.etag or obj.version}{signed.asked_of(url)}"
    digest = xxh3_128_intdigest(text.encode("utf-8", "surrogatepass"))
    device, inode = digest >> 65, digest & (1 << 63) - 1
    ns = obj.mtime_ns
    # The ETag of a cloud store shows each change; that of a web server is often made of size and second.
    changed_ns = 0 if obj.etag and not obj.etag.startswith(WEAK) and url.partition(":")[0] in CLOUDS else ns
    nanoseconds = (ns, ns, changed_ns)
    times = (*(t // 10**9 for t in nanoseconds), *(t / 1e9 for t in nanoseconds), *nanoseconds)
    return os.stat_result((mode, inode, device, 1, 0, 0, obj.size, *times))
