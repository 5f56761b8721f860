"""Seals made in training: around any save, when an asynchronous one is done, and by framework callbacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ckpt_tools.guard import LONGEST, finish, seal
from ckpt_tools.storage.paths import Path, one

__all__ = ["saving", "seal_when_done"]


class Save(NamedTuple):
    """A save at ``path`` by this process, alone or as ``rank``; ``options`` are for ``ckpt_tools.seal``."""

    path: str
    rank: int | None
    world_size: int | None
    options: dict[str, Any]

    def unseal(self) -> None:
        """Remove the old seals of this rank's files, which do not fit the new ones; the first rank also
        removes whole seals, and fragments of ranks that are no more. Wait some time for seals being written.
        """
        from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, fragment_name, is_fragment, name_seal
        from ckpt_tools.reading.reader import place

        finish(LONGEST)
        seal_dir, (home, name) = self.options.get("seal_dir"), os.path.split(self.path)
        is_first = not self.rank
        places = (f"{self.path}/{FRAGMENTS}/{NAME}", f"{self.path}/{NAME}", f"{home}/{name_seal(name)}")
        within, *old = places if seal_dir is None else (place(seal_dir, path) for path in places)
        fragments, old = os.path.dirname(within), old if is_first else []
        with suppress(OSError):
            for name in filter(is_fragment, os.listdir(fragments)):
                is_gone = is_first and name >= fragment_name(self.world_size or 0)
                if is_gone or (self.rank is not None and name == fragment_name(self.rank)):
                    old.append(f"{fragments}/{name}")
        for path in old:
            with suppress(OSError):
                os.unlink(path)

    def seal(self) -> None:
        """Seal the saved files in the background: each rank its own, or the first one a single file."""
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
    """A context manager around a save at ``path``, which is sealed in the background after it has returned.

    If all ranks write into one directory, each gives its ``rank`` and the ``world_size``, and seals its own
    files. ``options`` are those of ``ckpt_tools.seal``; with ``background=False`` it waits for the seal.
    Errors of a seal are logged; errors of the save are raised, and then nothing is sealed.
    """
    save = Save(os.path.abspath(one(path)), rank, world_size, options)
    save.unseal()
    yield
    save.seal()


def seal_when_done(
    future: Any, path: Path, *, rank: int | None = None, world_size: int | None = None, **options: Any
) -> None:
    """Seal the files of an asynchronous save at ``path`` when its ``future`` completes; the arguments are
    those of ``saving``. A save that fails is not sealed.
    """
    save = Save(os.path.abspath(one(path)), rank, world_size, options)
    save.unseal()

    def done(future: Any) -> None:
        if future.exception() is None:
            save.seal()

    # torch has two futures: the state is copied, the files are written
    getattr(future, "upload_completion", future).add_done_callback(done)
