"""What the seals of many ranks cost: a checkpoint of small files of which every rank has sealed its own, whole
process.

    python benchmarks/fragments.py [--ranks 100000] [--place /dev/shm] [--only verify|plan|merge|unsealed] [--json]

Goal: verifying the files and fragments of 100,000 ranks in less than 300 MB. Shown are the CPU seconds, which
a busy machine hardly changes, and the peak of the process; ``unsealed`` is verifying the files without seals.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import crc32c
import xxhash
from _race import arguments, ckpt

from ckpt_tools.checksum import chunks
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.names import FRAGMENTS, fragment_name
from ckpt_tools.model.seal import Fragment, Seal, SealedCheckpoint, SealedFile

DATA = Path(__file__).parents[1] / "fixtures/formats/torch_zip/good/only-tensor.pth"
WAYS = {"verify": ["verify"], "plan": ["plan"], "merge": ["seal", "--merge", "--dry-run"]}


def of_one_rank(name: str, data: bytes) -> SealedFile:
    """What a rank has sealed of its file."""
    digest, crc = xxhash.xxh3_128(data).hexdigest(), f"{zlib.crc32(data):08x}"
    crcc = f"{crc32c.crc32c(data):08x}"
    whole = chunks.whole(len(data), [digest])
    return SealedFile(name, len(data), whole, crc, crcc, digest, crc, crcc)


def made(home: Path, ranks: int) -> None:
    """A checkpoint of as many ranks, and a fragment of each."""
    (home / FRAGMENTS).mkdir(parents=True)
    data, of = DATA.read_bytes(), SealedCheckpoint(layout="megatron", step=20)
    for rank in range(ranks):
        name = f"mp_rank_{rank:05d}/model_optim_rng.pt"
        (home / name).parent.mkdir()
        (home / name).write_bytes(data)
        seal = Seal("1", of, "xxh3", (of_one_rank(name, data),), fragment=Fragment(rank, ranks))
        (home / FRAGMENTS / fragment_name(rank)).write_bytes(document.text(seal))


def measured(words: list[str]) -> dict[str, float]:
    """CPU seconds and the peak in MB of one command."""
    line = [ckpt(), *words, "--settle", "0"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, "CKPT_NO_CACHE": "1"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {process.returncode}")
    return {"cpu_s": round(used.ru_utime + used.ru_stime, 1), "rss_mb": round(used.ru_maxrss * 1024 / 1e6)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=100_000)
    parser.add_argument("--place", help="where the files are made (default: that of temporary files)")
    parser.add_argument("--only", choices=[*WAYS, "unsealed"])
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-", dir=options.place)
    try:
        run = Path(directory) / "run"
        made(run / "iter_0000020", options.ranks)
        (run / "latest_checkpointed_iteration.txt").write_text("20")
        ways = {name: words for name, words in WAYS.items() if options.only in (None, name)}
        results = {name: measured([words[0], str(run), *words[1:]]) for name, words in ways.items()}
        if options.only in (None, "unsealed"):
            shutil.rmtree(run / "iter_0000020" / FRAGMENTS)
            results["unsealed"] = measured(["verify", str(run)])
        if options.json:
            print(json.dumps({"ranks": options.ranks, "python": sys.version.split()[0], "results": results}))
            return
        print(f"{options.ranks:,} ranks, each with a file and a fragment")
        for name, found in results.items():
            print(f"  {name:10} {found['cpu_s']:7.1f} s of CPU   {found['rss_mb']:5.0f} MB")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
