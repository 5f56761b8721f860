"""``ckpt_tools.seal``: verifies checkpoints and writes seals, at once or in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ckpt_tools.errors import UsageError
from ckpt_tools.storage.paths import Path, Paths, one, to_paths
from ckpt_tools.storage.urls import to_absolute

if TYPE_CHECKING:
    from ckpt_tools.guard.background import Pending
    from ckpt_tools.model.seal import SealedOne, Sealing

ALGORITHMS = ("xxh3", "sha256", "blake3")
OTHERS = ("md5", "sha1", "sha256", "sha512", "blake3", "crc64nvme")


@overload
def seal(paths: Paths, *, background: Literal[True], **options: Any) -> Pending: ...


@overload
def seal(paths: Paths, *, background: Literal[False] = False, **options: Any) -> Sealing: ...


def seal(
    paths: Paths,
    *,
    background: bool = False,
    digest: str = "xxh3",
    also: Sequence[str] = (),
    tensors: bool = False,
    sign_key: str | None = None,
    again: bool = False,
    merge: bool = False,
    dry_run: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    files: Sequence[Path] = (),
    note: Callable[[SealedOne], object] | None = None,
    **read: Any,
) -> Sealing | Pending:
    """Verify every checkpoint at or below ``paths``, and write a seal into each one that is sound.

    ``digest`` is the digest of whole files (xxh3, sha256, blake3), ``also`` are further ones (md5, sha1,
    sha512, crc64nvme); with ``tensors`` each tensor gets one as well. If there are seals already, the files
    are compared with them first, and seals that fit are kept; ``again`` replaces them without comparing. With
    ``sign_key``, the file of a private key, sealed checkpoints are signed too, as model_signing does. With
    ``merge`` the fragments of all ranks become one seal.

    With ``rank`` and ``world_size`` only the files of that rank are sealed: ``files``, relative to the
    checkpoint's directory, or those that its layout names. ``dry_run`` writes nothing. ``note`` is called for
    each checkpoint as soon as it is done; ``read`` are fields of ``ReadOptions``.

    With ``background`` the call returns at once, for use in training: errors are logged as warnings of the
    logger "ckpt_tools" and never raised, checkpoints are sealed one after the other, and a process that ends
    waits for the seal that is being written, 5 minutes at most.

    Raises UsageError for digests that are not known or need a package that is not installed, and CannotLook
    when a path cannot be listed or a seal cannot be written.
    """
    from ckpt_tools.guard.sealing import SealOptions, seal_below
    from ckpt_tools.model.seal import Fragment
    from ckpt_tools.model.selection import ReadOptions

    roots = [to_absolute(p) for p in to_paths(paths)]

    def work() -> Sealing:
        if (rank is None) != (world_size is None):
            raise UsageError("rank and world_size belong together", "give both, or neither")
        given = [("digest", digest, ALGORITHMS), *(("also", name, OTHERS) for name in also)]
        for option, name, names in given:
            if name not in names:
                raise UsageError(f"{option}: {name!r} is not a digest", f"use one of {', '.join(names)}")
        if sign_key is not None and (rank is not None or merge or read.get("seal_dir") is not None):
            why = "a signature is of a whole checkpoint and lies beside it"
            raise UsageError(why, "leave out --sign-key, or --merge and CKPT_SEAL_DIR")
        options = SealOptions(
            read=ReadOptions(**read),
            algorithm=digest,
            also=tuple(also) if sign_key is None else tuple(sorted({*also, "sha256"} - {digest})),
            tensors=tensors,
            again=again,
            compare=not background,  # each save that is sealed in training would read all others again
            merge=merge,
            dry_run=dry_run,
            fragment=None if rank is None or world_size is None else Fragment(rank, world_size),
            files=tuple(one(f, "file") for f in files),
            sign_key=sign_key,
        )
        return seal_below(roots, options, note)

    if not background:
        return work()
    from ckpt_tools.guard.background import seal_later

    return seal_later(work, roots)
