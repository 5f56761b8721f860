"""Over real trees of all layouts: files of other programs beside checkpoints, and runs and frameworks side by
side never end in a crash, in a mixture of two runs, or in an older checkpoint without a word. And any tree of
files: files of real trees of one or two layouts, under names that miss theirs narrowly, beside notes and
leftovers; contents real, cut, empty or of no sense: nothing but a CkptError may come out of a question, and the
tree must be what it was.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import small_files
from asked_plan import loads
from examples import examples
from fixture_trees import CASES, materialise
from hypothesis import assume, given
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

PAIRS = (("run_a", "run_b"), ("exp", "exp2"), ("seed_0", "seed_1"), ("version_0", "version_1"))
EXTRAS = {
    "README.md": b"# hello\n", ".DS_Store": b"\0\0\0\1Bud1", "train.log": b"step 10 loss 3\n", "notes.txt~": b"x",
    "events.out.tfevents.1700000000.host.1.0": b"\x18" + bytes(50), ".a.swp": b"b0VIM 8.2", "._x": b"\0\5\x16\7",
    ".nfs000000000000001200000001": b"x", "core.123": b"\x7fELF" + bytes(60), "empty": b"", "tmp1234.tmp": b"abc",
    "args.json": b'{"lr": 1}', "slurm-123.out": b"hi\n", "metrics.jsonl": b'{"step": 1}\n', "train.py": b"1\n",
    "hparams.yaml": b"a: 1\n", "0": b"", "__pycache__/a.cpython-311.pyc": b"x", "wandb/run-1/config.yaml": b"a: 1",
    "runs/Nov22/events.out.tfevents.1.h.1": b"x", "samples/step_10.png": b"\x89PNG", "lost+found/x": b"",
}  # fmt: skip


class Said(NamedTuple):
    """What a job is told: the files to load by what they are on the disk, and every path that is named."""

    code: int
    step: int | None
    files: tuple[str, ...]
    inodes: frozenset[int]
    mtime_ns: int
    named: frozenset[tuple[str, str]]


def ask(root: Path) -> Said:
    """The answer to ``ckpt plan``; anything but a CkptError is a crash."""
    try:
        made = plan(str(root))
    except CkptError as e:
        return Said(e.exit_code, None, (), frozenset(), 0, frozenset())
    assert made.checkpoint is not None
    paths = [f.path for f in loads(made)]
    findings = (*made.warnings, *(f for r in made.rejected for f in r.findings))
    files = tuple(sorted(os.path.relpath(path, root) for path in paths))
    newest = max(os.stat(path).st_mtime_ns for path in paths)
    named = frozenset((f.code, os.path.relpath(f.path or root, root)) for f in findings)
    return Said(0, made.checkpoint.step, files, inodes(paths), newest, named)


@cache
def unharmed(case: Path) -> Said:
    """The answer about the tree of a case: asked once, as it is drawn often and nothing but its place differs."""
    with brief_directory() as made:
        return ask(materialise(case, made))


def copy_of(case: Path, target: Path) -> tuple[Path, Said]:
    """A copy of the tree of a case, and the answer about it as long as nobody has touched it."""
    root, said = materialise(case, target), unharmed(case)
    files = [str(root / name) for name in said.files]
    newest = max((os.stat(path).st_mtime_ns for path in files), default=0)
    return root, said._replace(inodes=inodes(files), mtime_ns=newest)


def inodes(paths: Iterable[str | Path]) -> frozenset[int]:
    return frozenset(os.stat(path).st_ino for path in paths)


def below(top: Path) -> frozenset[int]:
    return inodes(path for path in top.rglob("*") if path.is_file())


def move_times(tree: Path, later_ns: int) -> None:
    for path in (path for path in tree.rglob("*") if not path.is_symlink()):
        times = path.stat()
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + later_ns))


cases = st.sampled_from(CASES)


def trained(step: int) -> bytes:
    """A whole training state, as somebody's own loop saves it."""
    return small_files.saved({"model": {"w": small_files.tensor(step)}, "optimizer": small_files.adam(step)})


@given(cases, st.sampled_from(["state.pt", "other/state.pt", "ours_900.pt", "latest.pth"]))
@examples(100)
def test_a_later_training_state_is_never_passed_over_without_a_word(case: Path, name: str) -> None:
    """Whoever saved it, and wherever: it is chosen, or somebody is asked."""
    with brief_directory() as made:
        root, before = copy_of(case, made)
        assume(before.code == 0 and not (root / name).exists())
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(trained(900))
        os.utime(root / name, ns=(before.mtime_ns + 10**12,) * 2)
        after = ask(root)
        assert after.code or after.files == (name,) or name in {path for _, path in after.named}, after


@given(cases, st.sampled_from(sorted(EXTRAS)), st.booleans(), st.booleans())
@examples(300)
def test_files_of_other_programs_change_nothing(case: Path, name: str, deep: bool, old: bool) -> None:
    with brief_directory() as made:
        root, before = copy_of(case, made)
        where = (root / before.files[0]).parent if deep and before.files else root
        top = where / name.partition("/")[0]
        assume(not top.exists())
        times = where.stat()
        (where / name).parent.mkdir(exist_ok=True, parents=True)
        (where / name).write_bytes(EXTRAS[name])
        if old:
            os.utime(where / name, (1_500_000_000,) * 2)
        os.utime(where, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert ask(root) == before


@given(cases, st.sampled_from(PAIRS), st.sampled_from([-5000, 0, 5000]))
@examples(150)
def test_two_runs_side_by_side_are_never_mixed(case: Path, pair: tuple[str, str], later: int) -> None:
    with brief_directory() as made:
        tree = materialise(case, made)
        above = made / "above"
        for name, seconds in zip(pair, (0, later), strict=True):
            shutil.copytree(tree, above / name, symlinks=True)
            move_times(above / name, seconds * 10**9)
        said = ask(above)
        assert said.code or any(said.inodes <= below(above / name) for name in pair), said.files


@given(cases, cases)
@examples(200)
def test_of_two_frameworks_in_one_directory_the_later_is_never_passed_over(case: Path, other: Path) -> None:
    """Nor are they mixed: the later is planned, or somebody is asked, or it is said that it is not."""
    with brief_directory() as made:
        (root, before), (added, later) = (
            copy_of(tree, made / name) for tree, name in ((case, "one"), (other, "other"))
        )
        tops = [{path.name for path in tree.iterdir()} for tree in (root, added)]
        assume(case.parent.parent != other.parent.parent and not tops[0] & tops[1])
        move_times(added, before.mtime_ns + 10**12 - later.mtime_ns)
        mine, its = below(root), below(added)
        for path in added.iterdir():
            path.rename(root / path.name)
        said = ask(root)
        assert said.code or said.inodes <= mine or said.inodes <= its, said.files
        if not (before.code or later.code or said.code or said.inodes <= its):
            named = {path.split("/")[0] for _, path in said.named} - {"."}
            assert any(top.startswith(tuple(named)) for top in tops[1]), said.named


NOTES = sorted({n for layout in LAYOUTS for n in (layout.tracker.file, *layout.records.names) if n})
OTHERS = ["rank_0/meta.json", "resume_record/latest_checkpointed_iteration.txt", "net-graph.meta", "x.tmp", "m.ckpt.dirty"]  # fmt: skip
"""Notes and leftovers that no template names."""
SAID = [
    b"", b"10", b"20\n", b"release", b"global_step10", b'model_checkpoint_path: "ckpt-1"\n', b"{}", b"\xff" * 20, b"9" * 5000,
]  # fmt: skip
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


def ask_all(root: str, question: Selection) -> None:
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
        ask_all(str(root), question)
        assert everything(root) == before
