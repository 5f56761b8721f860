"""Options of object stores and other file systems with a URL, as they were given: never credentials."""

from __future__ import annotations

from msgspec import Struct

Pairs = tuple[tuple[str, str], ...]
"""Options as (key, value), each a text as the store's library has it."""


class StoreOptions(Struct, frozen=True):
    """``flags`` count for every store that is opened, ``tables`` for stores whose URL lies at or below a
    prefix: (prefix, options).
    """

    flags: Pairs = ()
    tables: tuple[tuple[str, Pairs], ...] = ()

    def of(self, url: str) -> dict[str, str]:
        """The options for what lies at a URL: for each key the flag, else the table of the longest prefix
        that has it.
        """
        fitting = [(prefix, pairs) for prefix, pairs in self.tables if _below(url, prefix)]
        merged: dict[str, str] = {}
        for _, pairs in sorted(fitting, key=lambda table: len(table[0])):
            merged.update(pairs)
        return {**merged, **dict(self.flags)}

    def __repr__(self) -> str:
        """The keys alone: whoever logs it shows no value that ought to be secret."""
        keys = [key for key, _ in self.flags]
        tables = {prefix: [key for key, _ in pairs] for prefix, pairs in self.tables}
        return f"StoreOptions(flags={keys}, tables={tables})"


def _below(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
