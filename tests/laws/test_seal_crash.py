"""``ckpt seal`` killed, refused or raced at any moment: the old seal or the new one is there, never a broken one."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from injected import Fault, Victim, words_of
from run_helpers import CKPT, CLEAN, megatron

from ckpt_tools import guard
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.cli.seal import exit_code
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals.names import FRAGMENTS, NAME
from ckpt_tools.guard import sealed_files
from ckpt_tools.model.answers import Verification

WRITES = (
    "openat",
    "write",
    "fsync",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdirat",
    "mkdir",
)


def one(root: Path) -> Path:
    return megatron(root, steps=(10,))


def seal_of(root: Path) -> Path:
    return root / f"iter_0000010/{NAME}"


def codes(found: Verification) -> set[str]:
    rows = (f for row in found.files for f in row.report.findings)
    return {f.code for f in (*rows, *found.findings) if f.severity}


def age(root: Path, name: str = "*.tmp") -> list[Path]:
    """What was left aside, made as old as what nobody still writes."""
    left = sorted(root.rglob(name))
    for path in left:
        os.utime(path, (1, 1))
    return left


@pytest.mark.parametrize("words", [[], ["--again", "--digest", "sha256"]], ids=["first", "again"])
def test_killed_at_any_call_that_writes(words: list[str], tmp_path: Path) -> None:
    root = one(tmp_path / "run")
    if words:
        guard.seal(root)
    kept = tmp_path / "kept"
    shutil.copytree(root, kept)
    old = seal_of(root).read_bytes() if words else None
    calls = traced(root, words, tmp_path / "trace")
    assert {"write", "fsync"} <= set(calls)
    for call, places in calls.items():
        kills = 0
        for nth in sorted(places):
            shutil.rmtree(root)
            shutil.copytree(kept, root)
            kills += killed(root, words, call, nth)
            assert_old_or_new(root, old)
            left = age(root)
            guard.seal(root)
            assert "seal-broken" not in codes(verify(root)) and seal_of(root).exists()
            assert not any(path.exists() for path in left)
        assert kills, f"nothing was killed at {call}"


# A compiled module that the first of them writes would be a write that the others do not make.
ENVIRONMENT = CLEAN | {"PYTHONDONTWRITEBYTECODE": "1"}


def traced(root: Path, words: list[str], out: Path) -> dict[str, set[int]]:
    """The calls on what has to do with seals, by what they are called: the how-manieth of that name each is in
    its thread, which is how strace counts.
    """
    trial = out.with_suffix(".run")
    shutil.copytree(root, trial)
    line = ["strace", "-f", "-qq", "-y", "-o", str(out), "-e", f"trace={','.join(WRITES)}"]
    subprocess.run(
        [*line, *CKPT, "seal", str(trial), *words], env=ENVIRONMENT, check=True, capture_output=True
    )
    made, found = Counter[tuple[str, str]](), dict[str, set[int]]()
    for row in out.read_text().splitlines():
        thread, text = row.split(None, 1)
        call = text.partition("(")[0]
        if "resumed>" in text or call not in WRITES:
            continue
        made[thread, call] += 1
        if "ckpt-seal" in text or (str(trial) in text and call == "fsync"):
            found.setdefault(call, set()).add(made[thread, call])
    return found


def killed(root: Path, words: list[str], call: str, nth: int) -> bool:
    """The command, killed as it makes a call for the n-th time; whether it was."""
    line = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={nth}"]
    done = subprocess.run([*line, *CKPT, "seal", str(root), *words], env=ENVIRONMENT, capture_output=True)
    return done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


def assert_old_or_new(root: Path, old: bytes | None) -> None:
    seal = seal_of(root)
    if seal.exists() and seal.read_bytes() != old:
        assert json.loads(seal.read_bytes())["files"]
    said = codes(verify(root))
    assert not said & {"seal-broken", "seal-extra", "seal-mismatch", "unfinished-save"}, said
    assert [c.step for c in scan(root).checkpoints] == [10]
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 10
    assert "another-writer" not in {f.code for f in made.warnings}


# ---- what cannot be read


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    made = Victim(tmp_path_factory.mktemp("elsewhere"))
    yield made
    made.close()


@pytest.mark.parametrize("command", ["verify", "plan"])
@pytest.mark.parametrize("fragments", [False, True], ids=["seal", "fragments"])
def test_a_seal_that_cannot_be_read_is_never_no_seal(
    command: str, fragments: bool, victim: Victim, tmp_path: Path
) -> None:
    root = one(tmp_path / "run")
    home = root / "iter_0000010"
    if fragments:
        guard.seal(home, rank=0, world_size=1)
    else:
        guard.seal(root)
    places = [(str(p), p.is_dir()) for p in home.rglob("*") if "seal" in p.name or p.parent.name == FRAGMENTS]
    words = [*words_of(command, str(root)), "--require-seal"]
    unharmed = victim.ask(words)
    assert unharmed.code == 0, unharmed
    for path, directory in places:
        for call in ("opendir", "readdir") if directory else ("stat", "open", "read"):
            for number in (errno.EIO, errno.EACCES, errno.ESTALE):
                harmed = victim.ask(words, Fault(path, call, number))
                if harmed.answer != unharmed.answer:
                    assert harmed.code == 5 and path in harmed.out + harmed.err, (path, call, harmed)
                elif call in ("open", "read", "opendir") and command == "verify":
                    assert not harmed.injected, (path, call)


# ---- several at once


def test_64_ranks_seal_into_one_directory(tmp_path: Path) -> None:
    home = one(tmp_path / "run") / "iter_0000010"
    for rank in range(64):
        (home / f"shard_{rank:05d}.bin").write_bytes(b"{" + os.urandom(64))
    code = (
        "import sys; from ckpt_tools import guard; rank = int(sys.argv[1]);"
        "done = [guard.seal(sys.argv[2], rank=r, world_size=64, files=[f'shard_{r:05d}.bin'])"
        " for r in range(rank, 64, 16)]; sys.exit([d for d in done if not d.count('sealed')] or 0)"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(home)], env=CLEAN) for rank in range(16)
    ]
    assert [rank.wait(600) for rank in ranks] == [0] * 16
    assert len(list((home / FRAGMENTS).iterdir())) == 64
    assert not codes(verify(home)) & {"seal-broken", "seal-incomplete", "seal-mismatch"}
    assert [x.state for x in guard.seal(home, merge=True).checkpoints] == ["merged"]
    assert not (home / FRAGMENTS).exists()


def test_two_that_seal_one_tree_leave_one_seal(tmp_path: Path) -> None:
    root = one(tmp_path / "run")
    both = [subprocess.Popen([*CKPT, "seal", str(root), "--again"], env=CLEAN) for _ in range(2)]
    assert [p.wait(600) for p in both] == [0, 0]
    assert not codes(verify(root)) & {"seal-broken", "seal-mismatch", "seal-extra"}
    assert not list(root.rglob("*.tmp"))


def grow(path: Path) -> None:
    with path.open("ab") as f:
        f.write(b"more")


@pytest.mark.parametrize("moment", [0, 1], ids=["before it is read", "after it was read"])
@pytest.mark.parametrize(
    "how",
    [
        lambda path: path.write_bytes(path.read_bytes()[::-1]),
        grow,
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 10),
    ],
    ids=["rewritten", "grown", "gone", "cut"],
)
def test_what_changes_while_it_is_sealed_is_in_use(
    how: Callable[[Path], object], moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = one(tmp_path / "run")
    path, real, asked = next(root.rglob("*.pt")), sealed_files.identities, list[object]()

    def harmed(paths: Sequence[str], *, again: bool = False) -> object:
        if moment and asked:
            how(path)
        found = real(paths, again=again)
        if not moment and not asked:
            how(path)
        asked.append(found)
        return found

    monkeypatch.setattr(sealed_files, "identities", harmed)
    done = guard.seal(root / "iter_0000010")
    assert len(asked) == 2 and [x.state for x in done.checkpoints] == ["in-use"]
    assert not seal_of(root).exists()
    assert exit_code(done, strict=False) == 0 and exit_code(done, strict=True) == 1


# ---- what cannot be written


def test_a_full_disk_leaves_the_old_seal(tmp_path: Path) -> None:
    root = one(tmp_path / "run")
    guard.seal(root)
    old = seal_of(root).read_bytes()

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    line = [*CKPT, "seal", str(root), "--again"]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True, preexec_fn=small)
    assert done.returncode == 5 and str(seal_of(root)) in done.stderr
    assert seal_of(root).read_bytes() == old and not list(root.rglob("*.tmp"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_any_error_of_a_write_is_exit_5_with_the_next_step(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = one(tmp_path / "run")
    guard.seal(root)
    old = seal_of(root).read_bytes()

    def failing(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"ckpt_tools.guard.writing.os.{call}", failing)
    with pytest.raises(CannotLook) as raised:
        guard.seal(root, again=True)
    monkeypatch.undo()
    assert raised.value.exit_code == 5 and "--seal-dir" in raised.value.hint
    assert seal_of(root).read_bytes() == old and not list(root.rglob("*.tmp"))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_directory_that_may_not_be_written_is_exit_5(tmp_path: Path) -> None:
    root = one(tmp_path / "run")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for path in (tmp_path, *tmp_path.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(0o755)
    code = (
        "import os, sys; from ckpt_tools import guard; from ckpt_tools.errors import CannotLook;"
        "guard.seal(sys.argv[1], seal_dir=sys.argv[2]); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: guard.seal(sys.argv[1])\n"
        "except CannotLook as e: print(e.exit_code, e.hint)"
    )
    line = [sys.executable, "-c", code, str(root), str(tmp_path / "away")]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True)
    assert done.stdout.startswith("5 ") and "--seal-dir" in done.stdout, done.stderr
    assert not list(root.rglob(".ckpt-seal*"))
