"""A day of a training job on a real directory with a clock of its own: saves as frameworks write them,
crashes inside them, dying gasps, prunes, restarts and rollbacks.

The simulation knows which file holds what, so it knows what must be found. Times are seconds of the virtual
clock.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

START = 1_790_000_000.0


class Op(NamedTuple):
    """One call of a process: write (``data``), rename (``to``), remove, rmdir or chmod. ``synced``: written
    through before the call returns.
    """

    kind: str
    path: str
    data: bytes = b""
    to: str = ""
    synced: bool = False


def write(path: str, data: bytes, synced: bool = False) -> Op:
    return Op("write", path, data, synced=synced)


def rename(path: str, to: str) -> Op:
    return Op("rename", path, to=to)


def remove(path: str) -> Op:
    return Op("remove", path)


Streams = list[list[Op]]
"""What several processes do at the same time."""


@dataclass
class Save:
    """``needs`` lists, for everything that resuming needs, the paths of which any one will do; ``phases`` are
    separated by barriers.

    ``home`` is what later saves of the same name overwrite. ``gasp``: written because of a fault;
    ``everyone``: each process writes a file, so a set with gaps counts as one too. ``others`` are files that
    nobody loads.
    """

    step: int
    phases: list[Streams]
    needs: list[list[str]]
    home: str
    gasp: bool = False
    everyone: bool = False
    others: list[str] = field(default_factory=list)
    id: int = 0

    @property
    def files(self) -> set[str]:
        return {p for need in self.needs for p in need} | set(self.others)


@dataclass
class Job:
    """``content`` maps a path to (id of the save that wrote it, whether all of it is there); ``hurt`` are the
    saves of which a crash left only a part.
    """

    root: Path
    rng: random.Random
    saves: list[Save] = field(default_factory=list)
    content: dict[str, tuple[int, bool]] = field(default_factory=dict)
    written: dict[str, float] = field(default_factory=dict)
    now: float = START
    hurt: set[int] = field(default_factory=set)

    def tick(self, low: float, high: float) -> None:
        self.now += self.rng.uniform(low, high)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def below(self, home: str) -> list[str]:
        return sorted(p for p in self.content if p.startswith(f"{home}/"))

    def do(self, op: Op, save: int, part: float | None = None) -> None:
        """One call; only a ``part`` of a write when the process dies in it, or is looked at in the middle of
        it.
        """
        path = self.root / op.path
        if op.kind == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if path.exists() and not os.access(path, os.W_OK) else None
            path.write_bytes(op.data if part is None else op.data[: int(len(op.data) * part)])
            self.content[op.path] = (save, part is None)
            if op.synced and part is None:
                self.written.pop(op.path, None)
            else:
                self.written[op.path] = self.now
            os.utime(path, (self.now, self.now))
        elif part is not None:
            return
        elif op.kind == "rename":
            os.replace(path, self.root / op.to)
            for known in (self.content, self.written):
                for p in [p for p in known if p == op.path or p.startswith(f"{op.path}/")]:
                    known[op.to + p.removeprefix(op.path)] = known.pop(p)  # type: ignore[assignment]
        elif op.kind == "remove" and path.exists():
            path.unlink()
            self.content.pop(op.path, None)
            self.written.pop(op.path, None)
        elif op.kind == "rmdir":
            shutil.rmtree(path, ignore_errors=True) if not any(p.is_file() for p in path.rglob("*")) else None
        elif op.kind == "chmod":
            path.chmod(0o400)

    def run(
        self,
        phases: Sequence[Streams],
        save: int,
        *,
        crash: bool = False,
        look: Callable[[], None] | None = None,
    ) -> bool:
        """Do all calls in a random order that keeps each process's own; with ``crash`` stop at one of them,
        with ``look`` call it at one of them. False after a crash.
        """
        calls = sum(len(ops) for streams in phases for ops in streams)
        stop = self.rng.randrange(calls) if crash or look else -1
        for streams in phases:
            waiting = [list(ops) for ops in streams if ops]
            while waiting:
                if stop == 0:
                    for ops in waiting:
                        if self.rng.random() < 0.6:
                            self.do(ops[0], save, self.rng.random() * self.rng.random())
                    if crash:
                        self.note_losses()
                        return False
                    assert look is not None
                    look()
                stop -= 1
                ops = self.rng.choice(waiting)
                self.do(ops.pop(0), save)
                self.tick(0.1, 2)
                waiting = [o for o in waiting if o]
        return True

    def power_loss(self) -> None:
        """What was not written through in the last seconds may be short, or of the right length and zero."""
        for p, at in list(self.written.items()):
            if self.now - at < 15 and self.rng.random() < 0.5:
                path = self.root / p
                st, data = path.stat(), path.read_bytes()
                path.chmod(0o644)
                zeros = self.rng.random() < 0.5
                path.write_bytes(
                    bytes(len(data)) if zeros else data[: len(data) * self.rng.randrange(4) // 4]
                )
                path.chmod(st.st_mode & 0o777)
                os.utime(path, ns=(st.st_mtime_ns, st.st_mtime_ns))
                self.content[p] = (self.content[p][0], False)
        self.note_losses()

    def note_losses(self) -> None:
        here = (s for s in self.saves if self.there(s))
        self.hurt |= {s.id for s in here if not all(self.good(p, s.id) for p in s.files)}

    # ---- what is true

    def good(self, path: str, save: int) -> bool:
        return self.content.get(path) == (save, True)

    def usable(self, s: Save, lost: Iterable[str] = ()) -> bool:
        """Whether everything that resuming needs is there, of this very save. ``lost`` are files that the
        caller does not trust.
        """
        bad = set(lost) if self.dying(s) else set()
        return all(any(self.good(p, s.id) and p not in bad for p in need) for need in s.needs)

    def dying(self, s: Save) -> bool:
        complete = any(self.all_there(o) for o in self.saves if o.everyone)
        return s.gasp or (s.everyone and complete and not self.all_there(s))

    def all_there(self, s: Save) -> bool:
        return all(p in self.content for p in s.files)

    def there(self, s: Save) -> bool:
        return any(self.content.get(p, (-1, False))[0] == s.id for p in s.files)

    def newest(
        self, lost: Iterable[str] = (), interval: int | None = None, max_step: int | None = None
    ) -> Save | None:
        """The save to resume from. A dying gasp that cannot be used sends the job back to its last regular
        save (``interval``); a regular save of the same step goes before one that can.
        """
        limit = max_step
        for s in reversed(self.saves):
            if (max_step is not None and s.step > max_step) or (
                limit is not None and not self.dying(s) and s.step > limit
            ):
                continue
            if self.usable(s, lost):
                return next(filter(partial(self._regular, s.step, lost), reversed(self.saves)), s)
            if self.dying(s) and self.there(s) and interval:
                limit = min(limit if limit is not None else s.step, s.step // interval * interval)
        return None

    def _regular(self, step: int, lost: Iterable[str], s: Save) -> bool:
        return s.step == step and not self.dying(s) and self.usable(s, lost)

    def mixed(self) -> set[str]:
        """Homes whose files are whole but of several saves: a crash while a save of the same name was
        overwritten file by file.
        """
        homes: dict[str, set[int]] = {}
        for s in self.saves:
            homes.setdefault(s.home, set()).update(self.content[p][0] for p in s.files if p in self.content)
        return {home for home, ids in homes.items() if len(ids) > 1}

    def excused(self, path: str) -> bool:
        """Whether a crash really lost something at or below ``path``: in a file, or of a save of which it is
        a part, also while ranks removed theirs one after the other.
        """
        path = os.path.relpath(path, self.root)
        if path == ".":
            return not any(map(self.usable, self.saves))
        mine = [p for p in self.content if p == path or p.startswith(f"{path}/")]
        if any(not self.content[p][1] for p in mine):
            return True
        return any(
            p == path or p.startswith(f"{path}/") or os.path.dirname(p) == path
            for s in self.saves
            if s.id in self.hurt or (self.there(s) and not self.all_there(s))
            for p in s.files
        )


def rmtree(job: Job, home: str) -> list[Op]:
    """A directory is removed file by file, in any order."""
    files = job.below(home)
    job.rng.shuffle(files)
    return [*map(remove, files), Op("rmdir", home)]


def streams(parts: Iterable[tuple[int, Op]]) -> Streams:
    """Calls by the number of their process."""
    out: dict[int, list[Op]] = {}
    for who, op in parts:
        out.setdefault(who, []).append(op)
    return list(out.values())
