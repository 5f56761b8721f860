"""Seals that somebody wrote to do harm: each is a finding, in little memory and linear time, and nothing outside
is touched.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from counted import at_most
from mutated import INSTEAD, mutants
from places import FORMAT_FILES
from run_helpers import CKPT, CLEAN, codes_of, flip, megatron

from ckpt_tools import guard
from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME
from ckpt_tools.model.finding import Verdict

MODEL = "mp_rank_00/model_optim_rng.pt"
TOOL = {"schema": "ckpt-tools/seal/v1", "tool_version": "1"}
HEAD = {**TOOL, "checkpoint": {}, "algorithm": "xxh3", "chunk_size": 64 << 20, "fragment": None, "beside": []}


def signed(text: bytes) -> bytes:
    """A text with the digest at its end that a seal has."""
    return document.close_seal(text.rstrip()[:-1] + b",\n")


def seal(files: list[Any] = (), **more: object) -> bytes:  # type: ignore[assignment]
    return signed(json.dumps({**HEAD, "files": list(files), **more}).encode())


def row(path: object, size: object = 0, **more: object) -> dict[str, object]:
    n = -(-size // (64 << 20)) if isinstance(size, int) and 0 <= size < 1 << 40 else 0
    made = {"path": path, "size": size, "digest": "0" * 32, "crc32": "0" * 8, "crc32c": "0" * 8}
    return {**made, "chunks": "0" * 32 * n, "chunk_crc32": "0" * 8 * n, "chunk_crc32c": "0" * 8 * n, **more}


BROKEN = {
    "another": seal(schema="ckpt-tools/seal/v2"), "no file": seal([7]), "size": seal([row(MODEL, (1 << 63) - 1)]), "empty": b"",
    "counters": seal([row(MODEL, 5, counters=[1])]), "rank": seal(fragment={"rank": -1, "world_size": 5}), "text": b"no seal at all",
    "deep": b"[" * 100_000, "deep and signed": signed(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "digits": signed(b'{"schema":' + b"9" * 100_000 + b"}"),
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return megatron(tmp_path / "run")


def place(root: Path, data: bytes, name: str = NAME) -> Path:
    path = root / "iter_0000020" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def codes(root: Path) -> set[str]:
    return codes_of(verify(root))


@pytest.mark.share(3)
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_seal_is_a_finding_and_is_kept(what: str, root: Path) -> None:
    path = place(root, BROKEN[what])
    assert codes(root) == {"seal-broken"}
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    assert "seal-broken" in {f.code for f in made.warnings}
    assert [one.state for one in guard.seal(root).checkpoints][:1] == ["broken"]
    assert path.read_bytes() == BROKEN[what]
    assert [one.state for one in guard.seal(root, again=True).checkpoints][:1] == ["sealed"]
    assert not codes(root)


OUTSIDE = ["../../x", "/etc/passwd", "a\0b", "", "..", "a/../../../x", "\ud800", f"x/../{MODEL}", "./a"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leaves_is_a_finding(name: str, root: Path) -> None:
    place(root, seal([row(name)]))
    assert codes(root) >= {"path-escape"}
    assert [one.state for one in guard.seal(root).checkpoints][:1] == ["broken"]


def test_links_lead_no_write_astray(root: Path, tmp_path: Path) -> None:
    home, away = root / "iter_0000020", tmp_path / "away"
    away.mkdir()
    kept = away / "kept.json"
    kept.write_text("mine")
    (home / NAME).symlink_to(kept)
    guard.seal(home, again=True)
    assert kept.read_text() == "mine" and not (home / NAME).is_symlink()
    (home / NAME).unlink()
    (away / "rank-00000.json").write_bytes(seal(fragment={"rank": 0, "world_size": 1}))
    (home / FRAGMENTS).symlink_to(away)
    before = sorted(away.iterdir())
    with pytest.raises(CannotLook):
        guard.seal(home, rank=0, world_size=1)
    guard.seal(home, merge=True)
    guard.seal(home, again=True)
    assert sorted(away.iterdir()) == before and kept.read_text() == "mine"


@pytest.mark.parametrize("sealed", [False, True])
def test_a_loop_of_links_is_a_finding(sealed: bool, root: Path) -> None:
    if sealed:
        guard.seal(root)
    path = root / "iter_0000020" / MODEL
    path.unlink()
    path.symlink_to(path.name)
    (root / "iter_0000020/other").symlink_to("other")
    assert codes(root) >= ({"symlink-loop", "seal-missing"} if sealed else {"symlink-loop"})
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 10
    assert "broken" in [one.state for one in guard.seal(root, again=True).checkpoints]


@pytest.mark.exhaustive
def test_many_fragments_of_one_file_are_compared_with_few(root: Path) -> None:
    for rank in range(2000):
        data = seal([row(MODEL, 5, digest=f"{rank:032x}")], fragment={"rank": rank, "world_size": 1 << 60})
        place(root, data, f"{FRAGMENTS}/rank-{rank:05d}.json")
    with at_most(6_000_000):
        assert codes(root) >= {"seal-mismatch", "seal-incomplete"}


def huge(what: str) -> bytes:
    def many(form: bytes, n: int) -> bytes:
        head = json.dumps({**HEAD, "files": []}).encode()[:-2]
        tail = b'","size":0,"digest":"' + b"0" * 32 + b'","crc32":"00000000","crc32c":"00000000"}'
        return signed(head + b",".join(b'{"path":"' + form % i + tail for i in range(n)) + b"]}")

    def lines(row: bytes, n: int) -> bytes:
        head = json.dumps({**HEAD, "files": []}, separators=(",", ":")).encode()[:-2]
        return document.close_seal(head + b"\n" + b",\n".join(row % i for i in range(n)) + b"\n],\n")

    digests = b'"size":0,"digest":"' + b"0" * 32 + b'","crc32":"00000000","crc32c":"00000000"'
    numbers = b",".join(b'"%d":1' % i for i in range(100))
    return {
        "lines": lambda: lines(b'{"path":"a%07d",' + digests + b"}", 200_000),
        "counters": lambda: lines(b'{"path":"a%07d",' + digests + b',"counters":{' + numbers + b"}}", 20_000),
        "absent": lambda: many(b"a%07d", 160_000),
        "outside": lambda: many(b"../%07d", 160_000),
        "million": lambda: many(b"a%07d", 1_000_000),
        "text": lambda: seal(tool_version="x" * (63 << 20)),
        "deep": lambda: b"[" * (60 << 20),
        "quotes": lambda: signed(b'{"a":[' + b'"[",' * (10 << 20) + b"0]}"),
    }[what]()


HUGE = ("lines", "counters", "absent", "outside", "million", "text", "deep", "quotes")
BY_DAY = ("million", ["plan"])
"""What is read by day; all are read by all commands every night."""
READERS = (["verify"], ["plan"], ["seal", "--dry-run"])
READ = [pair for pair in product(HUGE, READERS) if pair[0] != "lines" or pair[1] == READERS[0]]


@pytest.mark.parametrize(
    ("what", "words"),
    [pytest.param(*pair, marks=() if pair == BY_DAY else pytest.mark.exhaustive) for pair in READ],
)
def test_memory_is_bounded(what: str, words: list[str], root: Path, tmp_path: Path) -> None:
    place(root, huge(what))
    peak = tmp_path / "peak"
    code = (
        "import os, subprocess, sys; p = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL);"
        "_, _, used = os.wait4(p.pid, 0); open(sys.argv[1], 'w').write(str(used.ru_maxrss))"
    )
    line = [sys.executable, "-c", code, str(peak), *CKPT, words[0], str(root), *words[1:], "--json"]
    subprocess.run(line, env={**CLEAN, "CKPT_NO_CACHE": "1"}, check=True, timeout=600)
    assert int(peak.read_text()) < 300 * 1024, (what, words)


NAMES = (
    ".",
    "../x",
    "a/../b",
    "./model.safetensors",
    "MODEL.safetensors",
    "mode\u0301l.safetensors",
    "n" * 5000,
)
DIGESTS = ("0" * 32, "f" * 31, "F" * 32, "\u0660" * 32, "0" * 100_000)
NUMBERS = (0, 2**63 - 1, 1.5, float("nan"), float("inf"))
GROWN = 200 << 10
"""KiB of memory that this may take beyond what the process had."""


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_no_changed_seal_makes_a_changed_file_good(every: int, tmp_path: Path) -> None:
    model = tmp_path / "model/model.safetensors"
    model.parent.mkdir()
    shutil.copyfile(min(FORMAT_FILES.glob("safetensors/good/*.safetensors")), model)
    guard.seal(model.parent, settle=0, again=True)
    flip(model)
    (path,) = model.parent.glob(f"*{NAME}")

    def said() -> tuple[Verdict, float]:
        files = {f.report.path: f.report for f in verify(model.parent, settle=0).files}
        return files[str(model)].verdict, files[str(model)].coverage

    assert said()[0] is Verdict.BROKEN
    seal, before = json.loads(path.read_text()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del seal["self"]
    for n, (what, made) in enumerate(mutants(seal, (*INSTEAD, *NAMES, *DIGESTS, *NUMBERS))):
        if n % every == 0:
            text = json.dumps(made)
            text = text if n % 3 else text.replace('"size":', '"size": 0, "size":', 1)  # a name twice
            path.write_bytes(document.close_seal(text.encode()[:-1] + b",\n"))
            verdict, coverage = said()
            assert verdict is not Verdict.OK or not coverage, what
            with suppress(CkptError):
                plan(model.parent)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWN
