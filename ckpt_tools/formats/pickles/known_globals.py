"""Names that frameworks write into their checkpoints, and that do no more than build plain values, whatever
they are called with (``globals.toml``); CALLING and ONLY_MADE name those of which that is not so.
``torch.load(weights_only=True)`` refuses most of them; loaders that unpickle without asking need no question
for them.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ckpt_tools.model.tables import read_table


def read_names(table: str) -> frozenset[str]:
    """Return the names of a text of ``globals.toml``."""
    found, beginnings = set[str](), [""]
    for word in re.sub(r"#.*", "", table).split():
        if word.endswith(":"):
            before, _, rest = word[:-1].partition("{")
            either, _, after = rest.partition("}")
            beginnings = [before + one + after for one in either.split(",")]
        else:
            found.update(beginning + word for beginning in beginnings)
    return frozenset(found)


NAMES = {name: read_names(text) for name, text in read_table(__package__, "globals.toml").items()}
EXACT = NAMES["lightning"] | NAMES["exact"]
_ENUMERATIONS = NAMES["enumerations"]
_ARGUMENTS = (
    # what is derived from the Trainer's arguments, which it pickles with every save
    r"trl\.(trainer|experimental\.[a-z0-9_]+)\.[a-z0-9_]+_config\.[A-Z]\w*Config"
    r"|sentence_transformers(\.[a-z_]+)?\.training_args\.[A-Z]\w*TrainingArguments"
    r"|axolotl\.core\.(training_args|trainers\.[a-z0-9_]+\.args)\.Axolotl\w*(Config|Arguments)"
    r"|swift\.(trainers|rlhf_trainers)\.arguments\.[A-Z]\w*(Config|Arguments)"
    # what RLlib keeps beside each state, to make its algorithm from: attributes, and no more
    r"|ray\.rllib\.algorithms\.([a-z0-9_]+\.[a-z0-9_]+|algorithm_config)\.[A-Z]\w*Config"
)
_PREFIXES = re.compile(
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
    """Whether a name that is allowed or known calls what it is given, as a scheduler does when it is made."""
    return full in CALLING or full.startswith("torch.optim.lr_scheduler.")


@lru_cache(1024)
def only_made(module: str, name: str) -> bool:
    """Whether that is a class which picklers make without a call, and whose call reaches further."""
    full = f"{module[:1000]}.{name[:1000]}"
    return full in ONLY_MADE or re.fullmatch(_ARGUMENTS, full) is not None


def known(full: str) -> bool:
    """Whether a dotted name is one that frameworks write."""
    of, _, member = full.rpartition(".")
    return (
        full in EXACT
        or (of in _ENUMERATIONS and not member.startswith("_"))
        or _PREFIXES.fullmatch(full) is not None
    )
