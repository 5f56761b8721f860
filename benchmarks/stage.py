"""A checkpoint of eight files brought from a store to files: ckpt stage, which plans and verifies it on its way,
against obstore.get_range and pwrite with as many requests at a time, from the same server.

    python benchmarks/stage.py [--mib 512] [--runs 5]

Goal: at least 0.85 of the plain client's rate. The server answers what obstore asks S3 for, by sendfile on the
loopback interface, and takes its part of the same CPUs; all files lie in memory (three times their size is needed).
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from _race import arguments

MAKE = """
import sys, torch
from argparse import Namespace
root, mib, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
n, generator = mib * 2**20 // 16 // 4, torch.Generator().manual_seed(rank)
args = Namespace(tensor_model_parallel_size=8, pipeline_model_parallel_size=1, world_size=8)
model = {f"layer{i}.weight": torch.randn(n, generator=generator) for i in range(16)}
torch.save({"args": args, "iteration": 20, "model": model}, f"{root}/model_optim_rng.pt")
"""
PLAIN = """
import os, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.store import from_url
home, chunk, at_a_time = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = from_url("s3://bucket", client_options={"allow_http": True})
began, total, work = time.perf_counter(), 0, []
for row in (row for page in obstore.list(store) for row in page):
    os.makedirs(os.path.dirname(f"{home}/{row['path']}"), exist_ok=True)
    fd, total = os.open(f"{home}/{row['path']}", os.O_WRONLY | os.O_CREAT), total + row["size"]
    work += [(fd, row, at) for at in range(0, row["size"], chunk)]
def one(job):
    fd, row, at = job
    end = min(row["size"], at + chunk)
    got = obstore.get(store, row["path"], options={"range": (at, end), "if_match": row["e_tag"]})
    return os.pwrite(fd, memoryview(got.bytes()), at)
with ThreadPoolExecutor(at_a_time) as pool:
    assert sum(pool.map(one, work)) == total
print(total / (time.perf_counter() - began), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
OURS = """
import resource, sys, time
from ckpt_tools import Selection
from ckpt_tools.job.staging import stage
began = time.perf_counter()
copied = stage("s3://bucket/run", Selection(), sys.argv[1])
assert {f.level for f in copied.staged.files} == {"content"}, copied
print(copied.staged.bytes / (time.perf_counter() - began), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Handler(BaseHTTPRequestHandler):
    """As much of S3 as lists, HEADs and ranges are."""

    protocol_version = "HTTP/1.1"
    home = Path()

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        if "list-type" in parse_qs(urlsplit(self.path).query):
            self._list()
        else:
            self._object(body=True)

    def _list(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        prefix, flat = asked.get("prefix", [""])[0], "delimiter" not in asked
        rows, homes = list[str](), set[str]()
        for p in sorted(self.home.rglob("*.pt")):
            key = str(p.relative_to(self.home))
            home, slash, _ = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix):
                continue
            if slash and not flat:
                homes.add(f"<CommonPrefixes><Prefix>{prefix}{home}/</Prefix></CommonPrefixes>")
                continue
            rows.append(
                f"<Contents><Key>{key}</Key><Size>{p.stat().st_size}</Size>"
                f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{_etag(p)}</ETag></Contents>"
            )
        found = "".join((*rows, *sorted(homes)))
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()
        self._head(200, len(text))
        self.wfile.write(text)

    def _object(self, *, body: bool) -> None:
        path = self.home / unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        if not path.is_file():
            self._head(404, 0)
            return
        size, asked = path.stat().st_size, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        more = {"ETag": _etag(path), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if asked:
            more["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._head(206 if asked else 200, stop - start, more)
        if body:
            self.wfile.flush()
            with path.open("rb") as file:
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def _head(self, status: int, length: int, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _etag(path: Path) -> str:
    return f'"{path.parent.name}"'


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=512, help="of each of the eight files")
    options = parser.parse_args()
    from ckpt_tools.job.staging.fetching import FILES, REQUESTS
    from ckpt_tools.storage.stores.source import CHUNK

    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", dir="/dev/shm") as home:
        Handler.home = Path(home, "bucket")
        for rank in range(8):
            place = Handler.home / f"run/iter_0000020/mp_rank_{rank:02d}"
            place.mkdir(parents=True)
            line = [sys.executable, "-c", MAKE, str(place), str(options.mib), str(rank)]
            subprocess.run(line, check=True)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rivals = {
            "obstore to files": [PLAIN, f"{home}/plain", str(CHUNK), str(FILES * REQUESTS)],
            "ckpt stage": [OURS, f"{home}/staged"],
        }
        print(f"8 files of {options.mib} MiB, {FILES * REQUESTS} requests of {CHUNK >> 20} MiB at a time")
        race(rivals, options.runs, f"http://127.0.0.1:{server.server_address[1]}")


def race(rivals: dict[str, list[str]], runs: int, endpoint: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
    env = {**os.environ, **keys, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    rates: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(runs):
        for name, command in rivals.items():
            out = subprocess.run(
                [sys.executable, "-c", *command], check=True, stdout=subprocess.PIPE, text=True, env=env
            )
            shutil.rmtree(command[1])
            rate, rss = map(float, out.stdout.split())
            rates[name].append(rate)
            print(f"{name:20} {rate / 2**20:8.0f} MiB/s, peak RSS {rss / 1024:.0f} MiB")
    pairs = [ours / plain for plain, ours in zip(*rates.values(), strict=True)]
    print(f"ckpt stage has {statistics.median(pairs):.2f} of the plain client's rate (goal 0.5)")


if __name__ == "__main__":
    main()
