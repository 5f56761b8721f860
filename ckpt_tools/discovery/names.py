"""From names to parts: which rank, which run, which prefix, once all files of a directory are known. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from os.path import basename, relpath
from typing import NamedTuple

from ckpt_tools.discovery.found import NamedFile
from ckpt_tools.findings import finding
from ckpt_tools.formats.lost_indexes import names_of_whole
from ckpt_tools.layouts import NameFields, Place
from ckpt_tools.layouts.common import under_way
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Folder, Moment, Part

_COUNTS = re.compile(r"(?i)(?:step|epoch|iter)[-_=]?\d")
"""What a name has that counts steps or epochs."""


def is_place_of_loop(place: Place, name: str, above: str) -> bool:
    """Return False if a place is that of a loop's save in a directory that is none: ``above`` or higher, or
    called by a number alone where the file in it has another one, or is the best or the last of a run.
    ROOT is one if its name has a word of a convention.
    """
    if not place.layout.last_resort or not place.home:
        return True
    is_below, is_number = place.home.startswith(f"{above}/"), basename(place.home).isdigit()
    if is_below is not is_number:
        return is_below
    from ckpt_tools.layouts.files import numbers_named  # only where people's own loops save

    loop, said = numbers_named(name)
    own = {int(n) for key in ("step", "epoch") if (n := said.get(key))}
    is_written_over = loop is not None and loop.rolling and not loop.export
    return place.step in own if own else not is_written_over


def settled(files: list[NamedFile], above: str) -> tuple[list[NamedFile], list[NamedFile]]:
    """Files that are parts, and the others, whose names say too little: companions without their layout, and
    weak names in directories that other names explain.
    """
    if all(file.place.sure for file in files):
        return files, []
    settling = _Settling(files, above)
    for generic in (False, True):  # what no layout knows for sure may have a generic name
        files = [settling.moved_on(file, generic) for file in files]
        settling = _Settling(files, above)
    weak = settling.decide(list(files), weak=False)
    # weak names are asked once it is known which directories the others explain
    settling.explained = {at for file in settling.kept for at in _explained(file)}
    settling.decide(weak, weak=True)
    return settling.kept[::-1], settling.others


def without_stale(files: list[NamedFile]) -> tuple[list[NamedFile], dict[str, str]]:
    """Return the files, and by their paths the indexes among them that have lost all their shards, each with
    the name of the file beside it that holds the model whole: that is the checkpoint.
    """
    indexes = [file for file in files if file.place.piece.whole_beside]
    if not indexes:
        return files, {}
    there, stale = {file.path for file in files}, dict[str, str]()
    sharded = {
        (file.place.layout.name, file.place.home) for file in files if file.place.piece.role == "model"
    }
    for file in indexes:
        if (file.place.layout.name, file.place.home) not in sharded:
            whole = (
                name for name in names_of_whole(file.name.whole) if file.places.directory + name in there
            )
            if name := next(whole, ""):
                stale[file.path] = name
    return [file for file in files if file.path not in stale] if stale else files, stale


def _explained(file: NamedFile) -> tuple[str, ...]:
    """The directories in which a file leaves nothing to be explained by a weak name."""
    place = file.place
    if place.piece.described:
        return ()
    return (place.home,) if _is_export(place) else (place.base, place.home, file.places.path)


def _taken_by(sure: Sequence[Place]) -> set[str]:
    """Where names that tell little are not read, since others tell what lies there."""
    return {place.home for place in sure} | {place.base for place in sure if not _is_export(place)}


def _is_export(place: Place) -> bool:
    """Whether it is a model alone, beside which the states of training lie as often as not."""
    return place.layout.of_exports


def next_reading(file: NamedFile) -> NamedFile | None:
    """The file as the next piece that its name fits."""
    name = file.places.read_name(file.name.whole, after=file.name.piece)
    return name and file._replace(place=file.places[name.piece], name=name)


def _free_places(generic: Sequence[Place], homes: Collection[str], taken: Collection[str]) -> set[str]:
    """Where generic names are: directories of saves of which no other layout has the ``homes``, or in which
    all saves lie and nothing else is at home.
    """
    own = {place.home for place in generic if place.home}.difference(homes)
    return own | {place.base for place in generic if not place.home}.difference(taken)


def _counting(files: Sequence[NamedFile]) -> set[str]:
    """Where names that tell a rank by a number alone count as ranks do, and not as epochs: from 0 without a
    gap, in directories of later steps than they have ranks. A lone such directory may have lost the first;
    of directories of ranks there are several.
    """
    ranks: dict[str, dict[str, set[int | None]]] = defaultdict(lambda: defaultdict(set))
    steps: dict[str, set[int]] = defaultdict(set)
    for file in files:
        if file.place.piece.counted:
            rank = file.name.rank if file.place.rank is None else file.place.rank
            ranks[file.place.base][file.place.home].add(rank)
            steps[file.place.base].add(file.place.step or len(files))
    return {at for at, homes in ranks.items() if _are_ranks(homes, min(steps[at]))}


def _are_ranks(homes: Mapping[str, set[int | None]], step: int) -> bool:
    found = {-1 if rank is None else rank for ranks in homes.values() for rank in ranks}
    from_zero = found == set(range(len(found)))
    right = from_zero and len(found) > 1 if "" in homes else from_zero or len(homes) == 1
    return right and max(found) < step


class _Settling:
    """Which files are parts, as far as it was decided: they are ``kept``."""

    def __init__(self, files: list[NamedFile], above: str) -> None:
        self._above = above
        sure = [file.place for file in files if file.place.sure]
        self._taken = _taken_by(sure)
        self._counting = _counting(files)
        generic = list(filter(self._is_generic, (file.place for file in files)))
        self._generic = _free_places(generic, {place.home for place in sure}, self._taken)
        sure += [place for place in generic if (place.home or place.base) in self._generic]
        self._bases = {(place.layout.name, place.base) for place in sure}
        self._homes = {(place.layout.name, place.home) for place in sure}
        self._at = defaultdict[str, set[str]](set)
        for layout, base in self._bases:
            self._at[base].add(layout)
        self._claimed = {place.home for place in sure if place.home}
        self.explained: set[str] = set()
        self.kept: list[NamedFile] = []
        self.others: list[NamedFile] = []

    def moved_on(self, file: NamedFile, generic: bool) -> NamedFile:
        """The file as the sure (or ``generic``) piece that its name fits, where no piece before that one
        keeps it.
        """
        at: NamedFile | None = file
        while at is not None and not at.place.sure and not (generic and self._is_free(at.place)):
            if at.place.piece.weak or at.place.piece.described or self._stays(at.place, at.name.whole):
                return file
            at = next_reading(at)
        return at or file

    def _is_free(self, place: Place) -> bool:
        """Whether no other layout has a file in its directory, or in that in which all saves lie."""
        taken = place.home in self._claimed if place.home else place.base in self._taken
        return place.piece.generic and not taken

    def decide(self, waiting: list[NamedFile], *, weak: bool) -> list[NamedFile]:
        """Decide about the files; those of weak names are left, and returned, unless they are meant."""
        left = []
        while waiting:
            file = waiting.pop()
            if file.place.piece.weak and not weak:
                left.append(file)
            elif self._stays(file.place, file.name.whole):
                self.kept.append(file)
            elif again := next_reading(file):
                waiting.append(again)
            else:
                self.others.append(file)
        return left

    def _proves_itself(self, place: Place, name: str) -> bool:
        """Whether a name that counts steps or epochs is asked for its content although others explain its
        directory: they are of its own layout.
        """
        of_its_own = bool(place.piece.proof) and self._at[place.base] == {place.layout.name}
        return of_its_own and _COUNTS.search(name) is not None

    def _is_generic(self, place: Place) -> bool:
        if basename(place.home).isdigit() and not place.home.startswith(f"{self._above}/"):
            return False  # ROOT is called by the number of a job
        return place.piece.generic and (not place.piece.counted or place.base in self._counting)

    def _stays(self, place: Place, name: str) -> bool:
        if place.piece.weak and not is_place_of_loop(place, name, self._above):
            return False
        if place.piece.weak:
            return place.base not in self.explained or self._proves_itself(place, name)
        if place.piece.described:
            return (place.layout.name, place.home) in self._homes
        if place.piece.generic:
            return (place.home or place.base) in self._generic and self._is_generic(place)
        if not place.piece.companion:
            return True
        # what lies in the directory itself tells more than its siblings: two frameworks write checkpoint-N
        if place.piece.inside or place.home in self._claimed:
            return (place.layout.name, place.home) in self._homes
        return (place.layout.name, place.base) in self._bases


_OF_RUNS = r"(?i:(?<![a-z])(?:run|exp|experiment|seed|fold|trial|version|stage|epoch|job|attempt)$)"
"""What numbers runs or times, and never the ranks of one job."""


class _RankDirectory(NamedTuple):
    """A directory that holds the files of one rank: what it is called without its number, and the rank."""

    stem: str
    rank: int


def _families(files: list[NamedFile]) -> dict[str, dict[str, int]]:
    """What numbered directories are called without their number -> directory -> number, where it may be that
    of a rank.
    """
    families: dict[str, dict[str, int]] = defaultdict(dict)
    bases = {
        file.place.base for file in files if file.place.rank is None and file.place.layout.rank_directories
    }
    for base in bases:
        if (m := re.fullmatch(r"(.*[^/\d])_(\d{1,9})", base)) and not re.search(_OF_RUNS, m[1]):
            families[m[1]][base] = int(m[2])
    return families


def _rank_directories(files: list[NamedFile]) -> dict[str, _RankDirectory]:
    """``ckpt_0``, ``ckpt_1``, … beside each other hold one rank each when they count from 0 without a gap; a
    lone ``exp_3`` is just a name.
    """
    return {
        base: _RankDirectory(stem, rank)
        for stem, bases in _families(files).items()
        if sorted(bases.values()) == list(range(len(bases)))
        for base, rank in bases.items()
    }


def lone_numbers(files: list[NamedFile], above: str) -> Iterator[Finding]:
    """Directories below ``above`` that read like those of ranks, but for the first: ``ckpt_1`` without
    ``ckpt_0``.
    """
    for stem, bases in sorted(_families(files).items()):
        first = min(bases, key=lambda base: bases[base])
        if bases[first] == 1 and first.startswith(f"{above}/"):
            text = (
                f"it reads like the directory of rank 1, but there is no {basename(stem)}_0:"
                " it is taken for a run of its own"
            )
            yield finding("lone-number", text, path=first)


_RESTARTS = "[_{generation}]"
"""In a template: a number behind the prefix may count restarts. Elsewhere a generation counts saves."""


class _Prefixed(NamedTuple):
    """A prefix in a directory, with the number behind it."""

    base: str
    prefix: str
    counter: int


class _OfRank(NamedTuple):
    """A prefix in a directory, as one rank has it."""

    base: str
    rank: int | None
    prefix: str


def _own_prefixes(files: list[NamedFile], ranks: dict[str, _RankDirectory]) -> frozenset[_Prefixed]:
    """Those whose number belongs to the prefix: ``net_50`` where ``net_50_1`` exists as well, and ``bert_2``
    where there is neither ``bert`` nor ``bert_1``.
    """
    counters: dict[tuple[str, str], set[int]] = defaultdict(set)
    for file in files:
        place, name = file.place, file.name
        if not name.prefix or _RESTARTS not in place.piece.template:
            continue
        base, _ = _base_and_rank(place, name, ranks)
        counters[base, name.prefix].add(name.generation or 0)
    return frozenset(
        _Prefixed(base, prefix, n)
        for (base, prefix), found in counters.items()
        for n in found - {0}
        if (base, f"{prefix}_{n}") in counters or found.isdisjoint((0, 1))
    )


def _base_and_rank(
    place: Place, name: NameFields, ranks: dict[str, _RankDirectory]
) -> tuple[str, int | None]:
    """The directory of a file's run, and whose file it is as far as its path tells."""
    rank = place.rank if place.rank is not None else name.rank
    if rank is None and (directory := ranks.get(place.base)):
        return directory
    return place.base, rank


def _common_prefixes(seen: dict[str, set[tuple[int | None, str]]]) -> dict[_OfRank, str]:
    """The prefix without the rank, where every rank's own number ends its prefix: ``pangu0``, ``pangu1``
    (``net_rank_0``). ``seen`` maps a directory to the (rank, prefix) in it.
    """
    joined: dict[_OfRank, str] = {}
    for base, pairs in seen.items():
        stems: dict[str, list[tuple[int | None, str]]] = defaultdict(list)
        for rank, prefix in pairs:
            stem = prefix.removesuffix(str(rank))
            if rank is not None and stem != prefix and stem and not stem[-1].isdigit():
                stems[stem.rstrip("_").removesuffix("rank").rstrip("_") or stem].append((rank, prefix))
        for stem, members in stems.items():
            prefixes, ranks = {prefix for _, prefix in members}, {rank for rank, _ in members}
            if len(members) > 1 and len(prefixes) == len(ranks) == len(members):
                joined.update((_OfRank(base, rank, prefix), stem) for rank, prefix in members)
    return joined


def _follows(place: Place) -> bool:
    """Whether a file has no prefix, and is a checkpoint by itself or of the run of those beside it."""
    return (place.piece.single or place.piece.follows) and "{prefix}" not in place.piece.template


def _lone_prefixes(files: list[NamedFile]) -> dict[tuple[str, str], str]:
    """(layout, directory) -> the prefix of all its files whose names may have one, and of which each is a
    checkpoint or some file follows them: what has none (``last.ckpt``) is of the same run.
    """
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    followed = {file.place.layout.name for file in files if file.place.piece.follows}
    for file in files:
        place = file.place
        leads = place.piece.single or place.layout.name in followed
        if leads and "{prefix}" in place.piece.template:
            seen[place.layout.name, place.base].add(file.name.prefix or place.prefix)
    return {at: next(iter(found)) for at, found in seen.items() if len(found) == 1 and found != {""}}


def name_parts(files: list[NamedFile], above: str) -> list[Part]:
    """Files become parts once all their siblings are known. Runs are named as seen from ``above``.

    The files are used up, so that a million of them are not in memory twice.
    """
    naming, parts = _Naming(files, above), list[Part]()
    files.reverse()
    while files:
        parts.append(naming.part(files.pop()))
    return parts


# not by keyword through Python: this is the inner loop over a million files
_part: Callable[[tuple[object, ...]], Part] = partial(tuple.__new__, Part)
_moment: Callable[[tuple[object, ...]], Moment] = partial(tuple.__new__, Moment)


class _Naming:
    """What the files of a directory tell together of each: its rank, its prefix and its run."""

    def __init__(self, files: list[NamedFile], above: str) -> None:
        self._above = above
        self._ranks = _rank_directories(files)
        self._own_prefixes = _own_prefixes(files, self._ranks)
        self._joined = _common_prefixes(self._prefixes(files))
        self._lone = _lone_prefixes(files)
        self._unfinished = {_marked(file) for file in files if file.place.piece.marks}
        begun = {_directory(file) for file in files if not file.place.piece.finished}
        self._unfinished.update(filter(under_way.is_marked, begun))
        self._runs: dict[tuple[str, str], str] = {}
        self._folders: dict[tuple[Place, str], Folder] = {}
        self._moments: dict[tuple[object, ...], Moment] = {}

    def _prefixes(self, files: list[NamedFile]) -> dict[str, set[tuple[int | None, str]]]:
        """Directory -> (rank, prefix) of the files in it."""
        seen: dict[str, set[tuple[int | None, str]]] = defaultdict(set)
        for file in files:
            place, name = file.place, file.name
            if not name.prefix:
                continue
            base, rank = place.base, place.rank
            if rank is None:
                base, rank = self._ranks.get(base, (base, name.rank))
            own = (base, name.prefix, name.generation) in self._own_prefixes
            seen[base].add((rank, f"{name.prefix}_{name.generation}" if own else name.prefix))
        return seen

    def part(self, file: NamedFile) -> Part:
        place, name, size, mtime_ns, findings, _ = file
        base, rank = _base_and_rank(place, name, self._ranks)
        prefix, generation = self._prefix(place, name, base, rank)
        step = place.step if name.step is None else name.step
        if (name.rank is not None and name.rank != rank) or place.step not in (None, step):
            findings += _contradictions(file, rank)
        told = (
            place.coords + name.coords,
            step,
            place.epoch if name.epoch is None else name.epoch,
            place.step_in_epoch if name.step_in_epoch is None else name.step_in_epoch,
            generation,
            place.unfinished or name.unfinished or self._is_in_unfinished(file),
        )
        moment = self._moments.get(told) or self._moments.setdefault(told, _moment(told))
        folder = self._folders.get((place, prefix)) or self._folder(file, base, prefix)
        if place.piece.marks:
            folder = folder._replace(home=_marked(file))
        return _part((folder, moment, rank, name.whole, size, mtime_ns, findings))

    def _is_in_unfinished(self, file: NamedFile) -> bool:
        return bool(self._unfinished) and _directory(file) in self._unfinished

    def _folder(self, file: NamedFile, base: str, prefix: str) -> Folder:
        place, piece = file.place, file.place.piece
        run = self._runs.get((base, prefix)) or self._run(base, prefix)
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

    def _prefix(self, place: Place, name: NameFields, base: str, rank: int | None) -> tuple[str, int | None]:
        """The prefix that keeps its run apart, and the counter behind it; its directory tells what it does
        not.
        """
        prefix = name.prefix or place.prefix
        if not prefix and self._lone and _follows(place):
            prefix = self._lone.get((place.layout.name, place.base), "")
        generation = place.generation if name.generation is None else name.generation
        if generation and (base, prefix, generation) in self._own_prefixes:
            prefix, generation = f"{prefix}_{generation}", 0
        if self._joined:
            prefix = self._joined.get(_OfRank(base, rank, prefix), prefix)
        return prefix, generation

    def _run(self, base: str, prefix: str) -> str:
        seen = relpath(base, self._above)
        if seen.startswith(".."):
            seen = basename(base)  # ROOT lies inside the run
        run = seen if not prefix else prefix if seen == "." else f"{seen}/{prefix}"
        self._runs[base, prefix] = run
        return run


def _directory(file: NamedFile) -> str:
    """The directory of its save, which others may share; "" where it lies among the files of its run."""
    below = "/" in file.place.piece.template
    return file.place.home or (file.places.directory.rstrip("/") if below else "")


def _marked(file: NamedFile) -> str:
    """The directory that a file in it, or beside it, says is not finished."""
    return file.place.home or file.path.removesuffix(file.place.piece.marks)


def _contradictions(file: NamedFile, rank: int | None) -> tuple[Finding, ...]:
    """What a file's name tells otherwise than its directory."""
    place, name, called = file.place, file.name, file.name.whole
    out = list[Finding]()
    if name.rank is not None and name.rank != rank:
        out.append(finding("rank-mismatch", f"{called} lies in the directory of rank {rank}"))
    if name.step is not None and place.step not in (None, name.step):
        out.append(finding("step-mismatch", f"{called} lies in the directory of step {place.step}"))
    return tuple(out)
