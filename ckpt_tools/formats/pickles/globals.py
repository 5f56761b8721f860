"""Verdicts on the names in a pickle: the lists of harmless names are asked first, then the list of dangerous
ones.

``allowed`` names pass ``torch.load(weights_only=True)`` of torch 2.13 (torch/_weights_only_unpickler.py,
_get_allowed_globals), frameworks write ``known`` ones, ``dangerous`` ones run code or reach beyond the file.
Nobody vouches for a name in no list: a call of it is the warning ``suspect-call``, its mere mention the note
``needs-trust``. Loaders that unpickle without asking turn both into a question (stubs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.pickles.known_globals import NAMES, dangerous, known, only_made
from ckpt_tools.formats.pickles.stubs import Global, suspects
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Unlisted

_TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
ALLOWED = (
    NAMES["allowed"]
    | frozenset(f"torch.{d}{t}{k}" for d in ("", "cuda.") for t in _TYPES for k in ("Storage", "Tensor"))
    | frozenset(f"torch.{d}sparse.{t}Tensor" for d in ("", "cuda.") for t in _TYPES if t != "Bool")
)
_LONG = 16
_MAX_UNSAFE = 8  # findings
_REMEMBERED = 1000
"""The most names in no list that a report keeps: no framework's checkpoint comes near."""
_TORCH_RENAMED = {"torch.tensor": "torch._tensor"}  # torch/serialization.py, load_module_mapping
_GETATTR = Global("builtins", "getattr")
FOLLOWED = frozenset({_GETATTR, Global("torch.storage", "_load_from_bytes")})
"""Names whose calls in the pickle itself are followed: harmless there, unsafe if other code calls them."""


class Trust(Enum):
    """The list that a name is in."""

    ALLOWED = "allowed"
    KNOWN = "known"
    UNLISTED = "unlisted"
    DANGEROUS = "dangerous"


class Named(NamedTuple):
    """A name in a pickle: ``name`` as Python 3 knows it, ``written`` as the pickle spells it (None if it only
    follows from a call).

    ``called``: the pickle calls it. ``handed``: it is an argument of a function that calls its arguments.
    """

    name: Global
    offset: int
    called: bool = False
    handed: bool = False
    written: Global | None = None


def python3(name: Global, protocol: int) -> Global:
    """Return the name that Python 3 imports: before protocol 3 it renames some (find_class, fix_imports)."""
    module, rest = _TORCH_RENAMED.get(name.module, name.module), name.name
    if protocol < 3:
        from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # pickle's own tables

        if (module, rest) in NAME_MAPPING:
            module, rest = NAME_MAPPING[module, rest]
        else:
            module = IMPORT_MAPPING.get(module, module)
    return Global(module, rest)


def trust(name: Global) -> Trust:
    """Return the list that a name of Python 3 is in; for a name of Python 2, ask ``python3`` first."""
    if len(name.module) + len(name.name) > 1000:
        name = Global(name.module[:1000], name.name[:1000])
    modules, parts = name.module.split(".", _LONG), name.name.split(".", _LONG)
    full = ".".join((*modules, *parts))
    if full in ALLOWED:
        return Trust.ALLOWED
    if known(full):
        return Trust.KNOWN
    return Trust.DANGEROUS if dangerous(modules, parts) else Trust.UNLISTED


def called_unsafely(name: Global) -> bool:
    """Return whether a harmless name is unsafe if other code than the pickle itself calls it."""
    return name in FOLLOWED or only_made(*name)


def verdict(name: Global) -> str:
    """Return what ``ckpt show`` says of a name as written: ``allowed``, ``dangerous`` or ``needs-trust``."""
    level = trust(python3(name, 2))
    return level.value if level in (Trust.ALLOWED, Trust.DANGEROUS) else "needs-trust"


def judge(names: Iterable[Named], unlisted: list[Unlisted]) -> Iterator[Finding]:
    """Yield ``unsafe-pickle`` for each dangerous name (at most eight), ``suspect-call`` for called names in
    no list, one ``needs-trust`` for all others. Names in no list are added to ``unlisted``.
    """
    unsafe, others, strange = list[Named](), list[Named](), list[Unlisted]()
    for one in names:
        level = trust(one.name)
        if level is Trust.DANGEROUS or (one.handed and called_unsafely(one.name)):
            unsafe.append(one)
        elif level is Trust.UNLISTED and one.name != _GETATTR:
            short = str(Global(one.name.module[:256], one.name.name[:256]))
            strange.append(Unlisted(short, one.called or one.handed, one.offset))
            if not strange[-1].called:
                others.append(one)
        elif level is not Trust.ALLOWED:
            others.append(one)
    for one in unsafe[:_MAX_UNSAFE]:
        why = f"the pickle names {str(one.name)[:120]}, which runs code or reaches beyond the file"
        yield finding("unsafe-pickle", why, offset=one.offset)
    remember(strange, unlisted)
    yield from suspects([u for u in strange if u.called])
    if others:
        yield finding("needs-trust", f"the pickle names {_list_some(others)}", offset=others[0].offset)


def _list_some(names: Sequence[Named]) -> str:
    """Return the first four names as a text, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(str(one.name)[:80] for one in names[:4]) + more


def remember(strange: Iterable[Unlisted], unlisted: list[Unlisted]) -> None:
    """Add names in no list to ``unlisted``, each once; beyond _REMEMBERED, one entry "…" stands for all."""
    positions = {u.name: i for i, u in enumerate(unlisted)}
    for u in strange:
        if u.name in positions:
            i = positions[u.name]
            unlisted[i] = unlisted[i]._replace(called=unlisted[i].called or u.called)
        elif len(unlisted) <= _REMEMBERED:
            positions[u.name] = len(unlisted)
            unlisted.append(u if len(unlisted) < _REMEMBERED else Unlisted("…", called=True, offset=u.offset))
