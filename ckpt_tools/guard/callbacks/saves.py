"""Any save, by whatever function: first the seals of the replaced files are removed, then the new files are
sealed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ckpt_tools.guard import seal
from ckpt_tools.guard.background import LONGEST, finish
from ckpt_tools.storage.paths import Path, one


class Save(NamedTuple):
    """A save at ``path`` by this process alone, or by it as ``rank`` of ``world_size``. ``options`` are those
    of ``ckpt_tools.seal``.
    """

    path: str
    rank: int | None
    world_size: int | None
    options: dict[str, Any]

    def unseal(self) -> None:
        """Remove the seals of the files that are replaced, because they do not fit the new ones: those of
        this rank; the first one answers for those of ranks that are no more as well. Waits for seals that are
        being written, but not for ever.
        """
        from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, beside, fragment_name, is_fragment
        from ckpt_tools.reading.reader import place

        finish(LONGEST)
        away, (home, name) = self.options.get("seal_dir"), os.path.split(self.path)
        first = not self.rank
        places = (f"{self.path}/{FRAGMENTS}/{NAME}", f"{self.path}/{NAME}", f"{home}/{beside(name)}")
        within, *old = places if away is None else (place(away, path) for path in places)
        fragments, old = os.path.dirname(within), old if first else []
        with suppress(OSError):
            for found in filter(is_fragment, os.listdir(fragments)):
                is_gone = first and found >= fragment_name(self.world_size or 0)
                if is_gone or (self.rank is not None and found == fragment_name(self.rank)):
                    old.append(f"{fragments}/{found}")
        for path in old:
            with suppress(OSError):
                os.unlink(path)

    def seal(self) -> None:
        """Seal what lies there now: of a directory this rank's share, a file by the first rank."""
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
    save = Save(os.path.abspath(one(path)), rank, world_size, options)
    save.unseal()
    yield
    save.seal()


def seal_when_done(
    future: Any, path: Path, *, rank: int | None = None, world_size: int | None = None, **options: Any
) -> None:
    """Seal what an asynchronous save wrote at ``path``, as soon as its ``future`` completes; the arguments
    are those of ``saving``. A save that fails is not sealed.
    """
    save = Save(os.path.abspath(one(path)), rank, world_size, options)
    save.unseal()

    def done(future: Any) -> None:
        if future.exception() is None:
            save.seal()

    # there are two: it is copied, it is written
    getattr(future, "upload_completion", future).add_done_callback(done)
