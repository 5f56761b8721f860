"""How long one ``ckpt verify --scheduler`` takes on many nodes: what a unit of work costs, measured here, and
a simulation with it.

    python benchmarks/scale.py [--ranks 16384] [--tb 100] [--node-gbs 5] [--store-gbs 1000]

Measured: the structure of a torch file looked at by the asking process; a unit handed out, worked on and
taken back through a real Dask scheduler with two workers; and what the threads of a worker on this machine
read and check in a second, from the page cache. A node of the simulation reads as much, or --node-gbs where
its network gives less. Simulated: one asking process, one scheduler, ``--threads`` threads per node that
share ``--node-gbs``, all of them the store's ``--store-gbs``;
units take between 0.8 and 1.6 times their share. Beside it what the slowest of the parts alone would take:
the two must agree.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from many import Workers
from verify_file import MAKE

from ckpt_tools.checksum.remote import Content
from ckpt_tools.inspection.check import Inspection
from ckpt_tools.model.report import Level
from ckpt_tools.reading import scheduler, work_units
from ckpt_tools.reading.engines import engine
from ckpt_tools.reading.worker import work
from ckpt_tools.settings.plugins import tool_version

NODES = (1, 4, 16, 64, 256, 1024)


def measured(directory: str, rounds: int = 1500) -> tuple[float, float, float]:
    """Seconds per file for its structure and its cut into ranges, and per unit for the whole way through
    Dask; bytes per second of this machine as a worker.
    """
    path = os.path.join(directory, "model.pt")
    os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", MAKE, path, "1")
    best = []
    for _ in range(7):
        started = time.perf_counter()
        steps = Inspection(path, Level.CONTENT).steps()
        source, sums, _ = next(steps)
        list(work_units.portions(Content(source.size, sums), work_units.UNIT, work_units.UNIT))
        best.append(time.perf_counter() - started)
        steps.close()
    workers = Workers(directory, 2, None)
    try:
        item = (
            "read",
            path,
            (("sum", 0, work_units.UNIT, ((0, work_units.UNIT),), None),) * 8,
            0,
            0,
        )  # another file by its size: opened, and not read
        with engine(f"file:{workers.file}") as found:
            assert found is not None
            for n in (50, rounds):  # the first for warmth
                started = time.perf_counter()
                for future in [found.executor.submit(work, tool_version(), (item,)) for _ in range(n)]:
                    future.result()
                each = (time.perf_counter() - started) / n
    finally:
        workers.close()
    return sorted(best)[len(best) // 2], each, node(path)


def node(path: str) -> float:
    """Bytes per second that a worker with a thread per CPU reads and checks here: whole files, each by one
    thread.
    """
    threads, looks = os.cpu_count() or 1, 4
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            started = time.perf_counter()
            asked = [
                pool.submit(
                    work, tool_version(), (("whole", path, int(Level.CONTENT), (), ("pread", None, ()), ()),)
                )
                for _ in range(threads * looks)
            ]
            wrong = [r[2] for f in asked if (r := f.result())[2]]
            assert not wrong, wrong
            rates.append(threads * looks * os.path.getsize(path) / (time.perf_counter() - started))
    return sorted(rates)[len(rates) // 2]


def simulated(
    files: int, size: float, structure: float, each: float, slots: int, rate: float, unit: int
) -> float:
    """Seconds until the last unit is back; ``rate`` in bytes per second and slot."""
    chance = random.Random(1)
    client, free, out = 0.0, [0.0] * slots, list[float]()
    end, window = 0.0, scheduler.AHEAD * max(2, slots)
    whole = size <= 2 * unit  # then a worker looks at the structure
    for _ in range(files):
        client += 0 if whole else structure
        left = size
        while left > 0:
            part = size if whole else min(left, unit)
            left -= part
            while len(out) >= window:
                client = max(client, heapq.heappop(out))
            client += each  # the asking process and the scheduler, as they were measured together
            begin = max(client, heapq.heappop(free))
            done = begin + part / rate * chance.uniform(0.8, 1.6)
            heapq.heappush(free, done)
            heapq.heappush(out, done)
            end = max(end, done)
    return end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("ranks", 16384),
        ("tb", 100.0),
        ("node-gbs", 0.0),
        ("store-gbs", 1000.0),
        ("threads", 8),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        structure, each, here = measured(directory)
    finally:
        shutil.rmtree(directory)
    options.node_gbs = min(options.node_gbs or here / 1e9, here / 1e9)
    total, size = options.tb * 1e12, options.tb * 1e12 / options.ranks
    rows = []
    for nodes in NODES:
        slots = nodes * options.threads
        unit = work_units.unit_of(int(total), slots)
        whole = size <= 2 * unit
        count = options.ranks * (1 if whole else -(-int(size) // unit))
        rate = min(options.node_gbs * 1e9 * nodes, options.store_gbs * 1e9) / slots
        alone = {
            "nodes": 1.2 * total / (options.node_gbs * 1e9 * nodes),
            "store": 1.2 * total / (options.store_gbs * 1e9),
            "asking": (0 if whole else options.ranks * structure) + count * each,
        }
        first = max(alone, key=alone.__getitem__)
        rows.append(
            {
                "nodes": nodes,
                "simulated": simulated(options.ranks, size, structure, each, slots, rate, unit),
                "units": count,
                "bound": alone[first],
                "by": first,
            }
        )
    facts = {
        "structure_ms": round(structure * 1e3, 2),
        "unit_ms": round(each * 1e3, 2),
        "worker_here_gbs": round(here / 1e9, 2),
        "node_gbs": round(options.node_gbs, 2),
        "files": options.ranks,
        "units": count,
        "load": os.getloadavg()[0],
    }
    if options.json:
        print(json.dumps({"title": "scale", **facts, "rows": rows}))
        return
    print(", ".join(f"{k} {v}" for k, v in facts.items()))
    for r in rows:
        print(
            f"  {r['nodes']:5} nodes  {r['units']:8,} units  simulated {r['simulated']:9.0f} s   bound"
            f" {r['bound']:9.0f} s by {r['by']}"
        )


if __name__ == "__main__":
    main()
