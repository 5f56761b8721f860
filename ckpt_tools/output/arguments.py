"""The arguments by which a command learns which checkpoint was chosen, as --resume-args says them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_FIELD = re.compile(r"(?<!\$)\{(\w+)\}")  # ${HOME} is the shell's
EXAMPLE = ("--resume-args", "--resume {path}")
EACH_RANK = (
    "ask for each rank with --rank N, or start each with 'ckpt run ROOT --worker' inside the launcher;"
    " --format json lists all files"
)


def fill_arguments(wanted: Sequence[str], known: Mapping[str, object]) -> tuple[str, ...]:
    """Return the words of --resume-args with what is ``known`` filled in, none if something is not known."""
    if any(known[name] is None for word in wanted for name in _FIELD.findall(word)):
        return ()
    return tuple(_FIELD.sub(lambda m: str(known[m[1]]), word) for word in wanted)


def explain_silence(layout: str, path: str | None, wanted: Sequence[str]) -> str:
    """Return why a command would start from nothing although a checkpoint was chosen."""
    if path is None:
        why = "no one path leads to its files (each rank loads its own, or several)"
        why += "" if wanted else f", and the layout {layout} has no arguments"
    elif wanted:
        why = f"its step or epoch, which --resume-args asks for, is not known: {' '.join(wanted)}"
    else:
        why = f"the layout {layout} has no arguments, so '{{ckpt.args}}' is empty"
    return f"a checkpoint was chosen, and the command would not learn of it: {why}"
