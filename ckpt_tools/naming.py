"""From names to parts: which rank, which run, which prefix, once all files of a directory are known. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from os.path import basename, relpath

from ckpt_tools.codes import finding
from ckpt_tools.layouts import Place, Places, Told, read_name
from ckpt_tools.model import Finding, Part

Row = tuple[Place, Told, str, int, int, "tuple[Finding, ...]", Places]
"""place, what the name tells, path, size, mtime_ns, findings, all pieces at home in the directory"""


def settled(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Rows that are parts, and the others, whose names say too little: companions without their layout, and weak names in directories that other names explain."""
    if all(row[0].sure for row in rows):
        return rows, []
    sure = [row[0] for row in rows if row[0].sure]
    at_home, homes = {(place.layout.name, place.base) for place in sure}, {(place.layout.name, place.home) for place in sure}
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
        explained = {at for row in kept if not row[0].piece.described for at in (row[0].base, row[0].home, row[2].rpartition("/")[0])}
    return kept[::-1], others


def _numbered_siblings(rows: list[Row]) -> dict[str, tuple[str, int]]:
    """Directory -> (what it is called without its rank, rank): ``ckpt_0``, ``ckpt_1``, … beside each other hold one rank each when they
    count from 0 without a gap; a lone ``exp_3`` is just a name.
    """
    families: dict[str, dict[str, int]] = defaultdict(dict)
    for base in {row[0].base for row in rows if row[0].rank is None and row[0].layout.name == "mindspore"}:
        if m := re.fullmatch(r"(.*[^/\d])_(\d{1,9})", base):
            families[m[1]][base] = int(m[2])
    return {b: (stem, r) for stem, bases in families.items() if sorted(bases.values()) == list(range(len(bases))) for b, r in bases.items()}


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
            if len(members) > 1 and len({prefix for _, prefix in members}) == len({rank for rank, _ in members}) == len(members):
                joined.update({(base, rank, prefix): stem for rank, prefix in members})
    return joined


def name_parts(rows: list[Row], above: str) -> Iterator[Part]:
    """Rows become parts once all their siblings are known. Runs are named as seen from ``above``."""
    moved = _numbered_siblings(rows)
    seen: dict[str, set[tuple[int | None, str]]] = defaultdict(set)
    for row in rows:
        if prefix := row[1][2]:
            place = row[0]
            base, rank = moved.get(place.base, (place.base, row[1][1])) if place.rank is None else (place.base, place.rank)
            seen[base].add((rank, prefix))
    prefixes = {base: {prefix for _, prefix in pairs} for base, pairs in seen.items()}
    joined = _common_prefixes(seen)
    bases = {row[0].base for row in rows} | {base for base, _ in moved.values()}
    above_of = {base: relpath(base, above) for base in bases}
    above_of = {base: basename(base) if run.startswith("..") else run for base, run in above_of.items()}  # ROOT lies inside the run
    runs: dict[tuple[str, str], str] = {}
    make: Callable[[tuple[object, ...]], Part] = partial(
        tuple.__new__, Part
    )  # not by keyword through Python: this is the inner loop over a million files
    for place, (_, own, prefix, generation, step, epoch, inside, tmp, coords), path, size, mtime_ns, findings, _at in rows:
        if not prefix:  # what the directory tells
            prefix = place.prefix  # noqa: PLW2901  # the settled name replaces the read one
        base, rank, piece = place.base, place.rank, place.piece
        if rank is None:
            rank = own
            if rank is None and base in moved:
                base, rank = moved[base]
        if generation is None:
            generation = place.generation  # noqa: PLW2901  # as above
        if generation and f"{prefix}_{generation}" in prefixes.get(base, ()):  # 'net_50' is a prefix of its own when 'net_50_1' exists as well
            prefix, generation = f"{prefix}_{generation}", 0  # noqa: PLW2901  # as above
        if joined:
            prefix = joined.get((base, rank, prefix), prefix)  # noqa: PLW2901  # as above
        if own is not None and own != rank:
            findings += (finding("rank-mismatch", f"{path.rpartition('/')[2]} lies in the directory of rank {rank}"),)  # noqa: PLW2901  # as above
        if step is None:
            step = place.step  # noqa: PLW2901  # as above
        elif place.step not in (None, step):
            findings += (finding("step-mismatch", f"{path.rpartition('/')[2]} lies in the directory of step {place.step}"),)  # noqa: PLW2901  # as above
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
