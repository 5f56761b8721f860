"""Every single bit of small checksummed files flipped in turn, in process: how many flips are seen, per file.

    python benchmarks/flips.py [--limit 2048] [--format torch_zip]

Prints seen / all and, for what is not seen, the byte offsets: tests/test_formats.py names why those change nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from ckpt_tools.formats import BY_NAME, Anatomy  # noqa: E402
from tests.helpers import is_bad, look  # noqa: E402  # found beside this folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=2048, help="only files of at most this many bytes")
    parser.add_argument("--format", action="append", help="only this format; may be repeated")
    options = parser.parse_args()
    for path in sorted((ROOT / "fixtures" / "formats").glob("*/good/*")):
        fmt, data = BY_NAME[path.parent.parent.name], bytearray(path.read_bytes())
        if len(data) > options.limit or (options.format and fmt.name not in options.format):
            continue
        anatomy = Anatomy()
        if any(f.code in ("not-checksummed", "needs-key") for f in look(bytes(data), fmt, anatomy)) or not anatomy.sums:
            continue
        started, missed = time.perf_counter(), []
        for bit in range(8 * len(data)):
            data[bit // 8] ^= 1 << bit % 8
            if not is_bad(bytes(data), fmt):
                missed.append(bit // 8)
            data[bit // 8] ^= 1 << bit % 8
        seen = 8 * len(data) - len(missed)
        where = f"  not seen in bytes {sorted(set(missed))}" if missed else ""
        print(f"{fmt.name:16} {path.name:32} {seen:6}/{8 * len(data):<6} {time.perf_counter() - started:6.1f} s{where}", flush=True)


if __name__ == "__main__":
    main()
