"""Commands that change a tree, killed, or failing, at any call that writes: nothing is lost, a job resumes from
what it would have, and the next command ends or takes back what was begun.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from kill_points import STOPS, Commands, Stop, bytes_of, files_of, step
from run_helpers import flip, megatron, one_file_per_rank

from ckpt_tools.errors import NoCheckpoint
from ckpt_tools.guard.prune.policy import pin
from ckpt_tools.guard.quarantine import quarantine


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    made = Commands()
    yield made
    made.close()


class Case(NamedTuple):
    """A tree, what is done to it before, and the words of the command: @ is its root. ``never`` are digests of
    what may go, ``listed`` says that the command lists what it did for later ones.
    """

    words: str
    prepare: Callable[[Path], object] = lambda _: None
    tree: Callable[..., Path] = megatron
    steps: tuple[int, ...] = (10, 20)
    never: frozenset[str] = frozenset()
    listed: bool = False


def newest_away(root: Path) -> None:
    quarantine(str(root), [str(root / "iter_0000020")], apply=True)


def flipped(root: Path) -> None:
    path = min(root.glob("iter_*/mp_rank_00/model_optim_rng.pt"))
    flip(path, path.stat().st_size // 2, 8)


def untold(root: Path) -> None:
    (root / "latest_checkpointed_iteration.txt").unlink()


POINTED = frozenset({hashlib.sha256(b"10").hexdigest()})
"""The tracker as quarantine has written it: nobody misses it when that is undone."""
CASES = {
    "quarantine": Case("quarantine @/iter_0000020 --apply --settle 0s"),
    "restore": Case("quarantine @/iter_0000020 --restore --apply", newest_away),
    "undo": Case("undo @ --apply", newest_away, never=POINTED),
    "repair a bit": Case("repair @ --accept-odds 0.001 --apply", flipped, steps=(20,), listed=True),
    "repair a tracker": Case("repair @ --tracker --apply", untold, steps=(20,)),
    "prune directories": Case("prune @ --keep 2 --settle 0s --apply", steps=(10, 20, 30)),
    "prune files": Case("prune @ --keep 2 --settle 0s --apply", tree=one_file_per_rank, steps=(10, 20, 30)),
}  # fmt: skip


@pytest.mark.share(14)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_stopped_at_any_call(case: Case, stop: Stop, commands: Commands, tmp_path: Path) -> None:
    def made(name: str) -> tuple[Path, list[str]]:
        root = case.tree(tmp_path / name / "run", steps=case.steps)
        case.prepare(root)
        return root, case.words.replace("@", str(root)).split()

    root, words = made("first")
    contents, was = bytes_of(root) - case.never, step(root)
    calls = commands.run(words, root).calls
    promised, after = step(root), files_of(root, state=False)
    assert {"rename", "fsync", "write"} <= {call.split()[0] for call in calls}, calls
    for nth in range(1, len(calls) + 1):
        if not stop.at(nth):
            continue
        root, words = made(f"{nth}")
        run = commands.run(words, root, nth, stop.errno)
        assert run.code == -9 if not stop.errno else run.code in (0, 5), (run.calls[-1:], run)
        if words[0] == "prune":
            assert after.items() <= files_of(root, state=False).items(), run.calls[-1:]
        else:
            assert contents <= bytes_of(root), run.calls[-1:]
        # a tracker that names the older one beside the newer one is a question until the next command
        may = (was, promised, "UsageError") if words[0] in ("quarantine", "undo") else (was, promised)
        assert step(root) in may, run.calls[-1:]
        again = commands.run(words, root)
        assert again.code in (0, 3), (run.calls[-1:], again)  # 3: there is nothing left to do
        assert files_of(root, state=False) == after, run.calls[-1:]
        assert step(root) == promised
        left = {path.split("/")[1] for path in files_of(root) if path.startswith(".ckpt/")}
        assert ("repaired.json" in left) == case.listed and not left & {"trash", "going", "incoming"}, left
        shutil.rmtree(tmp_path / f"{nth}")


def set_back(root: Path) -> None:
    shutil.rmtree(max(root.glob("iter_*")))
    (root / "latest_checkpointed_iteration.txt").unlink(missing_ok=True)


def steps(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in root.glob("iter_*"))


def save_anew(root: Path) -> None:
    megatron(root.parent / "other", steps=(25,))
    shutil.rmtree(root / "iter_0000025", ignore_errors=True)
    shutil.move(root.parent / "other/iter_0000025", root)
    shutil.rmtree(root.parent / "other")


def pinned(root: Path) -> None:
    with suppress(NoCheckpoint):  # it is away
        pin(str(root), [str(root / "iter_0000010")])


def put_away(root: Path) -> None:
    quarantine(str(root), [str(root / "iter_0000010")], apply=True)


OLDEST = "@/iter_0000010"
HAPPENED: dict[str, Callable[[Path], None]] = {
    "nothing": lambda _: None, "set back": set_back, "a new save": save_anew, "a pin": pinned,
}  # fmt: skip
INTERRUPTED: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "prune": (lambda _: None, ["prune", "@", "--keep", "2", "--settle", "0s", "--apply"]),
    "quarantine": (lambda _: None, ["quarantine", OLDEST, "--root", "@", "--settle", "0s", "--apply"]),
    "restore": (put_away, ["quarantine", OLDEST, "--root", "@", "--restore", "--apply"]),
    "undo": (put_away, ["undo", "@", "--apply"]),
    "repair": (flipped, ["repair", "@", "--accept-odds", "0.001", "--apply"]),
}
NEXT = {
    "prune": ["prune", "@", "--keep", "1000", "--settle", "0s", "--apply"], "pin": ["pin", OLDEST, "--root", "@"],
    "undo": ["undo", "@", "--apply"], "repair": ["repair", "@", "--tracker", "--apply"],
}  # fmt: skip


@pytest.mark.share(40)
@pytest.mark.parametrize("after", NEXT)
@pytest.mark.parametrize("happened", HAPPENED)
@pytest.mark.parametrize("command", INTERRUPTED)
def test_nothing_interrupted_is_simply_finished(
    command: str, happened: str, after: str, commands: Commands, tmp_path: Path
) -> None:
    """Killed at any call that writes; then something happens; then any command: what plan chooses is there, what
    was pinned is there, and a policy that keeps all loses nothing. Of the calls each case takes its share.
    """
    prepare, line = INTERRUPTED[command]

    def made(home: Path) -> tuple[Path, list[str]]:
        root = megatron(home / "run", steps=(10, 20, 30))
        prepare(root)
        return root, [word.replace("@", str(root), 1) for word in line]

    root, words = made(tmp_path / "first")
    calls = commands.run(words, root).calls
    first = 1 + ([*HAPPENED].index(happened) + [*NEXT].index(after)) % 4
    for nth in range(first, len(calls) + 1, 4):
        root, words = made(tmp_path / f"{nth}")
        run = commands.run(words, root, nth)
        assert run.code == -9
        lines = root / ".ckpt/journal.jsonl"
        begun_to_remove = lines.exists() and '"begun"' not in lines.read_text()
        HAPPENED[happened](root)
        was, there = step(root), steps(root)
        said = commands.run([word.replace("@", str(root), 1) for word in NEXT[after]], root)
        assert said.code in (0, 3), (run.calls[-1:], said)
        assert step(root) == was or was not in steps(root), (run.calls[-1:], said)
        assert set(there) <= set(steps(root)), (run.calls[-1:], said)
        if command == "prune" and not begun_to_remove:
            assert 10 in steps(root), (run.calls[-1:], said)
        if (after == "pin" and said.code == 0) or (happened == "a pin" and 10 in there):
            assert 10 in steps(root)
