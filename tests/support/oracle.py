"""What the plan must be, worked out by brute force from a description of a tree: who wrote which file for
whom, and what happened to it since.

It knows nothing of names: the rules are those of docs/how-it-chooses.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

COPY = 1
"""Seconds that copying a small save takes at most."""


@dataclass
class File:
    """``mine`` are the ranks that load this very file when all is well, ``spare`` those whose state it holds
    as well, as a flag or the layout tells.

    ``owner`` is the rank that wrote it, ``shared`` says that every rank loads it, ``commit`` that it is
    written last, ``tells`` that its content tells the world size, ``named`` that an index misses it when it is gone. ``swap``: content of another step shows;
    ``flip``: a flipped bit does. ``witness``: it shows that another is not what it should be, so it stays.
    ``harm`` is "" (sound), "broken" or "gone"; ``changed``: some of its bytes are lost, wherever it lies.
    """

    path: str
    data: bytes
    role: str = "model"
    owner: int | None = None
    mine: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    shared: bool = False
    commit: bool = False
    tells: bool = False
    loaded: bool = True
    named: bool = False
    swap: bool = False
    flip: bool = True
    witness: bool = False
    harm: str = ""
    changed: bool = False

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(f"{self.path.strip(chr(0))} {self.harm or 'sound'}")


@dataclass
class Save:
    """One iteration. ``mtime`` in seconds, ``finished`` is what its directory's name says."""

    step: int
    mtime: int
    files: list[File]
    dying: bool = False
    finished: bool = True
    committed: bool = False

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(f"save {self.step}")


@dataclass
class Tree:
    """``world`` is the number of ranks that ran. ``everyone``: each rank writes a file, so a set with gaps is
    a dying gasp; ``needed`` roles are never optional.

    ``named`` is the step that its tracker names. What the ``tracker`` holds: "a name", "garbage", "" without
    one.
    """

    layout: str
    world: int
    saves: list[Save]
    everyone: bool = False
    needed: tuple[str, ...] = ()
    others: dict[str, bytes] = field(default_factory=dict)
    named: int | None = None
    tracker: str = ""


@dataclass(frozen=True)
class Question:
    world: int | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    faults: frozenset[int] = frozenset()
    interval: int | None = None
    order: str | None = "mtime"


@dataclass(frozen=True)
class Answer:
    """``ranks`` maps a rank to, per role, the paths of which it may load any one; ``shared`` holds such sets
    for what every rank loads.
    """

    step: int
    dying: bool
    ranks: dict[int, dict[str, set[str]]]
    shared: list[set[str]]


def there(s: Save) -> list[File]:
    return [f for f in s.files if f.harm != "gone"]


def world_size(tree: Tree, q: Question, saves: list[Save]) -> int:
    """A flag, what any readable file says, or one more than the highest rank among the names; a rank of a
    replica group counts.
    """
    owners = [f.owner for s in saves for f in there(s) if f.owner is not None]
    told = tree.world if any(f.tells and not f.harm for s in saves for f in s.files) else None
    grouped = 1 + max((r for g in q.groups for r in g), default=0)
    return q.world or max(told or max(owners, default=0) + 1, grouped)


def saved_by(tree: Tree, saves: list[Save]) -> int | None:
    """How many ranks saved, as far as files or names tell; a committed save's names tell nothing."""
    if any(f.tells and not f.harm for s in saves for f in s.files):
        return tree.world
    owners = [f.owner for s in saves for f in there(s) if f.owner is not None]
    return max(owners) + 1 if owners and not max(saves, key=lambda s: s.mtime).committed else None


def unfit(s: Save, world: int) -> bool:
    """Whether some rank has nobody's file for some role, sound or not."""
    return any(
        not any(r in (*f.mine, *f.spare) for f in there(s) if f.role == role)
        for role in {f.role for f in there(s) if not f.shared}
        for r in range(world)
    )


def lost_role(s: Save, saves: list[Save], tree: Tree) -> bool:
    """A role that is gone altogether, which the layout needs or at least half of the saves of this kind have."""
    have, same = {f.role for f in there(s)}, [o for o in saves if o.dying == s.dying]
    # a job resumes without its random numbers, with a warning
    gone = {f.role for f in s.files if f.loaded} - have - {"rng"}
    return any(
        r in tree.needed or 2 * sum(r in {f.role for f in there(o)} for o in same) >= len(same) for r in gone
    )


def assign(s: Save, q: Question, world: int, dying: bool) -> dict[int, dict[str, set[str]]] | None:
    """For every rank and role the files it may load; None when a rank is left without."""
    out: dict[int, dict[str, set[str]]] = {}
    for role in {f.role for f in there(s) if f.loaded and not f.shared}:
        for rank in range(world):
            failed = q.faults if dying else frozenset()
            good = [f for f in s.files if f.role == role and not f.harm and f.owner not in failed]
            own = {f.path for f in good if rank in f.mine and rank not in failed}
            others = [f for f in good if rank in f.spare and rank not in f.mine]
            fit = {f.path for f in others if f.owner not in q.faults} or {f.path for f in others}
            if rank in q.faults and own:  # a replica is preferred to the file of a rank that failed
                fit = {f.path for f in others if f.owner not in q.faults} or own
            mine = own if own and rank not in q.faults else fit
            if not mine:
                return None
            out.setdefault(rank, {})[role] = mine
    return out


def gasps(tree: Tree, q: Question, saves: list[Save]) -> set[int]:
    """The ``id`` of each save that a dying job wrote, as far as names show it."""
    most = {f.owner for s in saves for f in there(s)}

    def lacks(s: Save) -> bool:
        return {f.owner for f in there(s)} < most or bool(q.interval and s.step % q.interval)

    return {id(s) for s in saves if s.dying or (tree.everyone and lacks(s))}


def finished(tree: Tree) -> list[Save]:
    def committed(s: Save) -> bool:
        return not any(f.commit and f.harm == "gone" for f in s.files)

    return [s for s in tree.saves if s.finished and there(s) and committed(s)]


def answer(tree: Tree, q: Question) -> Answer | str:
    """The plan, or the name of the exception."""
    order, made = settled(tree, q)
    return "UsageError" if shrank(tree, replace(q, order=order), made) else made


def settled(tree: Tree, q: Question) -> tuple[str, Answer | str]:
    """The order that counts and its answer, as docs/how-it-chooses.md says it in five points."""
    if q.order is not None:
        return q.order, ordered(tree, q)
    by_time, by_step = (ordered(tree, replace(q, order=order)) for order in ("mtime", "step"))
    if isinstance(by_time, str) or isinstance(by_step, str) or by_time.step == by_step.step:
        return "mtime", by_time
    saves = finished(tree)
    times = {s.step: s.mtime for s in saves}
    if max(times.values()) - min(times.values()) <= COPY * len(times):
        return "step", by_step
    went_back = any(at < times[by_time.step] and step < by_time.step for step, at in times.items())
    return "mtime", by_time if went_back and tree.named != by_step.step else "UsageError"


def shrank(tree: Tree, q: Question, made: Answer | str) -> bool:
    """Whether a newer save is usable for a smaller job that saved at least twice without the highest ranks,
    and nothing tells that the job is not that small.
    """
    saves = sorted(finished(tree), key=lambda s: -s.mtime if q.order == "mtime" else -s.step)
    told = any(f.tells and not f.harm for s in saves for f in s.files)
    if q.world or told or made in ("UsageError", "NoCheckpoint", "NotRecognised"):
        return False
    owners = {id(s): {f.owner for f in there(s) if f.owner is not None and not f.shared} for s in saves}
    rows = [(s, owners[id(s)]) for s in saves if not s.committed and owners[id(s)]]
    newer = list(takewhile(lambda s: not isinstance(made, Answer) or s.step != made.step, saves))
    for size in range(1 + max((r for g in q.groups for r in g), default=0), world_size(tree, q, saves)):
        mine = [s for s, owners in rows if s in newer and owners == set(range(size))]
        if len(mine) > 1 and any(loads(s, saves, tree, q, size, s.dying) for s in mine):
            return True
    return False


def loads(s: Save, saves: list[Save], tree: Tree, q: Question, world: int, dying: bool) -> Answer | None:
    """What so many ranks load from a save; None where one finds nothing."""
    ranks = None if lost_role(s, saves, tree) else assign(s, q, world, dying)
    shared = [set[str]() if f.harm else {f.path} for f in there(s) if f.shared and f.loaded]
    return Answer(s.step, dying, ranks, shared) if ranks is not None and all(shared) else None


def ordered(tree: Tree, q: Question) -> Answer | str:
    """The plan in the order that the caller named, or the name of the exception."""
    saves = finished(tree)
    if not saves:
        begun = [s for s in tree.saves if there(s)]
        only_named = any(not s.finished and not any(f.harm for f in s.files) for s in begun)
        if only_named or sum(s.finished for s in begun) > 1:
            return "NotRecognised"  # a job that dies in its first save leaves one, and not all of it
        # a tracker was written because there was something
        return {"a name": "NoneUsable", "garbage": "NotRecognised"}.get(tree.tracker, "NoCheckpoint")
    world = world_size(tree, q, saves)
    kinds = gasps(tree, q, saves)
    limit: int | None = None
    for s in sorted(saves, key=lambda s: -s.mtime if q.order == "mtime" else -s.step):
        dying = id(s) in kinds
        if limit is not None and not dying and s.step > limit:
            continue
        if s.committed and any(
            not any(r in f.mine or r in f.spare for f in there(s)) and not any(r in g for g in q.groups)
            for r in range(world)
        ):
            # its writer meant to save no more: who replaces that rank is the caller's knowledge
            return "UsageError"
        if saved_by(tree, saves) not in (None, world) and not lost_role(s, saves, tree) and unfit(s, world):
            return "UsageError"  # another number of ranks saved, and not all of these find their state
        if made := loads(s, saves, tree, q, world, dying):
            return made
        if dying and q.interval:
            limit = min(limit if limit is not None else s.step, s.step // q.interval * q.interval)
    return "NoneUsable"
