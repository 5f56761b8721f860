"""What the suite holds its own tests to."""

from __future__ import annotations

import ast
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from counted import TooMuchWork, at_most, calls
from places import ROOT, SUPPORT, TESTS
from rooms import ROOMS, imports, needs_torch, wants_torch


@pytest.fixture
def guard(request: pytest.FixtureRequest) -> Any:
    """The conftest.py of all rooms."""
    plugins = request.config.pluginmanager.get_plugins()
    return next(plugin for plugin in plugins if hasattr(plugin, "too_many"))


def test_the_loop_of_edit_and_test_does_not_grow_unnoticed(guard: Any) -> None:
    quick = "not slow and not cluster"
    assert guard.too_many(guard.QUICK_MOST, quick) is None
    assert "QUICK_MOST" in guard.too_many(guard.QUICK_MOST + 1, quick)
    assert guard.too_many(guard.QUICK_MOST + 1, "") is None


class Law:
    """A test function as its share sees it."""

    def __init__(self, nodeid: str, *args: object) -> None:
        self.nodeid, self.marks = nodeid, {"share": pytest.mark.share(*args).mark}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


class Row:
    def __init__(self, *marks: str) -> None:
        self.marks = [getattr(pytest.mark, name).mark for name in marks]

    def has(self, name: str) -> bool:
        return name in {mark.name for mark in self.marks}


def test_laws_take_turns_over_the_same_rows(guard: Any) -> None:
    """One of each n rows of a law is read by day, and with some laws every row is."""
    read = set[int]()
    for law in range(20):
        rows = [Row(*["exhaustive"] * (n == 3)) for n in range(12)]
        guard.take_turns(Law(f"test_law_{law}", 5), rows)
        left = [n for n, row in enumerate(rows) if not row.has("exhaustive")]
        assert len(left) in (2, 3) and 3 not in left
        read.update(left)
    assert read == set(range(12)) - {3}
    rows = [Row() for _ in range(9)]
    guard.take_turns(Law("test_law", 3, "slow"), rows)
    assert sum(row.has("slow") for row in rows) == 6 and not any(row.has("exhaustive") for row in rows)


def test_another_session_leaves_the_files_of_one_under_way_alone(guard: Any, tmp_path: Path) -> None:
    """Whoever seals a file takes it for one in use when anything about it changes, its times too."""
    (tmp_path / "cloned").touch()
    (tmp_path / "link").symlink_to("cloned")
    paths = sorted(tmp_path.iterdir())
    guard.of_one_age(paths)
    before = [(p.lstat().st_mtime, p.lstat().st_ctime_ns) for p in paths]
    assert [mtime for mtime, _ in before] == [guard.SAVED] * 2
    time.sleep(0.02)  # longer than a tick of the file system's clock
    guard.of_one_age(paths)
    assert [(p.lstat().st_mtime, p.lstat().st_ctime_ns) for p in paths] == before


@pytest.mark.slow
def test_no_test_module_imports_another() -> None:
    """What two of them share is in tests/support, so that either can be run, read or removed alone."""
    imported = [(str(p.relative_to(TESTS)), imports(ast.parse(p.read_text()))) for p in TESTS.rglob("*.py")]
    others = (".", "tests.", "test_")
    assert not [(p, n) for p, names in imported for n in names if n.startswith(others) or n == "tests"]


def test_every_test_module_is_in_a_room() -> None:
    assert {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")} == ROOMS
    assert not list(SUPPORT.rglob("test_*.py"))


@pytest.mark.slow
def test_no_seconds_decide() -> None:
    """How long something took says how busy the machine was: what is to cost little is counted (counted.py)."""
    clock = re.compile(r"\b(process_time|monotonic|perf_counter)\(\)")
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in TESTS.rglob("test_*.py")
        if clock.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert) and re.search(rf"{clock.pattern}.* <", ast.unparse(node))
    ]
    # of the CPU time that a program took, nothing but what decides is asked
    wrong += [p.name for p in TESTS.rglob("test_*.py") if "time.process_" + "time()" in p.read_text()]
    assert wrong == []


def test_work_without_end_is_ended() -> None:
    def endless() -> None:
        while True:
            with suppress(Exception):
                len("")

    with pytest.raises(TooMuchWork), at_most(1000):
        endless()
    with at_most(1000) as made:
        len("")
    assert 0 < made.count < 10 and calls(lambda: len("")) == made.count + 1


@pytest.mark.slow
def test_what_asks_for_torch_inside_is_marked() -> None:
    """A module that imports torch is marked by itself; a test that asks for it in its body says so, or it
    runs where there is none.
    """
    unmarked = [
        f"{path.name}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        if not needs_torch(path)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and wants_torch(node)
        if "mark.torch" not in " ".join(ast.unparse(d) for d in node.decorator_list)
    ]
    assert unmarked == []


@pytest.mark.slow
def test_a_script_that_joins_ranks_leaves_them_at_its_end() -> None:
    """The threads of a group of processes that is still there when the interpreter ends abort it, now and
    then: on a machine under load a test that had passed for months failed.
    """
    joined = {
        path: text
        for room in (TESTS, ROOT / "benchmarks", ROOT / "fixtures")
        for path in room.rglob("*.py")
        if ".init_process_group(" in (text := path.read_text())
    }
    left = ("destroy_process_group", "on_ranks(")
    assert joined and [str(p) for p, text in joined.items() if not any(name in text for name in left)] == []
