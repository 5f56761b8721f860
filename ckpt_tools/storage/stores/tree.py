"""The keys of a store as the names of a tree: listed once, page by page, and answered from memory until
somebody asks anew.

A store has no directories: one is there as long as a key lies below its name.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Iterable, Sequence
from threading import RLock

from msgspec import Struct, field

from ckpt_tools.storage import signed
from ckpt_tools.storage.stalls import watched
from ckpt_tools.storage.stores.store import CLOUDS, FOLDER, WEAK, Object, Store
from ckpt_tools.storage.urls import joined

_FILE, _DIRECTORY = modes.S_IFREG | 0o644, modes.S_IFDIR | 0o755


class _Directory(Struct):
    """The objects in one directory, and the directories; ``whole`` when that is all it has."""

    objects: dict[str, Object] = field(default_factory=dict)
    below: dict[str, None] = field(default_factory=dict)
    whole: bool = False
    mtime_ns: int = -1

    def add(self, of: Object) -> None:
        """What Hadoop writes for a directory is an empty object of its name, as consoles write one."""
        name = of.key.rpartition("/")[2]
        if not of.is_folder:
            self.objects[name] = of
        elif name := name.removesuffix(FOLDER):
            self.objects.setdefault(name, of._replace(key=of.key.removesuffix(FOLDER)))


class Entry:
    """One name in a directory of a store, with what ``os.DirEntry`` answers."""

    __slots__ = ("_home", "_of", "_tree", "name")

    def __init__(self, tree: Tree, home: str, name: str, of: Object | None) -> None:
        """``of`` is None of a directory. A million entries are kept: what can be worked out is not."""
        self._tree, self._home, self.name, self._of = tree, home, name, of

    @property
    def path(self) -> str:
        return joined(self._home, self.name)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as of the system
        if self._of is None:
            return self._tree.stat_directory(self.path)
        return stat_of(self.path, self._of)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self._of is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return not self.is_dir()

    def is_symlink(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return self.path


class Tree:
    """A store as a tree. Methods take keys, and raise as those of the store do. Safe for several threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = RLock()  # held for no request: one that hangs is left behind, with all that it holds
        self._listing = RLock()
        self._whole: set[str] = set()  # keys below which everything was listed
        self._directories: dict[str, _Directory] = {}
        self.late: dict[str, int | None] = {}
        """Keys that a later list has and an earlier one had not -> LastModified; of directories None."""
        self._versions: dict[str, tuple[str, str]] = {}  # key -> (ETag, version), as answers have told them
        self.versioned: bool | None = None  # whether the store keeps versions, as far as it was heard

    # ---- what was listed

    def refresh(self, key: str) -> None:
        """Forget what was listed by itself, and list all that lies below a key; what is no directory is asked
        for. What lies nowhere is no error; of a web server, which cannot list, one file may be asked for.
        """
        with self._lock:
            self._whole = {k for k in self._whole if not _within(k, key)}
            deep = {k: here for k, here in self._directories.items() if self._has(k)}
            alone = key not in self._directories and key.rpartition("/")[0] in deep
            self._directories = {k: here for k, here in deep.items() if not _within(k, key)}
        if alone and key:
            self.refresh_object(key)
        self._list(key)

    def refresh_and_compare(self, key: str) -> None:
        """List all that lies below a key once more, and note in ``late`` what the list before had not. That
        stays known meanwhile: another thread may compare what lies within.
        """
        with self._lock:
            before = {k: here for k, here in self._directories.items() if _within(k, key)}
            known = self._has(key)
        self._list(key)
        with self._lock:
            now = [(k, here) for k, here in self._directories.items() if _within(k, key)]
            for home, here in now if known else ():
                self._compare(home, before.get(home), here)

    def _compare(self, home: str, was: _Directory | None, here: _Directory) -> None:
        for name in here.objects.keys() - (was.objects.keys() if was is not None else ()):
            self.late[_inside(home, name)] = here.objects[name].mtime_ns

    def list_below(self, key: str) -> None:
        """List all that lies below a key, unless that is known."""
        if self._has(key):
            return
        watched(self._listing.acquire)  # by one thread, which may hang
        try:
            if not self._has(key):
                self._list(key)
        finally:
            self._listing.release()

    def _has(self, key: str) -> bool:
        """Whether all that lies below a key is known."""
        with self._lock:
            return any(_within(key, top) for top in self._whole)

    def named(self, key: str, start: str) -> list[Object]:
        """The objects whose names begin with ``start``, there and in the directories of such names."""
        found = []
        for entry in self.entries(key):
            if entry.name.startswith(start):
                within = self.entries(self._key(entry.path)) if entry.is_dir() else [entry]
                found += [self.object(self._key(e.path)) for e in within if e.is_file()]
        return found

    def _key(self, url: str) -> str:
        return url[len(self.store.url) :].lstrip("/")

    def _list(self, key: str) -> None:
        """See that all that lies below a key is known from now on."""
        found: dict[str, _Directory] = {}
        try:
            for of in self.store.objects(key):
                if of.key == key:  # somebody has made the directory, as consoles do
                    found.setdefault(key, _Directory(whole=True))
                else:
                    _add(found, key, of)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP or not key or self._file(key) is None:
                raise
            return
        if not found and (not key or self._file(key) is None):
            self.store.confirm_nothing(key)
        self._replace(key, found)

    def _replace(self, key: str, found: dict[str, _Directory]) -> None:
        with self._lock:
            others = {k: here for k, here in self._directories.items() if not _within(k, key)}
            self._directories = others | found
            home, _, name = key.rpartition("/")
            if key and (above := self._directories.get(home)) is not None:
                above.below.pop(name, None)
                above.below.update(dict.fromkeys([name] if found else []))
            elif key and found and self._has(home):  # a new directory in a new one
                self._whole = {k for k in self._whole if not _within(home, k)}
            self._whole.add(key)

    def refresh_directory(self, key: str) -> None:
        """List one directory anew, and nothing below it; ``late`` gets what the list before had not."""
        objects, names = self.store.directory(key)
        here = _directory(objects, names)
        with self._lock:
            was = self._directories.get(key)
            if was is not None and was.whole:
                self._compare(key, was, here)
                self.late.update((_inside(key, name), None) for name in here.below.keys() - was.below.keys())
            if objects or names or not key:
                self._directories[key] = here
            else:
                self._directories.pop(key, None)
                self._whole.discard(key)

    def refresh_object(self, key: str) -> None:
        """Ask for one object anew. What is not there is none any more, and no error."""
        home, _, name = key.rpartition("/")
        try:
            of = self.store.head(key)
        except FileNotFoundError:
            with self._lock:
                if here := self._directories.get(home):
                    here.objects.pop(name, None)
            return
        with self._lock:
            self._directories.setdefault(home, _Directory()).objects[name] = of
        self.heard(of)

    def count(self, key: str) -> int | None:
        """How many objects lie below a directory; None where that is not known."""
        with self._lock:
            here = self._directories.get(key)
            if here is None or not here.whole:
                return None
            inner = [self.count(_inside(key, name)) for name in here.below]
            return None if None in inner else len(here.objects) + sum(filter(None, inner))

    # ---- versions, which no listing tells

    def heard(self, of: Object) -> None:
        """What an answer has told of an object, and so of its store."""
        with self._lock:
            self.versioned = bool(of.version)
            if of.version:
                self._versions[of.key] = of.etag, of.version

    def version(self, key: str) -> str:
        """The version of an object that has the ETag that was listed; "" where nobody has told it."""
        of = self._file(key)
        etag, version = self._versions.get(key, ("", ""))
        return version if of is not None and etag == of.etag else ""

    def _listed(self, key: str) -> _Directory | None:
        """A directory with all that is in it; None where there is none."""
        with self._lock:
            here = self._directories.get(key)
            if here is not None and here.whole:
                return here
            if self._has(key):
                return None
        try:
            objects, names = self.store.directory(key)
        except OSError as e:
            if e.errno == errno.EOPNOTSUPP and here is not None:  # a web server: what it was asked for
                return here
            raise
        if not objects and not names and key:
            return None
        here = _directory(objects, names)
        with self._lock:
            self._directories[key] = here
        return here

    # ---- what is asked

    def entries(self, key: str) -> list[Entry]:
        """A directory's entries, sorted by name."""
        here = self._listed(key)
        url = joined(self.store.url, key)
        if here is None:
            if key and (of := self._file(key)) is not None:
                if not of.size:  # it may stand for a directory
                    return []
                raise NotADirectoryError(errno.ENOTDIR, "it is an object, not a directory", url)
            raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)
        out = [
            Entry(self, url, name, of)
            for name, of in here.objects.items()
            # an empty object that stands for a directory, as consoles make them
            if not (name in here.below and of.size == 0)
        ]
        out += (Entry(self, url, name, None) for name in here.below)
        return sorted(out, key=lambda e: e.name)

    def stat(self, key: str) -> os.stat_result:
        """As of a file with this name, or else of a directory. A key may be both."""
        url = joined(self.store.url, key)
        if self.is_directory(key):
            both = self._known(key)
            return stat_of(url, both) if both is not None and both.size else self.stat_directory(url)
        if (of := self._file(key)) is not None:
            return stat_of(url, of)
        if not self._has(key):
            try:
                if next(iter(self.store.objects(key)), None) is not None:  # one page tells
                    return self.stat_directory(url)
            except OSError as e:
                if e.errno != errno.EOPNOTSUPP:  # a web server: what is no object there is nothing
                    raise
        raise FileNotFoundError(errno.ENOENT, "nothing there has such a name", url)

    def stat_directory(self, url: str) -> os.stat_result:
        """Its time is that of the newest object that is known below it."""
        with self._lock:
            newest = max(self._newest(self._key(url)), 0)
        return _result(_DIRECTORY, url, Object("", 0, newest, ""))

    def object(self, key: str) -> Object:
        """The object of a key, as it was listed if it was."""
        of = self._file(key)
        if of is None:
            url = joined(self.store.url, key)
            if self.is_directory(key):
                raise IsADirectoryError(errno.EISDIR, "it is a directory", url)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", url)
        return of

    def is_directory(self, key: str) -> bool:
        """Whether a directory was listed under this key, or in the one above it."""
        with self._lock:
            if key in self._directories:
                return True
            home, _, name = key.rpartition("/")
            here = self._directories.get(home)
            return not key or (here is not None and name in here.below)

    def is_file(self, key: str) -> bool:
        """Whether an object was listed under this key, and nothing below it."""
        return self._known(key) is not None and not self.is_directory(key)

    def _known(self, key: str) -> Object | None:
        """The object that was listed under this key."""
        home, _, name = key.rpartition("/")
        with self._lock:
            here = self._directories.get(home)
            return here.objects.get(name) if here is not None else None

    def _file(self, key: str) -> Object | None:
        if (of := self._known(key)) is not None:
            return of
        with self._lock:
            here = self._directories.get(key.rpartition("/")[0])
            if (here is not None and here.whole) or any(_below(key, top) for top in self._whole):
                return None
        self.refresh_object(key)
        return self._known(key)

    def _newest(self, key: str) -> int:
        here = self._directories.get(key)
        if here is None:
            return -1
        if here.mtime_ns < 0 or not here.whole:
            times: Iterable[int] = (of.mtime_ns for of in here.objects.values())
            below = (self._newest(_inside(key, name)) for name in here.below)
            here.mtime_ns = max((*times, *below), default=-1)
        return here.mtime_ns


def _add(found: dict[str, _Directory], top: str, of: Object) -> None:
    """Put an object into its directory, and that into those up to ``top``."""
    home = of.key.rpartition("/")[0]
    here = found.get(home)
    if here is None:
        here = found[home] = _Directory(whole=True)
        new = True
        while new and home not in (top, ""):
            home, _, inner = home.rpartition("/")
            new = home not in found
            found.setdefault(home, _Directory(whole=True)).below[inner] = None
    here.add(of)


def _directory(objects: Sequence[Object], names: Sequence[str]) -> _Directory:
    here = _Directory({}, dict.fromkeys(names), whole=True)
    for of in objects:
        here.add(of)
    return here


def _inside(home: str, name: str) -> str:
    return f"{home}/{name}" if home else name


def _within(key: str, top: str) -> bool:
    """Whether a key is another one, or below it."""
    return key == top or _below(key, top)


def _below(key: str, top: str) -> bool:
    return not top or key.startswith(f"{top}/")


def stat_of(url: str, of: Object) -> os.stat_result:
    """What ``os.stat`` would say of an object."""
    return _result(_FILE, url, of)


def _result(mode: int, url: str, of: Object) -> os.stat_result:
    """Device and inode together are a digest of name and ETag, or else version, and of what a query asks for
    beside the name: another object has others. Listings tell no versions, so an object would be another one
    as soon as it is asked for.
    """
    from xxhash import xxh3_128_intdigest

    said = f"{url}\0{of.etag or of.version}{signed.asked_of(url)}"
    digest = xxh3_128_intdigest(said.encode("utf-8", "surrogatepass"))
    device, inode = digest >> 65, digest & (1 << 63) - 1
    ns = of.mtime_ns
    # An ETag of a cloud store shows each change. That of a web server is often made of size and second.
    changed_ns = 0 if of.etag and not of.etag.startswith(WEAK) and url.partition(":")[0] in CLOUDS else ns
    nanoseconds = (ns, ns, changed_ns)
    times = (*(t // 10**9 for t in nanoseconds), *(t / 1e9 for t in nanoseconds), *nanoseconds)
    return os.stat_result((mode, inode, device, 1, 0, 0, of.size, *times))
