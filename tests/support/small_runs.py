"""Small runs of checkpoints to ask a command about, whole and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from places import FORMAT_FILES
from run_helpers import broken, broken_body, megatron

from ckpt_tools.planning import first_launch


def plain(tmp: Path) -> Path:
    return megatron(tmp / "run")


def flipped(tmp: Path) -> Path:
    broken_body(root := plain(tmp))
    return root


def lost(tmp: Path) -> Path:
    root = plain(tmp)
    for step in (10, 20):
        broken(root, step)
    return root


def empty(tmp: Path) -> Path:
    (tmp / "run").mkdir()
    return tmp / "run"


def encrypted(tmp: Path) -> Path:
    home = FORMAT_FILES / "mindspore_encrypted"
    (tmp / "run").mkdir()
    shutil.copyfile(home / "good/aes-gcm-key.ckpt", tmp / "run/net-1_5.ckpt")
    shutil.copyfile(home / "aes-gcm-key.ckpt.key", tmp / "key")
    (tmp / "key").chmod(0o600)
    return tmp / "run"


def started_before(tmp: Path) -> Path:
    """A log below ``log`` says that an earlier start had a checkpoint."""
    root = empty(tmp)
    note = Path(first_launch.name_home(str(tmp / "log"), str(root))) / first_launch.LAST
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"step": 20, "path": str(root / "iter_0000020")}))
    return root


FILE = "iter_0000020/mp_rank_00/model_optim_rng.pt"
