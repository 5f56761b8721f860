"""One directory in order: its entries, sorted by name, and those of them that are directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, TypeVar, cast

from ckpt_tools.storage.retry import is_directory, patiently
from ckpt_tools.storage.urls import is_url

Entries = list[os.DirEntry[str]]
EntryFilter = Callable[[Entries], Entries]
"""The entries of a directory that are looked at."""


class Inspected(Protocol):
    """What a walk's caller makes of a directory; ``to_stat`` are the entries whose stat it will use."""

    def to_stat(self) -> Iterable[os.DirEntry[str]]: ...


T = TypeVar("T", bound=Inspected)
Inspect = Callable[[str, Entries], T]


class Names(Entries):
    """The entries of a directory of which only the names count."""

    def __init__(self, _path: str, entries: Entries) -> None:
        super().__init__(entries)

    def to_stat(self) -> tuple[()]:
        return ()


def all_of(entries: Entries) -> Entries:
    return entries


def entries_of(path: str, keep: EntryFilter = all_of) -> Entries:
    """A directory's entries, sorted by name. Raises OSError."""
    return keep(_in_store(path) if is_url(path) else patiently(_listed, path))


def names_of(path: str) -> list[str]:
    """The names in a directory, in any order. Raises OSError."""
    return [e.name for e in _in_store(path)] if is_url(path) else patiently(os.listdir, path or ".")


def _in_store(url: str) -> Entries:
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(url)
    return cast("Entries", tree.entries(key))  # they answer what those of the system do


def _listed(path: str) -> Entries:
    with os.scandir(path) as it:
        return sorted(it, key=lambda e: e.name)


def stat(entry: os.DirEntry[str]) -> None:
    """Ask for what the entry then remembers; an error is raised again to whoever asks next."""
    with suppress(OSError):
        patiently(entry.stat)


def below(entries: Entries) -> list[str]:
    """The directories among entries, and what may be one: who goes there learns why it cannot be seen."""
    out = []
    for entry in entries:
        try:
            if is_directory(entry):
                out.append(entry.path)
        except OSError:
            out.append(entry.path)
    return out
