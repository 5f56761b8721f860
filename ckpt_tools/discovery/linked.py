"""Links to directories whose own names tell more (a step, a rank) than those of what they lead to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from ckpt_tools.discovery.directory import DirectoryNames, Listing
from ckpt_tools.discovery.found import Discovery, NamedFile
from ckpt_tools.discovery.names import next_reading
from ckpt_tools.model.frozen import field, record
from ckpt_tools.storage.links import Links, within

_LINKED = 10_000
"""Files at most behind a link without a number in its name that are listed by that name as well."""
_DIGIT = re.compile(r"\d")

Walk = Callable[[str], Iterator[tuple[str, "DirectoryNames | OSError"]]]
"""The directories at and below a link, as ``storage.walk.walk`` has them."""


@record
class _Behind:
    """What the names behind a link tell, links inside it followed as well: for each real directory the
    ``way`` there and its ``files``.
    """

    way: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[NamedFile]] = field(default_factory=dict)
    found: Discovery = field(default_factory=Discovery)

    def add(self, link: str, links: Links, walk: Walk) -> None:
        for path, here in walk(link):
            if isinstance(here, OSError):
                Listing(self.found, []).add_unlisted(path, here)
                continue
            home = links.resolved(path)
            self.way[home] = path
            Listing(self.found, self.files.setdefault(home, [])).add(here)

    def telling(self, to: str, known: dict[str, list[NamedFile]]) -> set[str]:
        """The directories that go by the path of a link to ``to``: those of which that tells more, and with
        them the others of what it leads to; but what lies elsewhere and is known by a name as good keeps that
        (``previous -> ../step-10`` in a checkpoint).
        """
        tells = {home: (_telling(files), _telling(known.get(home, ()))) for home, files in self.files.items()}
        if not any(new > old for new, old in tells.values()):
            return set()
        alike = {home for home, (new, old) in tells.items() if new == old and (not old or within(home, to))}
        return alike | {home for home, (new, old) in tells.items() if new > old}


def _telling(files: Iterable[NamedFile]) -> int:
    """How much the names of files tell of which save they are and whose."""
    most = 0
    for file in files:
        at: NamedFile | None = file
        while at is not None and not (at.place.sure or at.place.piece.generic):
            at = next_reading(at)  # what two frameworks write, one of them surely
        if at is not None:
            place, name = at.place, at.name
            numbers = place.step, place.epoch, place.generation, place.rank
            told = (*numbers, *place.coords, name.step, name.epoch, name.rank)
            most = max(most, 1 + sum(value is not None for value in told))
    return most


def follow_links(links: Links, walk: Walk, found: Discovery, files: list[NamedFile]) -> list[NamedFile]:
    """The files, those behind a link whose name tells more by the path of the link; what was found beside
    them goes by that path in ``found`` as well.
    """
    todo = dict.fromkeys(links.ambiguous())
    homes: dict[str, list[NamedFile]] = {}
    for file in files:
        homes.setdefault(links.resolved(os.path.dirname(file.path)), []).append(file)
    done = set[str]()
    while todo:
        link = next(iter(todo))
        del todo[link]
        done.add(link)
        to = links.resolved(link)
        behind_it = sum(len(some) for home, some in homes.items() if within(home, to))
        if behind_it > _LINKED and not _DIGIT.search(os.path.basename(link)):
            continue
        links.met.clear()
        behind = _Behind()
        behind.add(link, links, walk)
        found.unseen += behind.found.unseen
        taken = behind.telling(to, homes)
        if taken:
            links.followed.add(link)
            homes.update((home, behind.files[home]) for home in taken)
            _rename(found, behind.found, taken, links)
            # each directory was listed once: another way to it, below this link, may tell more
            known = done.union(behind.way.values())
            todo.update(dict.fromkeys(path for path in sorted(links.met) if path not in known))
    return [file for some in homes.values() for file in some]


def _rename(found: Discovery, behind: Discovery, taken: set[str], links: Links) -> None:
    """What was found beside the files of directories that go by another path now goes by that."""

    def moved(path: str) -> bool:
        return links.resolved(os.path.dirname(path)) in taken

    kept = [file for file in found.bare if not moved(file.path)]
    found.bare = kept + [file for file in behind.bare if moved(file.path)]
    kept = [file for file in found.seals if not moved(file.path)]
    found.seals = kept + [file for file in behind.seals if moved(file.path)]
    found.indexes += (path for path in behind.indexes if moved(path))
    found.trackers |= {key: path for key, path in behind.trackers.items() if moved(path)}
