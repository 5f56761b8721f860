"""Whole-process timings of rivals in turn (A B C, A B C, …), so that drift of the machine hits all alike.
Standard library only.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

os.environ["CKPT_CACHE_DIR"] = tempfile.mkdtemp(prefix="ckpt-bench-")  # not the user's own
atexit.register(shutil.rmtree, os.environ["CKPT_CACHE_DIR"], ignore_errors=True)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each rival")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def other(name: str, given: str | None) -> str | None:
    """An interpreter that has a rival's package: the one given (``--python-NAME``), else this one if it has
    it.
    """
    import importlib.util

    return given or (sys.executable if importlib.util.find_spec(name) else None)


def once(command: Sequence[str], env: dict[str, str] | None = None) -> tuple[float, int, int]:
    """(wall seconds, peak RSS in bytes, exit code) of one process."""
    env = {
        k: v for k, v in (env or os.environ).items() if k != "PYTHONDONTWRITEBYTECODE"
    }  # installed packages have their byte code
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - started, usage.ru_maxrss * 1024, process.returncode


def race(rivals: dict[str, Sequence[str]], runs: int) -> dict[str, dict[str, float]]:
    """Median and best seconds and peak RSS of every rival, after one warm-up run each. Raises SystemExit when
    one cannot run.
    """
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    peak = dict.fromkeys(rivals, 0)
    for turn in range(runs + 1):
        for name, command in rivals.items():
            took, rss, code = once(command)
            if code != 0:
                raise SystemExit(f"{name} ended with {code}: {' '.join(command)}")
            if turn:
                seconds[name].append(took)
                peak[name] = max(peak[name], rss)
    return {
        n: {"median": statistics.median(s), "best": min(s), "rss_mb": peak[n] / 1e6}
        for n, s in seconds.items()
    }


def show(
    title: str,
    results: dict[str, dict[str, float]],
    ours: str,
    goals: dict[str, str],
    as_json: bool,
    **facts: object,
) -> None:
    """Print every rival with its ratio to ours (rival's median / our median) and the goal set for it."""
    base = results[ours]["median"]
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    if as_json:
        ratios = {n: r["median"] / base for n, r in results.items()}
        print(
            json.dumps(
                {
                    "title": title,
                    "machine": machine,
                    "results": results,
                    "ratio": ratios,
                    "goals": goals,
                    **facts,
                }
            )
        )
        return
    print(f"{title}   [{machine}]")
    for name, r in results.items():
        ratio = f"{r['median'] / base:7.2f}x" if name != ours else "   ours "
        print(
            f"  {name:40} {r['median']:8.3f} s  best {r['best']:8.3f} s  {r['rss_mb']:7.0f} MB  {ratio} "
            f" {goals.get(name, '')}"
        )
    for key, value in facts.items():
        print(f"  {key}: {value}")


def ckpt() -> str:
    """The command next to this interpreter, so that the installed package is what is measured."""
    beside = os.path.join(os.path.dirname(sys.executable), "ckpt")
    if not os.path.exists(beside):
        raise SystemExit("install the package into this environment first: pip install -e '.[test]'")
    return beside
