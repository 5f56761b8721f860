"""Verdicts on the names in a pickle: the lists of harmless names are asked first, then the list of dangerous
ones. ``globals.toml`` has the lists.

``allowed`` names pass ``torch.load(weights_only=True)`` of torch 2.13 (torch/_weights_only_unpickler.py,
_get_allowed_globals), frameworks write ``known`` ones. Whatever these are called with, they do no more than
build plain values; CALLING and ONLY_MADE list the exceptions. A call of a ``dangerous`` name runs commands or
code, imports, opens, writes or deletes files, talks to other machines, or unpickles something else.
Nobody vouches for a name in no list: a call of it is the warning ``suspect-call``, its mere mention the note
``needs-trust``. Loaders that unpickle without asking turn both into a question (stubs.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.pickles.stubs import Global, list_first, report_suspects
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Unlisted
from ckpt_tools.model.tables import read_table


def read_names(table: str) -> frozenset[str]:
    """Return the names in a table: a word ``a.{b,c}.:`` puts ``a.b.`` and ``a.c.`` before those behind it."""
    found, beginnings = set[str](), [""]
    for word in re.sub(r"#.*", "", table).split():
        if word.endswith(":"):
            before, _, group = word[:-1].partition("{")
            choices, _, after = group.partition("}")
            beginnings = [before + choice + after for choice in choices.split(",")]
        else:
            found.update(beginning + word for beginning in beginnings)
    return frozenset(found)


NAMES = {name: read_names(text) for name, text in read_table(__package__, "globals.toml").items()}
EXACT = NAMES["lightning"] | NAMES["exact"]
_ENUMERATIONS = NAMES["enumerations"]
_ARGUMENTS = (
    # classes derived from the arguments of a Trainer, which it pickles with every save
    r"trl\.(trainer|experimental\.[a-z0-9_]+)\.[a-z0-9_]+_config\.[A-Z]\w*Config"
    r"|sentence_transformers(\.[a-z_]+)?\.training_args\.[A-Z]\w*TrainingArguments"
    r"|axolotl\.core\.(training_args|trainers\.[a-z0-9_]+\.args)\.Axolotl\w*(Config|Arguments)"
    r"|swift\.(trainers|rlhf_trainers)\.arguments\.[A-Z]\w*(Config|Arguments)"
    # classes that RLlib keeps beside each state, to make its algorithm from: attributes, and no more
    r"|ray\.rllib\.algorithms\.([a-z0-9_]+\.[a-z0-9_]+|algorithm_config)\.[A-Z]\w*Config"
)
_KNOWN_PATTERN = re.compile(
    r"numpy\.dtypes\.\w+DType"
    # a whole model: layers are built without a call, their attributes set
    r"|torch\.nn\.modules\.[a-z_]+\.[A-Z]\w*"
    r"|torch\.nn\.(parameter|backends\.thnn)\.[A-Z]\w*"
    r"|torch\.optim\.(?!swa_utils)[a-z_]+\.[A-Z]\w*"
    r"|(signal\.Signals|megatron(\.\w+)*\.enums\.[A-Z]\w*)\.(?!_)\w+"  # a member of an enumeration, by name
    r"|" + _ARGUMENTS
)
CALLING = NAMES["calling"]
ONLY_MADE = NAMES["only_made"] | {name for name in NAMES["lightning"] if name.endswith(".ModelCheckpoint")}


def calls_arguments(full: str) -> bool:
    """Return whether an allowed or known name calls its arguments, as a scheduler does when it is made."""
    return full in CALLING or full.startswith("torch.optim.lr_scheduler.")


@lru_cache(1024)
def is_only_made(module: str, name: str) -> bool:
    """Return whether a name is a class that picklers make without a call, and whose call does more."""
    full = f"{module[:1000]}.{name[:1000]}"
    return full in ONLY_MADE or re.fullmatch(_ARGUMENTS, full) is not None


def is_known(full: str) -> bool:
    """Return whether frameworks are known to write a dotted name into their checkpoints."""
    owner, _, member = full.rpartition(".")
    return (
        full in EXACT
        or (owner in _ENUMERATIONS and not member.startswith("_"))
        or _KNOWN_PATTERN.fullmatch(full) is not None
    )


THROUGH = NAMES["through"]
DEEP = frozenset(("os", "posix", "nt", "sys", "subprocess", "builtins", "__builtin__", "__builtins__"))
MODULES = THROUGH | NAMES["modules"]
RUNNING = NAMES["names"]
_BEGINNINGS = RUNNING | NAMES["prefixes"]
PLAIN = NAMES["plain"]
DUNDER = re.compile(r"__\w+__")
_BARE = NAMES["bare"]
_ALIASES = {"np": "numpy", "pd": "pandas", "tf": "tensorflow", "sp": "subprocess", "mp": "multiprocessing"}
_LONGEST = 16


def is_dangerous(modules: list[str], names: list[str]) -> bool:
    """Return whether a name of a module is dangerous, or reaches a dangerous one through another module."""
    return (
        _is_dangerous_name([*modules, *names])
        or not DEEP.isdisjoint(modules[modules[0] == "builtins" :])
        or not _BARE.isdisjoint(names)
        or "__main__" in modules[1:]  # importing the program of a package runs it
        or (len(names) > 1 and any(map(DUNDER.fullmatch, names)))
        # a method of a known class: it opens, writes or deletes files
        or (modules[0] in ("pathlib", "_io", "io") and len(names) > 1)
        or _reaches_dangerous_module(names)
    )


def _is_dangerous_name(parts: list[str]) -> bool:
    """Return whether a dotted name, given by its parts, or a prefix of it is in a list of dangerous names."""
    full = ".".join(parts[:_LONGEST])
    if full in PLAIN:
        return False
    prefixes = {".".join(parts[:n]) for n in range(1, min(len(parts), _LONGEST) + 1)}
    if parts[0] == "builtins":  # other classes and functions of it are harmless
        return not prefixes.isdisjoint(RUNNING)
    return parts[0] in MODULES or full.startswith("pandas.read_") or not prefixes.isdisjoint(_BEGINNINGS)


def _reaches_dangerous_module(names: list[str]) -> bool:
    """Return whether one of the attributes is a module that runs code or leads to one (``random._os``)."""
    for i, name in enumerate(names[:_LONGEST]):
        bare = name.lstrip("_")
        module = _ALIASES.get(bare, bare)
        last = i == len(names) - 1
        if bare in THROUGH or (
            not last
            and (name in THROUGH or module in sys.stdlib_module_names or name in sys.stdlib_module_names)
        ):
            return True
        if not last and _is_dangerous_name([module, *names[i + 1 :]]):
            return True
    return len(names) > _LONGEST


# ---- The verdict on a name.


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
    """Yield the findings for names of a pickle; add the names in no list to ``unlisted``."""
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
