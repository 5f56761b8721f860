"""Tables of the package: TOML files beside its modules."""

from __future__ import annotations

import pkgutil
import sys
from typing import Any


def read_table(package: str, file: str) -> dict[str, Any]:
    """Return the contents of a TOML file in a package."""
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml
    return toml.loads((pkgutil.get_data(package, file) or b"").decode())
