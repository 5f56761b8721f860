"""What to think of the names in a pickle: allow-list first, then what is dangerous; the rest is in no list.

``allowed`` is what ``torch.load(weights_only=True)`` of torch 2.13 lets through
(torch/_weights_only_unpickler.py, _get_allowed_globals), ``known`` what frameworks write, ``dangerous`` what
runs code or reaches beyond the file. A name that is in no list is nobody's promise: called, it is the warning
``suspect-call``; named only, the note ``needs-trust``. Loaders that unpickle without asking turn both into a
question (ckpt_tools.formats.pickles.stubs.py).
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
_UNSAFE = 8  # named one by one
_REMEMBERED = 1000
"""Names in no list that a report keeps: no framework's checkpoint comes near."""
_TORCH_RENAMED = {"torch.tensor": "torch._tensor"}  # torch/serialization.py, load_module_mapping
_GETATTR = Global("builtins", "getattr")
FOLLOWED = frozenset({_GETATTR, Global("torch.storage", "_load_from_bytes")})
"""Names that are harmless where their own call is followed, and not where something else calls them."""


class Trust(Enum):
    """Which list a name is in."""

    ALLOWED = "allowed"
    KNOWN = "known"
    UNLISTED = "unlisted"
    DANGEROUS = "dangerous"


class Named(NamedTuple):
    """A name in a pickle, as Python 3 knows it, and as it is ``written`` (None for what only a call makes).

    ``called`` says that the pickle calls it, ``handed`` that something that calls its arguments is given it.
    """

    name: Global
    offset: int
    called: bool = False
    handed: bool = False
    written: Global | None = None


def python3(name: Global, protocol: int) -> Global:
    """The name that an unpickler imports; before protocol 3 pickle renames some (find_class, fix_imports)."""
    module, rest = _TORCH_RENAMED.get(name.module, name.module), name.name
    if protocol < 3:
        from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # pickle's own tables

        if (module, rest) in NAME_MAPPING:
            module, rest = NAME_MAPPING[module, rest]
        else:
            module = IMPORT_MAPPING.get(module, module)
    return Global(module, rest)


def trust(name: Global) -> Trust:
    """Which list a name is in. One of Python 2 is judged as the one it has become."""
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
    """Whether a known name is unsafe where something else calls it."""
    return name in FOLLOWED or only_made(*name)


def verdict(name: Global) -> str:
    """``allowed``, ``dangerous`` or ``needs-trust`` for a name as written: what ``ckpt show`` says."""
    which = trust(python3(name, 2))
    return which.value if which in (Trust.ALLOWED, Trust.DANGEROUS) else "needs-trust"


def judge(names: Iterable[Named], unlisted: list[Unlisted]) -> Iterator[Finding]:
    """Findings for the names of a pickle: one ``unsafe-pickle`` for each dangerous one (at most eight),
    ``suspect-call`` for those in no list that are called, one ``needs-trust`` for the others. What is in no
    list is added to ``unlisted``.
    """
    unsafe, others, strange = list[Named](), list[Named](), list[Unlisted]()
    for one in names:
        which = trust(one.name)
        if which is Trust.DANGEROUS or (one.handed and called_unsafely(one.name)):
            unsafe.append(one)
        elif which is Trust.UNLISTED and one.name != _GETATTR:
            short = str(Global(one.name.module[:256], one.name.name[:256]))
            strange.append(Unlisted(short, one.called or one.handed, one.offset))
            if not strange[-1].called:
                others.append(one)
        elif which is not Trust.ALLOWED:
            others.append(one)
    for one in unsafe[:_UNSAFE]:
        why = f"the pickle names {str(one.name)[:120]}, which runs code or reaches beyond the file"
        yield finding("unsafe-pickle", why, offset=one.offset)
    remember(strange, unlisted)
    yield from suspects([u for u in strange if u.called])
    if others:
        yield finding("needs-trust", f"the pickle names {_list_some(others)}", offset=others[0].offset)


def _list_some(names: Sequence[Named]) -> str:
    """The first names of several, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(str(one.name)[:80] for one in names[:4]) + more


def remember(strange: Iterable[Unlisted], unlisted: list[Unlisted]) -> None:
    """Add names in no list, each once; of more than a report keeps, one stands for the rest."""
    have = {u.name: i for i, u in enumerate(unlisted)}
    for u in strange:
        if u.name in have:
            i = have[u.name]
            unlisted[i] = unlisted[i]._replace(called=unlisted[i].called or u.called)
        elif len(unlisted) <= _REMEMBERED:
            have[u.name] = len(unlisted)
            unlisted.append(u if len(unlisted) < _REMEMBERED else Unlisted("…", called=True, offset=u.offset))
