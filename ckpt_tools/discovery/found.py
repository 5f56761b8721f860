"""The results of listing a root, and what the entries of one directory add to them."""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools import formats
from ckpt_tools.discovery.exclude import Excluded, is_set_aside
from ckpt_tools.findings import adapt_hint, finding
from ckpt_tools.formats.seals.document import FRAGMENTS, is_aside, is_fragment
from ckpt_tools.formats.seals.document import NAME as SEAL
from ckpt_tools.layouts import Claim, Layout, Layouts, NameFields, Place, Places
from ckpt_tools.layouts.common.places import Templates
from ckpt_tools.layouts.common.templates import AGAIN, CONTROLS, TEMPORARY
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.storage.listing import Entries, Links, list_entries, stat_ahead
from ckpt_tools.storage.retry import ABSENT, is_directory, is_link, lstat, status
from ckpt_tools.storage.stalls import retry_call
from ckpt_tools.storage.urls import is_url, real_path

_TEXTS = (".json", ".yaml", ".yml", ".txt", ".model", ".jinja")
"""Endings of files that describe a model, and of training loops' notes beside it."""
_MOST_TEXTS = 10_000
_SEALS = SEAL.removesuffix("json")
"""Part of all names of seals, and of the name of the directory of fragments."""
_OF_MACS = "._"
"""Prefix of a file in which macOS keeps attributes of another one, on other file systems and in archives."""
_VANISHED = "it vanished while its directory was listed"


class NamedFile(NamedTuple):
    """A file whose name some layout knows; ``places`` are all pieces that its directory may have."""

    place: Place
    name: NameFields
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]
    places: Places

    @property
    def path(self) -> str:
        return self.places.directory + self.name.whole


class BareFile(NamedTuple):
    """A file of no layout, known by its ending. If it cannot be read, ``size`` is -1; ``findings`` tell."""

    path: str
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


class Discovery(Struct):
    """The results of listing a root, by kind of entry."""

    named: list[NamedFile] = field(default_factory=list)  # some layout knows them: parts, once all are listed
    parts: list[Part] = field(default_factory=list)
    bare: list[BareFile] = field(default_factory=list)  # files that are known by their ending alone
    # (name, directory) -> path of a file that some layout calls its tracker or a record
    trackers: dict[tuple[str, str], str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)  # temporary files of interrupted saves
    indexes: list[str] = field(default_factory=list)  # files that may describe others
    unseen: list[Unseen] = field(default_factory=list)  # could not be listed, or vanished
    seals: list[BareFile] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)  # files without state
    copies: list[str] = field(default_factory=list)  # unrecognised files with names of copies
    dangling: list[str] = field(default_factory=list)  # links to nothing that no layout places
    texts: list[str] = field(default_factory=list)  # small, and nothing recognises them
    links: list[Links] = field(default_factory=list)  # links to directories
    lone: list[Finding] = field(default_factory=list)  # numbers without their first, indexes without shards
    unrecognised: int = 0
    strange: dict[str, None] = field(default_factory=dict)  # directories of unrecognised files
    empty: list[str] = field(default_factory=list)  # directories in which nothing was seen
    placed: dict[str, Layout] = field(default_factory=dict)  # trackers that another layout's names fit, too
    excluded: Excluded = field(default_factory=Excluded)
    states: set[str] = field(default_factory=set)  # ``.ckpt``
    tree: bool = False  # ROOT is a directory
    alone: bool = False  # ROOT is one file

    def add_unrecognised(self, directory: str, name: str) -> None:
        """Count a file that nothing recognises; keep its path if its name is that of a copy or of a text."""
        self.unrecognised += 1
        self.strange[directory] = None
        if is_set_aside(name):
            self.copies.append(f"{directory}/{name}")
        if name.endswith(_TEXTS) and len(self.texts) < _MOST_TEXTS:
            self.texts.append(f"{directory}/{name}")

    def leaves_out(self, directory: str) -> bool:
        """Return True if the user has excluded anything below a directory."""
        return any(path.startswith(f"{directory}/") for path in self.excluded.paths)

    def resolved(self, path: str) -> str:
        """Return a path with links to directories below ROOT replaced by their targets."""
        for links in self.links:
            path = links.resolved(path)
        return path


def stat_of(path: str | os.DirEntry[str]) -> BareFile:
    """Return the size and time of a file that should be a checkpoint. The time of another entry of this name,
    or of a dangling link, is when it was made: the target had been saved by then.
    """
    at = os.fspath(path)
    try:
        st = status(path) if isinstance(path, str) else retry_call(path.stat)
    except OSError as e:
        code = "dangling-link" if isinstance(e, ABSENT) and is_link(path) else "unreadable"
        code = "symlink-loop" if e.errno == errno.ELOOP else code
        subject = os.path.basename(at) if code == "unreadable" else f"it leads to {real_path(at)}"
        reason = adapt_hint(finding(code, f"{subject}: {e.strerror}"), at)
        return BareFile(at, -1, 0 if code == "unreadable" else _read_mtime(at), (reason,))
    if stat.S_ISREG(st.st_mode):
        return BareFile(at, st.st_size, st.st_mtime_ns, ())
    kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
    text = f"there is {kind} where a checkpoint file belongs"
    return BareFile(at, -1, _read_mtime(at), (finding("not-a-file", text),))


def _read_mtime(path: str) -> int:
    """Return when an entry, not the target of a link, was changed, in nanoseconds; 0 if nobody can tell."""
    try:
        return lstat(path).st_mtime_ns
    except OSError:
        return 0


def surely_directory(e: os.DirEntry[str]) -> bool:
    """Return True if an entry surely is a directory; a doubtful one is walked into, and the walk says why."""
    try:
        return is_directory(e)
    except OSError:
        return False


def has_entries(e: os.DirEntry[str]) -> bool:
    """Return True if an entry is a directory that may have entries: an empty one took a file's place."""
    try:
        return surely_directory(e) and bool(list_entries(e.path))
    except OSError:
        return True  # the walk says why it cannot be listed


# ---- one directory


def _may_be_known(name: str) -> bool:
    """Return True if a name says that a file has a format, or may have that of torch.save."""
    return formats.names.known(name) or name.endswith((".bin", ".tar"))


def is_directory_alike(e: os.DirEntry[str]) -> bool:
    """Return True if an entry is a directory under a name that other frameworks give to files."""
    return formats.names.of_directories(e.name) and surely_directory(e)


def map_controls(entries: Entries) -> Mapping[str, str]:
    """Return the control files of downloaders in a directory, by the name of the file each lies beside."""
    names = ((e.name, ending) for e in entries for ending in CONTROLS if e.name.endswith(ending))
    return {name.removesuffix(ending): name for name, ending in names}


def split_seals(path: str, entries: Entries) -> tuple[Entries, Entries]:
    """Return the seals in a directory, also entries of their name that are no files, and the others."""
    if path.rpartition("/")[2] == FRAGMENTS:
        return [e for e in entries if is_fragment(e.name)], []
    seals = [e for e in entries if e.name.endswith(SEAL) or (e.name == FRAGMENTS and not surely_directory(e))]
    seal_names = {e.name for e in seals}
    return seals, [e for e in entries if e.name not in seal_names and not is_aside(e.name)]


class DirectoryNames(Struct):
    """The entries of one directory, sorted by their names alone."""

    places: Places
    layouts: Layouts
    controls: Mapping[str, str]  # of downloaders, by the name of the file that each lies beside
    unneeded: set[str]
    seals: Entries
    mine: list[tuple[os.DirEntry[str], NameFields]] = field(default_factory=list)  # a layout knows them
    others: Entries = field(default_factory=list)  # the rest
    indexes: list[str] = field(default_factory=list)

    def list_needed(self) -> Iterator[os.DirEntry[str]]:
        """Yield the entries whose size and time will be asked for, to ask for many at once."""
        notes = self.layouts.note_names
        yield from (e for e, _ in self.mine)
        yield from (e for e in self.others if _may_be_known(e.name) and e.name not in notes)

    def stat_of(self, e: os.DirEntry[str]) -> BareFile:
        """Return size and time of an entry, with a finding if it is still being downloaded."""
        seen = stat_of(e)
        control = self.controls.get(e.name) if seen.size >= 0 else None
        if control is None:
            return seen
        text = f"{control} lies beside it: its download has not finished, whatever its size says"
        hint = f"{AGAIN}; remove {control} only if the file is known to be whole"
        found = finding("unfinished-save", text, severity=Severity.ERROR, hint=hint)
        return seen._replace(findings=(found,))


def inspect_names(layouts: Layouts, templates: Templates, path: str, entries: Entries) -> DirectoryNames:
    """Return what the names in a directory tell, without asking for the type of files."""
    places, seals = templates.places(path), Entries()
    if any(_SEALS in e.name for e in entries) or path.endswith(FRAGMENTS):
        seals, entries = split_seals(path, entries)
    unneeded, is_placed = _find_unneeded(layouts, entries), formats.names.near_placed(f"{path}/")
    here = DirectoryNames(places, layouts, map_controls(entries), unneeded, seals)
    for e in entries:
        if unneeded and e.path in unneeded:
            continue
        may_be_index = formats.names.may_be_index(e.name)
        if (may_be_index and not is_directory_alike(e)) or (is_placed and formats.names.placed(e.path)):
            here.indexes.append(e.path)
        fields = None if may_be_index and formats.names.is_manifest(e.name) else places.read_name(e.name)
        if fields is None or _is_no_file(layouts, e, places.pieces[fields.piece].claim):
            here.others.append(e)
        else:
            here.mine.append((e, fields))
    stat_ahead(here.list_needed())
    return here


def _find_unneeded(layouts: Layouts, entries: Entries) -> set[str]:
    """Return paths of files without state: macOS' ``._NAME`` beside NAME, and by ``layouts.unneeded``."""
    endings = layouts.unneeded_endings
    suspects = [e for e in entries if e.name.endswith(endings) or e.name.startswith(_OF_MACS)]
    all_names = {e.name for e in entries} if suspects else set[str]()
    names = sorted(all_names)

    def list_names_from(start: str) -> Iterator[str]:
        later = islice(names, bisect_left(names, start), None)
        return takewhile(lambda name: name.startswith(start), later)

    def is_unneeded(name: str) -> bool:
        """Return True if a file beside it shows that this one holds no state."""
        if name.startswith(_OF_MACS):
            return name.removeprefix(_OF_MACS) in all_names
        fitting = ((end, start) for end, start in layouts.unneeded if name.endswith(end))
        pairs = ((end, list_names_from(name.removesuffix(end) + start)) for end, start in fitting)
        return any(not other.endswith(end) for end, others in pairs for other in others)

    return {e.path for e in suspects if is_unneeded(e.name)}


def _is_no_file(layouts: Layouts, e: os.DirEntry[str], claim: Claim) -> bool:
    """Return True if an entry whose name alone proves nothing is a directory (x.ckpt), or a note."""
    if claim is Claim.DESCRIBED:
        is_note = e.name in layouts.note_names or e.name.endswith(layouts.stateless)
        return is_note or bool(TEMPORARY.search(e.name)) or surely_directory(e)
    return claim is Claim.WEAK and surely_directory(e)


def add_directory(found: Discovery, here: DirectoryNames, alone: bool = False) -> None:
    """Add one directory, asking for sizes and times; ``alone``: the user named a file in it as ROOT."""
    places, files, controls = here.places, found.named, here.controls
    found.indexes += here.indexes
    found.unneeded += sorted(here.unneeded)
    found.seals += map(stat_of, here.seals)
    for e, name in here.mine:
        try:
            st = retry_call(e.stat)
        except OSError as error:
            _add_odd(found, e, name, here, error)
            continue
        if stat.S_IFMT(st.st_mode) == stat.S_IFREG and e.name not in controls:  # nearly all
            at = places[name.piece]
            files.append(NamedFile(at, name, st.st_size, st.st_mtime_ns, (), places))
        else:
            _add_odd(found, e, name, here)
    for e in here.others:
        _add_other(found, e, here, alone)
    if not (here.mine or here.others or here.indexes or here.seals or here.unneeded or alone):
        found.empty.append(here.places.path)


def _add_odd(
    found: Discovery, e: os.DirEntry[str], name: NameFields, here: DirectoryNames, err: OSError | None = None
) -> None:
    """Add an entry with the name of a part that is no regular file, or whose status cannot be read."""
    place = here.places[name.piece]
    if isinstance(err, ABSENT) and not is_link(e):
        step = place.step if name.step is None else name.step
        found.unseen.append(Unseen(e.path, _VANISHED, step, 0))
        return
    _, size, mtime_ns, findings = here.stat_of(e)
    if size < 0 and has_entries(e):
        here.others.append(e)
    else:
        found.named.append(NamedFile(place, name, size, mtime_ns, findings, here.places))


def _add_other(found: Discovery, e: os.DirEntry[str], here: DirectoryNames, alone: bool) -> None:
    """Add an entry that no layout knows: a tracker, a bare file, a temporary file, or unrecognised."""
    name = e.name
    if _is_dangling(e):
        found.dangling.append(e.path)
    if name in here.layouts.note_names:
        found.trackers[name, here.places.path] = e.path
        return
    if _may_be_known(name) or alone or _is_addressed(e):
        file = here.stat_of(e)
        if file.size >= 0 or not (has_entries(e) or is_directory_alike(e)):
            found.bare.append(file)
    elif surely_directory(e) or name.endswith(here.layouts.stateless):
        pass
    elif TEMPORARY.search(name):
        found.unfinished.append(e.path)
    elif "." not in name and is_url(e.path) and stat_of(e).size == 0:
        found.unrecognised += 1
        found.empty.append(e.path)  # the mark of a directory: no list tells "iter_10/" from "iter_10"
    else:
        found.add_unrecognised(here.places.path, name)


def add_unlisted(found: Discovery, path: str, error: OSError) -> None:
    """Add a directory that could not be listed, or an entry that may be a directory."""
    if isinstance(error, NotADirectoryError):
        return  # a file after all: its directory has it
    if isinstance(error, FileNotFoundError):
        found.unseen.append(Unseen(path, _VANISHED, mtime_ns=0))
        return
    try:
        mtime_ns = status(path).st_mtime_ns
    except OSError:
        mtime_ns = None
    text = f"cannot list the directory: {error.strerror}"
    found.unseen.append(Unseen(path, text, mtime_ns=mtime_ns))


def _is_addressed(e: os.DirEntry[str]) -> bool:
    """Return True if a file's directory tells its format, or a link leads to a file named by its digest."""
    addressed = formats.names.placed(e.path) or (formats.names.addressed(e.path) and is_link(e))
    return addressed and not surely_directory(e)


def _is_dangling(e: os.DirEntry[str]) -> bool:
    """Return True if an entry is a link without a target, as when a mount is lost."""
    try:
        if e.is_symlink():  # where entries are of no known type, a call
            retry_call(e.stat)
    except OSError as why:
        return isinstance(why, ABSENT) or why.errno == errno.ELOOP
    return False
