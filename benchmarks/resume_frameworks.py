"""Whether real frameworks resume from what ``ckpt_tools.integrations`` hands them, where their own pick is damaged.

    python benchmarks/resume_frameworks.py [--environments DIR] [RUN …]    # benchmarks/resume_runs/<environment>/<run>.py

Each run trains in the environment of fixtures/make_real.py: first with nothing there, then from the checkpoint before the newest,
whose largest file was cut in half, and then with all of them damaged, which must be refused. Runs of two ranks must say the same on both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "fixtures")]

from make_real import ENVIRONMENTS_HOME, interpreter  # noqa: E402
from seal_frameworks import needed  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS_HOME, metavar="DIR")
    asked = parser.parse_args(arguments)
    print("| framework | no checkpoint | newest, damaged | resumed from | went on | all damaged |")
    print("|---|---|---|---|---|---|")
    failed = False
    for script in sorted(HERE.glob("resume_runs/*/*.py")):
        if asked.runs and script.stem not in asked.runs:
            continue
        python = interpreter(asked.environments, script.parent.name)
        env = os.environ | {
            "PYTHONPATH": f"{HERE.parent}:{HERE / 'resume_runs'}:{needed(python)}",
            "CKPT_NO_CACHE": "1",
        }
        with tempfile.TemporaryDirectory() as name:
            done = subprocess.run(
                [python, script, f"{name}/out"], env=env, capture_output=True, text=True, check=False
            )
        if done.returncode:
            sys.exit(f"{script}: {done.stderr[-3000:]}")
        said = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
        good = (
            said["first"]
            and said["went_on"]
            and said["own"] != said["resumed"]
            and said["refused"] == "NoneUsable"
        )
        failed |= not good
        print(
            f"| {said['by']} | {'starts' if said['first'] else 'NO'} | `{said['own']}` | `{said['resumed']}` "
            f"| {'yes' if said['went_on'] else 'NO'} | `{said['refused']}` |",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
