"""Manifests beside checkpoints: a true one changes nothing but the coverage, with one no flipped bit goes
unseen; of several witnesses each that says something else is told, whoever agrees with the file; and a file
that only stands for its data is named as that wherever a checkpoint file may lie.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import xxhash
from asked_plan import asked
from counted import calls
from fixture_trees import TREES, materialise, tree_of
from places import FORMAT_FILES

from ckpt_tools import Level, errors
from ckpt_tools.api import plan, verify
from ckpt_tools.checksum.sums import join_digests
from ckpt_tools.formats import names
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import NAME
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.seal import Seal, SealedCheckpoint, SealedFile
from ckpt_tools.model.selection import Selection


def add_sums(root: Path) -> None:
    """As ``find -type f -exec sha256sum {} + > SHA256SUMS`` leaves it, in every directory with files."""
    for home in [root, *(p for p in root.rglob("*") if p.is_dir() and not p.is_symlink())]:
        files = sorted(p for p in home.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
        lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  ./{p.relative_to(home)}\n" for p in files]
        if any(p.is_file() for p in home.iterdir()) and not any("\n" in line[:-1] for line in lines):
            before = home.stat()
            (home / "SHA256SUMS").write_text("".join([f"{'0' * 64}  ./SHA256SUMS\n", *lines]))
            os.utime(home / "SHA256SUMS", ns=(before.st_mtime_ns,) * 2)
            os.utime(home, ns=(before.st_atime_ns, before.st_mtime_ns))


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    """What is said about each file, and which are errors."""
    files = verify([str(root)], Level.CONTENT, settle=0).files
    return {
        os.path.relpath(f.report.path, root): (
            f.part and (f.part.layout, f.part.role, f.part.step),
            {x.code for x in f.report.findings if x.severity > Severity.NOTE},
        )
        for f in files
    }


@pytest.mark.share(30)
@pytest.mark.parametrize("case", TREES)
def test_a_true_manifest_changes_nothing(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    before, chosen = seen(root), asked(root)
    add_sums(root)
    after = seen(root)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after.keys() - before.keys() if after[name][1]]
    assert asked(root) == chosen


TINY = FORMAT_FILES / "torch_zip/good/tiny.pt"


def tiny(home: Path, name: str = "m.pt") -> Path:
    return Path(shutil.copyfile(TINY, home / name))


def said(found: Verification, *verdicts: Verdict) -> dict[str, set[str]]:
    """The codes about each file, or about those with one of the ``verdicts``."""
    reports = (f.report for f in found.files if not verdicts or f.report.verdict in verdicts)
    return {os.path.basename(r.path): {x.code for x in r.findings} for r in reports}


def covered(found: Verification, end: str = ".pt") -> bool:
    """Whether it is sound, and all bytes of these files are known to be."""
    coverages = {f.report.coverage for f in found.files if f.report.path.endswith(end)}
    return (found.verdict, coverages) == (Verdict.OK, {1.0})


def flip_last(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([*data[:-1], data[-1] ^ 1]))


def signed(predicate: dict[str, Any], **more: object) -> str:
    """OpenSSF model signing: an in-toto statement in a bundle, made of that of a fixture."""
    bundle = json.loads((FORMAT_FILES / "model_signing/good/model/model.sig").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement |= {**more, "predicate": {**statement["predicate"], **predicate}}
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    return json.dumps(bundle)


def model(tmp_path: Path) -> Path:
    shutil.copytree(FORMAT_FILES / "checksums/good/gnu", tmp_path / "model")
    return tmp_path / "model"


def errors_of(root: Path) -> dict[str, set[str]]:
    return said(verify([str(root)], Level.CONTENT), Verdict.BROKEN)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_no_flipped_bit_goes_unseen(step: int, tmp_path: Path) -> None:
    root = model(tmp_path)
    for name in ("README.md", "config.json", "model.safetensors"):
        data = (root / name).read_bytes()
        for at in {*range(0, len(data), step), len(data) - 1}:
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            (root / name).write_bytes(flipped)
            assert verify([str(root)], Level.CONTENT, settle=0).verdict is Verdict.BROKEN, (name, at)
        (root / name).write_bytes(data)
    assert verify([str(root)], Level.CONTENT).verdict is Verdict.OK


def test_names_that_a_shell_would_not_like(tmp_path: Path) -> None:
    odd = ["new\nline.pt", "back\\slash.pt", "both\\n.pt", " space.pt", "*star.pt", "a  b.pt", "(x) = y.pt", "\udcff.pt"]  # fmt: skip
    for name in odd:
        tiny(tmp_path, name)
    for how in (["-b"], ["-t"], ["-b", "--tag"]):
        (tmp_path / "SHA256SUMS").unlink(missing_ok=True)
        line = ["sha256sum", *how, "--", *sorted(os.listdir(tmp_path))]
        text = subprocess.run(line, cwd=tmp_path, capture_output=True, check=True).stdout
        (tmp_path / "SHA256SUMS").write_bytes(text)
        found = verify([str(tmp_path)], Level.CONTENT)
        assert covered(found) and len(found.files) == len(odd) + 1


SPELLINGS = {
    "coreutils": "{h}  m.pt\n", "binary": "{h} *m.pt\n", "one space": "{h} m.pt\n", "a tab": "{h}\tm.pt\n", "no end": "{h}  m.pt",
    "blanks before it": "  {h}  m.pt\n", "Windows": "\ufeff{h}  m.pt\r\n", "upper case": "{H}  m.pt\n", "escaped": "\\{h}  m.pt\n",
    "BSD": "SHA256 (m.pt) = {h}\n", "OpenSSL 1": "SHA256(m.pt)= {h}\n", "OpenSSL 3": "SHA2-256(m.pt)= {h}\n",
    "words above it": "SHA-256 of the weights:\n\n{h}  m.pt\n",
    "other digests beside it": "MD5X (m.pt) = 12\nSize (m.pt) = 12 bytes\nSHA256 (m.pt) = {h}\n",
    "signed in the clear": "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{h}  m.pt\n"
    "-----BEGIN PGP SIGNATURE-----\n\niQIz\n-----END PGP SIGNATURE-----\n",
}  # fmt: skip
TABLE = "\n{:<16}{:<71}{}\n{:<16}{:<71}{}\n{}\n\n".format(
    *("Algorithm", "Hash", "Path", "---------", "----", "----"), f"{'SHA256':<16}{{H}}       C:\\w\\m.pt  "
)
AS_LIST = "\n\nAlgorithm : SHA256\nHash      : {H}\nPath      : C:\\w\\m.pt\n\n\n\n"
AS_CSV = '"Algorithm","Hash","Path"\n"SHA256","{H}","C:\\w\\m.pt"\n'
OLD_CSV = f"#TYPE Microsoft.PowerShell.Commands.FileHashInfo\n{AS_CSV}"
WINDOWS = {"": TABLE, ", a list": AS_LIST, ", CSV": AS_CSV, ", old CSV": OLD_CSV}
SPELLINGS |= {f"of Windows{how}": text.replace("\n", "\r\n") for how, text in WINDOWS.items()}
WIDE = [(s, encoding) for s in ("coreutils", "of Windows") for encoding in ("utf-16", "utf-16-be")]
ENCODED = [*((s, "utf-8") for s in SPELLINGS), *WIDE]


@pytest.mark.parametrize(("spelling", "encoding"), ENCODED)
def test_every_spelling_of_a_checksum_is_compared(spelling: str, encoding: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(tiny(tmp_path).read_bytes()).hexdigest()
    text, mark = SPELLINGS[spelling].format(h=digest, H=digest.upper()), "\ufeff" * (encoding[-2:] == "be")
    (tmp_path / "SHA256SUMS").write_bytes((mark + text).encode(encoding))
    found = verify([str(tmp_path)], Level.CONTENT, settle=0)
    assert found.verdict is (Verdict.SUSPECT if spelling == "words above it" else Verdict.OK)
    assert {f.report.coverage for f in found.files if f.report.path.endswith(".pt")} == {1.0}
    flip_last(tmp_path / "m.pt")  # within the comment's length
    assert "checksum-mismatch" in errors_of(tmp_path)["m.pt"]


@pytest.mark.parametrize(
    "text", ["{h}\n", "{h}  -\n", "SHA2-256(stdin)= {h}\n", "SHA3-256 (m.pt) = {h}\n", "q{h}  m.pt\n"]
)
def test_checksums_that_are_not_compared_are_said_to_be_none(text: str, tmp_path: Path) -> None:
    tiny(tmp_path)
    (tmp_path / "SHA256SUMS").write_text(text.format(h="0" * 64))
    found = verify([str(tmp_path)], Level.CONTENT, settle=0)
    assert found.verdict is Verdict.SUSPECT
    assert said(found) == {"m.pt": set(), "SHA256SUMS": {"not-checksummed"}}


@pytest.mark.parametrize("place", ["wdir: ..\nouts:\n{}  path: m.pt\n", "outs:\n{}  path: /elsewhere/m.pt\n"])
def test_what_dvc_keeps_elsewhere_is_no_damage(place: str, tmp_path: Path) -> None:
    (tmp_path / "m.pt.dvc").write_text(place.format(f"- md5: {'0' * 32} # of the first run\n  hash: md5\n"))
    tiny(tmp_path)
    found = verify([str(tmp_path)], Level.CONTENT, settle=0)
    assert found.verdict is Verdict.SUSPECT and not errors_of(tmp_path)


def test_where_the_command_ran_does_not_matter(tmp_path: Path) -> None:
    root = model(tmp_path)
    for words, home in ((["model/*"], tmp_path), ([f"{root}/*"], tmp_path), (["*", ".gitkeep"], root)):
        (root / "SHA256SUMS").unlink()
        line = f"sha256sum {' '.join(words)}"
        text = subprocess.run(["sh", "-c", line], cwd=home, capture_output=True, check=True).stdout
        (root / "SHA256SUMS").write_bytes(text)
        assert covered(verify([str(root)], Level.CONTENT), ".safetensors")


@pytest.mark.parametrize("begin", [b"{{ bos_token }}", b"{% for m in messages %}", b"[a", b"(", b"\0" * 40])
def test_a_listed_file_of_no_format_is_not_taken_for_one(begin: bytes, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(begin + b" and so on")
    digest = hashlib.sha256(begin + b" and so on").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  chat_template.jinja\n")
    assert verify([str(tmp_path)], Level.CONTENT).verdict is Verdict.OK


NO_LISTS = {
    "words": b"see the release notes\n", "a table": b"| file | sum |\n|---|---|\n", "JSON": b'{"a": 1}', "short": b"0" * 8,
    "a script": b"#!/bin/sh\nexit\n", "binary": bytes(range(256)), "HTML": b"<!DOCTYPE html><title>404</title>",
    "an error": b"Entry not found", "UTF-16": "see the release notes".encode("utf-16"), "half of UTF-16": b"\xff\xfe\x00",
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 99\n",
}  # fmt: skip
LISTS = (
    *("SHA256SUMS", "sha256sum.txt", "MD5SUMS", "checksums.txt", "CHECKSUMS", "sha256.txt", "SHASUMS256.txt"),
    *("model_checksums.sha256", "checksums-sha256.txt", "manifest-sha256.txt", "checklist.chk"),
)


@pytest.mark.parametrize("what", NO_LISTS)
def test_what_only_has_such_a_name_is_a_warning(what: str, tmp_path: Path) -> None:
    """Whoever put it there takes the weights for protected; and nothing is wrong with these."""
    tiny(tmp_path)
    for name in (*LISTS[:: len(LISTS) - 1], "m.pt.md5"):
        (tmp_path / name).write_bytes(NO_LISTS[what])
        found = verify([str(tmp_path)], Level.CONTENT, settle=0)
        reports = {os.path.basename(f.report.path): f.report for f in found.files}
        code = ({"HTML", "an error", "Git LFS"} & {what} and "pointer-not-data") or "not-checksummed"
        assert {(f.code, f.severity) for f in reports[name].findings} == {(code, Severity.WARNING)}
        assert found.verdict is Verdict.SUSPECT and reports["m.pt"].verdict is Verdict.OK
        (tmp_path / name).unlink()


def test_every_usual_name_is_that_of_a_list(tmp_path: Path) -> None:
    made = tiny(tmp_path)
    for name in LISTS:
        algorithm = {"MD5SUMS": "md5", "checklist.chk": "md5"}.get(name, "sha256")
        (tmp_path / name).write_text(f"{hashlib.new(algorithm, made.read_bytes()).hexdigest()}  m.pt\n")
        assert covered(verify([str(tmp_path)], Level.CONTENT, settle=0)), name
        (tmp_path / name).unlink()


@pytest.mark.parametrize("beside", [(), ("m.json",), None])
def test_a_digest_alone_is_of_the_one_file_that_is_called_so(
    beside: tuple[str, ...] | None, tmp_path: Path
) -> None:
    data = TINY.read_bytes()
    (tmp_path / "m.sha256").write_text(hashlib.sha256(data).hexdigest())
    for name in () if beside is None else ("m.pt", *beside):
        (tmp_path / name).write_bytes(data if name == "m.pt" else b"{}")
    codes = {x.code for f in verify([str(tmp_path)], settle=0).files for x in f.report.findings}
    assert codes == ({"missing-part"} if beside is None else {"not-checksummed"} if beside else set())
    if beside == ():
        flip_last(tmp_path / "m.pt")
        assert "checksum-mismatch" in errors_of(tmp_path)["m.pt"]


LINES = ["0" * 32 + "  x{}\n", "{}" + "f" * 40 + "\n", "0" * 64 + "  ../{}\n"]


@pytest.mark.share(3)
@pytest.mark.parametrize("line", LINES)
def test_a_line_more_costs_a_few_calls(line: str, tmp_path: Path) -> None:
    root = model(tmp_path)

    def cost(count: int) -> int:
        (root / "SHA256SUMS").write_text("".join(line.format(i) for i in range(count)))
        return calls(lambda: verify([str(root)]))

    few, many = cost(1000), cost(3000)
    assert many - few < 2000 * 250  # what compares each line with all others makes thousands


NIGHT = pytest.mark.exhaustive
NIGHTLY = [pytest.param(line, 190_000, marks=NIGHT) for line in LINES]  # as many as are read


@pytest.mark.parametrize(("line", "count"), [(LINES[0], 1_000_000), *NIGHTLY])
def test_a_million_lines_take_little_memory(line: str, count: int, tmp_path: Path) -> None:
    root = model(tmp_path)
    look = (
        "import sys; from ckpt_tools import verify; verify([sys.argv[1]]);"
        " print(*[x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM')])"
    )
    with (root / "SHA256SUMS").open("w") as out:
        out.writelines(line.format(i) for i in range(count))
    done = subprocess.run([sys.executable, "-c", look, str(root)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 << 10


def test_a_download_that_was_changed_on_purpose_is_not_compared(tmp_path: Path) -> None:
    """huggingface_hub leaves metadata out that is more than a second older than its file."""
    root = tmp_path / "model"
    shutil.copytree(FORMAT_FILES / "hf_download/bad/checksum-mismatch--flipped_weights", root)
    for path in root.rglob("*.metadata"):
        lines = path.read_text().split("\n")
        path.write_text("\n".join([*lines[:2], "1700000000.25", ""]))
    weights = root / "model.safetensors"
    for seconds, verdict in ((1_700_000_001, Verdict.BROKEN), (1_700_000_002, Verdict.OK)):
        os.utime(weights, (seconds, seconds))
        (report,) = [f.report for f in verify([str(root)]).files if f.report.path == str(weights)]
        assert report.verdict is verdict
        assert report.coverage == float(verdict is Verdict.BROKEN)


def test_a_cache_counts_as_its_files_do(tmp_path: Path) -> None:
    """A snapshot that is named, a file of it, and a blob alone."""
    root = tmp_path / "cache"
    shutil.copytree(FORMAT_FILES / "hf_cache/good/cache", root, symlinks=True)
    (snapshot,) = root.glob("models--*/snapshots/*")
    weights = snapshot / "model.safetensors"
    for path in (snapshot, weights, weights.resolve()):
        assert verify([str(path)], Level.CONTENT).verdict is Verdict.OK
    flip_last(weights.resolve())
    for path in (root, snapshot, weights, weights.resolve()):
        assert verify([str(path)], Level.CONTENT).verdict is Verdict.BROKEN


def test_what_dvc_has_not_fetched_is_no_reason_to_start_fresh(tmp_path: Path) -> None:
    text = (FORMAT_FILES / "dvc/good/repository/model.safetensors.dvc").read_text()
    for name, asks in (("model.safetensors", True), ("checkpoint-100", True), ("train.csv", False)):
        (tmp_path / f"{name}.dvc").write_text(text.replace("model.safetensors", name))
        if asks:
            with pytest.raises(errors.NoneUsable):
                plan(str(tmp_path), Selection(allow_none=True))
        else:
            assert plan(str(tmp_path), Selection(allow_none=True)).checkpoint is None
        (tmp_path / f"{name}.dvc").unlink()
    root = tree_of("hf-trainer/trainer", tmp_path)
    (root / "checkpoint-9000.dvc").write_text(text.replace("model.safetensors", "checkpoint-9000"))
    with pytest.raises(errors.UsageError, match=r"checkpoint-9000\.dvc") as doubt:
        plan(str(root))
    assert "dvc pull" in doubt.value.hint
    (root / "checkpoint-9000.dvc").rename(root / "checkpoint-1.dvc")
    os.utime(root / "checkpoint-1.dvc", (1e9, 1e9))
    warned = [f for f in plan(str(root)).warnings if f.code == "pointer-not-data"]
    assert [(os.path.basename(f.path), f.hint) for f in warned] == [("checkpoint-1.dvc", "dvc pull")]


def test_a_signature_beside_its_model(tmp_path: Path) -> None:
    """Where the command leaves it: in the directory above."""
    shutil.copytree(FORMAT_FILES / "model_signing/good/model", tmp_path / "model")
    (tmp_path / "model/model.sig").rename(tmp_path / "signed.sig")
    for path in (tmp_path / "model").glob("*.sig"):
        path.unlink()
    assert verify([str(tmp_path)], Level.CONTENT).verdict is Verdict.OK
    (tmp_path / "model/README.md").write_text("another")
    assert errors_of(tmp_path) == {"README.md": {"checksum-mismatch"}}


def test_a_list_of_files_that_lie_elsewhere_is_a_warning(tmp_path: Path) -> None:
    """A signature that was moved into its directory, which was renamed then."""
    shutil.copytree(FORMAT_FILES / "model_signing/good/model", tmp_path / "model")
    for path in (tmp_path / "model").glob("*.sig"):
        path.unlink()
    serialization = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []}
    (tmp_path / "model/model.sig").write_text(signed({"serialization": serialization}))
    assert verify([str(tmp_path)], settle=0).verdict is Verdict.OK
    (tmp_path / "model").rename(tmp_path / "renamed")
    found = verify([str(tmp_path)], settle=0)
    assert said(found)["model.sig"] == {"not-checksummed"} and found.verdict is Verdict.SUSPECT


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
    row = {"algorithm": "sha256", "digest": hashlib.sha256(data).hexdigest(), "name": MODEL}
    digest = hashlib.sha256(bytes.fromhex(row["digest"])).hexdigest()
    return {"model.sig": signed({"resources": [row]}, subject=[{"name": "", "digest": {"sha256": digest}}])}


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
    pytest.param(some, id="+".join(some) or "none", marks=() if len(some) in BY_DAY else NIGHT)
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


DIGEST = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
POINTERS = {
    "git lfs pull": f"version https://git-lfs.github.com/spec/v1\noid sha256:{DIGEST}\nsize 4976698672\n",
    "git annex get": f"/annex/objects/SHA256E-s4976698672--{DIGEST}.pt\n",
    "git xet": f"# xet version 0\nfilesize = 4976698672\nhash = '{DIGEST}'\n",
    "dvc pull": "outs:\n- md5: 22a1a2931c8370d3aeedd7183606fd7f\n  size: 14445097\n  hash: md5\n  path: m.pt\n",
    "page": "<!DOCTYPE html>\n<html lang=en><head><title>404</title></head></html>\n",
    "store": '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code></Error>\n',
    "json": '{"error":"Repository not found"}',
    "hub": "Entry not found",
    "github": "404: Not Found",
}
HINTS = {kind: kind if " " in kind else "download it again" for kind in POINTERS}
ENDS = "safetensors pt pth ckpt pkl gguf h5 onnx npz npy msgpack eqx keras joblib pdparams"


@pytest.mark.parametrize("kind", POINTERS)
def test_it_is_named_under_the_name_of_any_weights(kind: str, tmp_path: Path) -> None:
    for name in [f"m.{end}" for end in ENDS.split()]:
        assert names.known(name), name
        (tmp_path / name).write_text(POINTERS[kind])
    for f in verify([str(tmp_path)], Level.CONTENT, settle=0).files:
        assert f.report.verdict is Verdict.BROKEN, f.report
        assert [x.code for x in f.report.findings] == ["pointer-not-data"], f.report
        assert HINTS[kind] in f.report.findings[0].hint
