"""The keys of a store as a tree of names: listed once, page by page, and answered from memory until a
refresh. A directory exists as long as a key lies below its name.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Iterable, Sequence
from threading import RLock

from msgspec import Struct, field

from ckpt_tools.storage import signed
from ckpt_tools.storage.stalls import watch_call
from ckpt_tools.storage.stores.store import CLOUDS, FOLDER, WEAK, Object, Store
from ckpt_tools.storage.urls import join

_FILE_MODE, _DIRECTORY_MODE = modes.S_IFREG | 0o644, modes.S_IFDIR | 0o755


class _Directory(Struct):
    """The ``objects`` of one directory and the directories ``below`` it; ``whole`` if none is missing."""

    objects: dict[str, Object] = field(default_factory=dict)
    below: dict[str, None] = field(default_factory=dict)
    whole: bool = False
    mtime_ns: int = -1

    def add(self, obj: Object) -> None:
        """Add an object; Hadoop's marker as an empty object with the directory's name, as consoles write."""
        name = obj.key.rpartition("/")[2]
        if obj.size or not name.endswith(FOLDER):
            self.objects[name] = obj
        elif name := name.removesuffix(FOLDER):
            self.objects.setdefault(name, obj._replace(key=obj.key.removesuffix(FOLDER)))


class Entry:
    """One name in a directory of a store, with the methods of ``os.DirEntry``."""

    __slots__ = ("_home", "_obj", "_tree", "name")

    def __init__(self, tree: Tree, home: str, name: str, obj: Object | None) -> None:
        """``obj`` is None for a directory. A million entries are kept, so no derived value is stored."""
        self._tree, self._home, self.name, self._obj = tree, home, name, obj

    @property
    def path(self) -> str:
        return join(self._home, self.name)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as of the system
        if self._obj is None:
            return self._tree.stat_directory(self.path)
        return stat_of(self.path, self._obj)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self._obj is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return not self.is_dir()

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
        self._whole: set[str] = set()  # keys below which everything was listed
        self._directories: dict[str, _Directory] = {}
        self.late: dict[str, int | None] = {}
        """Keys that a later list has and an earlier one lacked -> LastModified in ns, of directories None."""
        self._versions: dict[str, tuple[str, str]] = {}  # key -> (ETag, version), from answers
        self.versioned: bool | None = None  # whether the store keeps versions; None until an answer

    # ---- listing

    def refresh(self, key: str) -> None:
        """Forget directories listed one by one, and list all below a key anew; a key that is no directory is
        asked for. A missing key is no error; a web server, which cannot list, is asked for the one file.
        """
        with self._lock:
            self._whole = {k for k in self._whole if not _is_at_or_below(k, key)}
            deep = {k: directory for k, directory in self._directories.items() if self._is_listed(k)}
            alone = key not in self._directories and key.rpartition("/")[0] in deep
            self._directories = {k: directory for k, directory in deep.items() if not _is_at_or_below(k, key)}
        if alone and key:
            self.refresh_object(key)
        self._list(key)

    def refresh_and_compare(self, key: str) -> None:
        """List all below a key anew, and note objects that the list before lacked in ``late``. The old
        listing stays until then: another thread may compare a part of it.
        """
        with self._lock:
            before = {k: directory for k, directory in self._directories.items() if _is_at_or_below(k, key)}
            known = self._is_listed(key)
        self._list(key)
        with self._lock:
            now = [(k, directory) for k, directory in self._directories.items() if _is_at_or_below(k, key)]
            for home, directory in now if known else ():
                self._note_late_keys(home, before.get(home), directory)

    def _note_late_keys(self, home: str, before: _Directory | None, directory: _Directory) -> None:
        """Note in ``late`` the objects of a directory that its listing ``before`` lacked."""
        for name in directory.objects.keys() - (before.objects.keys() if before is not None else ()):
            self.late[_join(home, name)] = directory.objects[name].mtime_ns

    def list_below(self, key: str) -> None:
        """List all keys below a key, unless that is done already. Raise OSError."""
        if self._is_listed(key):
            return
        watch_call(self._listing.acquire)  # the thread that holds it may hang in a list
        try:
            if not self._is_listed(key):
                self._list(key)
        finally:
            self._listing.release()

    def _is_listed(self, key: str) -> bool:
        """Return True if everything below a key was listed, with it or with a key above it."""
        with self._lock:
            return any(_is_at_or_below(key, top) for top in self._whole)

    def named(self, key: str, start: str) -> list[Object]:
        """Return the objects that begin with ``start`` in a directory, or lie in directories so named."""
        found = []
        for entry in self.entries(key):
            if entry.name.startswith(start):
                files = self.entries(self._make_key(entry.path)) if entry.is_dir() else [entry]
                found += [self.object(self._make_key(e.path)) for e in files if e.is_file()]
        return found

    def _make_key(self, url: str) -> str:
        return url[len(self.store.url) :].lstrip("/")

    def _list(self, key: str) -> None:
        """List all keys below a key, and replace the listings of its directories."""
        found: dict[str, _Directory] = {}
        try:
            for obj in self.store.objects(key):
                if obj.key == key:  # an object that stands for the directory, as consoles make them
                    found.setdefault(key, _Directory(whole=True))
                else:
                    _add_object(found, key, obj)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP or not key or self._find_object(key) is None:
                raise
            return
        if not found and (not key or self._find_object(key) is None):
            self.store.confirm_nothing(key)
        self._replace_listings(key, found)

    def _replace_listings(self, key: str, found: dict[str, _Directory]) -> None:
        """Put all directories ``found`` at and below a key in the place of those known before."""
        with self._lock:
            others = {k: v for k, v in self._directories.items() if not _is_at_or_below(k, key)}
            self._directories = others | found
            home, _, name = key.rpartition("/")
            if key and (above := self._directories.get(home)) is not None:
                above.below.pop(name, None)
                above.below.update(dict.fromkeys([name] if found else []))
            elif key and found and self._is_listed(home):  # a new directory in a new one
                self._whole = {k for k in self._whole if not _is_at_or_below(home, k)}
            self._whole.add(key)

    def refresh_directory(self, key: str) -> None:
        """List one directory anew, nothing below it; note in ``late`` what the list before had lacked."""
        objects, names = self.store.directory(key)
        now = _make_directory(objects, names)
        with self._lock:
            before = self._directories.get(key)
            if before is not None and before.whole:
                self._note_late_keys(key, before, now)
                self.late.update((_join(key, name), None) for name in now.below.keys() - before.below.keys())
            if objects or names or not key:
                self._directories[key] = now
            else:
                self._directories.pop(key, None)
                self._whole.discard(key)

    def refresh_object(self, key: str) -> None:
        """Ask for one object anew; a missing one is removed from its directory, and no error."""
        home, _, name = key.rpartition("/")
        try:
            obj = self.store.head(key)
        except FileNotFoundError:
            with self._lock:
                if directory := self._directories.get(home):
                    directory.objects.pop(name, None)
            return
        with self._lock:
            self._directories.setdefault(home, _Directory()).objects[name] = obj
        self.note_version(obj)

    def count(self, key: str) -> int | None:
        """Return how many objects lie below a directory; None if it was not listed whole."""
        with self._lock:
            directory = self._directories.get(key)
            if directory is None or not directory.whole:
                return None
            inner = [self.count(_join(key, name)) for name in directory.below]
            return None if None in inner else len(directory.objects) + sum(filter(None, inner))

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

    def _get_directory(self, key: str) -> _Directory | None:
        """Return a whole directory, listed now if need be; None if there is no such directory."""
        with self._lock:
            directory = self._directories.get(key)
            if directory is not None and directory.whole:
                return directory
            if self._is_listed(key):
                return None
        try:
            objects, names = self.store.directory(key)
        except OSError as e:
            if e.errno == errno.EOPNOTSUPP and directory is not None:  # a web server: known one by one
                return directory
            raise
        if not objects and not names and key:
            return None
        directory = _make_directory(objects, names)
        with self._lock:
            self._directories[key] = directory
        return directory

    # ---- answers from the listings

    def entries(self, key: str) -> list[Entry]:
        """Return the entries of a directory, sorted by name."""
        directory = self._get_directory(key)
        url = join(self.store.url, key)
        if directory is None:
            if key and (obj := self._find_object(key)) is not None:
                if not obj.size:  # it may stand for a directory
                    return []
                raise NotADirectoryError(errno.ENOTDIR, "it is an object, not a directory", url)
            raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)
        out = [
            Entry(self, url, name, obj)
            for name, obj in directory.objects.items()
            # an empty object that stands for a directory, as consoles make them
            if not (name in directory.below and obj.size == 0)
        ]
        out += (Entry(self, url, name, None) for name in directory.below)
        return sorted(out, key=lambda e: e.name)

    def stat(self, key: str) -> os.stat_result:
        """Return the stat of the object at a key, else of the directory. A key may be both."""
        url = join(self.store.url, key)
        if self.is_directory(key):
            obj = self._get_listed(key)
            return stat_of(url, obj) if obj is not None and obj.size else self.stat_directory(url)
        if (obj := self._find_object(key)) is not None:
            return stat_of(url, obj)
        if not self._is_listed(key):
            try:
                if next(iter(self.store.objects(key)), None) is not None:  # one page tells
                    return self.stat_directory(url)
            except OSError as e:
                if e.errno != errno.EOPNOTSUPP:  # a web server: without an object there is nothing
                    raise
        raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)

    def stat_directory(self, url: str) -> os.stat_result:
        """Return the stat of a directory; its time is that of the newest known object below it."""
        with self._lock:
            newest = max(self._newest_ns(self._make_key(url)), 0)
        return stat_of(url, Object("", 0, newest, ""), _DIRECTORY_MODE)

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
        with self._lock:
            if key in self._directories:
                return True
            home, _, name = key.rpartition("/")
            directory = self._directories.get(home)
            return not key or (directory is not None and name in directory.below)

    def is_file(self, key: str) -> bool:
        """Return True if a list had an object at this key, and nothing below it."""
        return self._get_listed(key) is not None and not self.is_directory(key)

    def _get_listed(self, key: str) -> Object | None:
        """Return the object at a key from memory; None if no list or answer had one."""
        home, _, name = key.rpartition("/")
        with self._lock:
            directory = self._directories.get(home)
            return directory.objects.get(name) if directory is not None else None

    def _find_object(self, key: str) -> Object | None:
        """Return the object at this key, None if there is none; asks the store unless a list tells."""
        if (obj := self._get_listed(key)) is not None:
            return obj
        with self._lock:
            directory = self._directories.get(key.rpartition("/")[0])
            if (directory is not None and directory.whole) or any(_is_below(key, top) for top in self._whole):
                return None
        self.refresh_object(key)
        return self._get_listed(key)

    def _newest_ns(self, key: str) -> int:
        """Return the time in ns of the newest known object below a directory; -1 if there is none."""
        directory = self._directories.get(key)
        if directory is None:
            return -1
        if directory.mtime_ns < 0 or not directory.whole:
            times: Iterable[int] = (obj.mtime_ns for obj in directory.objects.values())
            below = (self._newest_ns(_join(key, name)) for name in directory.below)
            directory.mtime_ns = max((*times, *below), default=-1)
        return directory.mtime_ns


def _add_object(found: dict[str, _Directory], top: str, obj: Object) -> None:
    """Put an object into its directory in ``found``, and each directory into the one above, up to ``top``."""
    home = obj.key.rpartition("/")[0]
    directory = found.get(home)
    if directory is None:
        directory = found[home] = _Directory(whole=True)
        new = True
        while new and home not in (top, ""):
            home, _, inner = home.rpartition("/")
            new = home not in found
            found.setdefault(home, _Directory(whole=True)).below[inner] = None
    directory.add(obj)


def _make_directory(objects: Sequence[Object], names: Sequence[str]) -> _Directory:
    """Return a directory listed whole: its objects, and the ``names`` of the directories in it."""
    directory = _Directory({}, dict.fromkeys(names), whole=True)
    for obj in objects:
        directory.add(obj)
    return directory


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
