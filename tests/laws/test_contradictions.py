"""Several witnesses of one file's bytes, of which some say something else: each that does is told, whoever agrees
with the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import chain, combinations
from pathlib import Path

import pytest
import xxhash

from ckpt_tools.api import verify
from ckpt_tools.checksum.sums import join_digests
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import NAME
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.seal import Seal, SealedCheckpoint, SealedFile

HEAD = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
TRUE = len(HEAD).to_bytes(8, "little") + HEAD + b"as saved"
OTHER = TRUE[:-1] + b"D"
"""As long, and as sound a file: only a witness tells one from the other."""
MODEL = "model.safetensors"


def sums(data: bytes) -> dict[str, str]:
    return {"SHA256SUMS": f"{hashlib.sha256(data).hexdigest()}  {MODEL}\n"}


def md5(data: bytes) -> dict[str, str]:
    return {f"{MODEL}.md5": hashlib.md5(data, usedforsecurity=False).hexdigest()}


def dvc(data: bytes) -> dict[str, str]:
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return {f"{MODEL}.dvc": f"outs:\n- md5: {digest}\n  size: {len(data)}\n  hash: md5\n  path: {MODEL}\n"}


def signature(data: bytes) -> dict[str, str]:
    """Of OpenSSF model signing: an in-toto statement in a bundle."""
    row = {"algorithm": "sha256", "digest": hashlib.sha256(data).hexdigest(), "name": MODEL}
    digest = hashlib.sha256(bytes.fromhex(str(row["digest"]))).hexdigest()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "", "digest": {"sha256": digest}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "resources": [row],
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
        },
    }
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    envelope = {
        "payload": payload,
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"sig": "AA==", "keyid": ""}],
    }
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    made = {"mediaType": kind, "verificationMaterial": {}, "dsseEnvelope": envelope}
    return {"model.sig": json.dumps(made)}


def seal(data: bytes) -> dict[str, str]:
    digest = xxhash.xxh3_128(data).hexdigest()
    file = SealedFile(
        path=MODEL,
        size=len(data),
        digest=join_digests(len(data), [digest]),
        crc32="0" * 8,
        crc32c="0" * 8,
        chunks=digest,
        chunk_crc32="0" * 8,
        chunk_crc32c="0" * 8,
    )
    return {NAME: document.text(Seal("1", SealedCheckpoint(), "xxh3", (file,))).decode()}


WITNESSES: dict[str, Callable[[bytes], dict[str, str]]] = {
    "sums": sums,
    "md5": md5,
    "dvc": dvc,
    "model.sig": signature,
    "seal": seal,
    "blob": lambda _: {},
}
"""What each leaves beside a file that it has seen; Hugging Face's cache calls the file by its digest."""
EACH = [*chain.from_iterable(combinations(WITNESSES, n) for n in range(len(WITNESSES) + 1))]
DAILY = [liars for liars in EACH if len(liars) in (0, 1, len(WITNESSES) - 1, len(WITNESSES))]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    made = tmp_path / "models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    "liars",
    [
        pytest.param(
            liars, id="+".join(liars) or "none", marks=() if liars in DAILY else pytest.mark.exhaustive
        )
        for liars in EACH
    ],
)
def test_every_witness_that_contradicts_is_told(liars: Sequence[str], snapshot: Path) -> None:
    blob = snapshot.parents[1] / "blobs" / hashlib.sha256(OTHER if "blob" in liars else TRUE).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(TRUE)
    (snapshot / MODEL).symlink_to(f"../../blobs/{blob.name}")
    for witness, leave in WITNESSES.items():
        for name, text in leave(OTHER if witness in liars else TRUE).items():
            (snapshot / name).write_text(text)
    found = verify([str(snapshot)], settle=0)
    (report,) = (f.report for f in found.files if f.report.path == f"{snapshot}/{MODEL}")
    said = [f.message for f in report.findings if f.code in ("checksum-mismatch", "seal-mismatch")]
    named = {
        *("sums" for m in said if " in SHA256SUMS:" in m),
        *("md5" for m in said if f" in {MODEL}.md5:" in m),
        *("dvc" for m in said if f" in {MODEL}.dvc:" in m),
        *("model.sig" for m in said if " in model.sig:" in m),
        *("seal" for m in said if "that were sealed" in m),
        *("blob" for m in said if " in the name of its blob:" in m),
    }
    assert named == set(liars) and len(said) == len(liars), said
    assert report.verdict is (Verdict.BROKEN if liars else Verdict.OK)
    assert report.coverage == 1.0
    assert all(f.report.path == report.path or not _wrong(f.report.findings) for f in found.files)


def _wrong(findings: Sequence[object]) -> list[object]:
    return [f for f in findings if getattr(f, "severity", Severity.NOTE) > Severity.NOTE]
