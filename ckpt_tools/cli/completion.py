"""``ckpt completion``: print the script that makes a shell complete ckpt commands; nothing is installed."""

from __future__ import annotations

from typing import Annotated

from ckpt_tools.cli import console
from ckpt_tools.cli.candidates import SHELLS, script
from ckpt_tools.cli.words import Argument
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import parsers


def completion(
    shell: Annotated[str, Argument("SHELL", "bash, zsh or fish.")],
) -> int:
    """Print the script that makes a shell complete commands, flags and their values, finding codes, layouts,
    and the runs and steps of the directory.

    The first lines of the script say where to put it. Runs and steps are read from names alone, for a quarter
    of a second at most (two seconds in a store).
    """
    try:
        parsers.word(shell, tuple(SHELLS))
    except ValueError as e:
        raise UsageError(f"there is no completion for it: {e}") from e
    console.out(script(shell))
    return 0
