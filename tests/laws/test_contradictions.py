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
from places import FORMAT_FILES

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
    """Of OpenSSF model signing: an in-toto statement in a bundle, made of one of the fixtures."""
    bundle = json.loads((FORMAT_FILES / "model_signing/good/model/model.sig").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    row = {"algorithm": "sha256", "digest": hashlib.sha256(data).hexdigest(), "name": MODEL}
    digest = hashlib.sha256(bytes.fromhex(row["digest"])).hexdigest()
    statement["subject"] = [{"name": "", "digest": {"sha256": digest}}]
    statement["predicate"]["resources"] = [row]
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    return {"model.sig": json.dumps(bundle)}


def seal(data: bytes) -> dict[str, str]:
    digest, no = xxhash.xxh3_128(data).hexdigest(), "0" * 8
    of_all = join_digests(len(data), [digest])
    file = SealedFile(
        MODEL, len(data), of_all, crc32=no, crc32c=no, chunks=digest, chunk_crc32=no, chunk_crc32c=no
    )
    return {NAME: document.text(Seal("1", SealedCheckpoint(), "xxh3", (file,))).decode()}


WITNESSES: dict[str, Callable[[bytes], dict[str, str]]] = {
    "sums": sums, "md5": md5, "dvc": dvc, "model.sig": signature, "seal": seal, "blob": lambda _: {},
}  # fmt: skip
"""What each leaves beside a file that it has seen; Hugging Face's cache calls the file by its digest."""
SAY = {
    "sums": " in SHA256SUMS:", "md5": f" in {MODEL}.md5:", "dvc": f" in {MODEL}.dvc:", "model.sig": " in model.sig:",
    "seal": "that were sealed", "blob": " in the name of its blob:",
}  # fmt: skip
LIARS = [*chain.from_iterable(combinations(WITNESSES, n) for n in range(len(WITNESSES) + 1))]
BY_DAY = (0, 1, len(WITNESSES) - 1, len(WITNESSES))
EACH = [
    pytest.param(
        some, id="+".join(some) or "none", marks=() if len(some) in BY_DAY else pytest.mark.exhaustive
    )
    for some in LIARS
]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    made = tmp_path / "models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("liars", EACH)
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
    named = {who for who, words in SAY.items() for m in said if words in m}
    assert named == set(liars) and len(said) == len(liars), said
    assert report.verdict is (Verdict.BROKEN if liars else Verdict.OK)
    assert report.coverage == 1.0
    others = [x for f in found.files if f.report.path != report.path for x in f.report.findings]
    assert not [x for x in others if x.severity > Severity.NOTE]
