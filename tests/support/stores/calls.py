"""A directory of this machine as a store of which one call goes wrong: what each of a command's requests may
meet, without a server.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import flipped

from ckpt_tools.storage import stalls
from ckpt_tools.storage.stalls import Stalled
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.object_store import ObjectStore
from ckpt_tools.storage.stores.store import Object, Replaced
from stores.asking import Said, as_user, ask
from stores.bucket import Bucket

URL = "calls://bucket"


class Call(NamedTuple):
    """What was asked: ``kind`` is list, directory, head, read, put or delete. ``number`` counts the calls of
    this kind about this key.
    """

    kind: str
    key: str
    number: int


Refusal = Callable[[str], OSError]
REFUSALS: dict[str, Refusal] = {
    "denied": lambda url: PermissionError(errno.EACCES, "denied", url),
    "gone": lambda url: FileNotFoundError(errno.ENOENT, "there is no such object", url),
    "replaced": Replaced,
    "broken off": lambda url: OSError(errno.ECONNRESET, "it broke off", url),
    "refused": lambda url: OSError(errno.EIO, "the store answers 500", url),
    "stalled": Stalled,
    "expired": lambda url: PermissionError(errno.EACCES, "the session token has expired", url),
    "taken": lambda url: FileExistsError(errno.EEXIST, "somebody else has written it meanwhile", url),
}
OF_ALL = ("denied", "gone", "broken off", "refused", "stalled")
FAULTS: dict[str, tuple[str, ...]] = {
    "list": (*OF_ALL, "empty", "half"),
    "directory": (*OF_ALL, "empty"),
    "head": (*OF_ALL, "replaced"),
    "read": (*OF_ALL, "replaced", "short", "flipped"),
    "put": ("denied", "refused", "taken", "done and refused"),
    "delete": ("refused", "done and refused"),
}
"""What a call of each kind may meet."""


@dataclass
class Fault:
    """What the call meets, and from then on, if it ``stays``, all calls of the kind about the key; all calls
    where it is about the whole store. ``met`` is how often it was; ``came`` the last bytes that were read
    so, and where they begin.
    """

    what: str
    call: Call
    stays: bool
    of_store: bool = False
    met: int = field(default=0, init=False)
    came: tuple[int, bytes] = field(default=(0, b""), init=False)

    def takes(self, call: Call) -> bool:
        if self.of_store and self.met:
            self.met += 1
            return True
        at = call[:2] == self.call[:2] and (call.number > self.call.number if self.stays else False)
        self.met += (taken := at or call == self.call)
        return taken


class Counted(ObjectStore):
    """A directory of this machine as obstore serves it; ``gets`` are key, start and length of each read."""

    def __init__(self, url: str, directory: Path) -> None:
        from obstore.store import LocalStore

        super().__init__(url, LocalStore(str(directory)))
        self.gets: list[tuple[str, int, int]] = []

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        self.gets.append((of.key, start, length))
        return super().read(of, start, length)


class Calls(Counted):
    """``calls`` are all that were made, in their order."""

    def __init__(self, directory: Path, fault: Fault | None = None) -> None:
        super().__init__(URL, directory)
        self.fault, self.calls = fault, list[Call]()
        self._numbers: dict[tuple[str, str], int] = {}

    def _require_store(self, prefix: str, *, more: bool = False) -> None:
        """A directory is a store."""

    def _call(self, kind: str, key: str, do: Callable[[], Any]) -> Any:
        number = self._numbers[kind, key] = self._numbers.get((kind, key), 0) + 1
        call = Call(kind, key, number)
        self.calls.append(call)
        if self.fault is None or not self.fault.takes(call):
            return do()
        return self._wrong(self.fault.what, kind, f"{URL}/{key}", do)

    def _wrong(self, what: str, kind: str, url: str, do: Callable[[], Any]) -> Any:
        if what in REFUSALS:
            raise REFUSALS[what](url)
        if what == "empty":
            return iter(()) if kind == "list" else ([], [])
        done = do()
        if what == "half":
            return _broken_off(list(done), url)
        if what == "short":
            return done[0][: len(done[0]) // 2], done[1]
        if what == "flipped":
            return memoryview(flipped(bytes(done[0]), 8 * (len(done[0]) // 2) + 4)), done[1]
        if what == "garbled":
            return memoryview(bytes(done[0]).translate(_OTHERS)), done[1]
        if what == "other digits":
            return memoryview(_other_digit(bytes(done[0]), self.fault.met if self.fault else 0)), done[1]
        assert what == "done and refused", what
        raise REFUSALS["refused"](url)  # though it was done

    def objects(self, prefix: str) -> Iterator[Object]:
        # sorted, as stores list: a directory of this machine has no order
        yield from self._call("list", prefix, lambda: iter(sorted(super(Calls, self).objects(prefix))))

    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        return self._call("directory", prefix, lambda: super(Calls, self).directory(prefix))

    def head(self, key: str) -> Object:
        return self._call("head", key, lambda: super(Calls, self).head(key))

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        met = 0 if self.fault is None else self.fault.met
        found = self._call("read", of.key, lambda: super(Calls, self).read(of, start, length))
        if self.fault is not None and self.fault.met > met:
            self.fault.came = start, bytes(found[0])
        return found

    def put(self, key: str, data: bytes, replacing: Object | None = None) -> Object:
        return self._call("put", key, lambda: super(Calls, self).put(key, data, replacing))

    def delete(self, keys: Sequence[str]) -> dict[str, OSError]:
        """Which never raises: it says of each key what was wrong."""
        try:
            return self._call("delete", keys[0], lambda: super(Calls, self).delete(keys))
        except OSError as e:
            return dict.fromkeys(keys, e)


_OTHERS = bytes(byte ^ 16 for byte in range(256))


def _other_digit(data: bytes, number: int) -> bytes:
    """Another digit in the place of one of them, each time of the next."""
    if not (places := [i for i, byte in enumerate(data) if 48 <= byte < 58]):
        return data
    at = places[number % len(places)]
    return data[:at] + b"%d" % ((data[at] - 47 + number % 9) % 10) + data[at + 1 :]


def _broken_off(found: list[Object], url: str) -> Iterator[Object]:
    yield from found[: len(found) // 2]
    raise REFUSALS["refused"](url)


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    files = (Path(home) / name for home, _, names in os.walk(directory) for name in names)
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


class Desk:
    """A user in ``home`` whose bucket is the directory ``top``: ``tree`` is what was uploaded, below run/."""

    def __init__(self, tree: Path, place: Path) -> None:
        self.tree, self.top, self.home = tree, place / "top", place / "user"
        for directory in (self.top, self.home):
            directory.mkdir()
        self.store, self.words = Calls(self.top), dict[str, str]()

    def fresh(self) -> None:
        """As it was before the first command."""
        for directory in (self.top, *self.home.iterdir()):  # what is known of another file of an inode, too
            shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.tree, self.top / "run", ignore_dangling_symlinks=True)
        (self.home / "home").mkdir()

    def behind(self, fault: Fault | None) -> Calls:
        """The store from now on, whose calls meet this fault."""
        self.store = Calls(self.top, fault)
        mounts.forget()
        return self.store

    def ask(self, line: str, fault: Fault | None = None) -> Said:
        self.behind(fault)
        return ask(*line.replace("@", f"{URL}/run").split())


@contextmanager
def desk_of(tree: Path, place: Path) -> Iterator[Desk]:
    """This process is that user's meanwhile, and never waits before it asks again."""
    made = Desk(tree, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stalls, "pause", lambda _seconds: None)
        patch.setattr(mounts, "open_store", lambda *_: made.store)
        with as_user(made.home, Bucket(URL, "", {}, None)), pytest.MonkeyPatch.context() as own:  # type: ignore[arg-type]
            own.setenv("CKPT_JOBS", "1")
            yield made
