"""Whether real frameworks find, load and prune sealed checkpoints as they do others, and what is left of them.

    python benchmarks/seal_frameworks.py [--environments DIR] [RUN …]    # benchmarks/sealed_runs/<environment>/<run>.py

Each run trains, prunes and resumes three times, in the environment of fixtures/make_real.py: without seals, with
them, and with all that the first left in the quarantine of the directory that it saves to. What the framework keeps, takes for the newest and loads must be the same. Then ``ckpt verify
--require-seal`` must find nothing in the sealed tree that ``ckpt verify`` does not find in the other, every file
of a checkpoint must be covered, and ``ckpt plan`` must choose the same. What lies in quarantine must stay as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "fixtures"))

from make_real import ENVIRONMENTS_HOME, interpreter  # noqa: E402

NEEDS = ("crc32c", "isal", "xxhash", "zstandard")
"""What the package imports to seal: beside environments that have only their framework."""


class Trained(NamedTuple):
    """What the framework says of a run, and ckpt of its tree."""

    said: dict[str, Any]
    findings: set[str]
    files: int
    covered: int
    chosen: list[str]
    seals: int


def ckpt(*words: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "ckpt_tools", *map(str, words), "--json", "--no-cache"]
    answer: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    return answer


def needed(python: Path) -> Path:
    """Where the packages are that sealing needs."""
    home = python.parent.parent.parent / "seal-needs"
    if not home.exists():
        subprocess.run([python, "-m", "pip", "install", "-q", "--target", home, *NEEDS], check=True)
    return home


def trained(python: Path, script: Path, out: Path, sealed: bool) -> Trained:
    """Train, and look at what is there."""
    command = [str(python), str(script), str(out), str(int(sealed))]
    env = os.environ | {"PYTHONPATH": f"{HERE.parent}:{needed(python)}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script}: {done.stderr[-3000:]}")
    if "not sealed" in done.stderr:
        print(done.stderr[-3000:])
    verified = ckpt("verify", out, *(["--require-seal"] * sealed))
    files = [f for f in verified["files"] if f["format"] != "seal"]
    wrong = [*verified["findings"], *(f for file in verified["files"] for f in file["findings"])]
    said = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
    chosen = [ckpt("plan", out / run)["checkpoint"] or {} for run in said.pop("runs", ["."])]
    return Trained(
        said,
        {f["code"] for f in wrong if f["severity"] != "note"},
        len(files),
        sum(f["coverage"] == 1 for f in files),
        [os.path.relpath(c.get("path", out), out) for c in chosen],
        sum(".ckpt-seal" in str(p) and p.is_file() for p in out.rglob("*")),
    )


def beside_quarantine(python: Path, script: Path, plain: Path, out: Path) -> tuple[Trained, bool]:
    """The same where everything of an earlier run lies in quarantine; whether that was left alone."""
    away = out / ".ckpt/quarantine/000001"
    shutil.copytree(plain, away, symlinks=True)
    before = contents(away)
    made = trained(python, script, out, sealed=False)
    return made, contents(away) == before


def contents(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS_HOME, metavar="DIR")
    asked = parser.parse_args(arguments)
    print(
        "| framework | kept | newest, loaded, pruned as without | files covered | seals | new findings | beside a quarantine |"
    )
    print("|---|---|---|---|---|---|---|")
    failed = False
    for script in sorted(HERE.glob("sealed_runs/*/*.py")):
        if asked.runs and script.stem not in asked.runs:
            continue
        python = interpreter(asked.environments, script.parent.name)
        with tempfile.TemporaryDirectory() as name:
            plain = trained(python, script, Path(name) / "plain", sealed=False)
            sealed = trained(python, script, Path(name) / "sealed", sealed=True)
            beside, alone = beside_quarantine(python, script, Path(name) / "plain", Path(name) / "beside")
        same = (plain.said, plain.chosen) == (sealed.said, sealed.chosen)
        new = sealed.findings - plain.findings
        ignored = alone and (plain.said, plain.chosen) == (beside.said, beside.chosen)
        failed |= not same or not ignored or bool(new) or sealed.covered != sealed.files
        print(
            f"| {sealed.said['by']} | {len(sealed.said['kept'])} | {'yes' if same else 'NO'} "
            f"| {sealed.covered} of {sealed.files} | {sealed.seals} | {', '.join(sorted(new)) or 'none'} | {'as without' if ignored else 'NO'} |",
            flush=True,
        )
        if not same or not ignored:
            print(plain, sealed, beside, sep="\n", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
