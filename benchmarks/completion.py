"""Completion: what Tab costs, whole processes, against the completion of an empty typer app, and of one shell.

    python benchmarks/completion.py [--runs 21]

Goal: each kind of answer below 100 ms.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from _race import arguments, ckpt, race, show

SAVES = 2_000


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(runs=21)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        for step in range(SAVES):
            os.makedirs(os.path.join(directory, "runs", f"run-{step % 10}", f"step_{step}"))
        empty = os.path.join(directory, "empty.py")
        with open(empty, "w") as f:
            f.write(
                "import typer\napp = typer.Typer()\n@app.command()\ndef main(level: str = ''): pass\napp(prog_name='empty')\n"
            )
        root, asked = os.path.join(directory, "runs"), ["env", "_CKPT_COMPLETE=zsh", ckpt()]
        rivals = {
            "finding codes": [*asked, "explain", ""],
            "flags of plan": [*asked, "plan", "--"],
            f"steps below a directory of {SAVES:,} saves": [*asked, "ls", root, "--max-step", ""],
            "runs there": [*asked, "ls", root, "--run", ""],
            "an empty typer app's flags": [
                "env", "_EMPTY_COMPLETE=complete_zsh", "_TYPER_COMPLETE_ARGS=empty --", sys.executable, empty,
            ],
            "ckpt --help, which imports all commands": [ckpt(), "--help"],
        }  # fmt: skip
        results = race(rivals, options.runs)
        show("what Tab costs", results, "finding codes", {}, options.json)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
