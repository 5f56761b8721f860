"""Names whose call runs commands or code, imports, opens, writes or deletes files, talks to other machines,
or unpickles something else.

``globals.toml`` lists them. A name that is in no list is not taken for harmless: globals.py says what happens
to it.
"""

from __future__ import annotations

import re
import sys

from ckpt_tools.formats.pickles.known_globals import NAMES as LISTS

THROUGH = LISTS["through"]
DEEP = frozenset(("os", "posix", "nt", "sys", "subprocess", "builtins", "__builtin__", "__builtins__"))
MODULES = THROUGH | LISTS["modules"]
PREFIXES = LISTS["prefixes"]
NAMES = LISTS["names"]
_BEGINNINGS = NAMES | PREFIXES
PLAIN = LISTS["plain"]
DUNDER = re.compile(r"__\w+__")
_BARE = LISTS["bare"]
_ALIASES = {"np": "numpy", "pd": "pandas", "tf": "tensorflow", "sp": "subprocess", "mp": "multiprocessing"}
_LONGEST = 16


def dangerous(modules: list[str], names: list[str]) -> bool:
    """Whether a name of a module is one of these, or reaches one of these through another module."""
    return (
        _runs([*modules, *names])
        or not DEEP.isdisjoint(modules[modules[0] == "builtins" :])
        or not _BARE.isdisjoint(names)
        or "__main__" in modules[1:]  # a package's program: importing it runs it
        or (len(names) > 1 and any(map(DUNDER.fullmatch, names)))
        # a method of what is known: it opens, writes or deletes
        or (modules[0] in ("pathlib", "_io", "io") and len(names) > 1)
        or _reaches(names)
    )


def _runs(parts: list[str]) -> bool:
    full = ".".join(parts[:_LONGEST])
    if full in PLAIN:
        return False
    prefixes = {".".join(parts[:n]) for n in range(1, min(len(parts), _LONGEST) + 1)}
    if parts[0] == "builtins":  # its classes and plain functions are harmless by themselves
        return not prefixes.isdisjoint(NAMES)
    return parts[0] in MODULES or full.startswith("pandas.read_") or not prefixes.isdisjoint(_BEGINNINGS)


def _reaches(names: list[str]) -> bool:
    """Whether an attribute is a module that runs code or leads to one (``random._os``)."""
    for i, name in enumerate(names[:_LONGEST]):
        bare = name.lstrip("_")
        module = _ALIASES.get(bare, bare)
        last = i == len(names) - 1
        if bare in THROUGH or (
            not last
            and (name in THROUGH or module in sys.stdlib_module_names or name in sys.stdlib_module_names)
        ):
            return True
        if not last and _runs([module, *names[i + 1 :]]):
            return True
    return len(names) > _LONGEST
