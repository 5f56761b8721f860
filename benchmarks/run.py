"""All benchmarks of this directory in one go: a table, JSON, and the generated part of docs/benchmarks.md
with its two pictures.

    python benchmarks/run.py [--small] [--only NAME …] [--runs N] [--json FILE] [--write-docs] [--from FILE]
                             [--python-model-signing PYTHON] [--python-mindspore PYTHON] [--python-tensorflow
                             PYTHON]

Each line is measured together with its rivals, in turn; medians are quoted, with the best beside them.
--small needs minutes on 2 CPUs: smaller files, and goals that were set for large ones are reached less often,
because what is left is start-up. Rivals that are not installed are left out and said so; packages that do not
go together with ours have interpreters of their own. --from reads the JSON of an earlier run instead of
measuring.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from plots import pictures

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(os.path.dirname(HERE), "docs")
LINES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "startup": ("startup.py", ("--runs", "15"), ("--runs", "7")),
    "hook": ("hook.py", ("--runs", "15"), ("--runs", "7")),
    "verify": ("verify_file.py", ("--gib", "4"), ("--gib", "0.5")),
    "io": ("io.py", ("--gib", "4"), ("--gib", "0.5")),
    "small": ("small_files.py", (), ("--files", "300", "--runs", "3")),
    "show": ("show_file.py", ("--gib", "4"), ("--gib", "0.5")),
    "sizes": ("sizes.py", ("--gib", "4", "--sparse", "16"), ("--gib", "0.25", "--sparse", "2")),
    "digests": ("digests.py", ("--gib", "4"), ("--gib", "1")),
    "frameworks": ("other_frameworks.py", ("--gib", "4"), ("--gib", "0.5")),
    "values": ("values.py", ("--gib", "2"), ("--gib", "0.25")),
    "listing": ("listing.py", (), ("--ranks", "256")),
    "planning": ("planning.py", (), ("--ranks", "256")),
    "slow": ("slow_files.py", ("--runs", "1"), ("--ranks", "64", "--runs", "3")),
    "growth": ("planning.py", ("--growth",), ("--growth", "--small")),
    "many": ("many.py", (), ("--files", "4", "--mib", "128", "--rate", "200", "--runs", "3")),
    "agreement": ("agreement.py", (), ("--runs", "3")),
}
"""Name -> script, its arguments, and those for --small."""
OTHERS = {"digests": ("model-signing",), "frameworks": ("mindspore", "tensorflow")}
BEGIN, END = "<!-- run -->", "<!-- /run -->"
EXPLAINS_ANOTHER = re.compile(r"(empty typer app|true|import \w+|  loading for it.*|.*, start)")
"""Names of what only explains another line; the page leaves them out where they have no goal."""


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was."""
    try:
        with open("/proc/cpuinfo") as f:
            model = next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), "")
    except OSError:
        model = ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    about = {
        "cpu": model or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gib": round(memory),
        "system": f"{platform.system()} {platform.release()}",
    }
    versions = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m; print(*(f'{p} {m.version(p)}' for p in ('ckpt-tools', 'torch', 'typer')), sep=', ')"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        **about,
        "python": platform.python_version(),
        "versions": versions,
        "load": [round(x, 1) for x in os.getloadavg()],
    }


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What one script says, a JSON object per line; what went wrong where it says nothing."""
    script, full, small = LINES[name]
    given = list(small if options.small else full)
    if options.runs:
        given = [
            *(given[: given.index("--runs")] if "--runs" in given else given),
            "--runs",
            str(options.runs),
        ]
    for rival in OTHERS.get(name, ()):
        if python := getattr(options, f"python_{rival.replace('-', '_')}"):
            given += [f"--python-{rival}", python]
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, script), *given, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    left = [line for line in done.stderr.splitlines() if "left out" in line]
    if done.returncode or not lines:
        yield {
            "line": name,
            "title": name,
            "failed": (done.stderr or done.stdout).strip()[-500:] or f"exit {done.returncode}",
        }
    for said in lines:
        yield {
            "line": name,
            "load": round(os.getloadavg()[0], 1),
            **({"left_out": left} if left else {}),
            **said,
        }


def reached(goal: str, ratio: float, result: dict[str, float]) -> bool | None:
    """Whether a goal in words ("goal 4x", "goal above 5x", "under 100 MB") is reached; None when it says
    nothing of that kind.
    """
    if m := re.search(r"([\d.]+)x", goal):
        return ratio >= float(m[1])
    if m := re.search(r"under ([\d.]+) (MB|s)", goal):
        return result["rss_mb" if m[2] == "MB" else "median"] < float(m[1])
    return None


def table(said: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """(work, who, median, best, memory, ratio, goal) of every rival of one line."""
    for i, (name, r) in enumerate(said.get("results", {}).items()):
        ratio, goal = said["ratio"][name], said.get("goals", {}).get(name, "")
        if not goal and EXPLAINS_ANOTHER.fullmatch(name):
            continue
        ok = reached(goal, ratio, r)
        verdict = "" if ok is None else ": yes" if ok else ": **no**"
        memory = f"{r['rss_mb']:,.0f} MB" if r["rss_mb"] else ""
        goal = re.sub("^goal:? ?", "", goal)
        yield (
            said["title"] if not i else "",
            name,
            f"{r['median']:.3f} s",
            f"{r['best']:.3f} s",
            memory,
            f"{ratio:.2f}x",
            goal + verdict,
        )


def growth(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How much longer each ten times as many files take."""
    runs = [said for said in lines if said["line"] == "growth" and "results" in said]
    times = [(said["title"], said["results"]["ckpt plan"]["median"]) for said in runs]
    return [
        f"{b[0]}: {b[1] / a[1]:.1f} times as long as {a[0]} (goal: at most 11 times)"
        for a, b in pairwise(times)
    ]


def facts(said: dict[str, Any]) -> str:
    """What a line says besides its times."""
    known = ("line", "title", "machine", "results", "ratio", "goals", "load", "sizes", "failed")
    return "; ".join(f"{k.replace('_', ' ')}: {v}" for k, v in said.items() if k not in known)


def page(run: dict[str, Any]) -> str:
    """The generated part of docs/benchmarks.md."""
    about = run["machine"]
    where = (
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gib']} GiB, {about['system']}; Python"
        f" {about['python']}, {about['versions']}"
    )
    out = [
        (
            f"`python benchmarks/run.py{' --small' if run['small'] else ''} --write-docs`, {run['date']}:"
            f" {where}; load average {about['load'][0]} at the start, {run['load_after'][0]} at the end."
        ),
        (
            "Times are medians of whole processes unless the script says otherwise; the ratio is the median /"
            " our median, so above 1 is slower than ours."
        ),
        "",
        "| work | who | median | best | memory | ratio | goal, reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for said in run["lines"]:
        out += ("| " + " | ".join(row) + " |" for row in table(said))
    notes = [
        *growth(run["lines"]),
        *(f"{said['title']}: {told}" for said in run["lines"] if (told := facts(said))),
    ]
    notes += (f"{said['line']} failed: {said['failed']}" for said in run["lines"] if "failed" in said)
    out += ["", *(f"- {note}" for note in notes)]
    if any("sizes" in said for said in run["lines"]):
        out += [
            "",
            "![throughput by file size](throughput.svg)",
            "",
            "![peak memory by file size](memory.svg)",
        ]
    return "\n".join(out)


def write_docs(run: dict[str, Any]) -> None:
    """The generated part of docs/benchmarks.md, and the pictures beside it."""
    path = os.path.join(DOCS, "benchmarks.md")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    before, found, rest = text.partition(BEGIN)
    if not found:
        raise SystemExit(f"{path} has no {BEGIN}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{before}{BEGIN}\n{page(run)}\n{END}{rest.partition(END)[2]}")
    for name, picture in pictures(run["lines"]).items():
        with open(os.path.join(DOCS, name), "w", encoding="utf-8") as f:
            f.write(picture)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="minutes on 2 CPUs")
    parser.add_argument(
        "--only", nargs="+", choices=list(LINES), metavar="NAME", help=f"of {', '.join(LINES)}"
    )
    parser.add_argument(
        "--runs", type=int, help="counted runs of each rival, in place of each script's own number"
    )
    parser.add_argument("--json", metavar="FILE", help="keep all that was measured")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="replace the generated part of docs/benchmarks.md and its pictures",
    )
    parser.add_argument(
        "--from", dest="earlier", metavar="FILE", help="the JSON of an earlier run, instead of measuring"
    )
    for rivals in OTHERS.values():
        for rival in rivals:
            parser.add_argument(
                f"--python-{rival}", metavar="PYTHON", help=f"an interpreter that has {rival}"
            )
    options = parser.parse_args()
    if options.earlier:
        with open(options.earlier, encoding="utf-8") as f:
            run = json.load(f)
    else:
        run = {"date": time.strftime("%Y-%m-%d"), "small": options.small, "machine": machine(), "lines": []}
        for name in options.only or LINES:
            for said in measure(name, options):
                run["lines"].append(said)
                for row in table(said):
                    print(
                        f"{row[0][:44]:44} {row[1][:44]:44} {row[2]:>10} best {row[3]:>10} {row[4]:>9}"
                        f" {row[5]:>8}  {row[6]} {row[7]}",
                        flush=True,
                    )
                if note := said.get("failed") or facts(said):
                    print(f"  {said['title']}: {note}", flush=True)
        print(*growth(run["lines"]), sep="\n")
        run["load_after"] = [round(x, 1) for x in os.getloadavg()]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(run, f, indent=1)
    if options.write_docs:
        write_docs(run)


if __name__ == "__main__":
    main()
