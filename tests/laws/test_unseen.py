"""Not having looked is never absence: whatever system call fails on whatever path below ROOT, an answer is
the unharmed one, or exit 5 that names the path.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import small_files
from fixture_trees import CASES, NAMED, TREES, materialise, tree_of
from injected import ERRNOS, OF_DIRECTORIES, OF_FILES, Fault, Reply, Victim, broken_law, paths, words_of
from run_helpers import CKPT, CLEAN, OLD, megatron, one_file_per_rank
from timed import put, same_times

from ckpt_tools import CannotLook, Selection, Verdict, latest, plan, scan, verify
from ckpt_tools.cli import execute
from ckpt_tools.storage import retry, stalls

COMMANDS = (
    "plan", "verify", "plan --allow=unreadable", "latest --rank 0", "hook", "run", "ls", "plan --order step", "plan --allow none,missing", "by-engine",
)  # fmt: skip
FAULTS = 9
"""Of one fixture, about: large trees have hundreds of like paths. Over all fixtures each command meets each
call and each error; the nightly run tries all of them on each path.
"""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    one = Victim(tmp_path_factory.mktemp("elsewhere"))
    yield one
    one.close()


def faults(root: Path) -> Iterator[Fault]:
    """Every call that a path is asked with, and every error."""
    for path, directory in paths(root):
        for call in OF_DIRECTORIES if directory else OF_FILES:
            yield from (Fault(path, call, number) for number in (ERRNOS[:1] if call == "end" else ERRNOS))


def some(root: Path, turn: int) -> Iterator[tuple[str, Fault]]:
    """Every second path once, three commands; the calls, the errors and the commands take turns, so that each
    meets each other over all fixtures.
    """
    commands = (COMMANDS[turn % 3], *(COMMANDS[3 + (turn + i) % (len(COMMANDS) - 3)] for i in (0, 3)))
    for n, (path, directory) in enumerate(list(paths(root))[turn % 2 :: 2], turn):
        calls = OF_DIRECTORIES if directory else OF_FILES
        yield commands[n % 3], Fault(path, calls[n // 3 % len(calls)], ERRNOS[n // 5 % len(ERRNOS)])


Asked = tuple[str, Fault, Reply, Reply]
"""A command, what went wrong, and its answers without and with that."""


def all_wrong(asked: Iterable[Asked]) -> list[str]:
    return [
        f"{command}: {f.call} of {f.path}: {errno.errorcode[f.errno]}: {why}"
        for command, f, unharmed, harmed in asked
        if (why := broken_law(command, unharmed, harmed, f.path))
    ]


@pytest.mark.share(48)
@pytest.mark.parametrize("case", TREES)
def test_an_error_on_any_path_is_never_absence(case: Path, victim: Victim, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    turn = zlib.crc32(f"{case.parent.parent.name}/{case.parent.name}".encode())  # whatever cases are added
    cases = [*some(root, turn), *some(root, turn + 1)]
    cases = cases[turn % (1 + len(cases) // FAULTS) :: 1 + len(cases) // FAULTS]
    unharmed = {command: victim.ask(words_of(command, str(root))) for command, _ in cases}
    harmed = [victim.ask(words_of(command, str(root)), fault) for command, fault in cases]
    asked = ((*case, unharmed[case[0]], said) for case, said in zip(cases, harmed, strict=True))
    assert not all_wrong(asked)
    assert any(said.injected for said in harmed)


@pytest.mark.share(48)
@pytest.mark.parametrize("case", TREES)
def test_an_error_that_passes_by_itself_is_never_absence(case: Path, victim: Victim, tmp_path: Path) -> None:
    """What was concluded while a file could not be read is not held against it once it can be."""
    root = materialise(case, tmp_path)
    files = [path for path, directory in paths(root) if not directory]
    turn = zlib.crc32(f"{case.parent.parent.name}/{case.parent.name}".encode())
    commands, calls = ("plan", "verify", "ls"), ("read", "read", "open", "stat", "end")
    unharmed = {command: victim.ask(words_of(command, str(root))) for command in commands}
    asked = list[Asked]()
    for n, path in enumerate(files[turn % 2 :: 1 + len(files) // (2 * FAULTS)]):
        command = commands[(turn + n) % 3]
        fault = Fault(path, calls[n % 5], (errno.EIO, errno.ENOMEM)[n % 2], times=1)
        asked.append((command, fault, unharmed[command], victim.ask(words_of(command, str(root)), fault)))
    assert not all_wrong(asked)


def test_leave_to_go_on_is_none_to_load_a_save_without_its_highest_rank(
    victim: Victim, tmp_path: Path
) -> None:
    """Of a lone save nothing else tells how many ranks there were; the step in its name is that of the choice."""
    root = tree_of("rank-files/directories", tmp_path)
    for path in root.iterdir():
        if path.is_file():
            path.unlink()
        elif not path.name.startswith("epoch_3"):
            shutil.rmtree(path)
    fault = Fault(str(root / "epoch_3_step_30/rank_2"), "opendir", errno.EIO)
    assert victim.ask(words_of("plan --allow=unreadable", str(root)), fault).code == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("at", range(len(CASES)), ids=NAMED)
def test_every_error_of_every_call_on_every_path(
    at: int, command: str, victim: Victim, tmp_path: Path
) -> None:
    root = materialise(CASES[at], tmp_path)
    words = words_of(command, str(root))
    unharmed = victim.ask(words)
    asked = [(command, fault, unharmed, victim.ask(words, fault)) for fault in faults(root)]
    assert not all_wrong(asked)[:20]
    assert any(harmed.injected for _, _, _, harmed in asked)


# ---- what is tried again, and what cannot win


@pytest.fixture
def megatron_root(tmp_path: Path) -> Path:
    return megatron(tmp_path / "run", steps=(10, 20))


def part(root: Path, step: int) -> str:
    return str(root / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt")


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_what_cannot_pass_is_not_tried_again(number: int, victim: Victim, megatron_root: Path) -> None:
    fault = Fault(str(megatron_root / "iter_0000020"), "opendir", number)
    assert victim.ask(words_of("plan", str(megatron_root)), fault).injected == 1


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET])
@pytest.mark.parametrize("call", ["opendir", "readdir", "stat", "open", "read"])
def test_what_may_pass_is_tried_three_times_more(
    call: str, number: int, victim: Victim, megatron_root: Path
) -> None:
    words, path = words_of("plan", str(megatron_root)), part(megatron_root, 20)
    path = os.path.dirname(path) if call in ("opendir", "readdir") else path
    passing, lasting = (victim.ask(words, Fault(path, call, number, times=n)) for n in (3, 1000))
    assert passing.answer == victim.ask(words).answer and passing.injected == 3
    # Python itself makes an interrupted open or read again
    if number != errno.EINTR or call in ("opendir", "readdir", "stat"):
        # once, and three times more, wherever the path is asked about
        assert lasting.code == 5 and lasting.injected in (4, 8, 12)


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", ".nfs0000000012345678"])
@pytest.mark.parametrize("command", ["plan", "plan --allow none", "verify", "ls"])
def test_names_of_the_file_system_do_not_stop_a_start(
    command: str, name: str, victim: Victim, megatron_root: Path
) -> None:
    (megatron_root / name).mkdir()
    words = words_of(command, str(megatron_root))
    fault = Fault(f"{megatron_root}/{name}", "opendir", errno.EACCES)
    harmed = victim.ask(words, fault)
    assert harmed.injected and harmed.answer == victim.ask(words).answer and harmed.code == 0
    assert fault.path in harmed.out


@pytest.mark.parametrize(
    ("step", "days", "code"),
    [(5, -1, 0), (5, 1, 5), (30, -1, 5), (None, -1, 5), (None, 1, 5)],
    ids=["older", "later", "higher", "nameless", "nameless-later"],
)
def test_only_what_is_older_by_name_and_by_time_is_passed_over(
    step: int | None, days: int, code: int, victim: Victim, megatron_root: Path
) -> None:
    hidden = megatron_root / ("other" if step is None else f"iter_{step:07d}")
    hidden.mkdir()
    os.utime(hidden, (OLD + 7200 + days * 86400,) * 2)
    harmed = victim.ask(words_of("plan", str(megatron_root)), Fault(str(hidden), "opendir", errno.EACCES))
    assert harmed.code == code and str(hidden) in harmed.out
    assert (harmed.body["checkpoint"] or {}).get("step") == (20 if code == 0 else None)
    timeless = victim.ask(words_of("plan", str(megatron_root)), Fault(str(hidden), "stat", errno.EIO))
    assert timeless.code == 5


@pytest.mark.parametrize("untyped", [False, True])
def test_entries_that_do_not_say_what_they_are(untyped: bool, victim: Victim, megatron_root: Path) -> None:
    """On such file systems every entry must be asked, and any of them may be a directory."""
    words, home = words_of("plan", str(megatron_root)), str(megatron_root / "iter_0000020")
    assert victim.ask(words, untyped=untyped).body["checkpoint"]["step"] == 20
    harmed = victim.ask(words, Fault(home, "stat", errno.EIO), untyped=untyped)
    assert harmed.code == 5 and home in harmed.err


def copied(root: Path) -> None:
    # kept under another name, and called another step
    for name in ("iter_0000020.bak", "iter_0000030"):
        shutil.copytree(root / "iter_0000020", root / name)


def linked(root: Path) -> None:
    """The newest checkpoint is a link, a rank directory of the older one too, and another name leads to the
    newest as well.
    """
    (root / "iter_0000020").rename(root / "kept")
    (root / "iter_0000010/mp_rank_01").rename(root / "elsewhere")
    (root / "iter_0000010/mp_rank_01").symlink_to(root / "elsewhere")
    (root / "iter_0000020").symlink_to("kept")
    (root / "latest").symlink_to("iter_0000020")


@pytest.mark.share(4)
@pytest.mark.parametrize("command", ["plan", "plan --allow=unreadable"])
@pytest.mark.parametrize("made", [copied, linked])
def test_copies_and_links_that_could_not_be_looked_at(
    made: Callable[[Path], None], command: str, victim: Victim, megatron_root: Path
) -> None:
    made(megatron_root)
    words = words_of(command, str(megatron_root))
    unharmed = victim.ask(words)
    assert unharmed.body["checkpoint"]["step"] == 20
    for path, directory in paths(megatron_root):
        for call in ("opendir", "stat") if directory else ("read", "stat"):
            harmed = victim.ask(words, Fault(path, call, errno.EIO))
            own = path.replace("/elsewhere", "/iter_0000010/mp_rank_01")
            names = (path, path.replace("/kept", "/iter_0000020"), own)
            assert broken_law(command, unharmed, harmed, *names) is None, (path, call, harmed.err)


# ---- nothing is there, as far as one can see


ANY = ("plan", "plan --allow=unreadable --allow=none", "hook --allow none", "run --allow none", "ls", "verify")  # fmt: skip


@pytest.mark.parametrize("command", ANY)
@pytest.mark.parametrize("held", ["nothing", "an unfinished save", "a broken checkpoint"])
def test_none_is_never_said_of_what_was_not_seen(
    held: str, command: str, victim: Victim, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    (root / "hidden").mkdir(parents=True)
    if held == "an unfinished save":
        (root / "net-1_10.ckpt.tmp").write_bytes(b"x")
    elif held == "a broken checkpoint":
        megatron(root, steps=(10,), tracker=False)
        Path(part(root, 10)).write_bytes(b"")
    harmed = victim.ask(words_of(command, str(root)), Fault(str(root / "hidden"), "opendir", errno.EIO))
    assert harmed.code == 5 and str(root / "hidden") in harmed.out + harmed.err


@pytest.mark.parametrize(("unread", "damaged"), [(0, 1), (1, 0), (0, None)])
def test_a_file_that_may_be_whole_is_not_fallen_back_from_though_its_replica_is_broken(
    unread: int, damaged: int | None, victim: Victim, tmp_path: Path
) -> None:
    root = one_file_per_rank(tmp_path / "run")
    files = [root / f"rank_{rank}/net-1_20.ckpt" for rank in range(2)]
    if damaged is not None:
        with same_times(files[damaged]):
            files[damaged].write_bytes(files[damaged].read_bytes()[:-9])
    words = words_of("plan --replica-groups all", str(root))
    harmed = victim.ask(words, Fault(str(files[unread]), "read", errno.EIO))
    if damaged is None:  # the replica stands in
        assert harmed.code == 0 and harmed.body["checkpoint"]["step_in_epoch"] == 20
    else:
        assert harmed.code == 5 and str(files[unread]) in harmed.err


def test_with_leave_a_hidden_rank_directory_still_stops(victim: Victim, tmp_path: Path) -> None:
    """Its files may be of any checkpoint, and nothing else says how many ranks there are."""
    root = one_file_per_rank(tmp_path / "run")
    fault = Fault(str(root / "rank_1"), "opendir", errno.EIO)
    harmed = victim.ask(words_of("plan --allow=unreadable", str(root)), fault)
    assert harmed.code == 5 and fault.path in harmed.err


# ---- the pieces


def test_only_what_cannot_be_there_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    for name, there, file, directory in [
        ("file", True, True, False), (".", True, False, True), ("loop", True, False, False), ("gone", True, False, False),
        ("none", False, False, False), ("file/below", False, False, False), ("n" * 300, False, None, None),
    ]:  # fmt: skip
        path = str(tmp_path / name)
        assert retry.exists(path) is there, name
        if file is not None:
            assert (retry.is_file(path), retry.is_directory(path)) == (file, directory), name
    # each name is short enough: something may be there, and nobody can ask
    with pytest.raises(OSError, match="too long"):
        retry.exists(str(tmp_path) + "/name" * 2000)


# ---- real processes


def ended(line: list[str], fault: Fault, notes: Path) -> subprocess.CompletedProcess[str]:
    env = {**CLEAN, "CKPT_NO_CACHE": "1", **fault.environment(notes)}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=1000)


RANK = "mp_rank_01/model_optim_rng.pt"


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("command", "call", "below"),
    [
        ("plan --json", "opendir", "iter_0000020"), ("latest --rank 0", "read", f"iter_0000020/{RANK}"),
        ("verify", "read", f"iter_0000010/{RANK}"),
        ("hook", "readdir", "iter_0000020/mp_rank_00"), ("run", "open", f"iter_0000020/{RANK}"), ("ls", "stat", f"iter_0000020/{RANK}"),
    ],
)  # fmt: skip
def test_every_command_as_a_process_of_its_own(
    command: str, call: str, below: str, megatron_root: Path, tmp_path: Path
) -> None:
    fault, notes = Fault(str(megatron_root / below), call, errno.EIO), tmp_path / "notes"
    name, *more = command.split()
    line = [*CKPT, name, str(megatron_root), *more, *(["--", "echo", "started"] if name == "run" else [])]
    done = ended(line, fault, notes)
    assert done.returncode == 5 and "started" not in done.stdout and "Traceback" not in done.stderr
    assert (below if name in ("verify", "ls") else fault.path) in done.stdout + done.stderr
    assert set(notes.read_text().splitlines()) == {f"{call} {fault.path}"}


def test_copies_of_the_process_tell_what_they_could_not_read(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for rank in range(70):
        for step in (10, 20):
            data = small_files.mindspore(True, rank, step_num=step)
            put(root / f"rank_{rank}/net-1_{step}.ckpt", data, OLD + step * 360)
    fault, notes = Fault(str(root / "rank_33/net-1_20.ckpt"), "read", errno.EIO), tmp_path / "notes"
    line = [*CKPT, "plan", str(root), "--json", "--jobs", "2"]
    done = ended(line, fault, notes)
    assert done.returncode == 5 and fault.path in done.stdout
    assert fault.path in notes.read_text()


def test_the_python_api_says_the_same(megatron_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, real = str(megatron_root / "iter_0000020"), os.scandir

    def refusing(path: str) -> object:
        if path == hidden:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    for ask in (plan, latest):
        with pytest.raises(CannotLook, match="iter_0000020") as raised:
            ask(megatron_root)
        assert raised.value.plan is not None and hidden in {f.path for f in raised.value.plan.warnings}
    assert [(f.code, f.path) for f in scan(megatron_root).findings] == [("unreadable", hidden)]
    assert verify(megatron_root).verdict is Verdict.UNKNOWN
    older = plan(megatron_root, Selection(skip_unreadable=True))
    assert older.checkpoint and older.checkpoint.step == 10 and hidden in {f.path for f in older.warnings}


@pytest.mark.share(4)
@pytest.mark.parametrize("command", ["plan", "latest --rank 0", "plan --order step"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_number_of_a_rank_is_no_older_step(
    command: str, rank: int, victim: Victim, tmp_path: Path
) -> None:
    """What cannot be listed is ``ckpt_0``; ``ckpt_1`` holds files of step 7."""
    root = tree_of("mindspore/v200", tmp_path)
    fault = Fault(str(root / f"ckpt_{rank}"), "opendir", errno.EIO)
    harmed = victim.ask(words_of(command, str(root)), fault)
    assert harmed.injected and harmed.code == 5 and fault.path in harmed.err


CLOSING = (
    "plan @ --json", "latest @ --rank 0", "hook @ --plan-dir plans", "verify @ --json", "seal @ -q", "prune @ --keep 1 --apply -q",
)  # fmt: skip


class Closing:
    """``os.close``, of which one call frees its descriptor and fails."""

    def __init__(self, real: Callable[[int], None], nth: int) -> None:
        self.real, self.nth, self.calls = real, nth, 0

    def __call__(self, fd: int) -> None:
        self.calls += 1
        self.real(fd)
        if self.calls == self.nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def closes(command: str, place: Path, nth: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How a command ends, and how many files it closes."""
    place.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(place)
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        root = megatron(place / "run")
        patch.setattr(os, "close", closing := Closing(os.close, nth))
        return execute([str(root) if word == "@" else word for word in command.split()]), closing.calls


@pytest.mark.share(3)
@pytest.mark.parametrize("command", CLOSING)
def test_a_close_that_fails_is_no_bug(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, calls = closes(command, tmp_path / "all", 0, monkeypatch)
    assert code == 0 and calls >= 4  # each file is opened once
    said = {nth: closes(command, tmp_path / str(nth), nth, monkeypatch)[0] for nth in range(1, calls + 1, 7)}
    assert set(said.values()) <= {0, 5}, said
    assert "Traceback" not in capfd.readouterr().err


def test_attempts_are_four_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, calls = list[float](), list[int]()
    monkeypatch.setattr(stalls, "pause", pauses.append)

    def failing(number: int) -> None:
        calls.append(number)
        raise OSError(number, os.strerror(number))

    passing = (errno.ESTALE, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET)
    for number, times in (*((number, 4) for number in passing), (errno.EIO, 1), (errno.ENOENT, 1)):
        with pytest.raises(OSError, match=os.strerror(number)):
            stalls.retry_call(failing, number)
        assert calls.count(number) == times
    assert pauses == [pytest.approx(seconds, rel=0.5) for seconds in [*stalls.PAUSES] * 4]
    assert sum(stalls.PAUSES) < 0.1 and sorted(stalls.PAUSES) == [*stalls.PAUSES]
