"""The files of a checkpoint as its seal has them, or what keeps it from being sealed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.inspection.digest_pass import Digested, DigestPass
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.seal import Fragment, SealedFile
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.local import Identity
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine


class SealOptions(Struct, frozen=True):
    """``algorithm`` is that of whole files, ``also`` are further ones; with ``tensors`` each tensor has a
    digest too. ``again`` replaces seals without asking whether the files fit them, ``compare`` reads what is
    sealed already and holds it to its seals, ``dry_run`` writes nothing. ``merge`` makes one seal of
    fragments, ``fragment`` seals what one rank wrote, of which ``files`` are named (relative to the
    checkpoint) or told by the layout. ``sign_key`` is the file of a private key. The workers of an
    ``engine`` read.
    """

    read: ReadOptions = ReadOptions()
    algorithm: str = "xxh3"
    also: tuple[str, ...] = ()
    tensors: bool = False
    again: bool = False
    compare: bool = False
    dry_run: bool = False
    merge: bool = False
    fragment: Fragment | None = None
    files: tuple[str, ...] = ()
    sign_key: str | None = None
    engine: Engine | None = None


_BLIND = frozenset({"unreadable", "unread-pickle"})
_CHANGED = "it was changed while its checkpoint was read"


class SealedFiles(NamedTuple):
    """What a pass over all files of a checkpoint came to: nothing is sealed where something is ``wrong``."""

    files: tuple[SealedFile, ...]
    wrong: tuple[Finding, ...]


def digest_pass(s: Session, options: SealOptions) -> DigestPass:
    """How the files of a session are read to be sealed."""
    read = options.read
    return DigestPass(
        options.algorithm,
        options.also,
        options.tensors,
        read.jobs,
        s.options.io,
        read.require,
        s.reader.key,
        s.reader.advance,
    )


Identities = Mapping[str, "Identity | OSError"]
"""What tells that a file is still the same, or why nobody can say."""


def sealed_files(paths: Sequence[str], read: Callable[[str], Digested], before: Identities) -> SealedFiles:
    """Every file, read. All are looked at again when the last one was read: one that is not what it was
    ``before`` would be sealed as part of a checkpoint that there never was.
    """
    files, wrong = list[SealedFile](), list[Finding]()
    for path in paths:
        try:
            seen = read(path)
        except OSError as e:
            wrong.append(finding(_code(e), e.strerror or str(e), path=path))
            continue
        if seen.file is not None:
            files.append(seen.file)
        elif seen.report is not None:
            found = (f for f in seen.report.findings if f.severity is not Severity.NOTE)
            wrong += (replace(f, path=path) for f in found)
    changed = list(_changed(paths, before, identities(paths, again=True)))
    return SealedFiles(tuple(files), tuple(changed or wrong))  # what else is wrong may come from that


def _code(e: OSError) -> str:
    """Whether a file that could not be looked at has gone, or nobody knows."""
    return "in-use" if e.errno in (errno.ESTALE, errno.ENOENT, errno.EBUSY) else "unreadable"


def _changed(paths: Sequence[str], before: Identities, after: Identities) -> Iterator[Finding]:
    """The files that are others by now, and those of which nobody can say so any more."""
    for path in paths:
        was, now = before[path], after[path]
        if isinstance(now, OSError) and isinstance(was, OSError):  # reading it has told why
            continue
        if isinstance(now, OSError) and _code(now) == "unreadable":
            yield finding("unreadable", now.strerror or str(now), path=path)
        elif was != now:
            yield finding("in-use", _CHANGED, path=path)


def identities(paths: Sequence[str], *, again: bool = False) -> Identities:
    """What each of them is now. A store is only asked ``again``: each other time it is as it was listed."""
    failed: Mapping[str, OSError] = {}
    if again and any(map(is_url, paths)):
        from ckpt_tools.storage.stores.refresh import refresh_objects

        failed = refresh_objects(paths)
    return {path: failed[path] if path in failed else _identity(path) for path in paths}


def _identity(path: str) -> Identity | OSError:
    try:
        return Identity.of(status(path))
    except OSError as e:
        return e


def state_of(wrong: Sequence[Finding]) -> str:
    """How what is not sealed ends, by what is wrong with it: the most serious first."""
    codes = {f.code for f in wrong}
    if codes & _BLIND:
        return "unreadable"
    if "in-use" in codes:
        return "in-use"
    return "unfinished" if codes == {"unfinished-save"} else "broken"
