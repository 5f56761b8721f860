"""Any tree of files: names made from the templates of all layouts, and names that miss them narrowly;
contents real, cut, empty or of no sense.

Nothing but a CkptError may come out of a question, and the tree must be what it was.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from memory import brief_directory
from places import LAYOUT_TREES
from timed import put

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import LAYOUTS, Layout
from ckpt_tools.layouts.common.piece import Claim
from ckpt_tools.layouts.common.templates import FIELD, TEXTS, TOKENS
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as emit_json
from ckpt_tools.output import plan as plan_table
from ckpt_tools.output import scan as scan_table
from ckpt_tools.output import verification
from ckpt_tools.output.page import View

STRAYS = [
    "rank_0/meta.json",
    "resume_record/latest_checkpointed_iteration.txt",
    "net-graph.meta",
    "x.tmp",
    "m.ckpt.dirty",
]
"""Notes and leftovers that no template names."""
SAID = [
    b"", b"10", b"20\n", b"release", b"global_step10", b'model_checkpoint_path: "ckpt-1"\n', b"{}",
    b"\xff" * 20, b"9" * 5000,
]  # fmt: skip
NUMBERS = [
    "1", "0", "2", "3", "10", "20", "007", "0000010", "0000020", "00001", "00002", "9999", "1" * 18,
    "1" * 30,
]  # fmt: skip
WORDS = ["net", "model", "a-b", "x_1", "net_2", "é", "a b", "-", "\x1b[2J", "\udcff", "\n"]


def _real() -> dict[str, list[bytes]]:
    """Real files by the end of their name, small ones: an optimizer's would do as well, but cost time."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for path in sorted(LAYOUT_TREES.glob("*/*/tree/**/*")):
        if path.is_file() and path.stat().st_size < 20_000 and len(found[path.suffix]) < 12:
            found[path.suffix].append(path.read_bytes())
    return found


REAL = _real()
ALL_REAL = [data for files in REAL.values() for data in files]


class Entry(NamedTuple):
    """What lies at a path: ``link`` its target, ``directory``, or a file. ``real`` picks its content, cut to
    the fraction ``left``, unless ``data`` is given.
    """

    path: str
    link: str | None
    directory: bool
    data: bytes | None
    real: int
    left: float
    at: int

    def content(self) -> bytes:
        if self.data is not None:
            return self.data
        like = REAL.get(os.path.splitext(self.path)[1]) or ALL_REAL
        whole = like[self.real % len(like)]
        return whole[: int(len(whole) * self.left)]


def fill(template: str, choose: Callable[[Sequence[Any]], Any]) -> str:
    """A path that a template stands for; ``choose`` decides where it leaves a choice."""
    out, kept = "", [True]
    for i, token in enumerate(TOKENS.split(template)):
        if not i % 2:
            text = token
        elif token == "[":
            kept.append(kept[-1] and choose((False, True)))
            continue
        elif token == "]":
            kept.pop()
            continue
        elif token[0] == "<":
            text = choose(token[1:-1].split("|"))
        else:
            field: Any = FIELD.fullmatch(token)
            some = ["_tmp"] if field[1] == "tmp" else WORDS if field[1] in TEXTS else NUMBERS
            text = choose(some).zfill(int(field[2] or 0))
        out += text if kept[-1] else ""
    return out


@st.composite
def names(draw: st.DrawFn, templates: list[str]) -> str:
    """A path that one of the templates stands for, in one of four with a character lost, doubled or replaced."""
    out = fill(draw(st.sampled_from(templates)), lambda options: draw(st.sampled_from(options)))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(out) - 1))
        other = draw(st.sampled_from(["", out[at] * 2, "_", "-", "0", ".", "/", "é", " "]))
        out = out[:at] + other + out[at + 1 :]
    return "/".join(c[:200] for c in out.split("/") if c not in ("", ".", "..")) or "x"


def entries(some: list[Layout]) -> st.SearchStrategy[Entry]:
    """Files of a few layouts and the notes that belong to them, so that they meet in one directory."""
    path = st.sampled_from(["", "", "", "", "a/", "a/b/"])
    name = names(sorted({p.template for layout in some for p in layout.pieces}))
    link = st.sampled_from([None] * 15 + ["nowhere", ".", "..", "loop", "/dev/null"])
    data = st.none() | st.none() | st.binary(max_size=60) | st.just(bytes(100))
    left, directory = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.5, 0.97]), st.sampled_from([False] * 15 + [True])
    at, below = st.integers(0, 3), st.builds(str.__add__, path, name)
    file = st.builds(Entry, below, link, directory, data, st.integers(0, 50), left, at)
    notes = [n for layout in some for n in (layout.tracker.file, *layout.records.names) if n] + STRAYS
    noted = st.builds(str.__add__, path, st.sampled_from(notes))
    note = st.builds(
        lambda name, said, at: Entry(name, None, False, said, 0, 1.0, at), noted, st.sampled_from(SAID), at
    )
    return file | file | file | note


FEW = st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=2)
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
                put(path, e.content(), 1_700_000_000 + 100 * e.at)


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


@pytest.mark.share(4)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_trees_are_worth_asking_about(layout: Layout, tmp_path: Path) -> None:
    """Paths made like those above are the layout's own: on trees of strangers the questions would all end
    early.
    """
    # any x.ckpt is what its content says
    pieces = [p for p in layout.pieces if not (p.is_unfinished or (p.claim is Claim.WEAK and p.content.step))]
    if not pieces:
        return
    names = [fill(p.template, lambda options: options[0]).rstrip("/") for p in pieces]
    made = [Entry(name, None, False, None, 0, 1.0, 0) for name in names]
    build(tmp_path, made)
    assert layout.name in {c.layout for c in scan(str(tmp_path)).checkpoints}
