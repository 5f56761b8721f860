"""Every single bit of sealed small files flipped in turn: how many flips ``ckpt verify`` does not see.

    python benchmarks/sealed_flips.py [--limit 4096] [--format torch_zip] [--jobs 2]

The good fixtures of every format are copied, sealed, and verified at level content after each flip, with
their times as they were. Prints one JSON object; exit 1 if a flip was not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

FORMATS = ROOT / "fixtures" / "formats"
SHARED_MEMORY = Path("/dev/shm")


class Flipped(NamedTuple):
    """What became of the flips of one fixture: ``missed`` are (file, bit)."""

    fixture: str
    files: int
    flips: int
    missed: list[tuple[str, int]]


def fixtures(formats: list[str]) -> Iterator[Path]:
    """Good files and sets of files, but for seals themselves."""
    for path in sorted(FORMATS.glob("*/good/*")):
        name = path.relative_to(FORMATS).parts[0]
        if name != "seal" and (not formats or name in formats):
            yield path


def flipped(good: Path, limit: int) -> Flipped:
    """Seal a copy of a fixture, and flip each bit of its files of at most ``limit`` bytes."""
    from ckpt_tools import guard

    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as scratch:
        home = Path(scratch) / "run"
        home.mkdir()
        copy = shutil.copytree if good.is_dir() else shutil.copy2
        copy(good, home / good.name)
        seals = [Path(o.seal) for o in guard.seal(home, settle=0).checkpoints if o.state == "sealed"]
        files, flips, missed = 0, 0, list[tuple[str, int]]()
        for path, claims in small_files(seals, limit):
            files, flips = files + 1, flips + 8 * path.stat().st_size
            missed += [(path.name, bit) for bit in unseen(path, claims)]
        return Flipped(str(good.relative_to(FORMATS)), files, flips, missed)


def small_files(seals: list[Path], limit: int) -> Iterator[tuple[Path, tuple[object, ...]]]:
    """Every file that a seal names, once, with what the seals say about it."""
    from ckpt_tools.formats.seals.document import find_base
    from ckpt_tools.inspection.indexes import Indexes

    bases = {str(seal): find_base(str(seal)) for seal in seals}
    indexes = Indexes((), bases)
    rows = [
        (find_base(str(seal)), row["path"]) for seal in seals for row in json.loads(seal.read_text())["files"]
    ]
    for path in {Path(base) / name: None for base, name in rows}:
        if 0 < path.stat().st_size <= limit:
            yield path, indexes.claims(str(path))


def unseen(path: Path, claims: tuple[object, ...]) -> Iterator[int]:
    """The bits of a file whose flip leaves it sound."""
    from ckpt_tools.inspection.check import inspect
    from ckpt_tools.model.finding import Verdict
    from ckpt_tools.model.report import Level

    whole, times = path.read_bytes(), path.stat()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        report, _ = inspect(str(path), Level.CONTENT, claims=claims)  # type: ignore[arg-type]
        if report.verdict is not Verdict.BROKEN:
            yield bit
    path.write_bytes(whole)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=4096, help="only files of at most this many bytes")
    parser.add_argument("--format", action="append", help="only this format; may be repeated")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    began, chosen = time.perf_counter(), list(fixtures(options.format or []))
    with ProcessPoolExecutor(options.jobs) as pool:
        done = list(pool.map(flipped, chosen, [options.limit] * len(chosen)))
    missed = {d.fixture: d.missed[:20] for d in done if d.missed}
    print(
        json.dumps(
            {
                "fixtures": len(done),
                "not_sealed": [d.fixture for d in done if not d.files],
                "files": sum(d.files for d in done),
                "flips": sum(d.flips for d in done),
                "undetected": sum(len(d.missed) for d in done),
                "missed": missed,
                "seconds": round(time.perf_counter() - began),
            },
            indent=1,
        )
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
