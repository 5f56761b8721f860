"""``ckpt --install-completion``: the script of the user's shell, put where that shell looks by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ckpt_tools.cli.candidates import SHELLS, script
from ckpt_tools.errors import CannotLook, UsageError

_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/ckpt"),
    "zsh": ("ZDOTDIR", ".", ".zfunc/_ckpt"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/ckpt.fish"),
}
"""The variable that names a directory, where that is below HOME otherwise, and the file in it."""
_NEXT = {
    "bash": (
        "New shells load it where bash-completion is installed; elsewhere add to ~/.bashrc:"
        ' eval "$(ckpt completion bash)"'
    ),
    "zsh": "New shells load it once ~/.zshrc says, before compinit: fpath+=(${ZDOTDIR:-$HOME}/.zfunc)",
    "fish": "New shells load it.",
}


def own_shell(environ: Mapping[str, str]) -> str:
    """The shell that SHELL names. Raises UsageError for any that has no completion."""
    shell = os.path.basename(environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise UsageError(f"SHELL is {shell!r}", f"say 'ckpt completion {'|'.join(SHELLS)}'")
    return shell


def install(shell: str, environ: Mapping[str, str]) -> str:
    """Write the script of ``shell``, and return what to say about it. No file of the user's own is changed.
    Raises CannotLook.
    """
    variable, below, file = _PLACES[shell]
    home = environ.get(variable) or os.path.join(os.path.expanduser("~"), below)
    path = os.path.normpath(os.path.join(home, file))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as new:
            new.write(script(shell))
        os.replace(f"{path}.new", path)
    except OSError as e:
        hint = f"'ckpt completion {shell}' prints the script"
        raise CannotLook(f"the completion cannot be written to {path}: {e.strerror}", hint) from e
    return f"{path} is written. {_NEXT[shell]}\n"
