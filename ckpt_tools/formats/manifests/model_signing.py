"""OpenSSF model signing's ``model.sig``: the digest of every file of a model, or of its shards, in a signed
statement.

Facts: model_signing 1.1 (_signing/signing.py, manifest.py): a Sigstore bundle whose DSSE payload is an
in-toto statement; ``predicate.resources`` are ``{name, algorithm, digest}``, the subject's digest is the
SHA-256 of all digests in this order; shards are ``name:start:end`` and ``sha256-sharded-SIZE``. The signature
itself is checked in inspection/seals.py: it proves who signed; the digests prove the content.
"""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from os.path import basename, dirname, normpath
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.json_text import Text, mapping, opens_object, parse, read_json, sequence
from ckpt_tools.formats.common.stored_digests import Digest, can_compare, claim, needs_blake3, read_digest
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_PREDICATE = "https://model_signing/signature/v1.0"
_PREDICATE_V02 = "https://model_signing/Digests/v0.1"
_OF_GIT = (".git", ".gitattributes", ".github", ".gitignore")
"""Files that the signer leaves out by default."""
_FILES_V02 = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}


class Statement(NamedTuple):
    """One signed statement. ``resources`` are (name, algorithm, digest) of each file or shard."""

    model: str
    serialization: Mapping[str, object]
    resources: tuple[tuple[object, object, object], ...]

    @property
    def sharded(self) -> bool:
        """True if the digests are of shards of files."""
        return self.serialization.get("method") == "shards"

    @property
    def names(self) -> set[str]:
        """The names of the files."""
        return {str(name).rsplit(":", 2)[0] if self.sharded else str(name) for name, _, _ in self.resources}

    def beside(self, path: str) -> str:
        """Return "MODEL/" if the signature at ``path`` lies beside the model's directory, "" if inside."""
        model = self.model
        ignored = [str(p).rpartition("/")[2] for p in sequence(self.serialization.get("ignore_paths"))]
        is_inside = basename(path) in ignored or model in ("", ".", basename(dirname(path))) or "/" in model
        return "" if is_inside else f"{model}/"

    def home(self, path: str) -> str:
        """Return the directory of the model whose signature lies at ``path``; "" if the model is one file."""
        return "" if self.names == {"."} else f"{dirname(path)}/{self.beside(path)}".rstrip("/")

    def ignores(self, name: str) -> bool:
        """Return True if the signer left out a file of the model on purpose."""
        ignored = (normpath(str(p)) for p in sequence(self.serialization.get("ignore_paths")))
        return any(f"{name}/".startswith(f"{p}/") for p in (*ignored, *_OF_GIT))


def read_statement(source: Source) -> Statement:
    """Return the statement in a signature. Raises Damage if there is none."""
    payload = _read_payload(read_json(source))
    if payload.get("predicateType") not in (_PREDICATE, _PREDICATE_V02):
        raise Damage("bad-header", "this is not a signature of a model", 0)
    return _make_statement(payload)


def _read_payload(bundle: Text) -> Mapping[str, object]:
    """Return the JSON object that was signed, {} if there is none. Raises Damage."""
    payload = mapping(mapping(bundle.value).get("dsseEnvelope")).get("payload")
    if not isinstance(payload, str):
        return {}
    try:
        data = b64decode(payload, validate=True)
    except ValueError:
        raise Damage("bad-header", "the payload is not base64", 0) from None
    return mapping(parse(data, bundle.odd)) if data else {}


def _make_statement(payload: Mapping[str, object]) -> Statement:
    """Return the statement in the JSON that was signed, of either version of model_signing."""
    subjects = list(map(mapping, sequence(payload.get("subject"))))
    predicate = mapping(payload.get("predicate"))
    model = str((subjects or [{}])[0].get("name") or "")
    rows = map(mapping, sequence(predicate.get("resources")))
    resources = tuple((row.get("name"), row.get("algorithm"), row.get("digest")) for row in rows)
    if payload.get("predicateType") == _PREDICATE_V02:
        resources = tuple((s.get("name"), "sha256", mapping(s.get("digest")).get("sha256")) for s in subjects)
    return Statement(model, mapping(predicate.get("serialization")) or _FILES_V02, resources)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the digests in a signature, but not who signed; add a claim for each file of the model."""
    bundle = read_json(source)
    anatomy.explain(0, source.size, "names, digests and their signature", Guard.UNPROTECTED)
    payload = _read_payload(bundle)
    yield from bundle.odd
    if payload.get("predicateType") not in (_PREDICATE, _PREDICATE_V02):
        why = "this is not a signature of a model: nothing is known about its content"
        yield finding("not-checksummed", why)
        return
    statement = _make_statement(payload)
    if not statement.resources:
        raise Damage("bad-header", "the statement lists no file", 0)
    if payload.get("predicateType") == _PREDICATE:
        from hashlib import sha256

        # what is signed is the digest of all digests
        subject = mapping(next(iter(sequence(payload.get("subject"))), None))
        try:
            joined = b"".join(bytes.fromhex(str(digest)) for _, _, digest in statement.resources)
        except ValueError:
            joined = b""
        if sha256(joined).hexdigest() != mapping(subject.get("digest")).get("sha256"):
            yield finding("bad-header", "its digests are not those of which it gives the digest", offset=0)
    yield from _claim_files(statement, source.path, anatomy)


def _claim_files(statement: Statement, path: str, anatomy: Anatomy) -> Iterator[Finding]:
    """Add a claim for each file, whole or in shards, of the model whose signature lies at ``path``."""
    own, digests = basename(path), defaultdict[str, list[Digest]](list)
    for name, algorithm, digest in statement.resources:
        row = _read_row(name, algorithm, digest, statement.sharded)
        if row is None:
            yield finding("bad-header", f"no digest of a file: {str(name)[:80]!r}, {str(algorithm)[:40]!r}")
        elif row[0] != own:
            digests[row[0]].append(row[1])
    model = statement.beside(path)
    for name, parts in digests.items():
        parts.sort(key=lambda d: d.start)
        if any(a.end != b.start for a, b in pairwise(parts)) or parts[0].start:
            yield finding("bad-header", f"the shards of {name[:80]!r} do not join")
            continue
        size, absent = parts[-1].end, bool(model) or not parts[-1].end
        anatomy.members[model + name] = claim("model_signing", own, name, parts, size=size, optional=absent)
    if unread := sum(not can_compare(d.algorithm) for parts in digests.values() for d in parts):
        yield needs_blake3(unread)


def _read_row(name: object, algorithm: object, digest: object, sharded: bool) -> tuple[str, Digest] | None:
    """Return a file's name and its digest, or that of a shard ``name:start:end``; None for a bad row."""
    if not sharded:
        found = read_digest(algorithm, digest)
        return (name, found) if isinstance(name, str) and name and found else None
    found = read_digest(str(algorithm).partition("-")[0], digest)
    file, _, stop = str(name).rpartition(":")
    file, _, first = file.rpartition(":")
    if found is None or not file or not all(b.isdecimal() and len(b) < 19 for b in (first, stop)):
        return None
    start, end = int(first), int(stop)
    return (file, found._replace(start=start, end=end)) if start < end else None


FORMAT = make_format("model_signing", opens_object, _structure, distinct=False, loader=None)
