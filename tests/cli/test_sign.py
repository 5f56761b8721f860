"""Signatures: ``ckpt`` and the real command of OpenSSF model signing take each other's.

The set-up of the tests installs the package.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from in_process import executed
from places import ROOT, SUPPORT
from run_helpers import CLEAN, ckpt, flip, megatron
from safetensors_writer import packed

RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.path += sys.argv.pop(1).split(':'); "


def script(text: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python code where the package is, with what we need behind it."""
    others = ":".join([*(p for p in sys.path if "site-packages" in p), str(SUPPORT)])
    line = [warm.python_with_signing(), "-c", RUN + text, str(ROOT), others, *map(str, words)]
    return subprocess.run(line, env=CLEAN, capture_output=True, text=True, timeout=1000)


def ours(*words: object) -> subprocess.CompletedProcess[str]:
    return script("from ckpt_tools.cli import main; main()", *words)


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
    done = ours("verify", root, "--verify-key", key, "--json")
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    files = {f["path"] for f in said["files"] if any(x["code"] == "signature-invalid" for x in f["findings"])}
    files |= {f["path"] for f in said["findings"] if f["code"] == "signature-invalid"}
    return done.returncode, {Path(p).name for p in files}


def test_the_command_accepts_what_we_sign(root: Path, tmp_path: Path) -> None:
    (private, public), (_, foreign) = pair(tmp_path, "ours"), pair(tmp_path, "foreign")
    done = ours("seal", root, "--sign-key", private)
    assert done.returncode == 0, done.stderr
    home = root / "iter_0000020"
    words = ("verify", "key", home, "--signature", home / "model.sig", "--public_key")
    assert theirs(*words, public, python=sys.executable) == 0
    assert theirs(*words, foreign, python=sys.executable) == 1
    assert invalid(root, public) == (0, set())
    again = ours("seal", root, "--sign-key", private, "--json")
    assert json.loads(again.stdout)["summary"]["already"] == 2
    assert ckpt("verify", root, "--strict").returncode == 0  # without a key, or the package
    flip(home / "mp_rank_00/model_optim_rng.pt")
    assert theirs(*words, public) == 1
    assert ours("verify", root, "--verify-key", public).returncode == 1
    assert ours("plan", root, "--verify-key", foreign).returncode == 4
    planned = ours("plan", root, "--verify-key", public, "--json").stdout
    assert '"step": 10' in planned.partition("rejected")[0]


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
    root.mkdir()
    for step in (1, 2):
        (root / f"step{step}.safetensors").write_bytes(packed({"w": ("F32", [1], bytes([step]) * 4)}))
    assert ours("seal", root, "--sign-key", private).returncode == 0
    assert invalid(root, public) == (0, set())
    signature = root / ".step1.safetensors.model.sig"
    words = ("verify", "key", root / "step1.safetensors", "--signature", signature, "--public_key", public)
    assert theirs(*words) == 0
    (root / ".step2.safetensors.model.sig").write_bytes(signature.read_bytes())  # that of another file
    assert ours("verify", root, "--verify-key", public).returncode == 1


@pytest.mark.parametrize("text", ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", None])
def test_a_key_that_is_none_is_exit_2(text: str | None, tmp_path: Path) -> None:
    root, key = megatron(tmp_path / "run"), tmp_path / "key"
    if text is not None:
        key.write_text(text)
    for words in (("verify", root, "--verify-key", key), ("seal", root, "--sign-key", key)):
        done = ours(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert not list(root.rglob(".ckpt-seal*"))


def test_without_the_package_it_is_named(root: Path) -> None:
    text = "import sys; sys.modules['model_signing'] = None; from ckpt_tools.cli import main; main()"
    for command, flag in {"verify": "--verify-key", "plan": "--verify-key", "seal": "--sign-key"}.items():
        line = [sys.executable, "-c", text, command, str(root), flag, "k"]
        done = subprocess.run(line, env=CLEAN, capture_output=True, text=True, timeout=1000)
        assert done.returncode == 2 and "pip install 'ckpt-tools[sign]'" in done.stderr, done.stderr


def test_a_signature_goes_with_a_whole_seal(root: Path, tmp_path: Path) -> None:
    for more in (["--merge"], ["--seal-dir", f"{tmp_path}/seals"]):
        code, _, said = executed(["seal", str(root), "--sign-key", "k", *more])
        assert code == 2 and "whole checkpoint" in said


EVERY_LAYOUT = """
import os, tempfile
from pathlib import Path
from fixture_trees import CASES, materialise
from model_signing import verifying
from ckpt_tools import guard
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.selection import Selection

def answer(root):
    parts = [len(c.parts) for c in scan(root).checkpoints]
    try:
        made = plan(root, Selection(allow_none=True))
    except CkptError as e:
        return parts, type(e).__name__, str(e)
    return parts, made.checkpoint and made.checkpoint.path, sorted(r.checkpoint.path for r in made.rejected)

for case in {case.parent.parent.name: case for case in reversed(CASES)}.values():
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before = answer(root)
        guard.seal(root, sign_key=sys.argv[1])
        assert answer(root) == before, (case, before, answer(root))
        found = [f.report for f in verify(root, verify_key=sys.argv[2]).files if f.report.coverage == 1]
        assert not any(x.code == "signature-invalid" for r in found for x in r.findings), (case, found)
        assert not any(one.state == "sealed" for one in guard.seal(root, sign_key=sys.argv[1]).checkpoints), case
        for path in root.rglob("*model.sig"):
            model = path.with_name(path.name[1:-10]) if path.name != "model.sig" else path.parent
            if not any(p.is_symlink() for p in (model, *model.rglob("*"))):
                verifying.Config().use_elliptic_key_verifier(public_key=sys.argv[2]).verify(model, path)
print("done")
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_signatures_change_no_answer_about_any_layout_and_fit(tmp_path: Path) -> None:
    done = script(EVERY_LAYOUT, *pair(tmp_path, "ours"))
    assert done.stdout == "done\n", done.stderr
