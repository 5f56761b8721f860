"""Pickles that really run something when their framework loads them, and real files, before ckpt-tools and
other scanners.

    python benchmarks/pickles.py [--python-picklescan PYTHON] [--python-fickling PYTHON] [--python-modelscan
    PYTHON] [--real DIR]... [--missed]

Each payload is first loaded in a child process (pickle.load, torch.load(weights_only=False),
torch.distributed.checkpoint.load) and must leave its mark there; all of them write below a temporary
directory only. Real files are the good fixtures, and those below --real. --check asks ckpt-tools alone and
ends in 1 where what runs is ok.
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
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from _payloads import Payload, build

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
PICKLED = ("torch_zip", "torch_legacy", "torch_tar", "pickle_plain", "dcp")
SECONDS = 300
"""Time for one payload to be loaded."""
EACH = """
import sys, json
for path in sys.stdin.read().splitlines():
    try:
        said = look(path)
    except Exception:
        said = "error"
    print(json.dumps([path, said]))
"""
PICKLESCAN = """
from picklescan.scanner import scan_file_path
def look(path):
    r = scan_file_path(path)
    return "caught" if r.issues_count or r.infected_files else "error" if r.scan_err else "missed"
"""
FICKLING = """
import zipfile
from fickling.analysis import Severity
from fickling.loader import scan_file, scan_zip_archive
def look(path):
    found = list(scan_zip_archive(path, graceful=True).values()) if zipfile.is_zipfile(path) else [scan_file(path, graceful=True)]
    if any(r.severity > Severity.LIKELY_SAFE and r.results for r in found):
        return "caught"
    return "error" if any(r.errors for r in found) else "missed"
"""
MODELSCAN = """
from modelscan.modelscan import ModelScan
def look(path):
    r = ModelScan().scan(path)
    return "caught" if r["summary"]["total_issues"] else "error" if r["errors"] else "missed"
"""


class Row(NamedTuple):
    """What one scanner says of each payload and of each real file: ``caught``, ``error`` (it gave up) or
    ``missed``; ours of a question is ``asked``.
    """

    name: str
    payloads: dict[str, str]
    real: dict[str, str]
    seconds: float


def main() -> int:
    options = arguments()
    directory = Path(tempfile.mkdtemp(prefix="ckpt-bench-"))
    try:
        made = build(directory)
        ran = proven(made, directory)
        for p in made:
            if p not in ran:
                print(f"does not run here, and is left out: {p.name}", file=sys.stderr)
        roots = [
            *FIXTURES.glob("formats/*/good"),
            *FIXTURES.glob("layouts/*/*/tree"),
            *map(Path, options.real),
        ]
        real = real_files(roots, directory / "real") if not options.check else {}
        rows = [ours(ran, real)]
        for name, python, text in scanners(options):
            rows.append(theirs(name, python, text, ran, real))
        show(rows, ran, real, missed=options.missed)
        return int(any(said == "missed" for said in rows[0].payloads.values()) or len(ran) < 160)
    finally:
        shutil.rmtree(directory)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("picklescan", "fickling", "modelscan"):
        parser.add_argument(f"--python-{name}", metavar="PYTHON", help=f"an interpreter that has {name}")
    parser.add_argument(
        "--real", metavar="DIR", action="append", default=[], help="real checkpoints beside the fixtures"
    )
    parser.add_argument(
        "--missed", action="store_true", help="name what each scanner missed, and its false alarms"
    )
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def scanners(options: argparse.Namespace) -> Iterable[tuple[str, str, str]]:
    for name, python, text in (
        ("picklescan", options.python_picklescan, PICKLESCAN),
        ("fickling", options.python_fickling, FICKLING),
        ("modelscan", options.python_modelscan, MODELSCAN),
    ):
        if python and not options.check:
            yield name, python, text


def proven(payloads: Sequence[Payload], directory: Path) -> list[Payload]:
    """Those that leave their mark. Each is loaded in a process of its own, in which nothing of the user's is
    at hand.
    """
    for payload in payloads:
        pid = os.fork()
        if not pid:
            load(payload, directory)
        os.waitpid(pid, 0)
    return [p for p in payloads if p.mark.exists()]


def load(payload: Payload, directory: Path) -> None:
    """Never returns."""
    import pickle
    import signal

    import torch
    import torch.distributed.checkpoint as dist

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.chdir(directory)
    os.environ.update(HOME=str(directory), TMPDIR=str(directory))
    signal.alarm(SECONDS)
    try:
        if payload.loads == "pickle":
            with open(payload.path, "rb") as f:
                pickle.load(f)  # our own, and what it does is why it is here
        elif payload.loads == "torch":
            torch.load(payload.path, weights_only=False)
        elif payload.loads in OTHERS:
            OTHERS[payload.loads](payload)
        else:
            dist.load({"w": torch.zeros(4), "step": 0}, checkpoint_id=payload.path, no_dist=True)
    except BaseException:  # it has run by then, or has not
        pass
    os._exit(0)


def load_buffer(payload: Payload) -> None:
    """As Transformer Engine's modules load their extra state."""
    import torch

    for buffer in torch.load(payload.path, weights_only=False).values():
        torch.load(buffer, weights_only=False)


def load_nemo(payload: Payload) -> None:
    """As NeMo did until it filtered what it unpacks; then the files of a model by their loaders."""
    import pickle
    import tarfile

    import torch

    home = payload.path.parent / "unpacked"
    home.mkdir()
    with tarfile.open(payload.path) as t:
        t.extractall(home, filter="fully_trusted")
    torch.load(home / "model_weights.ckpt", weights_only=False)
    with (home / "artifact").open("rb") as f:
        pickle.load(f)


def load_numpy(payload: Payload) -> None:
    import numpy as np

    with np.load(payload.path, allow_pickle=True) as file:
        for name in file.files:
            file[name]


def load_hdf5(payload: Payload) -> None:
    """Leaves the mark where what lies outside was read."""
    import h5py

    os.chdir(payload.path.parent)
    with h5py.File(payload.path) as f:
        if f["x"][:].tobytes() == b"ckpt" * 6:
            payload.mark.touch()


def load_keras(payload: Payload) -> None:
    import keras

    keras.models.load_model(payload.path, safe_mode=False)


OTHERS = {
    "buffer": load_buffer,
    "nemo": load_nemo,
    "numpy": load_numpy,
    "hdf5": load_hdf5,
    "keras": load_keras,
}
"""Loaders of files that hold more than a pickle; h5py and keras are left out where they are not installed."""


def real_files(roots: Iterable[Path], home: Path) -> dict[str, Path]:
    """Copies of all different files that hold pickles, by the path that they have."""
    from ckpt_tools.inspection.check import inspect
    from ckpt_tools.model.report import Level

    found, seen = dict[str, Path](), set[bytes]()
    for path in sorted(p for root in roots for p in root.rglob("*") if p.is_file() and "bad" not in p.parts):
        report = inspect(str(path), Level.STRUCTURE)[0]
        digest = hashlib.sha256(path.read_bytes()).digest()
        if report.format in PICKLED and report.verdict != "broken" and digest not in seen:
            seen.add(digest)
            suffix = ".pkl" if report.format in ("dcp", "pickle_plain") else ".pt"
            copy = home / f"{len(found):04d}{suffix}"
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
            found[str(path)] = copy
    return found


def ours(payloads: Sequence[Payload], real: dict[str, Path]) -> Row:
    from ckpt_tools import Level, verify
    from ckpt_tools.model.finding import Verdict

    started = time.perf_counter()

    def said(path: str) -> str:
        result = verify(path, Level.STRUCTURE)
        if result.verdict is Verdict.OK:
            return "missed"
        asked = {"suspect-call", "unknown-global"}
        wrong = {f.code for r in result.files for f in r.report.findings if f.severity} - asked
        return "caught" if wrong or result.verdict is not Verdict.SUSPECT else "asked"

    found = {p.name: said(str(p.path)) for p in payloads}
    judged = {path: alarm(path) for path in real}
    return Row("ckpt verify", found, judged, time.perf_counter() - started)


def alarm(path: str) -> str:
    """What ckpt-tools says about the pickles of a real file."""
    from ckpt_tools.inspection.check import inspect
    from ckpt_tools.model.report import Level

    codes = {f.code for f in inspect(path, Level.STRUCTURE)[0].findings}
    if codes & {"unsafe-pickle", "unread-pickle"}:
        return "caught"
    return "asked" if "suspect-call" in codes else "missed"


def theirs(name: str, python: str, text: str, payloads: Sequence[Payload], real: dict[str, Path]) -> Row:
    """The same of another scanner. Directories are given file by file, under names that it looks into."""
    paths = {str(path): p.name for p in payloads for path in files_of(p)}
    started = time.perf_counter()
    words = "\n".join([*paths, *map(str, real.values())])
    done = subprocess.run(
        [python, "-c", text + EACH], input=words, capture_output=True, text=True, check=False
    )  # what the caller named
    seconds = time.perf_counter() - started
    said = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    found = dict.fromkeys(paths.values(), "missed")
    for path, what in paths.items():
        found[what] = max(found[what], said.get(path, "error"), key=("missed", "error", "caught").index)
    return Row(name, found, {path: said.get(str(copy), "error") for path, copy in real.items()}, seconds)


def files_of(payload: Payload) -> list[Path]:
    if payload.path.is_file():
        return [payload.path]
    out = []
    for path in sorted(payload.path.iterdir()):
        head = path.read_bytes()[:2]
        copy = payload.path.parent / f"{path.name.lstrip('.')}{'.bin' if head == b'PK' else '.pkl'}"
        shutil.copyfile(path, copy)
        out.append(copy)
    return out


def show(rows: Sequence[Row], payloads: Sequence[Payload], real: dict[str, Path], *, missed: bool) -> None:
    print(f"{len(payloads)} payloads, each of which ran; {len(real)} real files\n")
    print(
        "| scanner | caught | asked | gave up | missed | false alarms | asked about real files | gave up on"
        " real files | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        p, r = Counter(row.payloads.values()), Counter(row.real.values())
        cells = (p["caught"], p["asked"], p["error"], p["missed"], r["caught"], r["asked"], r["error"])
        print(f"| {row.name} | {' | '.join(map(str, cells))} | {row.seconds:.1f} |")
    for row in rows if missed else ():
        print(
            f"\n{row.name} missed:"
            f" {', '.join(n for n, said in row.payloads.items() if said == 'missed') or 'nothing'}"
        )
        print(
            f"{row.name}, false alarms:"
            f" {', '.join(n for n, said in row.real.items() if said in ('caught', 'asked')) or 'none'}"
        )


if __name__ == "__main__":
    sys.exit(main())
