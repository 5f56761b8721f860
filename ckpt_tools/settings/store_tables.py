"""Options of single stores: the tables ``[store."s3://bucket/prefix"]`` of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt_tools.errors import UsageError
from ckpt_tools.model.stores import Pairs
from ckpt_tools.storage.urls import absolute

_HINT = 'such as [store."s3://bucket"] with region = "eu-west-1" (docs/stores.md)'


def store_tables(file: str, tables: Mapping[str, Any]) -> tuple[tuple[str, Pairs], ...]:
    """(URL, options) for each. Raises UsageError that names the table, for what is none, and for secrets."""
    if not tables:
        return ()
    from ckpt_tools.storage.signed import named  # only for a file with such tables

    out: dict[str, Pairs] = {}
    for url, table in tables.items():
        if "://" not in url or not isinstance(table, dict):
            raise UsageError(f"{file}: [store] {_shown(url)} is no table for a URL", _HINT)
        prefix = absolute(named(url))
        where = f'{file}: [store."{prefix}"]'
        if prefix in out:
            raise UsageError(f"{where} is there twice", _HINT)
        out[prefix] = _options(where, table)
    return tuple(out.items())


def _shown(url: str) -> str:
    return repr(url.partition("?")[0])


def _options(where: str, table: Mapping[str, Any], above: str = "") -> Pairs:
    """Its options, those of tables within it under dotted names."""
    from ckpt_tools.storage.stores.options import checked

    pairs: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            pairs += _options(where, value, f"{above}{key}.")
            continue
        try:
            pairs.append(checked(f"{above}{key}", _text(value)))
        except ValueError as e:
            raise UsageError(f"{where}: {e}", _HINT) from None
    return tuple(pairs)


def _text(value: object) -> str:
    """As it would be written after ``KEY=``. Raises ValueError, which does not quote it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("an option is a text, a number, true or false")
