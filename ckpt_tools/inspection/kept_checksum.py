"""Compute the checksum that a store keeps of an object, in the pass that reads its content, and compare them.
This costs a metadata request, or two if the object was uploaded in parts.

An object that looks broken is read a second time: its bytes may have been damaged on their way here, which is
no reason to choose an older checkpoint.
"""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from ckpt_tools.checksum import Progress
from ckpt_tools.checksum.store_sums import (
    Agreement,
    WorkedOut,
    add_whole_checksums,
    agree,
    choose_sum,
    compare_sums,
    sum_chunks,
)
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals.document import list_digests
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Report
from ckpt_tools.model.seal import NAMES, NOT_KEPT, SealedFile, StoreChecksums
from ckpt_tools.storage import OpenFile, Stopped
from ckpt_tools.storage.stores import mounts, store
from ckpt_tools.storage.stores.source import StoreSource
from ckpt_tools.storage.stores.store import Replaced
from ckpt_tools.storage.stores.told import stored_checksums

_HINT = "run this again; if it stays so, look at what lies between: a proxy, a cache, this machine's memory"
_NO_TIME = "it looks broken, and there was no time to compare it with the checksum that the store keeps"


def find_difference(kept: WorkedOut) -> Finding | None:
    """Return a finding if all bytes were read, and their checksum is not the one that the store keeps."""
    of, value = kept.of, kept.value
    if value is None or value == of.value:
        return None
    kind = NAMES[of.algorithm] + ("" if of.whole else f" of the {len(of.parts):,} parts")
    return finding(NOT_KEPT, f"{kind} is {value.hex()}, the store says {of.value.hex()}", offset=0)


def kept_checksum(source: OpenFile, *, to_prove: bool = False) -> WorkedOut | None:
    """Return None if the store keeps no checksum of the file whose difference is damage; ``to_prove``: nor
    one whose equality proves anything. Raises Replaced.
    """
    if not isinstance(source, StoreSource):
        return None
    try:
        stored = add_whole_checksums(source.kept_checksums())
    except Replaced:
        raise
    except OSError:  # then only the checksums in the file judge it
        return None
    of = choose_sum(stored, to_prove=False) or (choose_sum(stored, to_prove=True) if to_prove else None)
    return None if of is None else WorkedOut(of, source.size)


def say_not_kept(other: Finding) -> tuple[Finding, Finding]:
    """Return the findings on an object whose bytes arrive otherwise than its store has them."""
    return other, finding("unreadable", store.NOT_KEPT, hint=other.hint)


def weigh_again(
    first: Report,
    again: Report,
    progress: Progress | None,
    *,
    stopped: bool = False,
    as_kept: bool = False,
) -> Report:
    """Return the report that two readings of an object give. Damage must be found both times, and the bytes
    must be ``as_kept`` by the store: unless that is known, all of them are read for its checksum.

    ``stopped``: the second reading ended before all was checked. A cache in between may give the same wrong
    bytes each time, although the object is good.
    """
    first_findings, later_findings = set(first.findings), set(again.findings)
    is_alike = later_findings <= first_findings if stopped else later_findings == first_findings
    if not (is_alike or again.verdict is Verdict.UNKNOWN):
        doubt = finding("unreadable", store.DIFFERENTLY, hint=_HINT)
        return replace(again, verdict=Verdict.UNKNOWN, findings=(doubt,))
    if as_kept or again.verdict is not Verdict.BROKEN:
        return again
    try:
        found = _read_whole(again.path, progress)
    except Stopped:
        found = finding("unreadable", _NO_TIME)
    except OSError as e:
        found = finding("in-use" if isinstance(e, Replaced) else "unreadable", e.strerror or str(e))
    if found is None:
        return again
    findings = say_not_kept(found) if found.code == NOT_KEPT else (found,)
    return replace(again, verdict=Verdict.UNKNOWN, findings=findings)


def _read_whole(url: str, progress: Progress | None) -> Finding | None:
    """Read an object whole; return a finding if the store keeps another checksum than its bytes have, None
    if the same or none. An ETag that may be an MD5 counts: equal, it proves the damage; different, it leaves
    the object in doubt. Raises Stopped, and OSError.
    """
    with StoreSource(url) as source:
        kept = kept_checksum(source, to_prove=True)
        if kept is None:
            return None
        kept.read(source, progress=progress)
        return find_difference(kept)


class Evidence:
    """The checksums that stores keep of objects, each asked for once. Safe for several threads."""

    def __init__(self) -> None:
        self.told = cache(ask_store)

    def same(self, path: str, sealed: SealedFile, algorithm: str) -> bool:
        """Return True if a store's checksum shows that a file is the one that was sealed."""
        try:
            stored = self.told(path)
        except OSError:
            return False
        found = compare_with_seal(stored, sealed, algorithm)
        return found is not None and found.same


def ask_store(url: str) -> StoreChecksums:
    """Return all checksums that the store keeps of an object. Raises OSError."""
    tree, key = mounts.tree_of(url)
    return add_whole_checksums(stored_checksums(tree.store, tree.object(key)))


def compare_with_seal(stored: StoreChecksums, sealed: SealedFile, algorithm: str) -> Agreement | None:
    """Return whether an object is the sealed file; None if its store keeps no comparable checksum."""
    if stored.size != sealed.size:
        return Agreement(False, "", f"it has {stored.size:,} bytes; {sealed.size:,} were sealed")
    if (found := compare_sums(stored, list_digests(sealed, algorithm))) is not None:
        return found
    for s in stored.sums:
        crcs = {"crc32": sealed.chunk_crc32, "crc32c": sealed.chunk_crc32c}.get(s.algorithm, "")
        chunks = [bytes.fromhex(crcs[i : i + 8]) for i in range(0, len(crcs), 8)]
        value = None if s.whole or s.weak else sum_chunks(s, sealed.size, chunks)
        if value is not None:
            return agree(s, value)
    return None
