"""From names to parts: each file's rank, run and prefix, once all files of a directory are known. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from os.path import basename, relpath

from ckpt_tools.discovery.found import NamedFile
from ckpt_tools.findings import finding
from ckpt_tools.formats.lost_indexes import list_whole
from ckpt_tools.layouts import Claim, NameFields, Place, Stage
from ckpt_tools.layouts.common import templates
from ckpt_tools.layouts.files import read_convention
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Folder, Moment, Part

_COUNTS = re.compile(r"(?i)(?:step|epoch|iter)[-_=]?\d")
"""The part of a name that counts steps or epochs."""


def is_place_of_loop(place: Place, name: str, top: str) -> bool:
    """Return False if a place of a training loop's save has a directory that is no save: ``top`` or higher,
    or named by a number alone while the file in it has another number, or is the best or last of a run. ROOT
    may be a save if its name has a word of a convention: a letter is none, ``e4`` may be an experiment.
    """
    if not place.layout.is_last_resort or not place.home:
        return True
    is_below, directory = place.home.startswith(f"{top}/"), basename(place.home)
    is_number = directory.isdigit() if is_below else sum(map(str.isalpha, directory)) < 2
    if is_below is not is_number:
        return is_below
    loop, fields = read_convention(name)
    numbers = {int(n) for key in ("step", "epoch") if (n := fields.get(key))}
    is_written_over = loop is not None and loop.rolling and not loop.export
    return place.step in numbers if numbers else not is_written_over


def settle_names(files: list[NamedFile], top: str) -> tuple[list[NamedFile], list[NamedFile]]:
    """Return the files that are parts, and the other files, whose names say too little beside these parts."""
    if all(file.place.sure for file in files):
        return files, []
    settling = _Settling(files, top)
    for generic in (False, True):  # a file that no layout knows for sure may have a generic name
        files = [settling.move_on(file, generic) for file in files]
        settling = _Settling(files, top)
    weak = settling.decide(list(files), weak=False)
    # weak names are decided once it is known which directories the other names explain
    for place, places in ((f.place, f.places) for f in settling.kept):
        if place.piece.claim is Claim.DESCRIBED:
            continue
        settling.explained.add(place.home)
        if not place.layout.of_exports:
            settling.explained |= {place.base, places.path}
    settling.decide(weak, weak=True)
    return settling.kept[::-1], settling.others


def drop_stale_indexes(files: list[NamedFile]) -> tuple[list[NamedFile], dict[str, str]]:
    """Return the other files, and index path -> name of the whole model for indexes without shards."""
    indexes = [file for file in files if file.place.piece.claim is Claim.INDEX]
    if not indexes:
        return files, {}
    paths, stale = {file.path for file in files}, dict[str, str]()
    models = (file.place for file in files if file.place.piece.role == "model")
    sharded = {(place.layout, place.home) for place in models}
    for file in indexes:
        if (file.place.layout, file.place.home) not in sharded:
            for name in list_whole(file.name.whole):
                if file.places.directory + name in paths:
                    stale.setdefault(file.path, name)
    return [file for file in files if file.path not in stale], stale


def read_next_piece(file: NamedFile) -> NamedFile | None:
    """Return the file as the next piece that its name fits; None if there is no further one."""
    name = file.places.read_name(file.name.whole, after=file.name.piece)
    return name and file._replace(place=file.places[name.piece], name=name)


def _find_counting_directories(files: Sequence[NamedFile]) -> Iterator[str]:
    """Yield directories in which numbers in names are ranks: from 0 without a gap, and below the steps."""
    numbered: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for file in files:
        place = file.place
        if place.piece.claim is Claim.COUNTED:
            rank = file.name.rank if place.rank is None else place.rank
            row = place.home, -1 if rank is None else rank, place.step or len(files)
            numbered[place.base].append(row)
    for base, rows in numbered.items():
        homes, ranks, steps = (set(column) for column in zip(*rows, strict=True))
        from_zero = ranks == set(range(len(ranks)))
        # a lone directory may have lost its first file
        are_ranks = from_zero and len(ranks) > 1 if "" in homes else from_zero or len(homes) == 1
        if are_ranks and max(ranks) < min(steps):
            yield base


class _Settling:
    """Decides which files are parts; parts found so far are ``kept``."""

    def __init__(self, files: list[NamedFile], top: str) -> None:
        self._top = top
        sure = {file.place for file in files if file.place.sure}
        homes, bases = {at.home for at in sure}, {at.base for at in sure if not at.layout.of_exports}
        self._taken = homes | bases  # names that tell little are ignored in them: sure ones explain them
        self._counted = {*_find_counting_directories(files)}
        generic = {file.place for file in files if self._is_generic(file.place)}
        # a directory in which all saves lie is free if no other piece lies in it
        free = {at.base for at in generic if not at.home} - self._taken
        self._generic = free | ({at.home for at in generic} - homes - {""})
        sure.update(place for place in generic if (place.home or place.base) in self._generic)
        self._bases, self._homes = set[tuple[str, str]](), set[tuple[str, str]]()
        self._layouts = defaultdict[str, set[str]](set)
        for place in sure:
            self._bases.add((place.layout.name, place.base))
            self._homes.add((place.layout.name, place.home))
            self._layouts[place.base].add(place.layout.name)
        self._claimed = set(map(itemgetter(1), self._homes)) - {""}
        self.explained: set[str] = set()
        self.kept: list[NamedFile] = []
        self.others: list[NamedFile] = []

    def move_on(self, file: NamedFile, generic: bool) -> NamedFile:
        """Return the file as the sure (or free ``generic``) piece it fits, if none before that keeps it."""
        at: NamedFile | None = file
        while at is not None and not at.place.sure:
            place = at.place
            taken = place.home in self._claimed if place.home else place.base in self._taken
            if generic and place.piece.claim.needs_no_other and not taken:
                break
            if place.piece.claim in (Claim.WEAK, Claim.DESCRIBED) or self._is_confirmed(place, at.name.whole):
                return file
            at = read_next_piece(at)
        return at or file

    def decide(self, waiting: list[NamedFile], *, weak: bool) -> list[NamedFile]:
        """Fill ``kept`` (parts) and ``others`` with files; return those of weak names, unless ``weak``."""
        left = []
        while waiting:
            file = waiting.pop()
            if file.place.piece.claim is Claim.WEAK and not weak:
                left.append(file)
            elif self._is_confirmed(file.place, file.name.whole):
                self.kept.append(file)
            elif again := read_next_piece(file):
                waiting.append(again)
            else:
                self.others.append(file)
        return left

    def _is_generic(self, place: Place) -> bool:
        """Return True if a piece with a generic name may lie in the place's directory."""
        if basename(place.home).isdigit() and not place.home.startswith(f"{self._top}/"):
            return False  # ROOT is called by the number of a job
        claim = place.piece.claim
        return claim is Claim.GENERIC or (claim is Claim.COUNTED and place.base in self._counted)

    def _is_confirmed(self, place: Place, name: str) -> bool:
        """Return True if a file of this name is the place's piece, as its claim asks of files near it."""
        piece, layout = place.piece, place.layout.name
        if piece.claim is Claim.WEAK:
            if not is_place_of_loop(place, name, self._top):
                return False
            # if only its own layout explains the directory, the content of a name that counts is read
            is_read = bool(piece.content.proof) and self._layouts[place.base] == {layout}
            return place.base not in self.explained or (is_read and _COUNTS.search(name) is not None)
        if piece.claim is Claim.DESCRIBED:
            return (layout, place.home) in self._homes
        if piece.claim.needs_no_other:
            return (place.home or place.base) in self._generic and self._is_generic(place)
        if not piece.claim.needs_company:
            return True
        # files in the directory itself tell more than its siblings: two frameworks write checkpoint-N
        if piece.claim is not Claim.COMPANION or place.home in self._claimed:
            return (layout, place.home) in self._homes
        return (layout, place.base) in self._bases


_OF_RUNS = r"(?i:(?<![a-z])(?:run|exp|experiment|seed|fold|trial|version|stage|epoch|job|attempt)$)"
"""Words before numbers of runs or times, never of the ranks of one job."""
_Ranks = dict[str, tuple[str, int]]
"""Directory with the files of one rank -> its path without the number, and the rank."""


def _group_rank_directories(files: list[NamedFile]) -> dict[str, dict[str, int]]:
    """Return path without number -> directory -> number, for directories that may be of a rank each."""
    families: dict[str, dict[str, int]] = defaultdict(dict)
    places = {file.place for file in files}
    for base in {at.base for at in places if at.rank is None and at.layout.ranks.directories}:
        if (m := re.fullmatch(r"(.*[^/\d])_(\d{1,9})", base)) and not re.search(_OF_RUNS, m[1]):
            families[m[1]][base] = int(m[2])
    return families


def find_lone_numbers(files: list[NamedFile], top: str) -> Iterator[Finding]:
    """Yield directories below ``top`` that read like those of ranks, but without a first (``ckpt_1``)."""
    for stem, bases in sorted(_group_rank_directories(files).items()):
        first = min(bases, key=lambda base: bases[base])
        if bases[first] == 1 and first.startswith(f"{top}/"):
            text = f"it reads like the directory of rank 1, but there is no {basename(stem)}_0"
            yield finding("lone-number", f"{text}: it is taken for a run of its own", path=first)


_RESTARTS = "[_{generation}]"
"""In a template with this token, a number behind the prefix may count restarts; elsewhere it counts saves."""


def _find_own_numbers(files: list[NamedFile], ranks: _Ranks) -> frozenset[tuple[str, str, int]]:
    """Return (directory, prefix, number) where the prefix has the number: ``net_50`` beside ``net_50_1``."""
    counters: dict[tuple[str, str], set[int]] = defaultdict(set)
    for file in files:
        place, name = file.place, file.name
        if name.prefix and _RESTARTS in place.piece.template:
            base, _ = _find_base_and_rank(place, name, ranks)
            counters[base, name.prefix].add(name.generation or 0)
    return frozenset(
        (base, prefix, n)
        for (base, prefix), found in counters.items()
        for n in found - {0}
        if (base, f"{prefix}_{n}") in counters or found.isdisjoint((0, 1))
    )


def _find_base_and_rank(place: Place, name: NameFields, ranks: _Ranks) -> tuple[str, int | None]:
    """Return the run's directory and the file's rank, by directories of ranks if no name tells a rank."""
    rank = place.rank if place.rank is not None else name.rank
    if rank is None and (directory := ranks.get(place.base)):
        return directory
    return place.base, rank


def _join_prefixes(seen: dict[str, set[tuple[int | None, str]]]) -> dict[tuple[str, int | None, str], str]:
    """Return (directory, rank, prefix) -> prefix without the rank that ends it (``net`` of ``net_rank0``)."""
    joined: dict[tuple[str, int | None, str], str] = {}
    for base, pairs in seen.items():
        stems: dict[str, list[tuple[int | None, str]]] = defaultdict(list)
        for rank, prefix in pairs:
            stem = prefix.removesuffix(str(rank))
            if rank is not None and stem != prefix and stem and not stem[-1].isdigit():
                stems[stem.rstrip("_").removesuffix("rank").rstrip("_") or stem].append((rank, prefix))
        for stem, members in stems.items():
            ranks, prefixes = map(set, zip(*members, strict=True))
            if len(members) > 1 and len(prefixes) == len(ranks) == len(members):
                joined.update(((base, *member), stem) for member in members)
    return joined


def _find_only_prefixes(files: list[NamedFile]) -> dict[tuple[str, str], str]:
    """Return (layout, directory) -> the one prefix of its files: a file without one is of the same run."""
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    followed = {file.place.layout.name for file in files if file.place.piece.claim is Claim.FOLLOWS}
    for file in files:
        place = file.place
        leads = place.piece.readers.single or place.layout.name in followed
        if leads and "{prefix}" in place.piece.template:
            seen[place.layout.name, place.base].add(file.name.prefix or place.prefix)
    return {at: next(iter(found)) for at, found in seen.items() if len(found) == 1 and found != {""}}


def name_parts(files: list[NamedFile], top: str) -> list[Part]:
    """Return the files as parts, with runs named as seen from ``top``; ``files`` is emptied."""
    naming, parts = _Naming(files, top), list[Part]()
    files.reverse()
    while files:
        parts.append(naming.make_part(files.pop()))
    return parts


class _Naming:
    """The rank, prefix and run of each file, which only all files of a directory together tell."""

    def __init__(self, files: list[NamedFile], top: str) -> None:
        self._top = top
        # ``ckpt_0``, ``ckpt_1``, … beside each other hold one rank each; a lone ``exp_3`` is just a name
        self._ranks: _Ranks = {
            base: (stem, rank)
            for stem, bases in _group_rank_directories(files).items()
            if sorted(bases.values()) == list(range(len(bases)))
            for base, rank in bases.items()
        }
        self._own_numbers = _find_own_numbers(files, self._ranks)
        seen: dict[str, set[tuple[int | None, str]]] = defaultdict(set)
        for file in files:
            name = file.name
            if name.prefix:
                base, rank = _find_base_and_rank(file.place, name, self._ranks)
                is_own = (base, name.prefix, name.generation) in self._own_numbers
                seen[base].add((rank, f"{name.prefix}_{name.generation}" if is_own else name.prefix))
        self._joined_prefixes = _join_prefixes(seen)
        self._prefixes = _find_only_prefixes(files)
        marks = (file for file in files if file.place.piece.stage is Stage.MARKS)
        self._unfinished = set(map(_find_marked_save, marks))
        homes = {_find_directory(file) for file in files if file.place.piece.stage is not Stage.FINISHED}
        self._unfinished.update(filter(templates.is_marked, homes))
        self._runs: dict[tuple[str, str], str] = {}
        self._folders: dict[tuple[Place, str], Folder] = {}
        self._moments: dict[tuple[object, ...], Moment] = {}

    def make_part(self, file: NamedFile) -> Part:
        """Return a file as a part; a number in its name that contradicts its directory is a finding."""
        place, name, size, mtime_ns, findings, _ = file
        base, rank = _find_base_and_rank(place, name, self._ranks)
        prefix, generation = self._find_prefix(place, name, base, rank)
        step = place.step if name.step is None else name.step
        if name.rank is not None and name.rank != rank:
            text = f"{name.whole} lies in the directory of rank {rank}"
            findings += (finding("rank-mismatch", text),)
        if place.step not in (None, step):
            text = f"{name.whole} lies in the directory of step {place.step}"
            findings += (finding("step-mismatch", text),)
        in_unfinished = bool(self._unfinished) and _find_directory(file) in self._unfinished
        numbers = (
            place.coords + name.coords,
            step,
            place.epoch if name.epoch is None else name.epoch,
            place.step_in_epoch if name.step_in_epoch is None else name.step_in_epoch,
            generation,
            place.unfinished or name.unfinished or in_unfinished,
        )
        moment = self._moments.get(numbers) or self._moments.setdefault(numbers, Moment(*numbers))
        folder = self._folders.get((place, prefix)) or self._make_folder(file, base, prefix)
        if place.piece.stage is Stage.MARKS:
            folder = folder._replace(home=_find_marked_save(file))
        return tuple.__new__(Part, (folder, moment, rank, name.whole, size, mtime_ns, findings))

    def _make_folder(self, file: NamedFile, base: str, prefix: str) -> Folder:
        """Return, and keep, what parts of one piece and prefix in a directory share, such as their run."""
        place, piece = file.place, file.place.piece
        run = self._runs.get((base, prefix))
        if run is None:
            seen = relpath(base, self._top)
            if seen.startswith(".."):
                seen = basename(base)  # ROOT lies inside the run
            run = seen if not prefix else prefix if seen == "." else f"{seen}/{prefix}"
            self._runs[base, prefix] = run
        folder = self._folders[place, prefix] = Folder(
            directory=file.places.directory,
            layout=place.layout.name,
            piece=piece.name,
            role=piece.role,
            run=run,
            base=base,
            home=place.home,
            prefix=prefix,
            kind=piece.kind,
        )
        return folder

    def _find_prefix(
        self, place: Place, name: NameFields, base: str, rank: int | None
    ) -> tuple[str, int | None]:
        """Return the prefix that tells runs apart, also from names beside it, and the number behind it."""
        prefix, piece = name.prefix or place.prefix, place.piece
        follows = not prefix and self._prefixes and (piece.readers.single or piece.claim is Claim.FOLLOWS)
        if follows and "{prefix}" not in piece.template:
            prefix = self._prefixes.get((place.layout.name, place.base), "")
        generation = place.generation if name.generation is None else name.generation
        if generation and (base, prefix, generation) in self._own_numbers:
            prefix, generation = f"{prefix}_{generation}", 0
        if self._joined_prefixes:
            prefix = self._joined_prefixes.get((base, rank, prefix), prefix)
        return prefix, generation


def _find_directory(file: NamedFile) -> str:
    """Return the directory of a file's save, maybe of others as well; "" if its run's files lie there."""
    return file.place.home or ("/" in file.place.piece.template and file.places.directory.rstrip("/")) or ""


def _find_marked_save(file: NamedFile) -> str:
    """Return the path of the save that a mark, a file in it or beside it, calls unfinished."""
    return file.place.home or file.path.removesuffix(file.place.piece.end)
