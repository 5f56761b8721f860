"""For all tests: no test, and no command that one starts, uses or writes the user's own cache of verdicts or
decisions.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import examples
import pytest
import rooms
from owners import Owners
from places import FIXTURES

HOME = pytest.StashKey[str]()
SAVED = 1_735_689_600
"""When all fixtures were saved, in seconds since the epoch. A clone gives them its own times, which are
seconds ago: what is judged then is a save under way, and two minutes later, in the middle of a test, a
finished one."""

pytest_plugins = ["stores.fixtures"]

examples.register_profiles()


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module looks at the environment. Both variables, because tests start commands without
    any CKPT_*.
    """
    # In the background of a script both are ignored, and what a test starts would inherit that.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # The tests start some hundred processes, and compiling is half of what a short command takes.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    home = config.stash[HOME] = tempfile.mkdtemp(prefix="ckpt-tests-")
    os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = home
    os.environ["CKPT_CACHE_DIR"] = os.path.join(home, "ckpt")
    if not hasattr(config, "workerinput"):
        of_one_age(FIXTURES.glob("*/**/*"))


def of_one_age(paths: Iterable[Path]) -> None:
    """Give files the time at which all fixtures were saved. One that has it is left alone: to set it again
    changes the file's ctime, and who seals it in a session that is under way takes it for one in use.
    """
    for path in paths:
        if path.lstat().st_mtime != SAVED:
            with suppress(PermissionError):  # a clone of somebody else, who has run the tests before
                os.utime(path, (SAVED, SAVED), follow_symlinks=False)


def leaves_out(config: pytest.Config, mark: str) -> bool:
    """Whether -m says that no test with this mark is to run."""
    return re.fullmatch(rf"(.* and )?not {mark}( and .*)?", config.option.markexpr) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what cannot be imported, or of which nothing was asked for: modules that need torch where
    there is none, and those of a room that the mark expression leaves out.
    """
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    has = rooms.marks(collection_path)
    left_out = any(leaves_out(config, mark) for mark in has) or ("torch" in has and not rooms.has_torch())
    return left_out or None


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Make no tests of functions that the mark expression leaves out: half of all, in each of the workers."""
    marked = {mark.name for mark in getattr(obj, "pytestmark", ()) if isinstance(mark, pytest.Mark)}
    left_out = marked & {"exhaustive", "image", "slow"}
    if left_out:  # what only the nightly run does is slow as well
        left_out.add("slow")
    return [] if any(leaves_out(collector.config, mark) for mark in left_out) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is made here, some million objects, stays until the end: looking through it for garbage again and
    again was half of what collecting costs, and a part of every test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def process_stays() -> Iterator[None]:
    """A test that leaves a signal deadly ends a worker later, in the middle of another one, without a word; one
    that leaves it nice lets whatever else runs on the machine go first, for all that follow.
    """
    numbers = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [os.nice(0), *map(signal.getsignal, numbers)]
    yield
    assert [os.nice(0), *map(signal.getsignal, numbers)] == before


@pytest.fixture(autouse=True, scope="session")
def _gives_no_way() -> Iterator[None]:
    """What watches gives way to what trains, and here it runs in the process of all tests that follow."""
    from ckpt_tools.cli import watch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "give_way", bool)
        yield


def pytest_report_header() -> str | None:
    return None if rooms.has_torch() else "torch is not installed: the test modules that need it are left out"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make no tests of the rows that the mark expression leaves out, two thirds of all, in each of the workers.
    pytest has no public name for the rows that a function got.
    """
    yield
    rows = metafunc._calls
    take_turns(metafunc.definition, rows)
    left_out = [mark for mark in ("exhaustive", "image", "slow") if leaves_out(metafunc.config, mark)]
    if "slow" in left_out:  # what only the nightly run does is slow as well
        left_out = ["exhaustive", "image", "slow"]
    kept = [row for row in rows if not any(mark.name in left_out for mark in row.marks)]
    rows[:] = kept or rows[:1]  # a function without rows would be taken for one that has no parameters


def take_turns(function: pytest.Item, rows: Iterable[Any]) -> None:
    """Of the rows of a test with ``share(n)`` leave one of n unmarked. Which it begins with depends on its
    name, so that the laws over the same trees read others each, and every tree is read by some.
    """
    share = function.get_closest_marker("share")
    if share is None or function.get_closest_marker("exhaustive"):
        return
    n, mark = share.args[0], share.args[1] if len(share.args) > 1 else "exhaustive"
    of_all = [row for row in rows if "exhaustive" not in {mark.name for mark in row.marks}]
    for number, row in enumerate(of_all, zlib.crc32(function.nodeid.encode())):
        if number % n:
            row.marks.append(getattr(pytest.mark, mark).mark)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marks of a room; and what only the nightly run does is slow as well. Rooms whose tests take long come
    first: a worker that has nothing left takes over from the end of another one's stretch.
    """
    items.sort(key=lambda item: rooms.SLOWEST_FIRST.index(rooms.room(item.path)))
    for item in items:
        for mark in rooms.marks(item.path):
            item.add_marker(mark)
        if item.get_closest_marker("exhaustive") or item.get_closest_marker("image"):
            item.add_marker("slow")


QUICK_MOST = 6_000
"""How many tests the loop of edit and test may have. Above that look which of them are variants of one law, and
leave some to CI (``slow``) or to the night (``exhaustive``), or raise it on purpose.
"""


def too_many(tests: int, expression: str) -> str | None:
    """What is wrong with the loop of edit and test where it has grown beyond what was agreed."""
    if expression != "not slow and not cluster" or tests <= QUICK_MOST:
        return None
    return f"the loop of edit and test has {tests} tests, and {QUICK_MOST} were agreed (QUICK_MOST)"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The loop of edit and test does not grow unnoticed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    ran = sum(len(reporter.stats.get(how, ())) for how in ("passed", "failed")) if reporter else 0
    wrong = too_many(ran, session.config.option.markexpr)
    if wrong and reporter and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"\n{wrong}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the run has used of the CPUs, and a fixed loop, as a second of a busy machine may hold a third of the
    work: nothing fails by it.
    """
    if (used := cpu_seconds()) > 30:
        sum(range(10_000_000))
        loop, waited = cpu_seconds() - used, "with all that was waited for"
        told = f"{used:.0f} s of CPU time, {waited} (a loop of ten million: {loop:.2f} s)"
        terminalreporter.write_line(told)


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With ``-n auto`` as many workers as CPUs, and one more where Slurm and others are waited for, since a CPU
    would wait with them. Each further one costs half a minute of CPU: it collects all tests, and starts servers
    of its own. Each has a stretch of neighbours, which share what they start, and takes over tests of another
    one when it has none left.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    if config.option.dist == "no":
        config.option.dist = "worksteal"
    from ckpt_tools.storage.stalls import count_cpus

    return count_cpus() + (not leaves_out(config, "cluster"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """The whole of it was ours."""
    if (warm := sys.modules.get("warm")) is not None:
        warm.stop()
    shutil.rmtree(config.stash[HOME], ignore_errors=True)


READ = (
    "AWS_", "AZURE_", "CKPT_", "GOOGLE_", "HOME", "MS_", "OMPI_", "PATH", "PMI", "SLURM_", "TORCHELASTIC_", "XDG_",
)  # fmt: skip
"""How variables begin that ckpt or a library of a store reads. Others set some of their own, such as torch."""


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """What a test sets is gone afterwards, or a later one would be about something else: also where two
    things that set the same variable are undone in the wrong order.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(READ)}
    yield
    after = {name: value for name, value in os.environ.items() if name.startswith(READ)}
    left = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    for name in left:
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})
    assert not left, f"these variables were left behind: {left}"


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Owners:
    """Files of other users."""
    return Owners(monkeypatch)


@pytest.fixture
def enough_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A clock that counts bytes: the time for reading is over when so many bytes of contents have been read.
    Returns the progress callback that winds it.
    """
    from ckpt_tools.reading.reader import Reader

    def wind(most: int) -> Callable[[int, int], None]:
        done = [0]

        def progress(so_far: int, total: int) -> None:
            done[0] = so_far

        monkeypatch.setattr(Reader, "spent", property(lambda self: self.ends is not None and done[0] >= most))
        return progress

    return wind
