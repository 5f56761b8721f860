"""What may befall a tree of checkpoints, one to three things at once, and what no answer about it may be: an
oracle that knows nothing of layouts, only what the whole tree was resumed from.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fixture_trees import damage, materialise, overwrite, selection
from msgspec.structs import replace

from ckpt_tools import errors
from ckpt_tools.api import plan, scan
from ckpt_tools.formats import names
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import FileLoad, LoadPlan

EDITS = {"remove", "copy", "truncate", "write", "flip", "link", "swap", "mtime", "now"}
SEEN = frozenset({"truncated", "empty", "garbage", "removed", "directory", "link"})
"""What any format shows, wherever it happens. Zeros are seen where nothing else explains them."""
GONE = frozenset({"removed"})
STOPS = (2, 4, 5)


def files(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


class Whole:
    """A case as its framework left it: its ``choice``, and whose file each is. ``kept`` is never touched."""

    def __init__(self, case: Path, place: Path) -> None:
        expected = json.loads(case.read_text())
        asked = [q for q in expected["plans"] if "error" not in q and not EDITS & q.keys()]
        question = asked[0] if asked else {}
        place.mkdir()
        self.kept, self.root = materialise(case, place), place / "now"
        self.below = question.get("root", ".")
        self.selection = replace(selection(question.get("options", {})), settle=0, allow_none=True)
        shutil.copytree(self.kept, self.root, symlinks=True)
        made = self.ask()
        self.choice = made.checkpoint if isinstance(made, LoadPlan) else None
        found = scan(os.path.join(self.root, self.below)).checkpoints
        rows = [(os.path.relpath(os.path.realpath(p.path), self.root), c) for c in found for p in c.parts]
        self.owners = {name: key(c) for name, c in rows}
        self.unfinished = {key(c) for c in found if c.unfinished}

    def ask(self, **more: object) -> LoadPlan | errors.CkptError:
        question = replace(self.selection, **more)  # type: ignore[arg-type]
        try:
            return plan(os.path.join(self.root, self.below), question)
        except errors.CkptError as e:
            return e

    def anew(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.kept, self.root, symlinks=True)

    @property
    def mine(self) -> list[str]:
        """The files of the choice."""
        return [f for f, of in self.owners.items() if self.choice and of == key(self.choice)]


def key(c: Checkpoint) -> tuple[str, str]:
    return c.path, c.label


@dataclass
class Mishap:
    """What was done: ``said`` in order, ``harmed`` by file, whether ``times`` tell the order no more."""

    whole: Whole
    chance: random.Random
    said: list[str] = field(default_factory=list)
    harmed: dict[str, str] = field(default_factory=dict)
    times: bool = False

    def any_file(self) -> str | None:
        """A file, of the choice more often than not."""
        there = [os.path.relpath(p, self.whole.root) for p in files(self.whole.root)]
        mine = [f for f in self.whole.mine if f in there]
        known = [f for f in there if f in self.whole.owners]
        pool = self.chance.choice([there, known, mine, mine]) or known
        return self.chance.choice(pool) if pool else None

    def happen(self) -> None:
        name = self.any_file()
        if name is None:
            return
        what = self.chance.choice(WHAT)
        path, was = self.whole.root / name, (self.whole.root / name).stat()
        what(self, name, path)
        if path.is_file() and not path.is_symlink() and what not in (touched, no_times):
            os.utime(path, ns=(was.st_mtime_ns, was.st_mtime_ns))
        self.said.append(f"{what.__name__} {name}")


What = Callable[[Mishap, str, Path], None]


def truncated(m: Mishap, name: str, path: Path) -> None:
    data = path.read_bytes()
    kept = m.chance.choice([1, len(data) // 2, m.chance.randrange(len(data) + 1)])
    damage(m.whole.root, {"truncate": {name: min(kept, len(data) // 2)}})
    if len(data) > 1:
        m.harmed[name] = "truncated"


def emptied(m: Mishap, name: str, path: Path) -> None:
    if path.stat().st_size:
        path.write_bytes(b"")
        m.harmed[name] = "empty"


def filled(m: Mishap, name: str, path: Path) -> None:
    """With bytes that mean nothing, as many as there were."""
    if path.stat().st_size > 64:
        path.write_bytes(m.chance.randbytes(path.stat().st_size))
        m.harmed[name] = "noise"


def zeroed(m: Mishap, name: str, path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    m.harmed[name] = "zeroed"


def flipped(m: Mishap, name: str, path: Path) -> None:
    if size := path.stat().st_size:
        damage(m.whole.root, {"flip": {name: m.chance.randrange(size)}})
        m.harmed[name] = "flipped"


def removed(m: Mishap, name: str, path: Path) -> None:
    path.unlink()
    m.harmed[name] = "removed"


def became_a_directory(m: Mishap, name: str, path: Path) -> None:
    if not names.of_directories(path.name):
        path.unlink()
        path.mkdir()
        m.harmed[name] = "directory"


def became_a_link(m: Mishap, name: str, path: Path) -> None:
    path.unlink()
    path.symlink_to(m.chance.choice(["nowhere", path.name, "/dev/null"]))
    m.harmed[name] = "link"


def left_out(m: Mishap, name: str, path: Path) -> None:
    """The directory, with all in it."""
    if path.parent != m.whole.root:
        above = f"{os.path.relpath(path.parent, m.whole.root)}/"
        m.harmed |= dict.fromkeys((f for f in m.whole.owners if f.startswith(above)), "removed")
        shutil.rmtree(path.parent)


def copied(m: Mishap, name: str, path: Path) -> None:
    names = [path.name + ".bak", f"{path.stem}-copy{path.suffix}", path.name + "~"]
    overwrite(path.with_name(m.chance.choice(names)), path.read_bytes(), path.stat().st_mtime_ns)


def half_written(m: Mishap, name: str, path: Path) -> None:
    other = path.with_name(path.name + m.chance.choice([".tmp", ".part", ".incomplete"]))
    overwrite(other, path.read_bytes()[: path.stat().st_size // 2], path.stat().st_mtime_ns)


def bystander(m: Mishap, name: str, path: Path) -> None:
    other = path.with_name(m.chance.choice(["nohup.out", "wandb.log", "._" + path.name]))
    overwrite(other, b"x\n" * 9, path.stat().st_mtime_ns)


def touched(m: Mishap, name: str, path: Path) -> None:
    os.utime(path)
    m.times = True


def no_times(m: Mishap, name: str, path: Path) -> None:
    """All the same, as some copies make them."""
    for p in files(m.whole.root):
        os.utime(p, (1_600_000_000,) * 2)
    m.times = True


WHAT: tuple[What, ...] = (
    truncated, truncated, emptied, filled, zeroed, flipped, flipped, removed, removed, became_a_directory, became_a_link,
    left_out, copied, half_written, bystander, touched, no_times,
)  # fmt: skip


def planned(made: LoadPlan) -> list[FileLoad]:
    return [*made.shared, *(f for r in made.by_rank for f in r.files)]


def mishap(whole: Whole, seed: object) -> Mishap:
    """One to three things happen to the tree, which is whole before."""
    whole.anew()
    m = Mishap(whole, random.Random(f"{seed}"))
    for _ in range(m.chance.choice([1, 1, 2, 3])):
        m.happen()
    return m


def wrong(m: Mishap) -> Iterator[str]:
    """What may not be answered about the tree as it is now."""
    made = m.whole.ask()
    if not isinstance(made, LoadPlan):
        if made.exit_code not in STOPS:
            yield f"exit {made.exit_code}: {made}"
    elif made.checkpoint is None:
        if _finished_left(m):
            yield "it starts from nothing"
    else:
        yield from (f"{f.path} is to be loaded" for f in planned(made) if _is_bad(m, f))
        yield from _older(m, made, made.checkpoint)
        yield from _by_rank(m, made)


def _finished_left(m: Mishap) -> bool:
    """Whether some checkpoint has all of its files."""
    whole = set(m.whole.owners.values()) - m.whole.unfinished
    return bool(whole - {of for f, of in m.whole.owners.items() if f in m.harmed})


def _is_bad(m: Mishap, f: FileLoad) -> bool:
    for name in {os.path.relpath(p, m.whole.root) for p in (f.path, os.path.realpath(f.path))}:
        harm = m.harmed.get(name, "")
        if harm in SEEN or (harm == "flipped" and f.coverage >= 1):
            return not name.endswith(PLAIN)
    return False


PLAIN = (".json", ".yaml", ".yml", ".txt", "labels.ckpt")
"""What a part of may still be whole: text without a form."""


def _older(m: Mishap, made: LoadPlan, c: Checkpoint) -> Iterator[str]:
    """Another one than before, and nothing said; what is gone without a trace cannot be missed."""
    choice = m.whole.choice
    if choice is None or m.times or _same(c, choice) or all(m.harmed.get(f) in GONE for f in m.whole.mine):
        return
    told = [*made.warnings, *(f for r in made.rejected for f in r.findings)]
    lost = any(_same(r.checkpoint, choice) for r in made.rejected)
    about = {os.path.relpath(f.path, m.whole.root) for f in told if f.path}
    named = lost or any(f.path and f.path.startswith(choice.path) for f in told)
    if not (named or about & m.harmed.keys()):
        yield f"{choice.label} became {c.label}, and nothing says why"


def _same(a: Checkpoint, b: Checkpoint) -> bool:
    """One save: by what it counts, or by its path."""
    known = (a.step, a.epoch) != (None, None) and (a.step, a.epoch) == (b.step, b.epoch)
    return known or a.path == b.path


def _by_rank(m: Mishap, made: LoadPlan) -> Iterator[str]:
    for r in made.by_rank[:2]:
        alone = m.whole.ask(rank=r.rank)
        if not isinstance(alone, LoadPlan) or alone.fingerprint != made.fingerprint:
            yield f"rank {r.rank} alone hears something else: {alone!r}"
