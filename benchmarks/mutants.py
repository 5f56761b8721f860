"""Changes a module in one place at a time and says which changes no test notices.

    python benchmarks/mutants.py planning.choose tests/unit/test_choose.py tests/unit/test_plan.py python
    benchmarks/mutants.py planning.judge tests/layouts/test_selection.py … --sample 60    # of so many places,
    drawn with a fixed seed

A change is one comparison, operator, number, truth value, condition or statement. Each is tried in a process
of its own, forked from one that has pytest and torch loaded; the module on disk stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.util
import os
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240
"""CPU seconds after which a change has made a loop endless, and was noticed by that."""
QUIETLY = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore"]
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Change(NamedTuple):
    """The changed module, and what was changed in it."""

    line: int
    before: str
    after: str
    tree: ast.Module


def other(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in place of a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        changed = copy.deepcopy(node)
        changed.ops[0] = COMPARED[type(node.ops[0])]()
        yield changed
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for left_out in range(len(node.values)):
            rest = [v for i, v in enumerate(node.values) if i != left_out]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        changed = copy.deepcopy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed
    elif isinstance(node, (ast.Assign, ast.AugAssign)) or (
        isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Continue):
        yield ast.Break()


def hints(tree: ast.AST) -> Iterator[ast.AST]:
    """What is said of types, which no test can notice."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (hint := getattr(node, name, None)) is not None:
                yield hint


def changes(source: str) -> Iterator[Change]:
    """Every change of a module, below its functions and classes: what stands at its top is there to be named."""
    count = sum(1 for _ in ast.walk(ast.parse(source)))
    for number in range(count):
        for which in range(4):
            tree = ast.parse(source)
            inside = {
                id(n)
                for top in tree.body
                if isinstance(top, (ast.FunctionDef, ast.ClassDef))
                for n in ast.walk(top)
            }
            inside -= {id(n) for hint in hints(tree) for n in ast.walk(hint)}
            place = next(node for at, node in enumerate(ast.walk(tree)) if at == number)
            found = list(other(place)) if id(place) in inside else []
            if which >= len(found):
                break
            before = ast.unparse(place).split("\n")[0]
            after = ast.unparse(ast.fix_missing_locations(copy.deepcopy(found[which]))).split("\n")[0]
            line = getattr(place, "lineno", 0)
            swap(tree, place, found[which])
            yield Change(line, before, after, ast.fix_missing_locations(tree))


def swap(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, ast.copy_location(new, old))
            elif isinstance(value, list):
                value[:] = [ast.copy_location(new, old) if v is old else v for v in value]


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, with a change."""

    def __init__(self, name: str, tree: ast.Module, path: Path) -> None:
        self.name, self.tree, self.path = name, tree, path

    def find_spec(self, name: str, *_: object) -> object:
        return (
            importlib.util.spec_from_file_location(name, self.path, loader=self)
            if name == self.name
            else None
        )

    def create_module(self, _: object) -> None:
        return None

    def exec_module(self, module: object) -> None:
        exec(compile(self.tree, str(self.path), "exec"), vars(module))


def noticed(name: str, path: Path, tree: ast.Module, tests: list[str]) -> bool:
    """Whether a test fails with this in place of the module."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        sys.meta_path.insert(0, Changed(name, tree, path))
        import pytest

        os._exit(int(pytest.main([*QUIETLY, *tests])))
    return os.waitpid(child, 0)[1] != 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", help="below ckpt_tools, such as planning.choose")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, help="so many of the changes")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import hypothesis  # noqa: F401 - loaded once, for all
    import pytest  # noqa: F401

    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
    path = ROOT / "ckpt_tools" / Path(*given.module.split(".")).with_suffix(".py")
    name = f"ckpt_tools.{given.module}"
    source = path.read_text()
    if noticed(name, path, ast.parse(source), given.tests):
        raise SystemExit("the tests fail without any change")
    every = list(changes(source))
    tried = (
        every
        if given.sample is None
        else sorted(random.Random(1).sample(every, min(given.sample, len(every))), key=lambda c: c.line)
    )
    left = 0
    for change in tried:
        if not noticed(name, path, change.tree, given.tests):
            left += 1
            print(f"{path.name}:{change.line}: {change.before}  ->  {change.after}", flush=True)
    print(f"{given.module}: {len(every)} changes, {len(tried)} tried, {left} not noticed")


if __name__ == "__main__":
    main()
