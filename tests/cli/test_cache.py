"""Verdicts kept between runs: what is used again and what never is, what a broken cache does (nothing), and
how many processes read one file once.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import small_files
import warm
from fixture_trees import damage, materialise, questions, selection
from hypothesis import given
from hypothesis import strategies as st
from in_process import executed
from large_runs import BIG, flip, megatron, part, settle
from msgspec.structs import replace
from places import FORMAT_FILES
from timed import lay, same_times

from ckpt_tools import cache, errors
from ckpt_tools.api import latest, plan, verify
from ckpt_tools.cache import Cache, Entry, is_inside, pack, take_turn, unpack
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Box, Level, Report, Stats
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading import reader
from ckpt_tools.settings.resolve import verdicts as directory
from ckpt_tools.storage import Identity

CACHED = Selection(cache=True, settle=0.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled as soon as they are written; what that rule does has tests of its own."""
    monkeypatch.setattr(Identity, "settled", lambda self, opened_ns: True)


def noted(root: Path, **more: Any) -> tuple[LoadPlan, list[str]]:
    notes: list[str] = []
    made = plan(str(root), replace(CACHED, world_size=2, sizes={"tp": 2}, **more), note=notes.append)
    return made, notes


def asked(root: Path, **more: Any) -> LoadPlan:
    made, notes = noted(root, **more)
    assert notes == []
    return made


@pytest.fixture
def root(tmp_path: Path, home: Path) -> Path:
    """One checkpoint, whose files are no longer too young."""
    made = megatron(tmp_path / "run", steps=(20,))
    settle()
    return made


@pytest.fixture
def known(root: Path) -> Path:
    """The same, of which the verdicts are kept."""
    asked(root)
    return root


TEXT = st.text()
INT = st.integers(-(1 << 63), (1 << 64) - 1)
SCALAR = st.one_of(st.none(), st.booleans(), INT, st.floats(), TEXT)
FINDING = st.builds(Finding, TEXT, st.sampled_from(Severity), TEXT, st.one_of(st.none(), INT), TEXT, TEXT)
SIZE = st.integers(0, (1 << 64) - 1)
FLOAT = st.one_of(st.none(), st.floats())
STATS = st.builds(Stats, TEXT, TEXT, *[SIZE] * 6, FLOAT, FLOAT)
INDEX = st.lists(SIZE, max_size=3).map(tuple)
REPORT = st.builds(
    Report, st.just("/p"), st.one_of(st.none(), TEXT), INT, st.sampled_from(Verdict), st.sampled_from(Level), st.floats(0, 1),
    st.dictionaries(TEXT, SCALAR), st.lists(FINDING).map(tuple), TEXT, SIZE, SIZE, INT, SIZE, st.just(()),
    st.lists(STATS).map(tuple),
)  # fmt: skip


@pytest.mark.slow
@given(REPORT, st.dictionaries(TEXT, st.builds(Box, INDEX, INDEX)))
def test_a_report_comes_back_as_it_was(report: Report, places: dict[str, Box]) -> None:
    data = pack(report, places)
    assert data is not None
    again = unpack("/p", data)
    assert again is not None and repr((again[0], dict(again[1]))) == repr((report, places))  # NaN is NaN


@pytest.mark.parametrize("value", [1 << 64, -(10**5000), "\udcff"], ids=["large", "huge", "bytes"])
def test_what_cannot_be_kept_is_read_again(value: object) -> None:
    kept = Report("/p", None, 0, Verdict.OK, Level.CONTENT, 1.0, {"x": value})  # type: ignore[dict-item]
    assert pack(kept, {}) is None


@pytest.mark.slow
@given(
    st.one_of(
        st.binary(), st.dictionaries(st.text(), st.none() | st.text()).map(lambda v: json.dumps(v).encode())
    )
)
def test_what_is_no_report_is_none(data: bytes) -> None:
    assert unpack("/p", data) is None


def outcome(root: str, question: dict[str, Any], **more: Any) -> tuple[object, int]:
    """The plan without what it cost, or the failure; and what it cost."""
    try:
        made = plan(root, replace(selection(question.get("options", {})), **more))
    except errors.CkptError as e:
        left = replace(e.plan, bytes_read=0) if e.plan else None
        return (type(e), str(e), left), e.plan.bytes_read if e.plan else 0
    return replace(made, bytes_read=0), made.bytes_read


@pytest.mark.slow
@pytest.mark.share(96)
@pytest.mark.parametrize(("case", "question"), questions())
def test_a_plan_with_a_cache_is_the_plan_without(
    case: Path, question: dict[str, Any], tmp_path: Path, at_once: None
) -> None:
    root = materialise(case, tmp_path)
    damage(root, question)
    at = os.path.join(root, question.get("root", "."))
    without, cost = outcome(at, question)
    first, _ = outcome(at, question, cache=True)
    warm, less = outcome(at, question, cache=True)
    assert first == without
    assert warm == without
    assert less <= cost


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT, Level.VALUES])
def test_a_second_run_reads_no_content(tmp_path: Path, level: Level) -> None:
    root = megatron(tmp_path / "run")
    settle()
    first, second = asked(root, level=level), asked(root, level=level)
    least = {Level.STRUCTURE: 1000, Level.CONTENT: 2 * BIG, Level.VALUES: 4 * BIG}
    assert first.bytes_read > least[level] and second.bytes_read <= 10  # the tracker
    assert replace(second, bytes_read=0) == replace(first, bytes_read=0)


@pytest.mark.slow
def test_a_deeper_look_answers_a_shallower_question_and_not_the_other_way(root: Path) -> None:
    asked(root, level=Level.STRUCTURE)
    assert asked(root, level=Level.CONTENT).bytes_read > 2 * BIG
    asked(root, level=Level.VALUES)
    assert asked(root, level=Level.CONTENT).bytes_read <= 10
    verify([str(root)], Level.STRUCTURE, cache=True)  # does not replace what is deeper
    assert asked(root, level=Level.VALUES).bytes_read <= 10


def test_what_needs_another_package_is_looked_at_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numpy", None)
        without.delitem(sys.modules, "ckpt_tools.inspection.tensor_values", raising=False)
        assert asked(root, level=Level.VALUES).below_level == 2
    made = asked(root, level=Level.VALUES)
    assert made.below_level == 0 and made.bytes_read > 4 * BIG


def rewritten(path: Path) -> None:
    with same_times(path):
        path.write_bytes(path.read_bytes())


def replaced(path: Path) -> None:
    Path(shutil.copy2(path, path.with_suffix(".new"))).rename(path)


@pytest.mark.slow
@pytest.mark.parametrize("change", [os.utime, rewritten, replaced], ids=lambda c: c.__name__)
def test_a_file_that_changed_is_read_again(known: Path, change: Callable[[Path], None]) -> None:
    change(part(known))
    settle()
    assert BIG < asked(known).bytes_read < 1.2 * BIG  # this one, and not the other
    assert asked(known).bytes_read <= 10


SAME = Identity(1, 2, 3, 4, 5)


def test_what_turns_out_broken_is_forgotten_but_by_who_asked_before() -> None:
    """A medium that loses bits changes no time: what a nightly look finds must not be hidden by what an earlier
    one had kept. And 64 ranks that meet a broken file read it once.
    """
    with closing(Cache("/nowhere", 1e9)) as early, closing(Cache("/nowhere", 1e9)) as cache:
        cache.put("/x", b"a", SAME, Entry(b"good", 2, time.time_ns(), False))
        cache.put("/x", b"b", SAME, Entry(b"good", 1, time.time_ns(), False))
        cache.put("/x", b"a", SAME, Entry(b"bad", 2, time.time_ns(), True))
        assert early.get("/x", b"a", 2, SAME) is not None
    with closing(Cache("/nowhere", 1e9)) as later:
        assert later.get("/x", b"a", 1, SAME) is later.get("/x", b"b", 1, SAME) is None


@pytest.mark.slow
def test_damage_behind_an_old_modification_time_is_seen_and_looked_at_each_time(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    settle()
    asked(root)
    flip(part(root))
    settle()
    for _ in range(2):
        made = asked(root)
        assert made.resume_step == 10 and made.bytes_read > BIG
        assert "crc-mismatch" in {f.code for r in made.rejected for f in r.findings}


@pytest.mark.slow
def test_a_changed_index_makes_its_members_be_looked_at_again(tmp_path: Path) -> None:
    home = lay(tmp_path / "run/step-20", small_files.dcp(20))
    settle()

    def read(**more: Any) -> int:
        return verify([str(tmp_path / "run")], cache=True, **more).summary.bytes_read

    full, index = read(), home / ".metadata"
    assert index.stat().st_size < read(max_age=1e9) < full / 2  # it says what the others are: always read
    rewritten(index)
    settle()
    assert read(max_age=1e9) == full


def test_another_question_and_another_version_ask_anew(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(known, require=("iteration",)).bytes_read > 2 * BIG
    with pytest.raises(errors.NoneUsable):
        asked(known, require=("optimizer",))
    monkeypatch.setattr(reader, "tool_version", lambda: "99")
    assert asked(known).bytes_read > 2 * BIG


def test_a_file_written_a_moment_ago_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = megatron(tmp_path / "run", steps=(20,))
    monkeypatch.setattr(time, "time_ns", lambda: part(root).stat().st_ctime_ns + 50_000_000)
    asked(root)
    assert asked(root).bytes_read > 2 * BIG


@pytest.mark.parametrize(
    ("ctime_ns", "later_ns", "settled"),
    [
        (10**18 + 1, 99_000_000, False),
        (10**18 + 1, 101_000_000, True),
        (10**18, 101_000_000, False),  # whole seconds: perhaps a clock of two seconds
        (10**18, 2_100_000_000, True),
        (10**18 + 1, -5, False),  # changed while we looked, or by another clock
    ],
)
def test_when_a_file_is_settled(ctime_ns: int, later_ns: int, settled: bool) -> None:
    assert Identity(1, 1, ctime_ns, 1, 1).settled(ctime_ns + later_ns) is settled


def test_what_changes_meanwhile_is_not_kept(
    root: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when the change shows in neither size nor modification time."""
    real = reader.inspect

    def meddling(path: str, level: Level, **more: Any) -> Any:
        def progress(n: int) -> None:
            os.chmod(path, 0o600)
            os.chmod(path, 0o644)
            told(n)

        told = more.pop("progress")
        return real(path, level, progress=progress, **more)

    monkeypatch.setattr(reader, "inspect", meddling)
    assert [asked(root).bytes_read > 2 * BIG for _ in range(2)] == [True] * 2
    monkeypatch.setattr(reader, "inspect", real)
    assert asked(root).bytes_read > 2 * BIG and asked(root).bytes_read <= 10


@pytest.mark.slow
def test_max_age(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3600 * 10**9)
    assert asked(known, max_age=7200.0).bytes_read <= 10
    assert asked(known, max_age=3000.0).bytes_read > 2 * BIG
    assert asked(known, max_age=0.0).bytes_read > 2 * BIG
    # a clock that was set back proves no age
    monkeypatch.setattr(time, "time_ns", lambda: now - 7200 * 10**9)
    assert asked(known, max_age=1e9).bytes_read > 2 * BIG


@pytest.mark.slow
def test_verify_keeps_what_it_saw_and_reads_everything_again(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    paths = [str(root), str(min((FORMAT_FILES / "torch_legacy/good").iterdir()))]  # of that there is a note
    settle()
    cold = verify(paths, Level.VALUES, cache=True)
    assert verify(paths, Level.VALUES, cache=True).summary.bytes_read == cold.summary.bytes_read > 4 * BIG
    assert asked(root).bytes_read < 10
    warm = verify(paths, Level.VALUES, cache=True, max_age=3600.0)
    cost = {"bytes_read": warm.summary.bytes_read, "seconds": warm.summary.seconds}
    assert cost["bytes_read"] < 10 and warm == replace(cold, summary=replace(cold.summary, **cost))
    assert any(f.report.findings for f in warm.files) and any(f.report.stats for f in warm.files)
    explained = verify([str(root)], cache=True, max_age=1e9, explain=True)
    assert all(f.report.regions for f in explained.files), "never from the cache"


def test_nothing_is_kept_with_a_key_or_unless_asked(tmp_path: Path, home: Path) -> None:
    root = megatron(tmp_path / "run", steps=(20,))
    (tmp_path / "key").write_bytes(b"0" * 16)
    (tmp_path / "key").chmod(0o600)
    settle()
    asked(root, key_file=str(tmp_path / "key"))
    latest(str(root), Selection(rank=0, world_size=2, sizes={"tp": 2}))
    verify([str(root)])
    assert not home.exists()


def database(home: Path) -> Path:
    return next(home.glob("*/verdicts.sqlite"))


def other_columns(path: Path) -> None:
    """Another program has made it."""
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE seen (a)")


DAMAGED: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(20_000)),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(path.stat().st_size - 4096)),
    "other-columns": other_columns,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_cache_is_said_and_left_alone(known: Path, home: Path, what: str) -> None:
    DAMAGED[what](path := database(home))
    made, (note,) = noted(known)
    assert made.resume_step == 20 and f"no verdicts are used from or kept in {path}" in note
    path.unlink()
    asked(known)
    assert asked(known).bytes_read <= 10  # a new one works


@pytest.mark.slow
def test_a_changed_entry_is_not_believed(known: Path, home: Path) -> None:
    db = sqlite3.connect(database(home))
    db.create_function("changed", 1, lambda entry: entry.replace(b"torch_zip", b"torch_tar"))
    db.execute("UPDATE seen SET entry = changed(entry) WHERE depth > 1")
    db.commit()
    db.close()
    assert asked(known).bytes_read > 2 * BIG


def nowhere(home: Path, patch: pytest.MonkeyPatch) -> None:
    for name in ("CKPT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        patch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError

    patch.setattr("pwd.getpwuid", unknown)


def full(home: Path, patch: pytest.MonkeyPatch) -> None:
    os.makedirs(directory(os.environ), 0o700)
    os.symlink("/dev/full", Path(directory(os.environ), "verdicts.sqlite"))


TROUBLE: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "no module": lambda home, patch: patch.setitem(sys.modules, "sqlite3", None), "nowhere": nowhere,
    "a file": lambda home, patch: home.write_text("in the way"),
    "a directory": lambda home, patch: os.makedirs(f"{directory(os.environ)}/verdicts.sqlite", 0o700),
    "without end": lambda home, patch: patch.setenv("CKPT_CACHE_DIR", "/proc/1/nothing"), "full": full,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_cache_that_cannot_be_had_is_one_note(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    root = megatron(tmp_path / "run", steps=(20,))
    TROUBLE[trouble](home, monkeypatch)
    for _ in range(2):
        made, notes = noted(root)
        assert made.resume_step == 20 and len(notes) == 1, notes


@pytest.mark.slow
def test_a_locked_cache_is_done_without(known: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_tools.cache._BUSY", 0.05)
    with closing(sqlite3.connect(database(home), isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        made, notes = noted(known)
    assert made.resume_step == 20 and len(notes) == 1 and "locked" in notes[0]


@pytest.mark.slow
def test_never_below_the_scanned_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = megatron(tmp_path / "run", steps=(20,))
    before = sorted(root.rglob("*"))
    (tmp_path / "link").symlink_to(root)
    for home in (root / "cache", tmp_path / "link/cache"):
        monkeypatch.setenv("CKPT_CACHE_DIR", str(home))
        _, notes = noted(root)
        assert len(notes) == 1 and "lies in the tree" in notes[0]
    assert sorted(root.rglob("*")) == before
    assert is_inside(f"{tmp_path}/pre_0/x", f"{tmp_path}/pre")  # ROOT is a prefix of several
    assert is_inside("/x", "/") and not is_inside(f"{root}b", str(root))


def test_where_it_lies() -> None:
    host = os.uname().nodename
    assert directory({"CKPT_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}) == f"/c/{host}"
    assert directory({"XDG_CACHE_HOME": "/x"}) == f"/x/ckpt-tools/{host}"
    assert directory({"XDG_CACHE_HOME": "relative"}) == os.path.expanduser(f"~/.cache/ckpt-tools/{host}")


def test_the_file_stays_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_tools.cache.ROWS", 10)

    def filled(names: range, now_ns: int) -> list[str]:
        monkeypatch.setattr(time, "time_ns", lambda: now_ns)
        with closing(Cache("/nowhere", 1e9)) as cache:
            for n in names:
                cache.put(f"/{n:03d}", b"", SAME, Entry(b"x", 2, now_ns, False))
        with closing(sqlite3.connect(database(home))) as db:
            return [os.fsdecode(path) for (path,) in db.execute("SELECT path FROM seen ORDER BY path")]

    now = time.time_ns()
    assert len(filled(range(20), now)) == 10
    assert set(filled(range(100, 103), now + 10**9)) >= {"/100", "/101", "/102"}  # those used last stay
    # nobody asked for the others in 30 days
    assert filled(range(200, 201), now + 31 * 86400 * 10**9) == ["/200"]


@pytest.mark.exhaustive
def test_64_processes_read_every_byte_once(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", ranks=8, steps=(20,))
    size = sum(p.stat().st_size for p in root.rglob("*.pt"))
    settle()
    words = f"latest {root} --parallel tp=8 --world-size 8 --level content --json --rank".split()
    env = {**os.environ, "CKPT_MAX_AGE": "1d"}
    with ThreadPoolExecutor(64) as pool:
        calls = list(pool.map(lambda i: warm.completed([*words, str(i % 8)], env), range(64)))
    assert {call.returncode for call in calls} == {0}, calls[0].stderr
    answers = [json.loads(call.stdout) for call in calls]
    paths = [[f["path"] for f in answer["ranks"][0]["files"]] for answer in answers]
    assert paths == [[str(part(root, i % 8))] for i in range(64)]
    assert len({a["fingerprint"] for a in answers}) == 1
    assert size <= sum(a["bytes_read"] for a in answers) <= 1.05 * size


def test_waiting_has_an_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WAIT", 0.05)
    os.makedirs(directory(os.environ), 0o700)
    with take_turn(directory(os.environ), str(part(root)), True):
        assert asked(root).bytes_read > 2 * BIG


@pytest.mark.slow
def test_without_file_locks_everybody_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(fd: int, how: int) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)  # no file system here is without them
    assert asked(root).bytes_read > 2 * BIG
    assert asked(root).bytes_read <= 10


@pytest.mark.slow
def test_a_note_is_one_line_on_stderr_and_silent_when_quiet(root: Path, home: Path) -> None:
    home.write_text("in the way")
    argv = ["latest", str(root), "--rank", "0", "--parallel", "tp=2", "--world-size", "2"]
    code, out, err = executed(argv)
    line, note = err.splitlines()
    assert (code, out) == (0, f"{part(root)}\n")
    assert line.startswith("ckpt: warning: no verdicts are used") and "weights only" in note
    assert executed([*argv, "-q"])[2] == ""
