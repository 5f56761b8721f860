"""What fuzz.py feeds as a seal whose digest over itself is right, whatever else is in it: a mutation alone
never gets past that digest.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"
CHECKPOINT = FIXTURES / "layouts" / "accelerate" / "steps" / "tree" / "checkpoint-10"
_TAIL = b'"self":"'


def repaired(data: bytes) -> bytes:
    """The same text with the digest at its end that a seal has."""
    from ckpt_tools.formats.seals import document

    return document.close_seal(data.rpartition(_TAIL)[0] or data.rstrip().removesuffix(b"}") + b",\n")


def checkpoint() -> Path:
    """A directory of this process alone with a small checkpoint; gone when it ends."""
    place = Path(tempfile.mkdtemp(prefix="ckpt-fuzz-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    home = place / CHECKPOINT.name
    shutil.copytree(CHECKPOINT, home)
    return home


def seeds() -> list[bytes]:
    """The fixtures, seals of the checkpoint with one of everything, and of one rank."""
    from ckpt_tools import guard
    from ckpt_tools.formats.seals.document import FRAGMENTS, NAME

    home, made = checkpoint(), list[bytes]()
    for options in ({}, {"digest": "sha256", "also": ["md5", "crc64nvme"], "tensors": True}):
        guard.seal(home, again=True, settle=0, **options)
        made.append((home / NAME).read_bytes())
        (home / NAME).unlink()
    guard.seal(home, rank=0, world_size=2, files=sorted(p.name for p in CHECKPOINT.iterdir()), settle=0)
    made += [p.read_bytes() for p in (home / FRAGMENTS).iterdir()]
    return [*made, *(p.read_bytes() for p in sorted(FIXTURES.glob("formats/seal/*/*.json")))]


def sealed() -> Callable[[bytes], None]:
    """Verify, plan and show a checkpoint with that seal; nothing but the seal is ever another afterwards."""
    from ckpt_tools.api import plan, show, verify
    from ckpt_tools.errors import CkptError
    from ckpt_tools.findings import CODES
    from ckpt_tools.formats.seals.document import NAME
    from ckpt_tools.model.report import Level
    from ckpt_tools.output import json, verification

    home = checkpoint()
    kept = {p.name: p.read_bytes() for p in home.iterdir()}

    def run(data: bytes) -> None:
        made = repaired(data)
        (home / NAME).write_bytes(made)
        found = verify([str(home)], Level.CONTENT, settle=0)
        for report in (one.report for one in found.files):
            assert report.path.startswith(f"{home}/"), report.path
            assert all(f.code in CODES and (f.offset is None or f.offset >= 0) for f in report.findings)
        json.render(found)
        assert "\x1b" not in verification.render(found)
        show(str(home / NAME))
        with contextlib.suppress(CkptError):
            json.render(plan(str(home.parent)))
        (home / NAME).unlink()
        assert {p.name: p.read_bytes() for p in home.iterdir()} == kept

    return run
