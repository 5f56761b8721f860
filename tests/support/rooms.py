"""Which marks a test has for where it stands: by its room, and by whether its module cannot be imported
without torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from places import SUPPORT, TESTS

SLOWEST_FIRST = ("cluster", "stores", "laws", "cli", "layouts", "formats", "unit")
"""By what a test takes in them."""
ROOMS = frozenset(SLOWEST_FIRST)
OF_SLOW = "help machine_formats plugins prune release repair seal_in_training site watch"  # fmt: skip
SLOW = frozenset(f"test_{of}" for of in OF_SLOW.split())
"""Files of commands that are left out of the loop of edit and test: they start real frameworks and servers, or
kill a command at each call that it makes.
"""


def room(path: Path) -> str:
    """The folder of tests/ that a test module is in."""
    return path.relative_to(TESTS).parts[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """The module names of all imports below ``tree``; relative ones begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def wants_torch(tree: ast.AST) -> bool:
    """Whether torch is imported below ``tree``, or ``importorskip`` is asked for it."""
    asked = (
        n.args[0]
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "importorskip"
    )
    names = (*imports(tree), *(n.value for n in asked if isinstance(n, ast.Constant)))
    return any(re.fullmatch(r"(safetensors\.)?torch(\..+)?", str(name)) for name in names)


MAY_NEED_TORCH = re.compile(r"^\s*(?:from|import) .*torch|importorskip", re.MULTILINE)
SHARES = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)


@cache
def needs_torch(path: Path) -> bool:
    """Whether importing the file imports torch: itself, or through what it shares with others."""
    text = path.read_text()
    if MAY_NEED_TORCH.search(text):  # parsing all files takes each worker seconds
        inner = (ast.FunctionDef, ast.ClassDef, ast.If)
        if any(wants_torch(node) for node in ast.parse(text).body if not isinstance(node, inner)):
            return True
    shared = (SUPPORT / f"{name}.py" for name in SHARES.findall(text))
    return any(needs_torch(file) for file in shared if file.exists())


@cache
def marks(path: Path) -> tuple[str, ...]:
    """What is true of every test in a module."""
    of_room = {"cluster": "cluster", "laws": "slow", "stores": "slow"}.get(room(path))
    mark = "slow" if path.stem in SLOW else of_room
    return (*([mark] if mark else []), *(["torch"] if needs_torch(path) else []))


def has_torch() -> bool:
    return find_spec("torch") is not None
