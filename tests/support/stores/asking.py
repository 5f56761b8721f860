"""A command line about a tree in a store, run in this process as a user would start it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from in_process import executed
from places import LAYOUT_TREES

from ckpt_tools.storage.stores import mounts
from stores.bucket import Bucket

TREE = LAYOUT_TREES / "megatron/tp/tree"
"""What most tests of stores upload."""
NEWEST = "iter_0000030/mp_rank_00/model_optim_rng.pt"
PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_STORAGE_"}
COMMON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START")


@dataclass(frozen=True)
class Said:
    """What a command answered: ``printed`` and ``error`` are its two streams."""

    code: int
    printed: str
    error: str

    @property
    def json(self) -> Any:
        return json.loads(self.printed)

    @property
    def step(self) -> Any:
        """The step of what was chosen; None where the answer is no document."""
        try:
            body = self.json
        except ValueError:  # lines of JSON, or a path
            return None
        return body.get("resume_step", body.get("env", {}).get("CKPT_STEP"))

    @property
    def text(self) -> str:
        """Both streams, with single spaces: lines end where the terminal does."""
        return " ".join(f"{self.printed} {self.error}".split())

    @property
    def findings(self) -> list[tuple[str, str, str]]:
        """(code, severity, path) of all findings in the JSON, sorted."""
        found: list[tuple[str, str, str]] = []
        waiting = [self.json]
        while waiting:
            node = waiting.pop()
            if isinstance(node, dict):
                if {"code", "severity"} <= node.keys():
                    found.append((node["code"], node["severity"], node.get("path") or ""))
                waiting += node.values()
            elif isinstance(node, list):
                waiting += node
        return sorted(found)

    @property
    def hints(self) -> list[str]:
        """What it says is to be done next, in either stream."""
        in_json = re.findall(r'"hint": ?"((?:[^"\\]|\\.)*)"', self.printed)
        return [*in_json, *re.findall(r"^hint[^:\n]*: (.*)$", f"{self.printed}\n{self.error}", re.MULTILINE)]

    @property
    def codes(self) -> set[str]:
        return {code for code, _, _ in self.findings}

    @property
    def verdicts(self) -> dict[str, str]:
        """By the paths of files below ``run``."""
        return {row["path"].partition("/run/")[2]: row["verdict"] for row in self.json["files"]}


def variables(bucket: Bucket) -> dict[str, str]:
    """The environment in which the libraries find the bucket."""
    prefix = PREFIXES.get(bucket.url.partition("://")[0])
    return {} if prefix is None else {f"{prefix}{k.upper()}": v for k, v in bucket.options.items()}


@contextlib.contextmanager
def as_user(home: Path, bucket: Bucket) -> Iterator[None]:
    """The environment of a user who has nothing but the bucket's credentials, and no file of ckpt's yet
    outside ``home``.
    """
    kept = {name: os.environ[name] for name in COMMON if name in os.environ}
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"), str(home))
    own = kept | places | variables(bucket) | {"CKPT_NO_CACHE": "1", "CKPT_JOBS": "2"}
    mounts._trees.clear()  # clients are kept, and a test may ask one bucket in two ways
    cwd = os.getcwd()
    try:
        with patch.dict(os.environ, own, clear=True):
            os.chdir(home)
            yield
    finally:
        os.chdir(cwd)
        mounts._trees.clear()


def ask(*words: str) -> Said:
    """Run a command line; within ``as_user``."""
    return Said(*executed(words))


# ---- commands, of which @ is the tree; what they write here lies in ``home``

PLANS = {
    "plan": "plan @ --json",
    "plan of the tracker": "plan @ --order tracker --json",
    "latest": "latest @ --rank 0 --json",
    "hook": "hook @ --json --plan-dir home/plans",
    "stage": "stage @ home/ssd --json",
}
"""Those that choose a checkpoint."""
READERS = {
    "ls": "ls @ --json",
    "verify": "verify @ --level content --json",
    "verify a file": f"verify @/{NEWEST} --level content --json",
    "show": f"show @/{NEWEST} --json",
    "diff": f"diff {TREE}/iter_0000030 @/iter_0000030 --json",
    **PLANS,
    "watch": "watch @ --once --settle 0s --state-dir home/watched",
}
WRITERS = {
    "seal": "seal @ --json",
    "prune": "prune @ --keep-last 1 --damaged --settle 0s --apply --json",
}
