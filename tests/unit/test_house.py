"""The house (docs/design.md, section 3): few doors, one direction, no circle."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from places import DOCS, PACKAGE
from radon.complexity import cc_visit_ast

DESIGN = DOCS / "design.md"
DOORS = 26
MODULES = {
    ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
    for p in PACKAGE.rglob("*.py")
}


def typing_only(tree: ast.AST) -> set[ast.AST]:
    """What only a type checker imports."""
    blocks = (n for n in ast.walk(tree) if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
    return {inner for n in blocks if n.test.id == "TYPE_CHECKING" for inner in ast.walk(n)}  # type: ignore[attr-defined]


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of this package that a module imports, at its top or inside a function."""
    skipped = typing_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_top_level_can_be_read_aloud() -> None:
    doors = [p.name for p in PACKAGE.iterdir() if p.name != "__pycache__"]
    assert len(doors) <= DOORS, sorted(doors)
    assert not [name for name in doors if name.startswith("_") and not name.startswith("__")]


@pytest.mark.slow
def test_no_import_leads_back() -> None:
    graph = {name: {*seen(path).imported} & MODULES.keys() - {name} for name, path in MODULES.items()}
    with pytest.raises(CycleError):  # the test can fail
        TopologicalSorter({**graph, "ckpt_tools.errors": {"ckpt_tools.api"}}).prepare()
    TopologicalSorter(graph).prepare()


LONGEST, MOST_COMPLEX = 60, 15
EXEMPT = {"ckpt_tools.formats.pickles.machine.run"}
"""Its loop is kept whole: a call for each opcode takes three times as long."""


def too_much(tree: ast.AST) -> Iterator[str]:
    """The functions of a module with more lines behind their signature and docstring, or a higher complexity as
    radon counts it, than one reads in one breath.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno >= LONGEST:
                yield node.name
    for block in cc_visit_ast(tree):
        if block.letter != "C" and block.complexity > MOST_COMPLEX:
            yield block.name


@pytest.mark.slow
def test_a_function_is_read_in_one_breath() -> None:
    found = {f"{name}.{one}" for name, path in MODULES.items() for one in seen(path).too_much}
    assert found == EXEMPT
    assert set(too_much(ast.parse("def f(a):\n" + "    a += 1\n" * 61))) == {"f"}
    assert set(too_much(ast.parse("def f(a):\n    return " + " or ".join("a" * 17) + "\n"))) == {"f"}


def indexed_reports(tree: ast.Module) -> list[int]:
    """The lines that take a report out of a session's dictionary, in which that of no unread file is."""
    taken = (n for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load))
    return [n.lineno for n in taken if isinstance(n.value, ast.Attribute) and n.value.attr == "reports"]


def test_whatever_asks_for_a_report_asks_the_session_for_it() -> None:
    assert indexed_reports(ast.parse("a = s.reports[p.path]\ns.reports[p.path] = a")) == [1]  # it can fail
    found = {name: indexed_reports(ast.parse(path.read_text())) for name, path in MODULES.items()}
    assert {name for name, lines in found.items() if lines} == set()


def says(text: str) -> str:
    """The docstring of a module, which is its first statement."""
    begun = re.match(r'(?:#.*\n)*r?""".*?"""', text, re.DOTALL)
    return ast.get_docstring(ast.parse(begun[0] if begun else "")) or ""


def is_a_sentence(said: str) -> bool:
    own_names = ("``", "torch", "safetensors", "zarr", "nvidia", "mpirun")
    return said[:1].isupper() or said.startswith(own_names)


def named_twice(tree: ast.Module) -> list[str]:
    """The names that a module gives away twice: what stands between the two means another thing than it says."""
    given = list[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            given += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            given.append(node.target.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            given.append(node.name)
    return sorted({name for name in given if given.count(name) > 1})


@pytest.mark.slow
def test_a_name_means_one_thing() -> None:
    assert named_twice(ast.parse("A = 1\ndef f(): ...\nA = 2\ndef f(): ...")) == ["A", "f"]  # it can fail
    twice = {str(path): seen(path).named_twice for path in MODULES.values()}
    with no_look_for_circles():
        paths = PACKAGE.parent.glob("tests/*/*.py")
        twice |= {str(path): named_twice(ast.parse(path.read_text())) for path in paths}
    assert not {path: names for path, names in twice.items() if names}


def test_a_file_says_what_it_is() -> None:
    said = {name: says(path.read_text()) for name, path in MODULES.items()}
    assert {name: text for name, text in said.items() if not is_a_sentence(text)} == {}
    assert not any(map(is_a_sentence, map(says, ("", "import os\n", '"""of what\n"""\n', "# What\n"))))


def test_the_blueprint_names_every_room_and_nothing_that_is_gone() -> None:
    """Section 3 of docs/design.md: a line for each entry of the package, with files of it to begin with."""
    section = DESIGN.read_text().split("## 3. ")[1].split("## 4. ")[0]
    block = section.split("```")[1].split("\ntests/ ")[0]
    rooms = {m[1]: m[2] for m in re.finditer(r"^  (\w+)/ +((?:.|\n {16})+)", block, re.MULTILINE)}
    assert set(rooms) == {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    for room, text in rooms.items():
        there = {p.stem for p in (PACKAGE / room).iterdir()}
        words = " ".join(re.findall(r"(?:[a-z]\w+ ){2,}[a-z]\w+", text)).split()
        begin = {word for word in words if "_" in word}
        assert begin <= there, (room, begin - there)


OF_OS = "stat lstat open listdir scandir walk readlink access"
OF_PATHS = "exists lexists isdir isfile islink ismount samefile getsize getmtime abspath realpath commonpath"
ASKS = {"open", "Path", "glob.glob", *(f"os.{call}" for call in OF_OS.split())}
ASKS |= {f"os.path.{call}" for call in OF_PATHS.split()}
"""What asks this machine's file system, or makes a path of this machine of a URL."""
BLIND = ("discovery", "inspection", "formats", "layouts", "reading", "planning", "comparison")
"""The rooms that may not know where a tree lies."""
LOCAL = {
    "inspection/load_child.py": "a loader's process is given a file of this machine",
    "inspection/seals.py": "a key of this user's, and a copy for the package that checks signatures",
    "inspection/indexes.py": "asks where a link leads, of no URL",
    "reading/engines.py": "the address of a scheduler, which a user names",
    "planning/first_launch.py": "reads where a link leads that was seen as one: no store has any",
}
"""Files that ask it all the same, and why that is no question about the tree."""


def asking(tree: ast.AST) -> list[str]:
    """The calls of ``ASKS`` in a file."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    named = [*(n.func for n in calls), *(word for n in calls for word in n.args)]
    names = (ast.unparse(n) for n in named if isinstance(n, ast.Attribute | ast.Name))
    return [name for name in names if name in ASKS]


class Seen(NamedTuple):
    """What the rules ask of a file."""

    imported: list[str]
    too_much: list[str]
    named_twice: list[str]
    asking: list[str]


@contextmanager
def no_look_for_circles() -> Iterator[None]:
    """A tree is a hundred thousand objects: looking through them for garbage costs as much as reading the file."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def seen(path: Path) -> Seen:
    """Each file is read once for all rules, and its tree is not kept."""
    with no_look_for_circles():
        tree = ast.parse(path.read_text())
        return Seen(list(imported(tree)), list(too_much(tree)), named_twice(tree), asking(tree))


@pytest.mark.slow
@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("room", BLIND)
def test_no_room_asks_the_file_system_of_this_machine_about_a_tree(room: str) -> None:
    """It may lie in a store: ``storage.retry``, ``storage.listing`` and ``storage.opened`` know both."""
    found = {str(p.relative_to(PACKAGE)): seen(p).asking for p in (PACKAGE / room).rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls and name not in LOCAL} == {}


@pytest.mark.slow
def test_every_exception_is_one_and_the_law_can_fail() -> None:
    assert [name for name in LOCAL if not seen(PACKAGE / name).asking] == []
    asks = ast.parse("import os\nos.path.isdir(x)\npatiently(os.stat, x)\nopen(x)\n")
    assert asking(asks) == ["os.path.isdir", "open", "os.stat"]
