"""The tools of detection.py: each says of a directory and a file in it whether something is wrong; raising
says so too.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


def _ckpt(home: Path, file: Path, files: int) -> set[str]:
    from ckpt_tools import Severity, verify

    seen = verify([str(home if files > 1 else file)], settle=0)
    found = [("", f) for f in seen.findings] + [
        (entry.report.path, f) for entry in seen.files for f in entry.report.findings
    ]
    return {
        f"{f.code} {(path or f.path).removeprefix(str(home))}"
        for path, f in found
        if f.severity > Severity.NOTE
    }


def _torch(home: Path, file: Path, files: int, **options: bool) -> bool:
    import numpy as np
    import torch

    arrays = (
        np.ndarray,
        np.dtype,
        np._core.multiarray._reconstruct,  # noqa: SLF001  # pickled by it
        *(getattr(np.dtypes, n) for n in np.dtypes.__all__),
    )
    with torch.serialization.safe_globals([argparse.Namespace, *arrays]):  # as users of Megatron must
        torch.load(file, weights_only=True, map_location="cpu", **options)
    return False


def _mmap(home: Path, file: Path, files: int) -> bool:
    return _torch(home, file, files, mmap=True)


def _dcp(home: Path, file: Path, files: int) -> bool:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.NamedTemporaryFile() as out:
        dcp_to_torch_save(home, out.name)
    return False


def _testzip(home: Path, file: Path, files: int) -> bool:
    with zipfile.ZipFile(file) as z:
        return z.testzip() is not None


def _unzip(home: Path, file: Path, files: int) -> bool:
    return (
        subprocess.run(
            ["unzip", "-tqq", str(file)], capture_output=True, check=False, stdin=subprocess.DEVNULL
        ).returncode
        != 0
    )


def _safetensors(home: Path, file: Path, files: int) -> bool:
    from safetensors.torch import load_file

    load_file(file)
    return False


def _picklescan(home: Path, file: Path, files: int) -> bool:
    from picklescan.scanner import scan_file_path

    result = scan_file_path(str(file))
    return bool(result.issues_count or result.scan_err)


def _signing(home: Path, file: Path, files: int) -> bool:
    """Signed as it was before the damage: the directory beside it."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec
    from model_signing import signing, verifying

    key, public, signature = (home.parent / n for n in ("key.pem", "public.pem", "signature"))
    if not key.exists():
        private = ec.generate_private_key(ec.SECP256R1())
        key.write_bytes(private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
        public.write_bytes(
            private.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        )
        signing.Config().use_elliptic_key_signer(private_key=key).sign(home.parent / "good", signature)
    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(home, signature)
    return False


class Tool(NamedTuple):
    """``needs`` is the import it stands on, ``install`` how to get it, ``carriers`` the beginnings of the
    names it can do something with.
    """

    run: Callable[[Path, Path, int], object]
    needs: str
    install: str
    carriers: tuple[str, ...]


TORCH = ("torch zip", "torch legacy")
TOOLS: dict[str, Tool] = {
    "ckpt verify": Tool(_ckpt, "ckpt_tools", "pip install ckpt-tools", ("",)),
    "torch.load": Tool(_torch, "torch", "pip install torch", TORCH),
    "torch.load(mmap=True)": Tool(_mmap, "torch", "pip install torch", ("torch zip",)),
    "dcp_to_torch_save": Tool(_dcp, "torch", "pip install torch", ("DCP",)),
    "zipfile.testzip": Tool(_testzip, "zipfile", "", ("torch zip",)),
    "unzip -t": Tool(_unzip, "unzip", "apt install unzip", ("torch zip",)),
    "safetensors load_file": Tool(
        _safetensors, "safetensors.torch", "pip install safetensors torch", ("safetensors",)
    ),
    "picklescan": Tool(_picklescan, "picklescan", "pip install picklescan", (*TORCH, "DCP")),
    "model_signing": Tool(_signing, "model_signing", "pip install model-signing pyopenssl", ("",)),
}


def installed(tool: Tool) -> bool:
    if tool.needs == "unzip":
        return shutil.which("unzip") is not None
    try:
        importlib.import_module(tool.needs)
    except ImportError:
        return False
    return True
