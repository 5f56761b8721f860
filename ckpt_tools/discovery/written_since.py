"""Files beside the choice, written no earlier, that no layout places: renamed, packed or begun."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from typing import NamedTuple

from ckpt_tools import formats
from ckpt_tools.discovery.found import BareFile, Discovery
from ckpt_tools.discovery.renamed_names import (
    ends_as_a_state,
    is_archive,
    is_of_the_system,
    tells_of_a_state,
    unpacked_name,
    wrapped_state,
)
from ckpt_tools.discovery.set_aside import is_set_aside
from ckpt_tools.discovery.unrecognised import is_other, is_text, suspect_of
from ckpt_tools.formats import format_of
from ckpt_tools.formats.archives.packed import BEGINNING
from ckpt_tools.layouts.common.bare_names import calls_a_save, read_bare_name, says_checkpoint
from ckpt_tools.storage import opened
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import ABSENT, status

_OPENED = 64
"""Files without a known ending that are opened in the directories of a choice, at most."""


def states_since(found: Discovery, directories: Collection[str], since_ns: int) -> Iterator[BareFile]:
    """Files in the directories that no name explains, saved no earlier, whose name tells of a checkpoint and
    whose content is one's; archives whose content is.

    Raises OSError where one cannot be looked at.
    """
    for path in found.renamed:
        name = path.rpartition("/")[2]
        told = is_archive(name) or (tells_of_a_state(name) and not is_other(name))
        if not told or wrapped_state(name):
            continue
        file = _written_since(path, directories, since_ns)
        if file and _is_state(path, name, file.size):
            yield file


def packed_since(
    found: Discovery, directories: Collection[str], since_ns: int, like: Collection[str]
) -> Iterator[str]:
    """Packed files in the directories, saved no earlier, that were called checkpoints, or as one of ``like``
    but for its numbers (``step_300_ckp.tar.gz``).

    Raises OSError where one cannot be looked at.
    """
    patterns = {_without_numbers(name) for name in like} - {*like}
    for path in found.packed:
        name = path.rpartition("/")[2]
        told = wrapped_state(name) or _without_numbers(unpacked_name(name)) in patterns
        if told and _written_since(path, directories, since_ns):
            yield path


class Unread(NamedTuple):
    """Files of no known kind beside a choice: in which ``directories``, since when in ns, and the names of
    checkpoints there without their numbers.
    """

    found: Discovery
    root: str
    directories: Collection[str]
    since_ns: int
    patterns: Collection[str]

    def files(self) -> Iterator[tuple[str, str]]:
        """Those that have something behind the name of a checkpoint (``last.ckpt.vault``), or are called by
        the word and a number, or as the others but for numbers and an ending (``step_300.vault`` beside
        ``step_200.pt``): the path, and what it was called. Raises OSError where one cannot be looked at.
        """
        called = cache(self._called)  # a run may write thousands of files that differ in their numbers
        for directory in self.found.strange.keys() & set(self.directories):
            for path in self._unread_in(directory, lambda name: bool(called(re.sub(r"\d+", "1", name)))):
                yield path, self._called(os.path.basename(path))

    def others(self) -> Iterator[tuple[str, str]]:
        """Those that are called otherwise than the others there, and count steps or epochs
        (``epoch_3.vault`` beside ``step_200.pt``): pictures and meshes are called so, too. Raises OSError.
        """
        counts = cache(self._counts)
        for directory in self.found.strange.keys() & set(self.directories):
            for path in self._unread_in(directory, lambda name: counts(re.sub(r"\d+", "1", name))):
                yield path, os.path.splitext(os.path.basename(path))[0]

    def _counts(self, name: str) -> bool:
        said = read_bare_name(stem := os.path.splitext(name)[0])
        counted = (said.step, said.epoch) != (None, None)
        return counted and calls_a_save(stem) and not self._called(name)

    def saves(self) -> Iterator[tuple[str, str]]:
        """The same of directories that hold such files, whatever these are called."""
        inside = defaultdict[str, list[str]](list)
        for directory in self.found.strange:
            home = self._just_below(directory)
            if home and self._called(os.path.basename(home)):
                inside[home].append(directory)
        for home, held in inside.items():
            if any(path for directory in held for path in self._unread_in(directory, bool)):
                yield home, self._called(os.path.basename(home))

    def _just_below(self, directory: str) -> str:
        """It, or the one above it, that lies in one of the directories; "" where there is none."""
        while len(directory) > len(self.root):
            above = os.path.dirname(directory)
            if above in self.directories:
                return directory
            directory = above
        return ""

    def _called(self, name: str) -> str:
        """What a checkpoint was called that has lost or changed its ending; "" for another name."""
        stem = os.path.splitext(name)[0]
        if ends_as_a_state(stem):
            return stem
        called = next((n for n in (name, stem) if read_bare_name(n).pattern in self.patterns), "")
        called = called or (stem if says_checkpoint(stem) and calls_a_save(stem) else "")
        return called if re.search(r"\d", called) else ""

    def _unread_in(self, directory: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        """Of the wanted names. What is called after something that is there is none (``last.ckpt.sig``)."""
        entries = entries_of(directory, partial(self.found.excluded.keep, self.root))
        there = {e.name for e in entries}
        for e in entries:
            stem = os.path.splitext(e.name)[0]
            of_another = stem != e.name and stem in there
            file = None if of_another else _written_since(e.path, {directory}, self.since_ns)
            if file is None or is_other(e.name) or is_of_the_system(e.name):
                continue
            if wanted(e.name) and _is_unread(file) and not self._is_beside_a_part(e.path):
                yield e.path

    def _is_beside_a_part(self, path: str) -> bool:
        """Whether a part of a checkpoint is called the same but for its ending (TensorFlow's ``.meta``)."""
        stem = os.path.splitext(path)[0]
        return any(p.path.startswith(f"{stem}.") for p in self.found.parts)


def _is_unread(file: BareFile) -> bool:
    """Whether its content is of no known kind, and no text or program."""
    if (suspect := suspect_of(file.path, file.size)) and suspect.format:
        return False
    with opened(file.path) as source:
        begins = source.read(0, min(BEGINNING, source.size))
    return not is_text(begins) and not begins.startswith(b"\x7fELF")


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def unnamed_since(
    found: Discovery, root: str, directories: Collection[str], since_ns: int, least: int
) -> Iterator[BareFile]:
    """Files in the directories, saved no earlier and of ``least`` bytes or more, of which only the content
    tells that they are a checkpoint's: its name has lost or changed its ending (``net-300``,
    ``net-300.broken``). Only the newest are opened: a run may write thousands of files of its own.

    Raises OSError where one cannot be looked at.
    """
    written = list[BareFile]()
    for directory in found.strange.keys() & set(directories):
        for e in entries_of(directory, partial(found.excluded.keep, root)):
            named = is_other(e.name) or is_set_aside(e.name) or is_of_the_system(e.name)
            file = None if named else _written_since(e.path, directories, since_ns)
            if file is not None and file.size >= least:
                written.append(file)
    for file in sorted(written, key=lambda f: -f.mtime_ns)[:_OPENED]:
        if (suspect := suspect_of(file.path, file.size)) and suspect.format:
            yield file


def _is_state(path: str, name: str, size: int) -> bool:
    """Whether the content is a checkpoint's: by its first bytes, or where those of the format that its name
    had tell nothing, by the name.
    """
    s = suspect_of(path, size)
    if s is not None and s.format:
        return True
    heads = (name[: m.start()] for m in re.finditer(r"[._~-]", name))
    if not any(formats.names.only_state(head) and not _has_own_bytes(head) for head in heads):
        return False
    with opened(path) as source:
        return not is_text(source.read(0, min(BEGINNING, source.size)))


def _has_own_bytes(name: str) -> bool:
    return any(format_of(of).distinct for of in formats.names.allowed(name))


def begun_since(found: Discovery, directories: Collection[str], since_ns: int) -> Iterator[str]:
    """Temporary files in the directories, written no earlier, that a save has not given their names yet.

    Raises OSError where one cannot be looked at.
    """
    for path in found.unfinished:
        if tells_of_a_state(path.rpartition("/")[2]) and _written_since(path, directories, since_ns):
            yield path


def _written_since(path: str, directories: Collection[str], since_ns: int) -> BareFile | None:
    if path.rpartition("/")[0] not in directories:
        return None
    try:
        seen = status(path)
    except ABSENT:  # a dangling link, or gone since: nothing to resume from
        return None
    except OSError as e:
        if e.errno == errno.ELOOP:  # a link that leads to itself
            return None
        raise
    if not stat.S_ISREG(seen.st_mode) or not seen.st_size or seen.st_mtime_ns < since_ns:
        return None
    return BareFile(path, seen.st_size, seen.st_mtime_ns, ())
