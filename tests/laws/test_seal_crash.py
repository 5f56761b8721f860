"""``ckpt seal`` killed, refused or raced at any moment: the old seal or the new one is there, never a broken one."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from injected import Fault, Victim, words_of
from kill_points import Commands, files_of
from run_helpers import CKPT, CLEAN, codes_of, megatron

from ckpt_tools import guard
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.cli.seal import exit_code
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, name_aside
from ckpt_tools.guard import sealing


def one(root: Path) -> Path:
    return megatron(root, steps=(10,))


def seal_of(root: Path) -> Path:
    return root / f"iter_0000010/{NAME}"


def age(root: Path, name: str = "*.tmp") -> list[Path]:
    """What was left aside, made as old as what nobody still writes."""
    left = sorted(root.rglob(name))
    for path in left:
        os.utime(path, (1, 1))
    return left


RANK = (
    "from ckpt_tools import guard; home, rank, *files = words\n"
    "done = guard.seal(home, rank=int(rank), world_size=2, files=files)\n"
    "assert done.count('sealed') == 1, done"
)
"""What one rank does; it is no command."""


@dataclass(frozen=True)
class Way:
    """A way to seal one tree: what is done ``before``, and the words of what is killed."""

    name: str
    words: Callable[[Path], list[str]]
    before: Callable[[Path], object] = lambda _: None


def home_of(top: Path) -> Path:
    return top / "run/iter_0000010"


def away_of(top: Path) -> Path:
    return top / "away"


def files_of_rank(top: Path, rank: int) -> list[str]:
    """Half of the files, by their names."""
    home = home_of(top)
    files = (p for p in home.rglob("*") if p.is_file() and "ckpt-seal" not in str(p))
    return sorted(str(p.relative_to(home)) for p in files)[rank::2]


def by_ranks(top: Path, ranks: int = 2) -> None:
    for rank in range(ranks):
        guard.seal(home_of(top), rank=rank, world_size=2, files=files_of_rank(top, rank))


def of_rank(rank: int) -> Callable[[Path], list[str]]:
    """One rank's fragment."""
    return lambda top: ["-c", RANK, str(home_of(top)), str(rank), *files_of_rank(top, rank)]


def sealed_away(top: Path) -> None:
    guard.seal(top / "run", seal_dir=str(away_of(top)))


def stale(top: Path) -> None:
    """A seal, and beside it what somebody left who died while it was written."""
    guard.seal(home_of(top))
    left = home_of(top) / name_aside(NAME)
    left.write_bytes(b"{")
    os.utime(left, (1, 1))


OTHER = ("--again", "--digest", "sha256")
WAYS = [
    Way("first", lambda top: ["seal", f"{top}/run"]),
    Way("again", lambda top: ["seal", f"{top}/run", *OTHER], lambda top: guard.seal(top / "run")),
    Way("over what a dead one left", lambda top: ["seal", f"{top}/run", "--again", "--tensors"], stale),
    Way("merge", lambda top: ["seal", str(home_of(top)), "--merge"], by_ranks),
    Way("again over fragments", lambda top: ["seal", f"{top}/run", "--again"], by_ranks),
    Way("the first rank", of_rank(0)),
    Way("the second rank", of_rank(1), lambda top: by_ranks(top, 1)),
    Way("away", lambda top: ["seal", f"{top}/run", "--seal-dir", f"{top}/away"]),
    Way("away again", lambda top: ["seal", f"{top}/run", "--seal-dir", f"{top}/away", *OTHER], sealed_away),
]


class Place:
    """A tree that is put back as it was before each kill, and what holds after one."""

    def __init__(self, top: Path, way: Way) -> None:
        self.top, self.way, self.kept = top / "top", way, top / "kept"
        one(self.top / "run")
        away_of(self.top).mkdir()
        way.before(self.top)
        shutil.copytree(self.top, self.kept)
        self.words = way.words(self.top)
        self.old = self.seals()
        self.partial = {"seal-incomplete"} if "rank" in way.name else set[str]()
        self._judged: set[frozenset[tuple[str, str]]] = set()

    def seals(self) -> dict[str, bytes]:
        """Every seal and fragment, without what is aside."""
        files = {str(p.relative_to(self.top)): p for p in sorted(self.top.rglob("*")) if p.is_file()}
        named = (name for name in files if "ckpt-seal" in name and not name.endswith(".tmp"))
        return {name: files[name].read_bytes() for name in named}

    def reset(self) -> None:
        """As it was, with new copies: a killed process may have left its hand on the old ones."""
        shutil.rmtree(self.top)
        shutil.copytree(self.kept, self.top)

    def judge(self, new: dict[str, bytes], again: Callable[[], int]) -> None:
        """Each seal is the old one or the new one, whole; nothing else changed; and done ``again`` it ends as
        it would have. What was judged once is not judged again.
        """
        state = frozenset(files_of(self.top).items())
        if state in self._judged:
            return
        self._judged.add(state)
        for name, data in self.seals().items():
            assert data in (self.old.get(name), new.get(name)), name
        gone = self.old.keys() - self.seals().keys()
        assert not gone - (self.old.keys() - new.keys()), gone
        if gone:  # the fragments go once the one seal of all is there
            assert new.items() <= self.seals().items()
        kept, top = (
            {n: t for n, t in files_of(r).items() if "ckpt-seal" not in n} for r in (self.kept, self.top)
        )
        assert top == kept, "no byte of a checkpoint is another one"
        more = {"seal_dir": str(away_of(self.top))} if "away" in self.way.name else {}
        said = codes_of(verify(self.top / "run", **more))
        wrong = {f"seal-{word}" for word in ("broken", "extra", "mismatch", "missing", "incomplete")}
        assert not said & (wrong | {"unfinished-save"}) - self.partial, said
        assert [c.step for c in scan(self.top / "run").checkpoints] == [10]
        made = plan(self.top / "run")
        assert made.checkpoint and made.checkpoint.step == 10
        assert "another-writer" not in {f.code for f in made.warnings}
        left = age(self.top)
        assert again() in ((0, 3) if self.way.name == "merge" else (0,))  # 3: there is nothing left to merge
        assert self.seals() == new
        assert not any(path.exists() for path in left)


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    made = Commands()
    yield made
    made.close()


@pytest.mark.share(6)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_killed_at_any_call_that_changes_something(way: Way, commands: Commands, tmp_path: Path) -> None:
    place = Place(tmp_path, way)
    whole = commands.run(place.words, place.top)
    assert whole.code == 0 and len(whole.calls) > 3, whole
    made = {call.split()[0] for call in whole.calls}
    assert {"open", "write", "fsync"} <= made and made & {"link", "rename"}
    new = place.seals()
    assert new != place.old
    for nth in range(1, len(whole.calls) + 1):
        place.reset()
        assert commands.run(place.words, place.top, nth).code == -signal.SIGKILL, whole.calls[nth - 1]
        place.judge(new, lambda: commands.run(place.words, place.top).code)


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
    guard.seal(home, rank=0, world_size=1) if fragments else guard.seal(root)
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


@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_16_ranks_seal_into_one_directory(processes: int, tmp_path: Path) -> None:
    home = one(tmp_path / "run") / "iter_0000010"
    for rank in range(16):
        (home / f"shard_{rank:05d}.bin").write_bytes(b"{" + os.urandom(64))
    code = (
        "import sys; from ckpt_tools import guard; rank = int(sys.argv[1]);"
        "done = [guard.seal(sys.argv[2], rank=r, world_size=16, files=[f'shard_{r:05d}.bin'])"
        " for r in range(rank, 16, int(sys.argv[3]))]; sys.exit([d for d in done if not d.count('sealed')] or 0)"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(home), str(processes)], env=CLEAN)
        for rank in range(processes)
    ]
    assert [rank.wait(600) for rank in ranks] == [0] * processes
    assert len(list((home / FRAGMENTS).iterdir())) == 16
    assert not codes_of(verify(home)) & {"seal-broken", "seal-incomplete", "seal-mismatch"}
    assert [x.state for x in guard.seal(home, merge=True).checkpoints] == ["merged"]
    assert not (home / FRAGMENTS).exists()


def test_nothing_beside_a_checkpoint_goes_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever prunes it at any moment removes what he has listed: Orbax's manager ends the training where a
    name that it found is gone when it comes to it.
    """
    home = one(tmp_path / "run") / "iter_0000010"
    seen = set[str]()

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **more: object) -> object:
            seen.update(os.listdir(home))
            try:
                return real(*args, **more)
            finally:
                seen.update(os.listdir(home))

        monkeypatch.setattr(os, name, call)

    for name in ("open", "write", "fsync", "link", "rename", "close"):
        watched(name)
    assert guard.seal(home).count("sealed") == 1
    monkeypatch.undo()
    assert NAME in seen and seen == set(os.listdir(home))


def test_two_that_seal_one_tree_leave_one_seal(tmp_path: Path) -> None:
    root = one(tmp_path / "run")
    both = [subprocess.Popen([*CKPT, "seal", str(root), "--again"], env=CLEAN) for _ in range(2)]
    assert [p.wait(600) for p in both] == [0, 0]
    assert not codes_of(verify(root)) & {"seal-broken", "seal-mismatch", "seal-extra"}
    assert not list(root.rglob("*.tmp"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten": lambda path: path.write_bytes(path.read_bytes()[::-1]), "gone": lambda path: path.unlink(),
    "grown": lambda path: os.truncate(path, path.stat().st_size + 4), "cut": lambda path: os.truncate(path, 10),
}  # fmt: skip


@pytest.mark.parametrize("moment", [0, 1], ids=["before it is read", "after it was read"])
@pytest.mark.parametrize("how", CHANGES.values(), ids=CHANGES)
def test_what_changes_while_it_is_sealed_is_in_use(
    how: Callable[[Path], object], moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = one(tmp_path / "run")
    real, read = sealing.Sealer._read, list[str]()

    def harmed(sealer: Any, target: Any, path: str) -> object:
        read.append(path)
        if len(read) == 1 and not moment:
            how(Path(path))
        found = real(sealer, target, path)
        if len(read) == 1 and moment:
            how(Path(path))
        return found

    monkeypatch.setattr(sealing.Sealer, "_read", harmed)
    done = guard.seal(root / "iter_0000010")
    assert [x.state for x in done.checkpoints] == ["in-use"]
    assert not seal_of(root).exists()
    assert exit_code(done, strict=False) == 0 and exit_code(done, strict=True) == 1


def test_what_cannot_be_looked_at_again_is_not_known_to_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose login has expired meanwhile, say: that nothing was sealed is no success."""
    root = one(tmp_path / "run")
    why = PermissionError(errno.EACCES, "the session token has expired")
    monkeypatch.setattr(sealing, "refresh", lambda paths: dict.fromkeys(paths, why))
    done = guard.seal(root / "iter_0000010")
    assert [x.state for x in done.checkpoints] == ["unreadable"]
    assert exit_code(done, strict=False) == 5


# ---- what cannot be written


@pytest.mark.parametrize(
    ("number", "call"),
    [(errno.ENOSPC, "write"), (errno.EROFS, "rename"), (errno.EDQUOT, "fsync"), (errno.EACCES, "write")],
)
def test_any_error_of_a_write_is_exit_5_with_the_next_step(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = one(tmp_path / "run")
    guard.seal(root)
    old, real = seal_of(root).read_bytes(), getattr(os, call)

    def failing(*words: Any, **more: Any) -> object:
        if call == "open" and not str(words[0]).endswith(".tmp"):
            return real(*words, **more)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"ckpt_tools.guard.writing.os.{call}", failing)
    with pytest.raises(CannotLook) as raised:
        guard.seal(root, again=True)
    monkeypatch.undo()
    assert raised.value.exit_code == 5 and "CKPT_SEAL_DIR" in raised.value.hint
    assert seal_of(root).read_bytes() == old and not list(root.rglob("*.tmp"))
