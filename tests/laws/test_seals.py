"""Seals over the real trees of all layouts: they change no answer about what is good, every changed bit of what
they name is seen, and none is in the way of what frameworks do.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from fixture_trees import CASES, TREES, materialise
from run_helpers import flip

from ckpt_tools import guard
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.seal import Sealing
from ckpt_tools.model.selection import Selection

FIRST = {case.parent.parent.name: case for case in reversed(CASES)}
ONE_OF_EACH = [pytest.param(case, id=layout) for layout, case in sorted(FIRST.items())]


@contextmanager
def copied(case: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield materialise(case, Path(made))


def seals(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if NAME in p.name or p.parent.name == FRAGMENTS)


def chosen(root: Path) -> tuple[object, ...]:
    """What a plan says: what it chose, the files, and why the others lost."""
    try:
        made = plan(root, Selection(allow_none=True))
    except CkptError as e:
        return type(e).__name__, e.exit_code, str(e).replace(str(root), "")
    files = sorted({f.path for f in (*made.shared, *(f for r in made.by_rank for f in r.files))})
    lost = sorted((r.checkpoint.path, *sorted({f.code for f in r.findings})) for r in made.rejected)
    return made.checkpoint and made.checkpoint.path, files, lost, sorted({f.code for f in made.warnings})


def listing(root: Path) -> tuple[object, ...]:
    found = scan(root)
    return [(c.path, c.step, len(c.parts)) for c in found.checkpoints], found.bare, found.unrecognised


def judged(root: Path) -> tuple[Verdict, dict[str, list[str]], list[str]]:
    """The verdict, what is wrong with each file, and across files; notes apart."""
    found = verify(root)
    return found.verdict, files(found), sorted({f.code for f in found.findings if f.severity > Severity.NOTE})


def files(found: Verification) -> dict[str, list[str]]:
    rows = (
        (f.report.path, x.code) for f in found.files for x in f.report.findings if x.severity > Severity.NOTE
    )
    return {path: sorted(code for _, code in of) for path, of in groupby(sorted(rows), itemgetter(0))}


@pytest.mark.share(80)
@pytest.mark.parametrize("case", TREES)
def test_a_seal_changes_no_answer_about_what_it_is_of(case: Path) -> None:
    with copied(case) as root:
        before, said, listed = chosen(root), judged(root), listing(root)
        done = guard.seal(root)
        assert chosen(root) == before
        assert judged(root) == said
        assert listing(root) == listed
        sealed = {one.path for one in done.checkpoints if one.state == "sealed"}
        known = (f.report for f in verify(root).files if f.report.path in sealed and f.report.size)
        assert {report.coverage for report in known} <= {1.0}
        again = guard.seal(root)
        assert {one.path for one in again.checkpoints if one.state == "already"} == sealed


@pytest.mark.parametrize("most", [6, pytest.param(1000, marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.share(24)
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_every_changed_bit_of_what_is_sealed_is_seen(case: Path, most: int) -> None:
    """A bit of each of some files, of which the whole tree is asked; of all of them by night."""
    chance = random.Random(case.parent.name)
    with copied(case) as root:
        before, done = broken(root), guard.seal(root)
        assert [one.state for one in done.checkpoints].count("sealed"), done.checkpoints
        named = sealed_files(done, root)
        for path in chance.sample(sorted(named), min(most, len(named))):
            at, mask = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)
            flip(path, at, mask)
            assert str(path) in broken(root), (path, at, mask)
            flip(path, at, mask)
        assert broken(root) == before


def sealed_files(done: Sealing, root: Path) -> set[Path]:
    out = set[Path]()
    for one in done.checkpoints:
        if one.state == "sealed":
            rows = json.loads(Path(one.seal).read_text())["files"]
            out |= {Path(one.seal).parent / row["path"] for row in rows if row["size"]}
    return out


def broken(root: Path) -> set[str]:
    return {f.report.path for f in verify(root).files if f.report.verdict is Verdict.BROKEN}


@pytest.mark.share(18)
@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_a_copy_without_times_keeps_its_seals(case: Path) -> None:
    with copied(case) as root, tempfile.TemporaryDirectory() as other:
        guard.seal(root)
        said = judged(root)[1]
        away = Path(other) / "tree"
        shutil.copytree(root, away, symlinks=True, copy_function=shutil.copyfile)
        found = {path.replace(str(away), str(root)): codes for path, codes in files(verify(away)).items()}
        assert not {p: c for p, c in found.items() if any(x.startswith("seal") for x in c)}, (found, said)
