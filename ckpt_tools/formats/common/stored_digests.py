"""Digests of whole files that a manifest beside them stores: the algorithms, and the claim on a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ckpt_tools.checksum import Extent, Hash, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats import names
from ckpt_tools.formats.common.format import Anatomy, Claim
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source


class Digest(NamedTuple):
    """The digest of a file's bytes from ``start`` to ``end`` (-1: the file's end) by one of LENGTHS."""

    algorithm: str
    value: bytes
    start: int = 0
    end: int = -1


LENGTHS = {"md5": 16, "sha1": 20, "sha224": 28, "sha256": 32, "sha384": 48, "sha512": 64}
LENGTHS |= {"blake2b": 64, "blake3": 32, "git-sha1": 20}
"""Bytes of a digest; BLAKE2b and BLAKE3 may be shorter, and git's covers the size and the bytes."""


def read_digest(algorithm: object, text: object) -> Digest | None:
    """Return the Digest of a ``text`` in hexadecimal, None for an unknown algorithm or another length."""
    if not isinstance(algorithm, str) or not isinstance(text, str) or algorithm not in LENGTHS:
        return None
    fits = len(text) == 2 * LENGTHS[algorithm] and not text.strip("0123456789abcdefABCDEF")
    return Digest(algorithm, bytes.fromhex(text)) if fits else None


def can_compare(algorithm: str) -> bool:
    """Return whether an algorithm is installed: BLAKE3 is a package of its own."""
    return algorithm != "blake3" or find_spec("blake3") is not None


def needs_blake3(count: int) -> Finding:
    """Return the finding for ``count`` files with BLAKE3 digests if that package is missing."""
    why = f"the BLAKE3 digests of {count:,} files were not compared: the package 'blake3' is not there"
    return finding("needs-extra", why, hint="pip install 'ckpt-tools[blake3]', then verify again")


def make_digest(digest: Digest, size: int) -> Hash:
    """Return a new hash object of a digest's algorithm, for a file of ``size`` bytes."""
    if digest.algorithm == "git-sha1":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    if digest.algorithm == "blake2b":
        return hashlib.blake2b(digest_size=len(digest.value), usedforsecurity=False)
    if digest.algorithm == "blake3":
        package = import_module("blake3")
        blake3: Hash = package.blake3(max_threads=package.blake3.AUTO)
        return blake3
    return hashlib.new(digest.algorithm, usedforsecurity=False)


def claim(
    of: str, by: str, name: str, digests: Sequence[Digest], *, size: int = -1, optional: bool = False
) -> Claim:
    """Return the claim of the manifest ``by``, in format ``of``, on a file: digests, size in bytes or -1."""
    check = partial(check_claim, by=by, digests=tuple(digests), size=size)
    empty = any(can_compare(d.algorithm) and d.value == make_digest(d, 0).digest() for d in digests)
    # an empty file is whole by its digest, unless its name says a format: then that format checks it
    whole = empty and not names.known(name.rpartition("/")[2])
    return Claim(of, check, whole=whole, optional=optional)


def list_whole(of: Claim) -> dict[str, bytes]:
    """Return a manifest's digests of a whole file by their algorithms; {} for claims of other kinds."""
    check = of.check
    if not isinstance(check, partial) or check.func is not check_claim:
        return {}
    return {d.algorithm: d.value for d in check.keywords["digests"] if (d.start, d.end) == (0, -1)}


def check_claim(
    source: Source, anatomy: Anatomy, by: str, digests: tuple[Digest, ...], size: int
) -> Iterator[Finding]:
    """Yield a finding unless the file has ``size`` bytes; add the digests to ``anatomy.sums`` for later."""
    if 0 <= size != source.size:
        code, more = ("truncated", "fewer") if source.size < size else ("trailing-data", "more")
        why = f"{source.size:,} bytes, {more} than the {size:,} that {by} gives"
        yield finding(code, why, offset=min(size, source.size))
    for d in digests:
        if can_compare(d.algorithm):
            end = source.size if d.end < 0 else min(d.end, source.size)
            covered = (Extent(d.start, max(0, end - d.start)),)
            make = partial(make_digest, d, source.size)
            what = f"{d.algorithm} in {by}"
            anatomy.sums.append(Sum(what, d.value, covered, d.start, hash=make, code="checksum-mismatch"))
