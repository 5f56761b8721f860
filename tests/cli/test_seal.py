"""``ckpt seal`` as users run it: what is sealed, what is not, and what the other commands make of it; and signatures:
``ckpt`` and the real command of OpenSSF model signing take each other's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from blake3 import blake3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fixture_trees import FIRST, materialise, tree_of
from in_process import executed
from places import FORMAT_FILES
from run_helpers import CLEAN, ckpt, flip, megatron
from safetensors_writer import made, packed, vectors
from timed import put

from ckpt_tools import Change, diff, guard
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.cli.seal import exit_code
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.seals.document import FRAGMENTS, Crc64Nvme
from ckpt_tools.guard import sealing
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.selection import Selection

pytestmark = pytest.mark.slow

FILE = "iter_0000020/mp_rank_00/model_optim_rng.pt"


def sealed(root: Path, *words: str) -> dict[str, Any]:
    code, out, err = executed(["seal", str(root), "--json", *words])
    assert code == 0, err
    return json.loads(out)


def codes(root: Path, **more: object) -> dict[str, set[str]]:
    reports = [f.report for f in verify(root, **more).files]
    rows = {os.path.relpath(r.path, root): {x.code for x in r.findings if x.severity} for r in reports}
    return {name: got for name, got in rows.items() if got}


def test_what_is_whole_is_sealed_and_a_flipped_bit_is_seen(root: Path) -> None:
    assert sealed(root)["summary"]["sealed"] == 2 and plan(root).checkpoint.step == 20
    (root / "iter_0000020/notes.txt").write_bytes(b"x")
    assert {f.code for f in verify(root).findings} >= {"seal-extra"}
    flip(root / FILE, 5)
    assert "seal-mismatch" in codes(root)[FILE]
    chosen = plan(root)
    assert chosen.checkpoint.step == 10
    assert "seal-mismatch" in {f.code for r in chosen.rejected for f in r.findings}


@pytest.mark.parametrize("new", [False, True])
def test_a_sealed_file_that_is_another_by_now_is_no_good_news(root: Path, new: bool) -> None:
    """Nor is it sworn to again unless that is asked for, also beside a file that is new."""
    assert guard.seal(root).count("sealed") == 2 == guard.seal(root).count("already")
    flip(root / FILE, 5)
    if new:
        (root / "iter_0000020/new.json").write_text("{}")
    done = guard.seal(root)
    assert [one.state for one in done.checkpoints] == ["broken", "already"] and exit_code(done, False) == 1
    assert "seal-mismatch" in {f.code for f in done.checkpoints[0].findings}
    assert guard.seal(root, again=True).count("sealed") == 2 == guard.seal(root).count("already")
    assert "seal-mismatch" not in set().union(*codes(root).values())


@pytest.mark.parametrize(("before", "step"), [("prefetch", 10), ("write_seal", 20)])
def test_what_is_pruned_while_it_is_to_be_sealed_hides_nothing(
    before: str, step: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the first read, and between the last one and the seal."""
    real = getattr(sealing, before)

    def late(*words: Any, **more: Any) -> None:
        shutil.rmtree(root / f"iter_{step:07d}", ignore_errors=True)
        real(*words, **more)

    monkeypatch.setattr(sealing, before, late)
    done = guard.seal(root, settle=0)
    states = {"step 10": "sealed", "step 20": "sealed", f"step {step}": "in-use"}
    assert {one.label: one.state for one in done.checkpoints} == states
    assert exit_code(done, strict=False) == 0


def test_a_file_to_load_that_its_seal_does_not_name_is_said(tmp_path: Path) -> None:
    """It may be of another save, and nobody has sworn that it is sound."""
    root = megatron(tmp_path / "run", world=3)
    late = [root / f"iter_0000020/mp_rank_{rank:02d}" for rank in (1, 2)]
    for home in late:
        home.rename(tmp_path / home.name)
    guard.seal(root / "iter_0000020", again=True, settle=0, rank=0, world_size=1)
    guard.seal(root / "iter_0000020", merge=True)
    for home in late:
        (tmp_path / home.name).rename(home)
    (warning,) = (f for f in plan(root).warnings if f.code == "seal-extra")
    assert warning.path == str(late[0] / "model_optim_rng.pt") and "1 more" in warning.message
    guard.seal(root, again=True)
    assert not [f for f in plan(root).warnings if f.code == "seal-extra"]


def test_a_broken_seal_is_none_where_one_is_required(root: Path) -> None:
    """Else it is a warning: tests/laws/test_seal_hostile.py."""
    guard.seal(root)
    flip(root / "iter_0000020/.ckpt-seal.json", 300)
    assert [plan(root, Selection(require_seal=r)).checkpoint.step for r in (True, False)] == [10, 20]


def test_unsealed_files_are_an_error_where_a_seal_is_required(root: Path) -> None:
    """And a dry run makes none."""
    before = sorted(root.rglob("*"))
    for words, found in ((["--dry-run"], [1, 4]), ([], [0, 0])):
        assert sealed(root, *words)["summary"]["would-seal" if words else "sealed"] == 2
        assert (sorted(root.rglob("*")) == before) is bool(words)
        asked = [executed([command, str(root), "--require-seal"])[0] for command in ("verify", "plan")]
        assert asked == found


def test_a_read_only_tree_has_its_seals_elsewhere(root: Path, tmp_path: Path) -> None:
    away = str(tmp_path / "seals")
    guard.seal(root, seal_dir=away)
    assert not list(root.rglob(".ckpt-seal*"))
    flip(root / FILE, 5)
    for asked, name in ((root, FILE), (root / FILE, ".")):
        assert "seal-mismatch" in codes(asked, seal_dir=away)[name]


def test_each_rank_seals_what_it_wrote(root: Path) -> None:
    home = root / "iter_0000020"
    files = sorted(home.rglob("*.pt"))
    guard.seal(home, rank=1, world_size=2, files=[files[1]])
    assert codes(root)[f"iter_0000020/{FRAGMENTS}/rank-00001.json"] == {"seal-incomplete"}
    guard.seal(home, rank=0, world_size=2, files=[files[0]])
    assert not codes(root)
    assert [one.state for one in guard.seal(root, merge=True).checkpoints] == ["merged"]
    assert not (home / FRAGMENTS).exists() and not codes(root)
    flip(files[0], 5)
    assert "seal-mismatch" in codes(root)[os.path.relpath(files[0], root)]


def test_another_save_under_the_same_name_is_no_damage(root: Path, tmp_path: Path) -> None:
    for step in (10, 20):
        last = Path(shutil.copytree(root / f"iter_00000{step}", tmp_path / "last", dirs_exist_ok=True))
        guard.seal(last) if step == 10 else None
    assert set().union(*codes(last).values()) == {"seal-stale"}


def weights(path: Path, **tensors: bytes) -> Path:
    return put(path, vectors(**tensors))


def test_a_bit_that_flips_in_a_sealed_file_is_a_difference(tmp_path: Path) -> None:
    for side in ("one", "two"):
        path = weights(tmp_path / side / "model.safetensors", a=bytes(100), b=bytes(100))
    guard.seal([tmp_path / "one", tmp_path / "two"], tensors=True)
    flip(path)
    found = diff(tmp_path / "one", tmp_path / "two")
    assert [t.name for f in found.files for t in f.tensors if t.change is Change.CHANGED] == ["b"]


def test_the_tensors_that_are_hit_and_the_place_in_the_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt_tools.checksum.sums.CHUNK", 1 << 12)
    many = {f"layers.{i}.weight": bytes([i]) * 1000 for i in range(64)}
    path = weights(tmp_path / "run/model.safetensors", **many)
    guard.seal(tmp_path / "run", tensors=True)
    whole = path.stat().st_size
    start = whole - 64 * 1000
    for i in (3, 4, 5, 40):
        flip(path, start + 1000 * i)
    found = verify(tmp_path / "run")
    (report,) = [f.report for f in found.files if f.report.path == str(path)]
    said = {f.message.rpartition("; ")[2]: f.offset for f in report.findings if f.code == "seal-mismatch"}
    hit = {"1 of 64 tensors hit: layers.40.weight": 40, "3 of 64 tensors hit: layers.{3–5}.weight": 3}
    hit = {words: (start + 1000 * at) >> 12 << 12 for words, at in hit.items()}
    assert said == hit
    # the file once, and the tensors that reach into two of its chunks
    assert report.bytes_read < whole + 2 * ((1 << 12) + 2 * 1000) + 2 * (start + 1000)


@pytest.mark.parametrize("fragments", [False, True])
def test_what_was_written_anew_with_another_size_is_sworn_to_again(tmp_path: Path, fragments: bool) -> None:
    """As the hint of seal-mismatch says."""
    path, words = tmp_path / "step_5/model_5.pt", {"rank": 0, "world_size": 1} if fragments else {}
    for name in ("tiny.pt", "nested.pt", "tiny.pt"):
        put(path, (FORMAT_FILES / "torch_zip/good" / name).read_bytes())
        done = guard.seal(path.parent, again=True, settle=0, **words)
        assert [one.state for one in done.checkpoints] == ["sealed"]
        reports = [r.report for r in verify(path, settle=0).files]
        assert {r.verdict for r in reports if r.path == str(path)} == {"ok"}


def test_damage_between_tensors_hits_none(tmp_path: Path) -> None:
    path = weights(tmp_path / "run/model.safetensors", a=bytes(100))
    text = path.read_bytes()[8:-100] + b"       "
    path.write_bytes(made(text, bytes(100)))
    guard.seal(tmp_path / "run", tensors=True)
    flip(path, 8 + len(text) - 1, ord(" ") ^ ord("\t"))  # a blank becomes a tab: still JSON
    (report,) = (r.report for r in verify(tmp_path / "run").files if r.report.path == str(path))
    (message,) = (f.message for f in report.findings if f.code == "seal-mismatch")
    assert message.endswith("no tensor is hit")


def test_a_seal_shows_what_it_holds(root: Path) -> None:
    guard.seal(root, tensors=True)
    seal = root / "iter_0000020/.ckpt-seal.json"
    text = executed(["show", str(seal)])[1]
    assert "mp_rank_00/model_optim_rng.pt" in text and "xxh3" in text and "sealed_by" in text
    shown = json.loads(executed(["show", str(seal), "--json"])[1])
    rows = json.loads(seal.read_text())["files"]
    assert shown["sealed"] == [{"size": r["size"], "digest": r["digest"], "name": r["path"]} for r in rows]
    told = {"step": 20, "layout": "megatron", "bytes": sum(r["size"] for r in rows)}
    assert told.items() <= shown["metadata"].items()


def test_the_digest_of_a_whole_file_is_the_one_that_others_know(root: Path) -> None:
    path, data = root / FILE, (root / FILE).read_bytes()
    known = {"sha256": hashlib.sha256(data).hexdigest(), "blake3": blake3(data).hexdigest()}
    for name, digest in known.items():
        guard.seal(root, digest=name, also=("md5", "crc64nvme"), again=True)
        home = root / "iter_0000020"
        rows = json.loads((home / ".ckpt-seal.json").read_text())["files"]
        (row,) = (row for row in rows if home / row["path"] == path)
        assert (row["digest"], row["also"]["md5"]) == (digest, hashlib.md5(data).hexdigest())
        assert len(row["also"]["crc64nvme"]) == 16


def test_crc64nvme_is_that_of_the_catalogue() -> None:
    running = Crc64Nvme()
    running.update(b"1234")
    running.update(b"56789")
    assert running.digest().hex() == "ae8b14860a799888"  # reveng's check value


def test_the_graph_beside_a_bundle_is_sealed_as_well(tmp_path: Path) -> None:
    root = tree_of("tensorflow/sharded", tmp_path)
    graph = root / "model.ckpt-300.meta"
    guard.seal(root)
    assert "seal-mismatch" not in set().union(*codes(root).values())
    flip(graph)
    assert "seal-mismatch" in codes(root)[graph.name]
    graph.unlink()
    assert verify(root).verdict is Verdict.SUSPECT
    made = plan(root)  # it holds no state: that it is lost costs no checkpoint
    assert made.checkpoint and made.checkpoint.path.endswith("model.ckpt-300")
    assert [f.code for f in made.warnings] == ["seal-missing"]
    assert str(graph) not in [one.path for one in guard.seal(root, again=True).checkpoints]
    seal = graph.with_name(f".{graph.name}.ckpt-seal.json")
    assert str(seal) in (made.warnings[0].hint or "")  # sealing anew leaves it
    seal.unlink()
    assert verify(root).verdict is Verdict.OK


def ours(*words: object) -> tuple[int, str, str]:
    return executed([str(word) for word in words])


def theirs(*words: object, python: str = "") -> int:
    """How the command of the package ends: its own code, in a process that has it loaded, unless a ``python``
    is named.
    """
    line = [python or warm.python_with_signing(), "-m", "model_signing", *map(str, words)]
    return subprocess.run(line, env=CLEAN, capture_output=True, timeout=1000).returncode


def pair(home: Path, name: str) -> tuple[Path, Path]:
    """(private key, public key), as openssl makes them."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = home / f"{name}.key", home / f"{name}.pub"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def invalid(root: Path, key: Path) -> tuple[int, set[str]]:
    """The exit code, and the names of the files that no signature vouches for."""
    code, out, err = ours("verify", root, "--verify-key", key, "--json")
    assert out, err
    said = json.loads(out)
    files = {f["path"] for f in said["files"] if any(x["code"] == "signature-invalid" for x in f["findings"])}
    files |= {f["path"] for f in said["findings"] if f["code"] == "signature-invalid"}
    return code, {Path(p).name for p in files}


def test_the_command_accepts_what_we_sign(root: Path, tmp_path: Path) -> None:
    (private, public), (_, foreign) = pair(tmp_path, "ours"), pair(tmp_path, "foreign")
    assert ours("seal", root, "--sign-key", private)[0] == 0
    home = root / "iter_0000020"
    words = ("verify", "key", home, "--signature", home / "model.sig", "--public_key")
    assert theirs(*words, public, python=sys.executable) == 0
    assert theirs(*words, foreign, python=sys.executable) == 1
    assert invalid(root, public) == (0, set())
    again = sealed(root, "--sign-key", str(private))
    assert again["summary"]["already"] == 2
    assert ckpt("verify", root, "--strict").returncode == 0  # without a key, or the package
    flip(home / "mp_rank_00/model_optim_rng.pt")
    assert theirs(*words, public) == 1
    assert ours("verify", root, "--verify-key", public)[0] == 1
    assert ours("plan", root, "--verify-key", foreign)[0] == 4
    planned = json.loads(ours("plan", root, "--verify-key", public, "--json")[1])
    assert planned["checkpoint"]["step"] == 10


@pytest.mark.share(2)
@pytest.mark.parametrize("where", ["model/model.sig", "model.sig"])
def test_we_accept_what_the_command_signs(where: str, tmp_path: Path) -> None:
    (private, public), (_, foreign) = pair(tmp_path, "theirs"), pair(tmp_path, "foreign")
    root = tmp_path / "run"
    shutil.copytree(megatron(tmp_path / "made") / "iter_0000020", root / "model")
    signature = root / where
    assert theirs("sign", "key", root / "model", "--signature", signature, "--private_key", private) == 0
    files = {p.name for p in (root / "model").rglob("*.pt")}
    assert invalid(root, public) == (0, set())
    assert invalid(root, foreign) == (1, {*files, "model.sig"})
    # the manifest is edited: its own digest of digests as well
    text, bundle = signature.read_text(), json.loads(signature.read_text())
    payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    payload["subject"][0]["name"] = "other"
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    signature.write_text(json.dumps(bundle))
    code, names = invalid(root, public)
    assert code == 1 and "model.sig" in names
    signature.write_text(text)
    # files that nobody signed, of a format and of none
    (root / "model/evil.py").write_text("import os")
    shutil.copy(next((root / "model").rglob("*.pt")), root / "model/more.pt")
    assert invalid(root, public) == (1, {"evil.py", "more.pt"})
    for name in ("evil.py", "more.pt"):
        (root / "model" / name).unlink()
    signature.unlink()
    assert invalid(root, public) == (1, files)
    signature.write_text("{}")
    code, names = invalid(root, public)
    assert code == 1 and names >= files


def test_a_file_among_others_has_a_signature_of_its_own(tmp_path: Path) -> None:
    private, public = pair(tmp_path, "ours")
    root = tmp_path / "run"
    for step in (1, 2):
        put(root / f"step{step}.safetensors", packed({"w": ("F32", [1], bytes([step]) * 4)}))
    assert ours("seal", root, "--sign-key", private)[0] == 0
    assert invalid(root, public) == (0, set())
    signature = root / ".step1.safetensors.model.sig"
    words = ("verify", "key", root / "step1.safetensors", "--signature", signature, "--public_key", public)
    assert theirs(*words) == 0
    shutil.copy(signature, root / ".step2.safetensors.model.sig")  # that of another file
    assert ours("verify", root, "--verify-key", public)[0] == 1


@pytest.mark.parametrize("text", ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", None])
def test_a_key_that_is_none_is_exit_2(text: str | None, tmp_path: Path) -> None:
    root, key = megatron(tmp_path / "run"), tmp_path / "key"
    if text is not None:
        key.write_text(text)
    for words in (("verify", root, "--verify-key", key), ("seal", root, "--sign-key", key)):
        code, _, err = ours(*words)
        assert code == 2 and "Traceback" not in err, err
    assert not list(root.rglob(".ckpt-seal*"))


def test_without_the_package_it_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    for command, flag in {"verify": "--verify-key", "plan": "--verify-key", "seal": "--sign-key"}.items():
        code, _, said = executed([command, str(root), flag, "k"])
        assert code == 2 and "pip install 'ckpt-tools[sign]'" in said, said


def test_a_signature_goes_with_a_whole_seal(root: Path, tmp_path: Path) -> None:
    for more in (["--merge"], ["--seal-dir", f"{tmp_path}/seals"]):
        code, _, said = executed(["seal", str(root), "--sign-key", "k", *more])
        assert code == 2 and "whole checkpoint" in said


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_signatures_change_no_answer_about_any_layout_and_fit(case: Path, tmp_path: Path) -> None:
    from model_signing import verifying

    def answer() -> tuple[object, ...]:
        parts = [len(c.parts) for c in scan(root).checkpoints]
        try:
            made = plan(root, Selection(allow_none=True))
        except CkptError as e:
            return parts, type(e).__name__, str(e)
        return (
            parts,
            made.checkpoint and made.checkpoint.path,
            sorted(r.checkpoint.path for r in made.rejected),
        )

    (private, public), root = map(str, pair(tmp_path, "ours")), materialise(case, tmp_path)
    before = answer()
    guard.seal(root, sign_key=private)
    assert answer() == before
    found = [f.report for f in verify(root, verify_key=public).files if f.report.coverage == 1]
    assert not any(x.code == "signature-invalid" for r in found for x in r.findings), found
    assert not guard.seal(root, sign_key=private).count("sealed")
    for path in root.rglob("*model.sig"):
        model = path.with_name(path.name[1:-10]) if path.name != "model.sig" else path.parent
        if not any(p.is_symlink() for p in (model, *model.rglob("*"))):
            verifying.Config().use_elliptic_key_verifier(public_key=public).verify(model, path)
