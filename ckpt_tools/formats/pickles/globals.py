"""Verdicts on the names in a pickle: the lists of harmless names are asked first, then the list of dangerous
ones.

``allowed`` names pass ``torch.load(weights_only=True)`` of torch 2.13 (torch/_weights_only_unpickler.py,
_get_allowed_globals), frameworks write ``known`` ones, ``dangerous`` ones run code or reach beyond the file.
Nobody vouches for a name in no list: a call of it is the warning ``suspect-call``, its mere mention the note
``needs-trust``. Loaders that unpickle without asking turn both into a question (stubs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.pickles.known_globals import NAMES, is_dangerous, is_known, is_only_made
from ckpt_tools.formats.pickles.stubs import Global, list_first, report_suspects
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


class Usage(NamedTuple):
    """A use of a global: ``name`` is as Python 3 knows it, ``spelling`` as the pickle has it (None if it only
    follows from a call). A callback is an argument of a function that calls its arguments.
    """

    name: Global
    offset: int
    is_called: bool = False
    is_callback: bool = False
    spelling: Global | None = None


def to_python3(name: Global, protocol: int) -> Global:
    """Return the name that Python 3 imports for one in a pickle: below protocol 3, it renames some."""
    module, member = _TORCH_RENAMED.get(name.module, name.module), name.name
    if protocol < 3:
        from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # pickle's own tables

        if (module, member) in NAME_MAPPING:
            module, member = NAME_MAPPING[module, member]
        else:
            module = IMPORT_MAPPING.get(module, module)
    return Global(module, member)


def find_trust(name: Global) -> Trust:
    """Return which list a name is in; a name that Python 2 wrote must go through ``to_python3`` first."""
    if len(name.module) + len(name.name) > 1000:
        name = Global(name.module[:1000], name.name[:1000])
    modules, parts = name.module.split(".", _LONG), name.name.split(".", _LONG)
    full = ".".join((*modules, *parts))
    if full in ALLOWED:
        return Trust.ALLOWED
    if is_known(full):
        return Trust.KNOWN
    return Trust.DANGEROUS if is_dangerous(modules, parts) else Trust.UNLISTED


def _is_unsafe_to_call(name: Global) -> bool:
    """Return whether a harmless name does harm if other code calls it: getattr, or a class's ``__init__``."""
    return name in FOLLOWED or is_only_made(*name)


def is_worse_if_passed(name: Global, is_called: bool) -> bool:
    """Return whether the verdict on a name gets worse if it is passed to code that calls it."""
    return (not is_called and find_trust(name) is Trust.UNLISTED) or _is_unsafe_to_call(name)


def find_verdict(name: Global) -> str:
    """Return what ``ckpt show`` says of a name as written: ``allowed``, ``dangerous`` or ``needs-trust``."""
    level = find_trust(to_python3(name, 2))
    return level.value if level in (Trust.ALLOWED, Trust.DANGEROUS) else "needs-trust"


def judge_names(names: Iterable[Usage], unlisted: list[Unlisted]) -> Iterator[Finding]:
    """Yield ``unsafe-pickle`` for each dangerous name (at most eight), ``suspect-call`` for called names in
    no list, one ``needs-trust`` for all others. Names in no list are added to ``unlisted``.
    """
    unsafe, others, found = list[Usage](), list[Usage](), list[Unlisted]()
    for use in names:
        level = find_trust(use.name)
        if level is Trust.DANGEROUS or (use.is_callback and _is_unsafe_to_call(use.name)):
            unsafe.append(use)
        elif level is Trust.UNLISTED and use.name != _GETATTR:
            short = str(Global(use.name.module[:256], use.name.name[:256]))
            found.append(Unlisted(short, use.is_called or use.is_callback, use.offset))
            if not found[-1].called:
                others.append(use)
        elif level is not Trust.ALLOWED:
            others.append(use)
    for use in unsafe[:_MAX_UNSAFE]:
        why = f"the pickle names {str(use.name)[:120]}, which runs code or reaches beyond the file"
        yield finding("unsafe-pickle", why, offset=use.offset)
    add_unlisted(found, unlisted)
    yield from report_suspects([u for u in found if u.called])
    if others:
        first = list_first([str(use.name)[:80] for use in others[:4]], len(others))
        yield finding("needs-trust", f"the pickle names {first}", offset=others[0].offset)


def add_unlisted(names: Iterable[Unlisted], unlisted: list[Unlisted]) -> None:
    """Add names in no list to ``unlisted``, each once; beyond 1000 names, one entry "…" stands for all."""
    positions = {u.name: i for i, u in enumerate(unlisted)}
    for u in names:
        if u.name in positions:
            i = positions[u.name]
            unlisted[i] = unlisted[i]._replace(called=unlisted[i].called or u.called)
        elif len(unlisted) <= _REMEMBERED:
            positions[u.name] = len(unlisted)
            unlisted.append(u if len(unlisted) < _REMEMBERED else Unlisted("…", called=True, offset=u.offset))
