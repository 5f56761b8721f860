"""Real trees of fixtures/layouts: copies of them, the damage that a question does to them, and the questions
themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import LAYOUT_TREES

from ckpt_tools.api import plan
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

CASES = sorted(LAYOUT_TREES.glob("*/*/expected.json"))
NAMED = {"/".join(case.parts[-3:-1]): case for case in CASES}
"""Cases by the names of their layout and of their own."""
FIRST = {case.parent.parent.name: case for case in reversed(CASES)}
"""The first case of each layout."""
TREES = [pytest.param(case, id=f"{case.parent.parent.name}-{case.parent.name}") for case in CASES]


def materialise(case: Path, target: Path) -> Path:
    """A copy of a case's tree with the modification times its framework left (git keeps none), moved back
    where they lie in the future of this clock.
    """
    expected = json.loads(case.read_text())
    root = target / "tree"
    shutil.copytree(case.parent / "tree", root, symlinks=True)
    ahead = max(0, max(expected["mtimes"].values()) - time.time_ns() + 3_600_000_000_000)
    for name, ns in expected["mtimes"].items():
        os.utime(root / name, ns=(ns - ahead, ns - ahead))
        os.chmod(root / name, int(expected["modes"][name], 8))
    return root


def tree_of(name: str, target: Path) -> Path:
    return materialise(NAMED[name], target)


def below(path: Path) -> list[Path]:
    """The file itself, or the files in the directory."""
    return [path] if not path.is_dir() else [p for p in path.rglob("*") if p.is_file()]


def damage(root: Path, edits: dict[str, Any]) -> None:
    """Do to a tree what a question says: ``remove`` [path], ``copy`` {to: from}, ``truncate`` {path: bytes
    left}, ``write`` {path: text}, ``flip`` {path: offset}, ``link`` {path: target}, ``swap`` [[path, path]];
    ``mtime`` {path: seconds after the newest file} and ``now`` {path: seconds after now} change times, which
    the others leave alone."""
    newest = max(p.stat().st_mtime_ns for p in below(root))
    for name in edits.get("remove", ()):
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
    for to, source in edits.get("copy", {}).items():
        if (root / source).is_dir():
            shutil.copytree(root / source, root / to)
        else:
            overwrite(root / to, (root / source).read_bytes(), (root / source).stat().st_mtime_ns)
    for name, size in edits.get("truncate", {}).items():
        overwrite(root / name, (root / name).read_bytes()[:size], newest)
    for name, text in edits.get("write", {}).items():
        overwrite(root / name, text.encode(), newest)
    for name, at in edits.get("flip", {}).items():
        data = bytearray((root / name).read_bytes())
        data[at] ^= 1
        overwrite(root / name, bytes(data), newest)
    for name, to in edits.get("link", {}).items():
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(to)
    for a, b in edits.get("swap", ()):
        first, second = (root / a).read_bytes(), (root / b).read_bytes()
        overwrite(root / a, second, newest)
        overwrite(root / b, first, newest)
    for key, start in (("mtime", newest), ("now", time.time_ns())):
        for name, seconds in edits.get(key, {}).items():
            for path in below(root / name):
                os.utime(path, ns=(start + int(seconds * 1e9),) * 2)


def overwrite(path: Path, data: bytes, mtime_ns: int) -> None:
    """Write a file, and give it the times and the mode that it had, or else ``mtime_ns``."""
    was = path.stat() if path.exists() else None
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if was:
        os.chmod(path, was.st_mode & 0o777)
    os.utime(path, ns=(was.st_mtime_ns if was else mtime_ns,) * 2)


def selection(options: dict[str, Any]) -> Selection:
    """The JSON form of a Selection."""
    made = dict(options)
    for key, to in (("fault_ranks", frozenset), ("require", tuple), ("kind", Kind)):
        if key in made:
            made[key] = to(made[key])
    if of_roles := made.get("replica_groups"):
        made["replica_groups"] = {role: tuple(map(tuple, groups)) for role, groups in of_roles.items()}
    return Selection(**made)


def files_of(made: LoadPlan, root: Path) -> dict[str, list[str]]:
    return {str(r.rank): [os.path.relpath(f.path, root) for f in r.files] for r in made.by_rank}


def questions(key: str = "plans") -> list[Any]:
    return [
        pytest.param(case, question, id=f"{case.parent.parent.name}-{case.parent.name}-{i}")
        for case in CASES
        for i, question in enumerate(json.loads(case.read_text()).get(key, ()))
    ]


def firsts(rows: list[Any], mark: pytest.MarkDecorator) -> list[Any]:
    """The same rows, whose first value is a case; those but the first of a case and a quarter have this mark."""
    seen, out = set[Path](), []
    for i, row in enumerate(rows):
        case = row.values[0]
        out.append(pytest.param(*row.values, id=row.id, marks=mark) if case in seen and i % 4 else row)
        seen.add(case)
    return out


def one_of_each(rows: Sequence[Any]) -> list[Any]:
    """The same rows, whose first value is a case; those but the first of a layout are for the nightly run alone."""
    seen, out = set[Path](), []
    for row in rows:
        layout, nightly = row.values[0].parent.parent, pytest.mark.exhaustive
        out.append(pytest.param(*row.values, id=row.id, marks=nightly) if layout in seen else row)
        seen.add(layout)
    return out


def pairs(ones: Sequence[Any], others: Sequence[Any], mark: pytest.MarkDecorator) -> list[Any]:
    """Every pair of two lists; all have this mark but one of each value of the longer list, in which the values
    of the other take turns.
    """
    shorter = min(len(ones), len(others))
    return [
        pytest.param(one, other, marks=mark if (i - j) % shorter else ())
        for i, one in enumerate(ones)
        for j, other in enumerate(others)
    ]


QUESTIONS = [row for row in questions() if "error" not in row.values[1]]


def setup(case: Path, question: Mapping[str, Any], tmp_path: Path) -> tuple[Path, LoadPlan]:
    root = materialise(case, tmp_path)
    damage(root, dict(question))
    return root, plan(os.path.join(root, question.get("root", ".")), selection(question.get("options", {})))


def tree(name: str, tmp_path: Path) -> Path:
    root = materialise(next(c for c in CASES if c.parent.name == name), tmp_path)
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return root
