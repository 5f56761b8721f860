"""Megatron-core's ``integrity.json``: the SHA-256 of every regular file beside it, written last, if the save
asks for it.

Facts: Megatron-LM of 2026-04 and later, megatron/core/dist_checkpointing/integrity.py: ``{"algorithm":
"sha256", "files": {name: hex}}``, indented by two; the reader hashes each listed file and refuses a missing
one, another digest, or another algorithm. It ignores files that are not listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import MANY, Anatomy, Claim, Damage, check_nothing, limit, make_format
from ckpt_tools.formats.common.json_text import opens_object, read_json
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

_NAME, _KEYS, _ALGORITHM = "integrity.json", ("algorithm", "files"), "sha256"
_HEX = re.compile("[0-9a-f]{64}")
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes
_INDENTS = (2, 4, None)  # of json.dumps: any of these is taken for Megatron-core's text


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the form of integrity.json; add a claim with the SHA-256 of each file that it lists."""
    text = read_json(source)
    yield from text.odd
    value = text.value
    if not isinstance(value, dict):
        raise Damage("bad-header", "integrity.json holds no object", 0)
    flipped = {k: meant for k in list(value)[:16] if k not in _KEYS and (meant := near_miss(k, _KEYS))}
    for k, meant in flipped.items():
        at = max(0, text.data.find(k.encode("utf-8", "replace")))
        yield finding("bad-header", f"the key {k[:40]!r} is {meant!r} with a flipped bit", offset=at)
    files, algorithm = value.get("files"), value.get("algorithm")
    if not isinstance(files, dict) or not (isinstance(algorithm, str) or flipped):
        if value.keys().isdisjoint(_KEYS) and not flipped:
            why = "this integrity.json is not Megatron-core's: nothing is known about its content"
            yield finding("not-checksummed", why)
            return
        raise Damage("bad-header", "integrity.json has no algorithm, or no files", 0)
    spelled = "a changed one does not fit the files, the rest is spelled as Megatron-core spells it"
    anatomy.explain(0, source.size, f"names and digests: {spelled}")
    if not any(text.data.strip() == json.dumps(value, indent=i).encode() for i in _INDENTS):
        yield finding("odd-header", "the text is spelled otherwise than Megatron-core writes it", offset=0)
    if algorithm != _ALGORITHM and not flipped:
        raise _refuse_algorithm(str(algorithm), text.data)
    yield from _claim_files(files, text.data, anatomy)


def _refuse_algorithm(algorithm: str, data: bytes) -> Damage:
    """Return the Damage for another algorithm than SHA-256; ``data`` is the text of the file."""
    shown = repr(algorithm[:40])
    if near_miss(algorithm, (_ALGORITHM,)):
        why = f"the algorithm {shown} is 'sha256' with a flipped bit"
        return Damage("bad-header", why, data.find(b'"algorithm"'))
    why = f"the algorithm {shown} is not known here, and not to Megatron-core: no file was compared"
    return Damage("too-complex", why, 0)


def _claim_files(files: Mapping[str, object], data: bytes, anatomy: Anatomy) -> Iterator[Finding]:
    """Add a claim for each file in ``files``, name to digest; ``data`` is the text that lists them."""
    count = at = 0
    for name, digest in files.items():
        if not isinstance(digest, str) or not _HEX.fullmatch(digest):
            count += 1
            if count <= MANY:  # no more are shown: a search for an escaped name reads to the end
                at = max(at, data.find(json.dumps(name).encode(), at))
            why = f"the digest of {name[:200]!r} is not 64 lower-case hexadecimal digits"
            yield finding("bad-header", why, offset=at)
            anatomy.members[name] = Claim("mcore_integrity", check_nothing)
        elif digest == _EMPTY:  # an unused writer leaves an empty .distcp, which is whole
            anatomy.members[name] = Claim("mcore_integrity", _check_empty, whole=True)
        else:
            anatomy.members[name] = Claim("mcore_integrity", partial(_add_sum, digest=bytes.fromhex(digest)))
    if not files:
        yield finding("bad-header", "integrity.json lists no file", offset=0)


def _add_sum(source: Source, anatomy: Anatomy, digest: bytes) -> Iterator[Finding]:
    """Add the SHA-256 of a listed file, for the content level; no finding comes before that."""
    from hashlib import sha256

    anatomy.sums.append(Sum(f"SHA-256 in {_NAME}", digest, (Extent(0, source.size),), 0, hash=sha256))
    return iter(())


def _check_empty(source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """Yield a finding unless a file is empty, as it was when integrity.json was written."""
    if source.size:
        why = f"the file has {source.size:,} bytes; when {_NAME} was written it had none"
        yield finding("trailing-data", why, offset=0)


FORMAT = make_format("mcore_integrity", opens_object, _structure, distinct=False, loader=None)
