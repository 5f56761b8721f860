"""Any save, by whatever function: first the seals of the replaced files are removed, then the new files are
sealed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from ckpt_tools.guard import seal
from ckpt_tools.guard.background import LONGEST, finish
from ckpt_tools.storage.paths import Path, one


class Done(Protocol):
    """A future, as asynchronous saves return it."""

    def add_done_callback(self, fn: Callable[[Any], object], /) -> object: ...
    def exception(self) -> BaseException | None: ...


class Save(NamedTuple):
    """A save at ``path`` by this process alone, or by it as ``rank`` of ``world_size``. ``options`` are those
    of ``ckpt_tools.seal``.
    """

    path: str
    rank: int | None
    world_size: int | None
    options: dict[str, Any]

    @classmethod
    def at(cls, path: Path, rank: int | None, world_size: int | None, options: dict[str, Any]) -> Save:
        """One whose path may be relative."""
        return cls(os.path.abspath(one(path)), rank, world_size, options)

    def unseal(self) -> None:
        """Remove the seals of the files that are replaced, because they do not fit the new ones. Waits for
        seals that are being written, but not for ever.
        """
        finish(LONGEST)
        for path in self._old():
            with suppress(OSError):
                os.unlink(path)

    def _old(self) -> Iterator[str]:
        """The seals of this rank; the first one answers for those of ranks that are no more as well."""
        from ckpt_tools.formats.seals.names import FRAGMENTS, NAME, beside, fragment_name, is_fragment

        home, name = os.path.split(self.path)
        if not self.rank:
            yield self._placed(f"{self.path}/{NAME}")
            yield self._placed(f"{home}/{beside(name)}")
        fragments = os.path.dirname(self._placed(f"{self.path}/{FRAGMENTS}/{NAME}"))
        with suppress(OSError):
            for name in filter(is_fragment, os.listdir(fragments)):
                gone = not self.rank and name >= fragment_name(self.world_size or 0)
                if gone or (self.rank is not None and name == fragment_name(self.rank)):
                    yield f"{fragments}/{name}"

    def _placed(self, path: str) -> str:
        away = self.options.get("seal_dir")
        if away is None:
            return path
        from ckpt_tools.reading.mirrored import place

        return place(away, path)

    def seal(self) -> None:
        """Seal what lies there now: a directory that several wrote by the share of each, a file by the first
        of them.
        """
        options: dict[str, Any] = {"again": True, "jobs": 1, **self.options}
        alone = self.world_size in (None, 1)
        if not alone and os.path.isdir(self.path):
            options |= {"rank": self.rank, "world_size": self.world_size}
        elif not alone and self.rank:
            return
        wait = not options.pop("background", True)
        pending = seal(self.path, background=True, **options)
        if wait:
            pending.wait()


@contextmanager
def saving(
    path: Path, *, rank: int | None = None, world_size: int | None = None, **options: Any
) -> Iterator[None]:
    """A context manager around a save at ``path``: once the save has returned, it is sealed in the
    background.

    If all ranks write into one directory, each gives its ``rank`` and the ``world_size``, and seals its own
    files. ``options`` are those of ``ckpt_tools.seal``; with ``background=False`` it waits. Errors of a seal
    are logged; errors of the save are raised, and then nothing is sealed.
    """
    save = Save.at(path, rank, world_size, options)
    save.unseal()
    yield
    save.seal()


def seal_when_done(
    future: Any, path: Path, *, rank: int | None = None, world_size: int | None = None, **options: Any
) -> None:
    """Seal what an asynchronous save wrote at ``path``, as soon as its ``future`` completes; the arguments
    are those of ``saving``. A save that fails is not sealed.
    """
    save = Save.at(path, rank, world_size, options)
    save.unseal()
    written: Done = getattr(future, "upload_completion", future)  # there are two: it is copied, it is written

    def done(future: Done) -> None:
        if future.exception() is None:
            save.seal()

    written.add_done_callback(done)
