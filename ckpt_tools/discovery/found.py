"""What the listings of a root show: its parts, and everything else that says something about them."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.discovery.exclude import Excluded, is_set_aside
from ckpt_tools.layouts import Layout, NameFields, Place, Places
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.storage.links import Links

# fmt: off
PACKED = (
    ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".z", ".zip", ".7z",
    ".gpg", ".pgp", ".age", ".aes", ".enc", ".crypt",
)
# fmt: on
"""Endings of files that were packed, compressed or encrypted."""


_TEXTS = (".json", ".yaml", ".yml", ".txt", ".model", ".jinja")
"""Endings of what describes a model, and of what training loops note beside it."""
_MOST_TEXTS = 10_000


class NamedFile(NamedTuple):
    """A file whose name some layout knows; ``places`` are all pieces at home in its directory."""

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
    """A file that only a format's suffix recognises."""

    path: str
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


class Discovery(Struct):
    """What directory listings show. ``bare`` are files that only a format's suffix recognises; ``trackers``
    maps (name, directory) to the path of a file that some layout calls its tracker or one of its records, and
    ``placed`` are the layouts of those that have the name of a file of another layout. Paths are those of
    temporary files of interrupted saves (``unfinished``), files that may describe others (``indexes``) or
    hold no state (``unneeded``), unrecognised files whose names call them ``copies``, links that lead nowhere
    that no layout places (``dangling``), ``texts`` that nothing recognises, and the directories ``.ckpt``
    (``states``). ``links`` is what leads to directories, ``lone`` says which numbered directories lack their
    first, and which indexes their shards, ``strange`` are the directories of files that nothing recognises,
    ``empty`` those in which nothing was seen, ``unseen`` is what could not be listed, and what vanished
    meanwhile. ``tree``: ROOT is a directory; ``alone``: it is one file.
    """

    parts: list[Part] = field(default_factory=list)
    bare: list[BareFile] = field(default_factory=list)
    trackers: dict[tuple[str, str], str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    seals: list[BareFile] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    links: list[Links] = field(default_factory=list)
    lone: list[Finding] = field(default_factory=list)
    unrecognised: int = 0
    strange: dict[str, None] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    placed: dict[str, Layout] = field(default_factory=dict)
    excluded: Excluded = field(default_factory=Excluded)
    states: set[str] = field(default_factory=set)  # of several threads: adding is one step
    tree: bool = False
    alone: bool = False

    def add_unrecognised(self, directory: str, name: str) -> None:
        """Count a file that nothing recognises; a copy by its name may be one of what is known."""
        self.unrecognised += 1
        self.strange[directory] = None
        if is_set_aside(name):
            self.copies.append(f"{directory}/{name}")
        if name.endswith(_TEXTS) and len(self.texts) < _MOST_TEXTS:
            self.texts.append(f"{directory}/{name}")

    def leaves_out(self, directory: str) -> bool:
        """Whether the caller has left out anything below it."""
        return any(path.startswith(f"{directory}/") for path in self.excluded.paths)

    def resolved(self, path: str) -> str:
        """The path without a link to a directory below ROOT."""
        for links in self.links:
            path = links.resolved(path)
        return path
