"""One directory: the fields in the names of its entries, and what its listing adds to the results so far."""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile

from msgspec import Struct, field

from ckpt_tools import formats
from ckpt_tools.discovery.found import (
    BareFile,
    Discovery,
    FileStat,
    NamedFile,
    holds_something,
    stat_of,
    surely_directory,
)
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals.document import FRAGMENTS, is_aside, is_fragment
from ckpt_tools.formats.seals.document import NAME as SEAL
from ckpt_tools.layouts import Claim, Layouts, NameFields, Piece, Places
from ckpt_tools.layouts.common.templates import AGAIN, CONTROLS, TEMPORARY
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Unseen
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.listing import Entries
from ckpt_tools.storage.retry import ABSENT, is_link, status
from ckpt_tools.storage.urls import is_url

_SEALS = SEAL.removesuffix("json")
"""Part of all names of seals, and of the name of the directory of fragments."""
_OF_MACS = "._"
"""Prefix of a file in which macOS keeps attributes of another one, on other file systems and in archives."""
_NAMES = 100_000
"""How many names are remembered at most: a bound on memory, not on files found."""
_VANISHED = "it vanished while its directory was listed"
_Reading = tuple["NameFields | None", bool, bool]
"""What one name tells: its fields; if it may be an index; and if it says so little that the entry's type, and
the entries beside it, count as well.
"""


def _may_be_known(name: str) -> bool:
    """Return True if a name says that a file has a format, or may have that of torch.save."""
    return formats.names.known(name) or name.endswith((".bin", ".tar"))


def is_directory_alike(e: os.DirEntry[str]) -> bool:
    """Return True if an entry is a directory under a name that other frameworks give to files."""
    return formats.names.of_directories(e.name) and surely_directory(e)


def controls_in(entries: Entries) -> Mapping[str, str]:
    """Return the control files of downloaders in a directory, by the name of the file each lies beside."""
    names = ((e.name, ending) for e in entries for ending in CONTROLS if e.name.endswith(ending))
    return {name.removesuffix(ending): name for name, ending in names}


def split_seals(path: str, entries: Entries) -> tuple[Entries, Entries]:
    """Return the seals in a directory, also entries of their name that are no files, and the others."""
    if path.rpartition("/")[2] == FRAGMENTS:
        return [e for e in entries if is_fragment(e.name)], []
    seals = [e for e in entries if e.name.endswith(SEAL) or (e.name == FRAGMENTS and not surely_directory(e))]
    mine = {e.name for e in seals}
    return seals, [e for e in entries if e.name not in mine and not is_aside(e.name)]


class DirectoryNames(Struct):
    """The entries of one directory, sorted by their names alone."""

    path: str
    places: Places
    layouts: Layouts
    controls: Mapping[str, str]  # of downloaders, by the name of the file that each lies beside
    unneeded: list[str]
    seals: Entries
    mine: list[tuple[os.DirEntry[str], NameFields]] = field(default_factory=list)  # a layout knows them
    others: Entries = field(default_factory=list)  # the rest
    indexes: list[str] = field(default_factory=list)

    def to_stat(self) -> Iterator[os.DirEntry[str]]:
        notes = self.layouts.note_names
        yield from (e for e, _ in self.mine)
        yield from (e for e in self.others if _may_be_known(e.name) and e.name not in notes)

    def stat_of(self, e: os.DirEntry[str]) -> FileStat:
        """Return size and time of an entry, with a finding if it is still being downloaded."""
        seen = stat_of(e)
        control = self.controls.get(e.name) if seen.size >= 0 else None
        if control is None:
            return seen
        text = f"{control} lies beside it: its download has not finished, whatever its size says"
        hint = f"{AGAIN}; remove {control} only if the file is known to be whole"
        found = finding("unfinished-save", text, severity=Severity.ERROR, hint=hint)
        return seen._replace(findings=(found,))


class NameReader:
    """Reads each name once; for a ``listing`` also names of data files that an index lists."""

    def __init__(self, layouts: Layouts, listing: bool) -> None:
        self.layouts = layouts
        self._templates = layouts.templates(listing)
        self._known: dict[object, dict[str, _Reading]] = {}

    def inspect(self, path: str, entries: Entries) -> DirectoryNames:
        """Return what the names in a directory tell, without asking for the type of files."""
        places, seals = self._templates.places(path), Entries()
        known = self._known.setdefault(places.arranged, {})
        if any(_SEALS in e.name for e in entries) or path.endswith(FRAGMENTS):
            seals, entries = split_seals(path, entries)
        controls, unused = controls_in(entries), self._find_unneeded(entries)
        here = DirectoryNames(path, places, self.layouts, controls, unused, seals)
        unneeded, is_placed = set(unused), formats.names.near_placed(f"{path}/")
        for e in entries:
            if unneeded and e.path in unneeded:
                continue
            fields, describes, doubtful = known.get(e.name) or self._read(e.name, places, known)
            if (describes and not is_directory_alike(e)) or (is_placed and formats.names.placed(e.path)):
                here.indexes.append(e.path)
            if fields is None or (doubtful and self._is_no_file(e, places.pieces[fields.piece])):
                here.others.append(e)
            else:
                here.mine.append((e, fields))
        return here

    def _read(self, name: str, places: Places, known: dict[str, _Reading]) -> _Reading:
        describes = formats.names.may_be_index(name)
        fields = None if describes and formats.names.is_manifest(name) else places.read_name(name)
        piece = None if fields is None else places.pieces[fields.piece]
        doubtful = piece is not None and (piece.claim is Claim.WEAK or piece.claim is Claim.DESCRIBED)
        reading = fields, describes, doubtful or name.endswith(self.layouts.unneeded_endings)
        if len(known) < _NAMES:
            known[name] = reading
        return reading

    def _find_unneeded(self, entries: Entries) -> list[str]:
        """Return paths of files without state: a Mac's, or NAME+end if another begins with NAME+start."""
        endings = self.layouts.unneeded_endings
        suspects = [e for e in entries if e.name.endswith(endings) or e.name.startswith(_OF_MACS)]
        names = sorted(e.name for e in entries) if suspects else []

        def begin_with(start: str) -> Iterator[str]:
            beside = islice(names, bisect_left(names, start), None)
            return takewhile(lambda name: name.startswith(start), beside)

        def is_unneeded(name: str) -> bool:
            if name.startswith(_OF_MACS):
                own = name.removeprefix(_OF_MACS)
                return own in islice(begin_with(own), 1)
            fitting = ((end, start) for end, start in self.layouts.unneeded if name.endswith(end))
            pairs = ((end, begin_with(name.removesuffix(end) + start)) for end, start in fitting)
            return any(not other.endswith(end) for end, others in pairs for other in others)

        return [e.path for e in suspects if is_unneeded(e.name)]

    def _is_no_file(self, e: os.DirEntry[str], piece: Piece) -> bool:
        """Return True if an entry with a name of little meaning is a directory (x.ckpt), or a note."""
        noted = e.name in self.layouts.note_names or e.name.endswith(self.layouts.stateless)
        if piece.claim is Claim.DESCRIBED and (noted or TEMPORARY.search(e.name)):
            return True
        return (piece.claim is Claim.WEAK or piece.claim is Claim.DESCRIBED) and surely_directory(e)


class Listing:
    """The results of listing directories: ``files`` that some layout knows, and all else in ``found``."""

    def __init__(self, found: Discovery, files: list[NamedFile]) -> None:
        self.found, self.files = found, files

    def add(self, here: DirectoryNames, alone: bool = False) -> None:
        """Add one directory, asking for sizes and times; ``alone``: the user named a file in it as ROOT."""
        places, files, controls = here.places, self.files, here.controls
        self.found.indexes += here.indexes
        self.found.unneeded += here.unneeded
        self.found.seals += (BareFile(e.path, *stat_of(e)) for e in here.seals)
        for e, name in here.mine:
            try:
                st = patiently(e.stat)
            except OSError as why:
                self._add_odd(e, name, here, why)
                continue
            if stat.S_IFMT(st.st_mode) == stat.S_IFREG and e.name not in controls:  # nearly all
                at = places[name.piece]
                files.append(NamedFile(at, name, st.st_size, st.st_mtime_ns, (), places))
            else:
                self._add_odd(e, name, here)
        for e in here.others:
            self._add_other(e, here, alone)
        if not (here.mine or here.others or here.indexes or here.seals or here.unneeded or alone):
            self.found.empty.append(here.path)

    def _add_odd(
        self, e: os.DirEntry[str], name: NameFields, here: DirectoryNames, why: OSError | None = None
    ) -> None:
        """Add an entry with the name of a part that is no regular file, or whose status cannot be read."""
        place = here.places[name.piece]
        if isinstance(why, ABSENT) and not is_link(e):
            step = place.step if name.step is None else name.step
            self.found.unseen.append(Unseen(e.path, _VANISHED, step, 0))
            return
        size, mtime_ns, findings = here.stat_of(e)
        if size < 0 and holds_something(e):
            here.others.append(e)
        else:
            self.files.append(NamedFile(place, name, size, mtime_ns, findings, here.places))

    def _add_other(self, e: os.DirEntry[str], here: DirectoryNames, alone: bool) -> None:
        """Add an entry that no layout knows: a tracker, a bare file, a temporary file, or unrecognised."""
        name, found = e.name, self.found
        if _leads_nowhere(e):
            found.dangling.append(e.path)
        if name in here.layouts.note_names:
            found.trackers[name, here.path] = e.path
            return
        if _may_be_known(name) or alone or _is_addressed(e):
            file = BareFile(e.path, *here.stat_of(e))
            if file.size >= 0 or not (holds_something(e) or is_directory_alike(e)):
                found.bare.append(file)
        elif surely_directory(e) or name.endswith(here.layouts.stateless):
            pass
        elif TEMPORARY.search(name):
            found.unfinished.append(e.path)
        elif "." not in name and is_url(e.path) and stat_of(e)[0] == 0:
            found.unrecognised += 1
            found.empty.append(e.path)  # the mark of a directory: no list tells "iter_10/" from "iter_10"
        else:
            found.add_unrecognised(here.path, name)

    def add_unlisted(self, path: str, why: OSError) -> None:
        """Add a directory that could not be listed, or an entry that may be a directory."""
        if isinstance(why, NotADirectoryError):
            return  # a file after all: its directory has it
        if isinstance(why, FileNotFoundError):
            self.found.unseen.append(Unseen(path, _VANISHED, mtime_ns=0))
            return
        try:
            mtime_ns = status(path).st_mtime_ns
        except OSError:
            mtime_ns = None
        text = f"cannot list the directory: {why.strerror}"
        self.found.unseen.append(Unseen(path, text, mtime_ns=mtime_ns))


def _is_addressed(e: os.DirEntry[str]) -> bool:
    """Return True if a path tells what a file is, or links to a file that is named by its digest."""
    addressed = formats.names.placed(e.path) or (formats.names.addressed(e.path) and is_link(e))
    return addressed and not surely_directory(e)


def _leads_nowhere(e: os.DirEntry[str]) -> bool:
    """Return True if an entry is a link without a target, as when a mount is lost."""
    try:
        if e.is_symlink():  # where entries are of no known type, a call
            patiently(e.stat)
    except OSError as why:
        return isinstance(why, ABSENT) or why.errno == errno.ELOOP
    return False
