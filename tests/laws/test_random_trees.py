"""Any tree of files: files of real trees of one or two layouts, under names that miss theirs narrowly, beside notes and
leftovers; contents real, cut, empty or of no sense.

Nothing but a CkptError may come out of a question, and the tree must be what it was.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from examples import examples
from fixture_trees import CASES
from hypothesis import given
from hypothesis import strategies as st
from memory import brief_directory
from timed import put

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as emit_json
from ckpt_tools.output import plan as plan_table
from ckpt_tools.output import scan as scan_table
from ckpt_tools.output import verification
from ckpt_tools.output.page import View

NOTES = sorted({n for layout in LAYOUTS for n in (layout.tracker.file, *layout.records.names) if n})
OTHERS = ["rank_0/meta.json", "resume_record/latest_checkpointed_iteration.txt", "net-graph.meta", "x.tmp", "m.ckpt.dirty"]  # fmt: skip
"""Notes and leftovers that no template names."""
SAID = [b"", b"10", b"20\n", b"release", b"global_step10", b'model_checkpoint_path: "ckpt-1"\n', b"{}", b"\xff" * 20, b"9" * 5000]  # fmt: skip
INSTEAD = ["", "_", "-", "0", "9" * 30, ".", "/", "é", " ", "\x1b[2J", "\udcff", "\n"]


class Entry(NamedTuple):
    """What lies at a path: a link to a target, a directory, or a file of these bytes."""

    path: str
    data: bytes
    link: str | None = None
    directory: bool = False
    at: int = 0


@cache
def files_of(case: Path) -> list[Path]:
    """Small ones: an optimizer's would do as well, but cost time."""
    files = sorted((case.parent / "tree").rglob("*"))
    return [p for p in files if p.is_file() and p.stat().st_size < 20_000] or [case]


@st.composite
def entries(draw: st.DrawFn, some: list[Path]) -> Entry:
    """A file of one of the trees, in one of four with a character of its name lost or replaced; or a note."""
    above = draw(st.sampled_from(["", "", "", "", "a/", "a/b/"]))
    if not draw(st.integers(0, 3)):
        return Entry(above + draw(st.sampled_from([*NOTES, *OTHERS])), draw(st.sampled_from(SAID)))
    case = draw(st.sampled_from(some))
    file = draw(st.sampled_from(files_of(case)))
    name = above + os.path.relpath(file, case.parent / "tree")
    if not draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(name) - 1))
        name = name[:at] + draw(st.sampled_from(INSTEAD)) + name[at + 1 :]
    whole = file.read_bytes()
    data = draw(st.sampled_from([whole, whole, whole, whole[: len(whole) // 2], whole[:-9], b"", bytes(100)]))
    link = draw(st.sampled_from([None] * 15 + ["nowhere", ".", "..", "loop", "/dev/null"]))
    path = "/".join(c[:200] for c in name.split("/") if c not in ("", ".", "..")) or "x"
    return Entry(path, data, link, draw(st.integers(0, 15)) == 0, draw(st.integers(0, 3)))


FEW = st.lists(st.sampled_from(CASES), min_size=1, max_size=2)
TREES = FEW.flatmap(lambda some: st.lists(entries(some), min_size=1, max_size=24))
QUESTIONS = st.builds(
    lambda **asked: Selection(**asked),  # noqa: PLW0108 - else Hypothesis looks for its annotations
    level=st.sampled_from([Level.PRESENCE, Level.STRUCTURE, Level.CONTENT]),
    world_size=st.sampled_from([None, None, 1, 2, 4]),
    replicas_all=st.booleans(),
    order=st.sampled_from(["mtime", "step"]),
    resume_from=st.sampled_from([None, None, "tracker", "step"]),
    prove_replicas=st.booleans(),
    save_interval=st.sampled_from([None, 7]),
    fault_ranks=st.sampled_from([frozenset[int](), frozenset({0})]),
    prefer=st.sampled_from([None, Kind.PERIODIC]),
    kind=st.sampled_from([None, None, Kind.DYING_GASP]),
    max_step=st.sampled_from([None, None, 10]),
    allow_none=st.booleans(),
)


def build(root: Path, made: list[Entry]) -> None:
    for e in made:
        path = root / e.path
        with suppress(OSError, UnicodeEncodeError):  # a file where another entry wants a directory
            path.parent.mkdir(parents=True, exist_ok=True)
            if e.link is not None:
                path.symlink_to(path.name if e.link == "loop" else e.link)
            elif e.directory:
                path.mkdir()
            elif not path.is_symlink():  # never write through a link
                put(path, e.data, 1_700_000_000 + 100 * e.at)


def everything(root: Path) -> dict[str, tuple[object, ...]]:
    """All that is below a directory: kinds, modes, sizes, times, targets of links, bytes."""
    out: dict[str, tuple[object, ...]] = {}
    for base, directories, files in os.walk(root):
        for path in (os.path.join(base, name) for name in (*directories, *files, ".")):
            seen = os.lstat(path)
            held: object = os.readlink(path) if stat.S_ISLNK(seen.st_mode) else None
            if stat.S_ISREG(seen.st_mode):
                held = Path(path).read_bytes()
            out[path] = (seen.st_mode, seen.st_size, seen.st_mtime_ns, held)
    return out


def ask(root: str, question: Selection) -> None:
    """Every question that a tree can be asked, and every form of its answer."""
    found, verified = scan(root), verify([root])
    texts = [scan_table.render(found), scan_table.draw(found), emit_json.render(found)]
    texts += [verification.render(verified), emit_json.render(verified)]
    assert len(verified.files) == verified.summary.files
    runs = {(c.run, c.layout): Selection(run=c.run, layout=c.layout) for c in found.checkpoints}
    for selection in (Selection(), question, *list(runs.values())[:3]):
        try:
            made: LoadPlan | None = plan(root, selection)
        except CkptError as e:
            made = e.plan
        texts += [plan_table.render(made, View(verbose=True)), emit_json.render(made)] if made else []
    for text in texts:
        text.encode()


@given(TREES, QUESTIONS)
@examples(200)
def test_any_tree_is_answered_and_left_alone(made: list[Entry], question: Selection) -> None:
    with brief_directory() as top:
        root = top / "tree"
        root.mkdir()
        build(root, made)
        before = everything(root)
        ask(str(root), question)
        assert everything(root) == before
