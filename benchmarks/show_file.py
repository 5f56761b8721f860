"""What is in one large torch file: ckpt show against torch.load(mmap=True), whole processes, and the bytes
that ckpt reads of it.

    python benchmarks/show_file.py [--gib 4] [--runs 5]

Goals: less than 1 MiB read besides the pickle, torch.load(mmap=True) 8x slower.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from _race import arguments, ckpt, race, show
from verify_file import MAKE


def below(root: str, call: list[str], env: dict[str, str], log: str) -> int | None:
    """Bytes that the system delivered from files below ``root``; None without strace."""
    if shutil.which("strace") is None:
        return None
    subprocess.run(
        ["strace", "-f", "-y", "-e", "trace=read,pread64,preadv,preadv2", "-o", log, *call],
        env=env,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    with open(log, encoding="utf-8", errors="replace") as f:
        rows = [re.search(r"\(\d+<([^>]*)>.*= (\d+)$", line) for line in f]
    return sum(int(row[2]) for row in rows if row and row[1].startswith(root + "/"))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    options = parser.parse_args()
    directory = os.path.realpath(tempfile.mkdtemp(prefix="ckpt-bench-"))
    try:
        path = os.path.join(directory, "model.pt")
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", MAKE, path, str(options.gib))
        rivals = {
            "ckpt show": [ckpt(), "show", path],
            "torch.load(mmap=True)": [
                sys.executable,
                "-c",
                f"import torch; torch.load({path!r}, mmap=True, weights_only=True)",
            ],
            "import torch": [sys.executable, "-c", "import torch"],
        }
        results = race(rivals, options.runs)
        read = below(directory, rivals["ckpt show"], dict(os.environ), os.path.join(directory, "strace.log"))
        with zipfile.ZipFile(path) as z:
            pickle = next(i.file_size for i in z.infolist() if i.filename.endswith("data.pkl"))
        show(
            f"show a torch file of {os.path.getsize(path) / 2**30:.2f} GiB",
            results,
            "ckpt show",
            {"torch.load(mmap=True)": "goal 8x"},
            options.json,
            bytes_read=(
                f"{'strace is not installed' if read is None else f'{read:,}'} (goal under 1,048,576 + the"
                f" pickle's {pickle:,})"
            ),
        )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
