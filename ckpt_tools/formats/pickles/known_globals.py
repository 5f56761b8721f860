"""The names of ``globals.toml``: known ones and dangerous ones.

Frameworks write known names into their checkpoints. Whatever they are called with, they do no more than build
plain values; CALLING and ONLY_MADE list the exceptions. ``torch.load(weights_only=True)`` refuses most known
names; loaders that unpickle without asking need no question for them.

A call of a dangerous name runs commands or code, imports, opens, writes or deletes files, talks to other
machines, or unpickles something else. A name in no list is not taken for harmless: see globals.py.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from ckpt_tools.model.tables import read_table


def read_names(table: str) -> frozenset[str]:
    """Return the names in a table: the word ``a.{b,c}.:`` puts ``a.b.`` and ``a.c.`` before each name behind
    it, up to the next word with a colon.
    """
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
