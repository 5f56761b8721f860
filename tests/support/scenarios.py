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

from asked_plan import loads
from fixture_trees import materialise, overwrite, selection
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
        what = self.chance.choice(OFTEN)
        path, was = self.whole.root / name, (self.whole.root / name).stat()
        WHAT[what](self, name, path)
        if path.is_file() and not path.is_symlink() and what != "touched":
            os.utime(path, ns=(was.st_mtime_ns, was.st_mtime_ns))
        self.said.append(f"{what} {name}")


What = Callable[[Mishap, str, Path], None]


def cut(chance: random.Random, data: bytes) -> bytes:
    kept = chance.choice([1, len(data) // 2, chance.randrange(len(data) + 1)])
    return data[: min(kept, len(data) // 2)]


def flip(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


CHANGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "truncated": cut,
    "empty": lambda _, data: b"",
    "noise": lambda chance, data: chance.randbytes(len(data)) if len(data) > 64 else data,
    "zeroed": lambda _, data: bytes(len(data)),
    "flipped": flip,
}


def bytes_changed(how: str) -> What:
    def change(m: Mishap, name: str, path: Path) -> None:
        if (data := path.read_bytes()) and (made := CHANGES[how](m.chance, data)) != data:
            overwrite(path, made, 0)
            m.harmed[name] = how

    return change


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


def beside(m: Mishap, name: str, path: Path) -> None:
    """A copy, half of one, or what another program wrote."""
    data, own = path.read_bytes(), path.name
    copies = [(other, data) for other in (f"{own}.bak", f"{path.stem}-copy{path.suffix}", f"{own}~")]
    halves = [(own + end, data[: len(data) // 2]) for end in (".tmp", ".part", ".incomplete")]
    strange = [(other, b"x\n" * 9) for other in ("nohup.out", "wandb.log", f"._{own}")]
    other, held = m.chance.choice([*copies, *halves, *strange])
    overwrite(path.with_name(other), held, path.stat().st_mtime_ns)


def touched(m: Mishap, name: str, path: Path) -> None:
    """One, or all: they are the same then, as some copies make them."""
    m.times = True
    for p in files(m.whole.root) if m.chance.randrange(2) else [path]:
        os.utime(p, (1_600_000_000,) * 2 if p != path else None)


WHAT: dict[str, What] = {how: bytes_changed(how) for how in CHANGES} | {
    "removed": removed, "directory": became_a_directory, "link": became_a_link, "left out": left_out, "beside": beside, "touched": touched,
}  # fmt: skip
OFTEN = [*WHAT, "truncated", "flipped", "removed", "beside", "beside", "touched"]


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
        yield from (f"{f.path} is to be loaded" for f in loads(made) if _is_bad(m, f))
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
