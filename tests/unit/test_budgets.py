"""What the house may cost at most. A number only falls: who makes something smaller lowers it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from places import DOCS, PACKAGE, ROOT

from ckpt_tools.cli.app import COMMANDS, command, line
from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.planning.rules.catalogue import RULES
from ckpt_tools.settings.declarations import ENV

DECIDING = ("planning", "discovery", "reading", "layouts")
NAMES_ARE_READ_IN = ("planning", "discovery", "reading", "layouts/common")
DECIDING_FILES = (*NAMES_ARE_READ_IN, "layouts/files.py", "layouts/guess.py", "layouts/index.py")
QUESTIONS = "UsageError NotRecognised NoCheckpoint NoneUsable CannotLook NotNewest LoadFailed"
EMITS = {*QUESTIONS.split(), "finding", "Finding"}
GENERATED = re.compile(r"Made by (?:docs/make|fixtures/make_matrix)\.py|^Made from what", re.MULTILINE)
WORD = re.compile(r"[a-z]{2,}")
NAMES = re.compile(r"[a-z0-9 |_.-]+")
NEARLY = 0.98


def modules(*places: str) -> Iterator[tuple[Path, str]]:
    """Yield the modules of rooms, and their text."""
    for place in places:
        path = PACKAGE / place
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            yield module, module.read_text(encoding="utf-8")


def is_rule(module: Path) -> bool:
    return PACKAGE / "planning/rules" in module.parents


def count_lines(*places: str) -> int:
    return sum(text.count("\n") for _, text in modules(*places))


def find_emitters(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """Yield the qualified name of each function, for each finding that it makes and question that it asks."""
    for node in ast.iter_child_nodes(tree):
        scope = isinstance(node, ast.FunctionDef | ast.ClassDef)
        name = f"{inside}.{node.name}" if scope else inside  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in EMITS:
            yield name
        yield from find_emitters(node, name)


def count_emitters(*rooms: str) -> int:
    rest = ((module, text) for module, text in modules(*(rooms or DECIDING)) if not is_rule(module))
    return len({(module, name) for module, text in rest for name in find_emitters(ast.parse(text))})


def count_words() -> int:
    """Return how many words the constants of the rooms hold that read names."""
    rest = (text for module, text in modules(*NAMES_ARE_READ_IN) if not is_rule(module))
    return sum(len(set(words_of(ast.parse(text)))) for text in rest)


def words_of(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            for node in ast.walk(statement.value):
                text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and NAMES.fullmatch(text):
                    yield from WORD.findall(text)


def count_flags() -> int:
    """Return how many flags --help shows, in all commands together."""
    shown = [p for one in (line(), *map(command, COMMANDS)) for p in one.params if not p.hidden]
    return len({flag for p in shown for flag in p.opts if flag.startswith("--")})


def count_variables() -> int:
    """Return how many variables docs/environment.md lists."""
    return len({said.partition("=")[0] for v in ENV if (said := v.exported)})


def count_words_of_docs() -> int:
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))]
    return sum(len(text.split()) for text in texts if not GENERATED.search(text))


class Budget(NamedTuple):
    """The most that it may be, and how it is counted."""

    most: int
    count: Callable[[], int]


BUDGETS = {
    "lines of the package": Budget(60_875, lambda: count_lines("")),
    "modules of the package": Budget(372, lambda: sum(1 for _ in modules(""))),
    "lines of what decides": Budget(14_522, lambda: count_lines(*DECIDING_FILES)),
    "functions outside rules and formats that make findings or ask": Budget(43, count_emitters),
    "functions of planning and layouts outside rules that ask, all of them about the command line": Budget(
        3, lambda: count_emitters("planning", "layouts")
    ),
    "words in constants of the rooms that read names": Budget(333, count_words),
    "rules": Budget(60, lambda: len(RULES)),
    "flags": Budget(74, count_flags),
    "variables": Budget(45, count_variables),
    "fields of a Layout": Budget(20, lambda: len(Layout.__match_args__)),
    "fields of a Piece": Budget(14, lambda: len(Piece.__match_args__)),
    "words of README and docs, without pages that are made": Budget(44_377, count_words_of_docs),
}
"""Each number only falls."""


@pytest.mark.filterwarnings("default:lower its budget")
@pytest.mark.parametrize("what", BUDGETS)
def test_a_budget_is_kept(what: str) -> None:
    most, count = BUDGETS[what]
    found = count()
    assert found <= most, f"{what}: {found:,}, and {most:,} were agreed; take something away instead"
    if found < NEARLY * most and what != "rules":
        warnings.warn(f"lower its budget: {what}: {found:,}, and {most:,} are allowed", stacklevel=1)


def test_what_is_counted_is_found() -> None:
    tree = ast.parse(
        "class A:\n    def f(self):\n        return finding('x', '')\ndef g():\n    raise errors.UsageError('')\n"
    )
    assert set(find_emitters(tree)) == {".A.f", ".g"}
    module = ast.parse("'docs'\nWORDS = frozenset({'best', 'last_one'})\ndef f():\n    return 'no'\n")
    assert set(words_of(module)) == {"best", "last", "one"}
