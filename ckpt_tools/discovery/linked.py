"""Links to directories whose own names tell more (a step, a rank) than those of what they lead to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from ckpt_tools.discovery.directory import DirectoryNames, Listing
from ckpt_tools.discovery.found import Discovery, NamedFile
from ckpt_tools.discovery.names import next_reading
from ckpt_tools.storage.links import Links, within

_LINKED = 10_000
"""Files at most behind a link without a number in its name that are listed by that name as well."""
_DIGIT = re.compile(r"\d")

Walk = Callable[[str], Iterator[tuple[str, "DirectoryNames | OSError"]]]
"""The directories at and below a link, as ``storage.listing.walk`` has them."""


def follow_links(links: Links, walk: Walk, found: Discovery, files: list[NamedFile]) -> list[NamedFile]:
    """Return the files, those behind a link whose name tells more by the path of the link; what was found
    beside them goes by that path in ``found`` as well.
    """
    todo, done = links.ambiguous(), set[str]()
    homes: dict[str, list[NamedFile]] = {}
    for file in files:
        homes.setdefault(links.resolved(os.path.dirname(file.path)), []).append(file)
    while todo:
        link = todo.pop(0)
        done.add(link)
        to = links.resolved(link)
        behind_it = sum(len(some) for home, some in homes.items() if within(home, to))
        if behind_it > _LINKED and not _DIGIT.search(os.path.basename(link)):
            continue
        links.met.clear()
        behind, way, named = Discovery(), dict[str, str](), dict[str, list[NamedFile]]()
        for path, here in walk(link):  # links inside it are followed as well
            if isinstance(here, OSError):
                Listing(behind, []).add_unlisted(path, here)
                continue
            home = links.resolved(path)
            way[home] = path
            Listing(behind, named.setdefault(home, [])).add(here)
        found.unseen += behind.unseen
        taken = _find_telling(named, homes, to)
        if taken:
            links.followed.add(link)
            homes.update((home, named[home]) for home in taken)
            _rename(found, behind, links, taken)
            # each directory was listed once: another way to it, below this link, may tell more
            known = done.union(way.values(), todo)
            todo += sorted({*links.met} - known)
    return [file for some in homes.values() for file in some]


def _find_telling(named: dict[str, list[NamedFile]], known: dict[str, list[NamedFile]], to: str) -> set[str]:
    """Return the directories that go by the path of a link to ``to``: those of which it tells more, and
    others of what it leads to; what lies elsewhere and is known by a name as good keeps that.
    """
    tells = {home: (_rate(files), _rate(known.get(home, ()))) for home, files in named.items()}
    more = {home for home, (new, old) in tells.items() if new > old}
    alike = {home for home, (new, old) in tells.items() if new == old and (not any(old) or within(home, to))}
    return more | alike if more else more


def _rate(files: Iterable[NamedFile]) -> tuple[bool, int]:
    """Return the most that one name tells: if a layout is sure, and how many numbers say which and whose."""
    most = (False, 0)
    for file in files:
        at: NamedFile | None = file
        while at is not None and not (at.place.sure or at.place.piece.claim.needs_no_other):
            at = next_reading(at)  # what two frameworks write, one of them surely
        place, name = (at or file).place, (at or file).name
        numbers = place.step, place.epoch, place.generation, place.rank
        told = (*numbers, *place.coords, name.step, name.epoch, name.rank)
        most = max(most, (at is not None, sum(value is not None for value in told)))
    return most


def _rename(found: Discovery, behind: Discovery, links: Links, taken: set[str]) -> None:
    """What was found beside the files of directories that go by another path now goes by that."""

    def is_moved(path: str) -> bool:
        return links.resolved(os.path.dirname(path)) in taken

    for old, new in ((found.bare, behind.bare), (found.seals, behind.seals)):
        old[:] = [*(f for f in old if not is_moved(f.path)), *(f for f in new if is_moved(f.path))]
    found.indexes += filter(is_moved, behind.indexes)
    found.trackers |= {key: path for key, path in behind.trackers.items() if is_moved(path)}
