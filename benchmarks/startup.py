"""Start-up: ckpt latest --rank 0 on a tree of 8 small files against an empty typer app and an import of
torch, whole processes.

    python benchmarks/startup.py [--runs 21]

Goals: under 0.2 times the import of torch (ratio above 5); torch, numpy, rich and fsspec stay out of sys.modules. Where the time of one run says little,
"valgrind --tool=cachegrind --cache-sim=no" counts the instructions of each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

from _race import arguments, ckpt, race, show

FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
PROBE = """
import sys
from ckpt_tools.cli import execute
assert not execute(["latest", sys.argv[1], "--rank", "0"])
print("modules:", sum(m.startswith("ckpt_tools") for m in sys.modules), file=sys.stderr)
print("loaded:", *(m for m in ("torch", "numpy", "rich", "fsspec") if m in sys.modules), file=sys.stderr)
"""


def tree(directory: str) -> None:
    """Eight small real files: two ranks, four steps."""
    source = os.path.join(FIXTURES, "layouts", "mindspore", "resnet", "tree", "output")
    for rank in (0, 1):
        os.makedirs(os.path.join(directory, f"ckpt_{rank}"))
        for i, name in enumerate(
            ("resnet-1_2.ckpt", "resnet-1_4.ckpt", "resnet-2_3.ckpt", "resnet-2_5.ckpt")
        ):
            to = os.path.join(directory, f"ckpt_{rank}", name)
            shutil.copyfile(os.path.join(source, f"ckpt_{rank}", name), to)
            os.utime(to, (1_700_000_000 + i, 1_700_000_000 + i))


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(runs=21)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        os.chdir(directory)  # no configuration of this directory is read
        root, empty = os.path.join(directory, "run"), os.path.join(directory, "empty.py")
        tree(root)
        with open(empty, "w") as f:
            f.write("import typer\napp = typer.Typer()\n@app.command()\ndef main(): pass\napp()\n")
        rivals = {
            "ckpt latest --rank 0": [ckpt(), "latest", root, "--rank", "0"],
            "empty typer app": [sys.executable, empty],
            "import torch": [sys.executable, "-c", "import torch"],
        }
        results = race(rivals, options.runs)
        probe = subprocess.run(
            [sys.executable, "-c", PROBE, root], capture_output=True, text=True, check=True
        )
        goals = {"import torch": "goal above 5x"}
        show(
            "start-up on 8 small files",
            results,
            "ckpt latest --rank 0",
            goals,
            options.json,
            own_modules_loaded=int(probe.stderr.rpartition("modules:")[2].split()[0]),
            heavy_modules_loaded=probe.stderr.rpartition("loaded:")[2].split(),
        )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
