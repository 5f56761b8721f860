"""From names to parts: which rank, which run, which prefix, once all files of a directory are known. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from os.path import basename, relpath

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Place, Places, Told, read_name
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part

Row = tuple[Place, Told, str, int, int, "tuple[Finding, ...]", Places]
"""place, what the name tells, path, size, mtime_ns, findings, all pieces at home in the directory"""


def settled(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Rows that are parts, and the others, whose names say too little: companions without their layout, and weak names in directories that other names explain."""
    if all(row[0].sure for row in rows):
        return rows, []
    sure = [row[0] for row in rows if row[0].sure]
    at_home, homes = (
        {(place.layout.name, place.base) for place in sure},
        {(place.layout.name, place.home) for place in sure},
    )
    explained: set[str] = set()
    kept, others, left = list[Row](), list[Row](), rows

    def stays(place: Place) -> bool:
        if place.piece.weak:
            return place.base not in explained
        if place.piece.described:
            return (place.layout.name, place.home) in homes
        return not place.piece.companion or (place.layout.name, place.base) in at_home

    for weak in (False, True):  # weak names are asked once it is known which directories the others explain
        waiting, left = left, []
        while waiting:
            row = waiting.pop()
            place, told, path, size, mtime_ns, findings, at = row
            if place.piece.weak and not weak:
                left.append(row)
            elif stays(place):
                kept.append(row)
            elif again := read_name(path.rpartition("/")[2], at.pieces, told[0]):
                waiting.append((at[again[0]], again, path, size, mtime_ns, findings, at))
            else:
                others.append(row)
        explained = {
            at
            for row in kept
            if not row[0].piece.described
            for at in (row[0].base, row[0].home, row[2].rpartition("/")[0])
        }
    return kept[::-1], others


def _families(rows: list[Row]) -> dict[str, dict[str, int]]:
    """What numbered directories are called without their number -> directory -> number, where it may be that of a rank."""
    families: dict[str, dict[str, int]] = defaultdict(dict)
    for base in {row[0].base for row in rows if row[0].rank is None and row[0].layout.name == "mindspore"}:
        if m := re.fullmatch(r"(.*[^/\d])_(\d{1,9})", base):
            families[m[1]][base] = int(m[2])
    return families


def _numbered_siblings(rows: list[Row]) -> dict[str, tuple[str, int]]:
    """Directory -> (what it is called without its rank, rank): ``ckpt_0``, ``ckpt_1``, … beside each other hold one rank each when they
    count from 0 without a gap; a lone ``exp_3`` is just a name.
    """
    whole = {
        stem: bases
        for stem, bases in _families(rows).items()
        if sorted(bases.values()) == list(range(len(bases)))
    }
    return {b: (stem, r) for stem, bases in whole.items() for b, r in bases.items()}


def lone_numbers(rows: list[Row], above: str) -> Iterator[Finding]:
    """Directories below ``above`` that read like those of ranks, but for the first: ``ckpt_1`` without ``ckpt_0``."""
    for stem, bases in sorted(_families(rows).items()):
        first = min(bases, key=lambda base: bases[base])
        if bases[first] == 1 and first.startswith(f"{above}/"):
            text = f"it reads like the directory of rank 1, but there is no {basename(stem)}_0: it is taken for a run of its own"
            yield finding("lone-number", text, path=first)


_RESTARTS = "{prefix}[_{generation}]"
"""In a template: a number behind the prefix may count restarts. Elsewhere a generation counts saves."""
Prefixed = tuple[str, str, int]
"""Directory, prefix, restart counter."""


def _own_prefixes(rows: list[Row], moved: dict[str, tuple[str, int]]) -> frozenset[Prefixed]:
    """Those whose counter belongs to the prefix: ``net_50`` where ``net_50_1`` exists as well, and ``bert_2`` where there is neither ``bert`` nor ``bert_1``."""
    counters: dict[tuple[str, str], set[int]] = defaultdict(set)
    ranked = set[Prefixed]()
    for row in rows:
        place, (_, own, prefix, generation, *_) = row[0], row[1]
        if prefix and _RESTARTS in place.piece.template:
            base = (
                moved.get(place.base, (place.base, 0))[0]
                if place.rank is None and own is None
                else place.base
            )
            counters[base, prefix].add(generation or 0)
            if (
                generation
                and prefix.endswith("rank")
                and generation == (own if place.rank is None else place.rank)
            ):
                ranked.add((base, prefix, generation))  # MindFormers' prefix_rank_R-E_S.ckpt
    out = set[Prefixed]()
    for (base, prefix), found in counters.items():
        for k in found - {0}:
            if (base, f"{prefix}_{k}") in counters or (
                found.isdisjoint((0, 1)) and (base, prefix, k) not in ranked
            ):
                out.add((base, prefix, k))
    return frozenset(out)


def _common_prefixes(seen: dict[str, set[tuple[int | None, str]]]) -> dict[tuple[str, int | None, str], str]:
    """(base, rank, prefix) -> the prefix without the rank, where every rank's own number ends its prefix: ``pangu0``, ``pangu1`` (``net_rank_0``)."""
    joined: dict[tuple[str, int | None, str], str] = {}
    for base, pairs in seen.items():
        stems: dict[str, list[tuple[int | None, str]]] = defaultdict(list)
        for rank, prefix in pairs:
            stem = prefix.removesuffix(str(rank))
            if rank is not None and stem != prefix and stem and not stem[-1].isdigit():
                stems[stem.rstrip("_").removesuffix("rank").rstrip("_") or stem].append((rank, prefix))
        for stem, members in stems.items():
            if len(members) > 1 and len({prefix for _, prefix in members}) == len(
                {rank for rank, _ in members}
            ) == len(members):
                joined.update({(base, rank, prefix): stem for rank, prefix in members})
    return joined


def name_parts(rows: list[Row], above: str) -> Iterator[Part]:
    """Rows become parts once all their siblings are known. Runs are named as seen from ``above``.

    The rows are used up, so that a million files are not in memory twice.
    """
    moved = _numbered_siblings(rows)
    own_prefixes = _own_prefixes(rows, moved)
    seen: dict[str, set[tuple[int | None, str]]] = defaultdict(set)
    for row in rows:
        if prefix := row[1][2]:
            place, k = row[0], row[1][3]
            base, rank = (
                moved.get(place.base, (place.base, row[1][1]))
                if place.rank is None
                else (place.base, place.rank)
            )
            seen[base].add((rank, f"{prefix}_{k}" if (base, prefix, k) in own_prefixes else prefix))
    joined = _common_prefixes(seen)
    bases = {row[0].base for row in rows} | {base for base, _ in moved.values()}
    above_of = {base: relpath(base, above) for base in bases}
    above_of = {
        base: basename(base) if run.startswith("..") else run for base, run in above_of.items()
    }  # ROOT lies inside the run
    runs: dict[tuple[str, str], str] = {}
    make: Callable[[tuple[object, ...]], Part] = partial(
        tuple.__new__, Part
    )  # not by keyword through Python: this is the inner loop over a million files
    rows.reverse()
    while rows:
        place, told, path, size, mtime_ns, findings, _ = rows.pop()
        _, own, prefix, generation, step, epoch, inside, tmp, coords = told
        if not prefix:  # what the directory tells
            prefix = place.prefix
        base, rank, piece = place.base, place.rank, place.piece
        if rank is None:
            rank = own
            if rank is None and base in moved:
                base, rank = moved[base]
        if generation is None:
            generation = place.generation
        if generation and (base, prefix, generation) in own_prefixes:
            prefix, generation = f"{prefix}_{generation}", 0
        if joined:
            prefix = joined.get((base, rank, prefix), prefix)
        if own is not None and own != rank:
            findings += (
                finding("rank-mismatch", f"{path.rpartition('/')[2]} lies in the directory of rank {rank}"),
            )
        if step is None:
            step = place.step
        elif place.step not in (None, step):
            findings += (
                finding(
                    "step-mismatch", f"{path.rpartition('/')[2]} lies in the directory of step {place.step}"
                ),
            )
        run = runs.get((base, prefix))
        if run is None:
            above_here = above_of[base]
            run = above_here if not prefix else prefix if above_here == "." else f"{above_here}/{prefix}"
            runs[base, prefix] = run
        yield make((
            path, place.layout.name, piece.name, piece.role, run, base, place.home, prefix, piece.kind, rank, place.coords + coords,
            step, place.epoch if epoch is None else epoch, place.inside if inside is None else inside,
            generation, place.tmp or tmp, size, mtime_ns, findings,
        ))  # fmt: skip
