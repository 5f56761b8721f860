"""Tables of the package: TOML files beside its modules."""

from __future__ import annotations

import pkgutil
from typing import Any

from msgspec import toml


def read_table(package: str, file: str) -> dict[str, Any]:
    """Return the contents of a TOML file in a package."""
    table: dict[str, Any] = toml.decode(pkgutil.get_data(package, file) or b"")
    return table
