"""What is true of one framework alone lives in its layout or format: nothing else in the package names one.

Docstrings and comments may cite examples; code may not: no identifier, no module, no string.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest
from places import PACKAGE

THEIRS = (
    "formats/",
    "layouts/",
    "launchers/",
    "cli/snippets/",
    "elastic/",
    "guard/callbacks/",
    "integrations/",
)
"""The rooms that know frameworks."""
FRAMEWORKS = re.compile(
    r"mindspore|mindformers|mindio|megatron|mcore|deepspeed|torchrun|msrun|lightning|orbax|tensorflow|keras"
    r"|transformers|accelerate|hugging|dlrover|nvrx|nemo|zarr|ocdbt|tensorstore|safetensors|\bdcp\b|dcp_"
    r"|remove_redundancy|crc_trailer|[md]p_world_size",
    re.IGNORECASE,
)


class Allowed(NamedTuple):
    """A file that may name frameworks, in what, and why."""

    file: str
    names: str
    reason: str


ALLOWED = [
    Allowed("cli/options.py", r".*(torchrun|msrun).*", "help: how the command is started"),
    Allowed("cli/app.py", r".*(torchrun|msrun).*", "help: how the command is started"),
    Allowed("findings.py", ".*MindSpore gives a finished checkpoint", "the title of a finding"),
    Allowed("job/membership.py", r"--worker is for .*|torchrun", "a hint; the launcher that has a node rank"),
    Allowed("job/decider.py", r"set CKPT_NODE.*", "a hint"),
    Allowed("job/meeting.py", r"give torchrun.*", "a hint"),
    Allowed("planning/rules/", r".*\n.*", "the page of a rule: the incident or the source that it is for"),
    Allowed("settings/declarations.py", ".*MindSpore (strategy|checkpoints).*", "help texts of flags"),
    Allowed("inspection/load_child.py", ".*", "calls each framework's own loader, in a process of its own"),
    Allowed("inspection/check.py", ".*", "which package has the loader, and how to install it"),
]
"""What users read, in the words that they know; and the level load asks the framework itself."""


def _names(node: ast.AST) -> list[str]:
    """What a node of a module's tree is called, or says."""
    if isinstance(node, ast.Constant):
        return [str(node.value)] if isinstance(node.value, (str, bytes)) else []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None) or ""
        return [module, *(alias.name for alias in node.names), *(alias.asname or "" for alias in node.names)]
    return [
        name for field in ("id", "attr", "arg", "name") if isinstance(name := getattr(node, field, None), str)
    ]


def _code(tree: ast.AST) -> Iterator[str]:
    """All names and strings of a module but its docstrings: texts that stand alone."""
    alone = (n.value for n in ast.walk(tree) if isinstance(n, ast.Expr))
    docs = {id(value) for value in alone if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if id(node) not in docs:
            yield from _names(node)


@cache
def _named() -> dict[str, set[str]]:
    """File -> the names and strings in it that name a framework."""
    out: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(THEIRS):
            continue
        found = {name for name in _code(ast.parse(path.read_text())) if FRAMEWORKS.search(name)}
        out.update({file: found} if found else {})
    return out


def _fits(row: Allowed, file: str, name: str) -> bool:
    at = file.startswith(row.file) if row.file.endswith("/") else row.file == file
    return at and re.fullmatch(row.names, name, re.IGNORECASE | re.DOTALL) is not None


@pytest.mark.slow
def test_nothing_but_layouts_and_formats_names_a_framework() -> None:
    named = [(file, name) for file, names in _named().items() for name in sorted(names)]
    assert [one for one in named if not any(_fits(row, *one) for row in ALLOWED)] == []


@pytest.mark.slow
@pytest.mark.parametrize("row", ALLOWED, ids=lambda row: row.file)
def test_exceptions_that_stay_are_needed(row: Allowed) -> None:
    named = ((file, name) for file, names in _named().items() for name in names)
    assert any(_fits(row, file, name) for file, name in named), f"no longer named: {row}"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("from x.mindspore import y", True),
        ("def f(megatron_args): pass", True),
        ("x = a.orbax_tree", True),
        ("x = {'mp_world_size': 1}", True),
        ("class TensorFlow: pass", True),
        ("f(keras=1)", True),
        ("def f():\n    'As Megatron-LM does.'", False),
        ("x = 1  # as in DeepSpeed", False),
        ("x = 'accelerator'", False),
    ],
)
def test_names_are_seen_in_code_alone(code: str, seen: bool) -> None:
    assert any(FRAMEWORKS.search(name) for name in _code(ast.parse(code))) is seen
