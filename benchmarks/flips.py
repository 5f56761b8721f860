"""Every single bit of small good fixtures flipped in turn, in process: how many flips are seen, and what
becomes of those that are not.

    python benchmarks/flips.py [--limit 4096] [--format torch_zip] [--jobs 2]

A flip that is not seen must lie in bytes that the file's map (``--explain-bytes``) calls unprotected, or
leave a deflate stream that inflates to the same bytes. Any other is printed as UNDETECTED, and the exit code
is 1. Files of a set are flipped one at a time beside the others, undamaged, with what their index says about
them.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests" / "support"))  # last: its small_files is another

from helpers import Fixture  # noqa: E402
from places import FORMAT_FILES  # noqa: E402

from ckpt_tools.checksum import Deflated  # noqa: E402
from ckpt_tools.model.report import Guard  # noqa: E402

SAME = "bits of a deflate stream that inflates to the same bytes"


class Flipped(NamedTuple):
    """What became of the 8 x size flips of one file: ``harmless`` by the name of their bytes, ``missed``
    (byte, bit).
    """

    format: str
    name: str
    flips: int
    seen: int
    checksummed: int
    structure: int
    harmless: dict[str, int]
    missed: list[tuple[int, int]]
    seconds: float


def inflated(data: bytes | bytearray, p: Deflated) -> bytes | None:
    try:
        return zlib.decompress(bytes(data[p.offset : p.offset + p.length]), -15)
    except zlib.error:
        return None


def flipped(path: Path) -> Flipped:
    good, started = Fixture(path), time.perf_counter()
    anatomy, _ = good.anatomy()
    packed = [p for s in anatomy.sums for p in s.pieces if isinstance(p, Deflated)]
    data, seen, harmless, missed, bytes_of = (
        bytearray(good.data),
        0,
        Counter[str](),
        list[tuple[int, int]](),
        Counter[Guard](),
    )
    for r in good.regions():
        bytes_of[r.guard] += r.length
        for i in range(r.offset, r.offset + r.length):
            for bit in range(8):
                data[i] ^= 1 << bit
                if good.notices(bytes(data)):
                    seen += 1
                elif any(
                    p.offset <= i < p.offset + p.length and inflated(data, p) == inflated(good.data, p)
                    for p in packed
                ):
                    harmless[SAME] += 1
                elif r.guard is Guard.UNPROTECTED and r.what != "unexplained":
                    harmless[r.what] += 1
                else:
                    missed.append((i, bit))
                data[i] ^= 1 << bit
    return Flipped(
        good.format_of(good.own).name, good.name.split("/good/")[1], 8 * len(data), seen, bytes_of[Guard.CHECKSUM], bytes_of[Guard.STRUCTURE],
        dict(harmless.most_common()), missed, time.perf_counter() - started,
    )  # fmt: skip


def paths(limit: int, formats: list[str]) -> Iterator[Path]:
    for path in sorted(FORMAT_FILES.glob("*/good/**/*")):
        if (
            path.is_file()
            and 0 < path.stat().st_size <= limit
            and (not formats or path.relative_to(FORMAT_FILES).parts[0] in formats)
        ):
            yield path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=4096, help="only files of at most this many bytes")
    parser.add_argument("--format", action="append", help="only this format; may be repeated")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="a row per format instead of a line per file")
    options = parser.parse_args()
    done: list[Flipped] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for f in pool.map(flipped, paths(options.limit, options.format or [])):
            done.append(f)
            if not options.markdown:
                parts = [
                    f"{f.seen:6}/{f.flips:<6} seen",
                    *(f"{n} harmless: {what}" for what, n in f.harmless.items()),
                ]
                parts += [f"{len(f.missed)} UNDETECTED at (byte, bit) {f.missed[:20]}"] if f.missed else []
                print(f"{f.format:20} {f.name:40} {f.seconds:6.1f} s  {'; '.join(parts)}", flush=True)
    if options.markdown:
        print(
            "| format | files | flips | seen | in bytes called unprotected | undetected elsewhere"
            " |\n|---|---|---|---|---|---|"
        )
        for name, group in groupby(sorted(done), key=lambda f: f.format):
            g = list(group)
            why = Counter[str]()
            for f in g:
                why.update(f.harmless)
            said = "; ".join(f"{n:,} {what}" for what, n in why.most_common(6)) + (
                "; …" if len(why) > 6 else ""
            )
            missed = sum(len(f.missed) for f in g)
            print(
                f"| {name} | {len(g)} | {sum(f.flips for f in g):,} | {sum(f.seen for f in g):,} | {said} |"
                f" {missed} |"
            )
    return 1 if any(f.missed for f in done) else 0


if __name__ == "__main__":
    sys.exit(main())
