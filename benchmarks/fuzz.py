"""Coverage-guided fuzzing with atheris, in process, of whatever ckpt reads: hostile bytes must give findings
or a clear error, quickly and in little memory.

    pip install atheris python benchmarks/fuzz.py torch_zip --seconds 600 --out found/ python
    benchmarks/fuzz.py --all --seconds 120                   # every target, two minutes in all python
    benchmarks/fuzz.py --list python benchmarks/fuzz.py torch_zip --replay found/crash-*      # without
    instrumentation: milliseconds, memory, what was raised

A target is a format, or something else that another user may have written: a decision, a ckpt.toml, a
template of a layout, a fault file, trackers, strategy files, records of the cache, the
names in a tree. Without atheris a mutator that knows nothing of coverage takes its place, and the result says
so.

Every input goes through the structure check, the stored checksums and the byte map; for a format whose
fixtures are sets also through what the index of each good set says about its members, and what the input
itself says, as an index, about good members.
Prints one JSON object. An input that raises, takes more than 2 s or grows the process past 300 MB is
minimised and written to --out; exit 1.
So does a process that died ("deaths"): memory that inputs leave behind shows only there.
Put what it finds into fixtures/fuzz/<target>/ under a name that says what went wrong: the tests replay it for
ever (64 KiB at most).
The seeds are fixtures/formats/<name>/ and what failed before; the mutator is libFuzzer's, which knows no
format, plus splices of seeds. The last sixth of the time goes to inputs of up to 1 MiB: pieces of what was
found, repeated, without instrumentation.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from _target import Target, every, seeds, target, where  # imports the package only when called

SLOW = 2.0
"""CPU seconds that no input under 1 MiB may take."""
HUGE = 300 * 1000 * 1000
"""Bytes that the process may never hold."""
LONGEST = 1 << 20
SHORT = 1 << 16
"""Bytes of what the fuzzer makes itself; longer inputs are made of these afterwards, without instrumentation.
"""
KEPT = 8
"""Slow or large inputs that are kept."""


class Watch:
    """Runs the target on one input after another and writes down what is wrong with it; ``out`` is where,
    ``phase`` names the slowest one.
    """

    def __init__(self, run: Target, out: Path, phase: str) -> None:
        run(b"")  # what is imported on first use does not count
        self.run, self.out, self.phase, self.executions, self.slowest = run, out, phase, 0, 0.0
        self.sizes: dict[str, int] = {}
        self.began = self.told = time.monotonic()

    def keep(self, kind: str, what: str, data: bytes) -> None:
        what = f"{kind}-{what}"
        if kind != "crash" and sum(1 for p in self.out.glob(f"{kind}-*")) >= KEPT:
            return
        if len(data) < self.sizes.get(what, LONGEST + 1):
            self.sizes[what] = len(data)
            (self.out / what).write_bytes(data)

    def __call__(self, data: bytes) -> None:
        self.executions += 1
        peak, began, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), None
        try:
            cpu = self.run(data)
        except Exception as e:
            self.keep("crash", where(e), data)
        cpu = time.process_time() - began if cpu is None else cpu
        if cpu > self.slowest:
            self.slowest = cpu
            (self.out / f"slowest-{self.phase}").write_bytes(data)
        if cpu > SLOW:
            self.keep("slow", hashlib.sha256(data).hexdigest()[:8], data)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        if grown > 32 * 1024:
            self.keep("memory", hashlib.sha256(data).hexdigest()[:8], data)
        if time.monotonic() > self.told + 1:
            self.tell()

    def tell(self) -> None:
        self.told = time.monotonic()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        stats = {
            "executions": self.executions,
            "seconds": self.told - self.began,
            "slowest_ms": self.slowest * 1000,
            "rss": peak,
        }
        (self.out / "stats.json").write_text(json.dumps(stats))


def mutator(known: list[bytes]) -> Callable[[bytes, int, int], bytes]:
    import atheris

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        r = random.Random(seed)
        if r.randrange(12) == 0:
            other, at = r.choice(known), r.randrange(len(data) + 1)
            start = r.randrange(len(other) + 1)
            piece = other[start : start + (1 << r.randrange(12))]
            return (data[:at] + piece + data[at + r.choice((0, len(piece))) :])[:max_size]
        return bytes(atheris.Mutate(data, min(max_size, max(4096, 2 * len(data)))))

    return mutate


def repeated(data: bytes, r: random.Random) -> bytes:
    """One piece many times over, up to LONGEST bytes: what is quadratic shows."""
    at = r.randrange(len(data) + 1)
    piece = data[at : at + r.choice((1, 2, 4, 8, 16, 32, 64, 256, 4096))] or b"\0"
    return (data[:at] + piece * (r.choice((1 << 14, 1 << 17, LONGEST)) // len(piece)) + data[at:])[:LONGEST]


def grow(name: str, corpus: Path, out: Path, seconds: int) -> None:
    """Long inputs made of those that the fuzzer found worth keeping."""
    watch, r, end = Watch(target(name), out, "grown"), random.Random(1), time.monotonic() + seconds
    found = [p.read_bytes() for p in sorted(corpus.iterdir())]
    while time.monotonic() < end:
        watch(repeated(r.choice(found), r))
    watch.tell()


def blind(name: str, corpus: Path, out: Path, seconds: int) -> None:
    """Where atheris cannot be had: splices, flips and cuts of seeds, in the same order each time."""
    watch, r, end = Watch(target(name), out, "fuzzed"), random.Random(1), time.monotonic() + seconds
    known = [p.read_bytes() for p in sorted(corpus.iterdir())]
    while time.monotonic() < end:
        watch(spliced(known, r))
    watch.tell()


def spliced(known: Sequence[bytes], r: random.Random) -> bytes:
    """The beginning of one input, the end of another, and some other bytes in between."""
    a, b = r.choice(known), r.choice(known)
    data = bytearray((a[: r.randrange(len(a) + 1)] + b[r.randrange(len(b) + 1) :])[:SHORT])
    for _ in range(r.choice((0, 0, 1, 2, 8))):
        if data:
            data[r.randrange(len(data))] = r.choice((0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)))
    return bytes(data)


def fuzz(name: str, corpus: Path, out: Path, seconds: int) -> None:
    """The process that is fuzzed; libFuzzer ends it."""
    began = time.monotonic()
    try:
        import atheris
    except ImportError:
        blind(name, corpus, out, seconds)
        return
    known = seeds(name)
    for module in [m for m in sys.modules if m.partition(".")[0] == "ckpt_tools"]:
        del sys.modules[module]  # imported to list the targets, and instrumented only when imported anew
    with atheris.instrument_imports(include=["ckpt_tools"]):
        watch = Watch(target(name), out, "fuzzed")
        for data in known:  # what is imported only for such a file is instrumented, too
            watch(data)
    seconds = max(1, seconds - int(time.monotonic() - began))  # instrumenting took some of them
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={SHORT}",
        "-len_control=0",
        "-timeout=60",
        "-rss_limit_mb=1500",
        f"-artifact_prefix={out}/",
    ]
    atheris.Setup(
        [sys.argv[0], *flags, "-print_final_stats=1", str(corpus)], watch, custom_mutator=mutator(known)
    )
    atheris.Fuzz()


def replay(name: str, path: str) -> dict[str, object]:
    """One input, without instrumentation, in this process."""
    run, data = target(name), Path(path).read_bytes()
    run(b"")  # what is imported on first use does not count
    before, began, raised = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), ""
    cpu = None
    try:
        cpu = run(data)
    except Exception as e:
        raised = f"{where(e)}: {e}"[:300]
    cpu = time.process_time() - began if cpu is None else cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "size": len(data),
        "ms": round(cpu * 1000, 1),
        "rss_mb": round(peak / 1000),
        "grown_mb": round((peak - before) / 1000),
        "raised": raised,
    }


def replayed(name: str, path: Path) -> dict[str, object]:
    """The same in a process of its own, which a crash or a hang may take along."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, name, "--replay", str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return dict(json.loads(done.stdout)[str(path)])
    except (subprocess.TimeoutExpired, ValueError) as e:
        return {
            "size": path.stat().st_size,
            "ms": 120000.0,
            "rss_mb": 0,
            "grown_mb": 0,
            "raised": f"died: {type(e).__name__}",
        }


def minimised(data: bytes, same: Callable[[bytes], bool], seconds: float = 20) -> bytes:
    """Pieces taken out, halving their size, for as long as the defect stays."""
    size, end = len(data) // 2, time.monotonic() + seconds
    while size:
        at = 0
        while at < len(data) and time.monotonic() < end:
            shorter = data[:at] + data[at + size :]
            if same(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def shrink(name: str, path: Path) -> None:
    run = target(name)

    def raised(data: bytes) -> str:
        with contextlib.suppress(RecursionError):
            try:
                run(data)
            except Exception as e:
                return where(e)
        return ""

    first = raised(path.read_bytes())
    if first:
        path.write_bytes(minimised(path.read_bytes(), lambda data: raised(data) == first))


def campaign(name: str, seconds: int, out: Path, keep: Path | None = None) -> dict[str, object]:
    """Fuzz for so long, starting again when an input takes the process along; then look at what was kept
    without instrumentation.

    ``keep`` is a directory for inputs that reached something new, from this run to the next.
    """
    out.mkdir(parents=True, exist_ok=True)
    total, end, coverage, peak, deaths, spent = 0, time.monotonic() + seconds, 0, 0, 0, 0.0
    with tempfile.TemporaryDirectory() as scratch:
        corpus = keep / name if keep else Path(scratch)
        corpus.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(seeds(name)):
            (corpus / f"seed-{i}").write_bytes(data[:SHORT])
        while (left := int(end - time.monotonic())) > 1:
            (out / "stats.json").unlink(missing_ok=True)
            growing = left <= seconds // 6
            command = [
                sys.executable,
                __file__,
                name,
                "--grow" if growing else "--child",
                str(corpus),
                "--out",
                str(out),
            ]
            command += ["--seconds", str(left if growing else left - seconds // 6)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if not (out / "stats.json").exists():
                raise SystemExit(f"the fuzzer did not start:\n{done.stderr[-2000:]}")
            stats = json.loads((out / "stats.json").read_text())
            total, spent, peak = (
                total + stats["executions"],
                spent + stats["seconds"],
                max(peak, stats["rss"]),
            )
            deaths += done.returncode != 0
            coverage = max([coverage, *(int(c) for c in re.findall(r"cov: (\d+)", done.stderr))])
        corpus_size = sum(1 for _ in corpus.iterdir())
    (out / "stats.json").unlink()
    defects, slowest, memory = {}, {"ms": 0.0}, 0
    for path in sorted(out.iterdir()):
        seen = replayed(name, path)
        if seen["raised"] and not path.name.startswith("slowest"):
            shrink(name, path)
            seen = replayed(name, path)
        slowest = max(slowest, seen, key=lambda s: s["ms"])  # type: ignore[arg-type, return-value]
        memory = max(memory, int(str(seen["rss_mb"])))
        if seen["raised"] or float(str(seen["ms"])) > SLOW * 1000 or int(str(seen["rss_mb"])) * 1e6 > HUGE:
            defects[path.name] = seen
        else:
            path.unlink()  # slow or large only because of the instrumentation
    return {
        "format": name, "seconds": round(spent), "executions": total, "per_second": round(total / max(spent, 1)), "coverage": coverage, "corpus": corpus_size, "deaths": deaths,
        "crashes": sum(1 for d in defects.values() if d["raised"]), "slowest_ms": slowest["ms"], "slowest_size": slowest.get("size", 0), "peak_rss_mb": memory,
        "peak_rss_instrumented_mb": round(peak / 1e6), "defects": defects,
    }  # fmt: skip


def campaigns(seconds: int, out: Path, keep: Path | None) -> list[dict[str, object]]:
    """Every target for its share of the time, as many at once as there are CPUs."""
    names, workers = every(), len(os.sched_getaffinity(0))
    share = max(3, seconds * workers // len(names))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda name: campaign(name, share, out / name, keep), names))


def summed(results: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """What counts of all campaigns."""
    found = {r["format"]: list(r["defects"]) for r in results if r["defects"]}
    return {
        "targets": len(results), "executions": sum(r["executions"] for r in results), "deaths": sum(r["deaths"] for r in results),
        "guided": importlib.util.find_spec("atheris") is not None, "defects": found,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("format", nargs="?", metavar="TARGET")
    parser.add_argument("--all", action="store_true", help="every target; --seconds are for all together")
    parser.add_argument("--list", action="store_true", help="the names of the targets")
    parser.add_argument(
        "--corpus", type=Path, help="keep inputs that reached something new here, for the next run"
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--out", type=Path, help="where inputs that show a defect are written (default: fuzz-found/<format>)"
    )
    parser.add_argument("--replay", nargs="+", metavar="FILE")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--grow", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(every()))
        return 0
    if options.all:
        results = campaigns(options.seconds, options.out or Path("fuzz-found"), options.corpus)
        print(json.dumps({"total": summed(results), "each": results}, indent=1))
        return 1 if any(r["defects"] or r["deaths"] for r in results) else 0
    if options.format not in every():
        parser.error(f"there is no target {options.format!r}; --list names them")
    out = options.out or Path("fuzz-found") / options.format
    if options.replay:
        print(json.dumps({path: replay(options.format, path) for path in options.replay}, indent=1))
        return 0
    if options.grow:
        grow(options.format, options.grow, out, options.seconds)
        return 0
    if options.child:
        fuzz(options.format, options.child, out, options.seconds)
        return 0
    result = campaign(options.format, options.seconds, out, options.corpus)
    print(json.dumps(result, indent=1))
    return 1 if result["defects"] or result["deaths"] else 0


if __name__ == "__main__":
    sys.exit(main())
