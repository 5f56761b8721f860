"""``ckpt completion``: print the script that makes a shell complete ckpt commands; nothing is installed."""

from __future__ import annotations

import typer.completion

from ckpt_tools.cli import console, options
from ckpt_tools.cli.options import parameter
from ckpt_tools.settings.resolve import require_known

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


@options.ask(
    ("text",),
    parameter("SHELL", "bash, zsh, fish, powershell or pwsh.", offer=options.words(*SHELLS), required=True),
    reads_settings=False,
)
def completion(asked: options.Asked) -> int:
    """Print the script that makes a shell complete commands, flags and their values, finding codes, layouts,
    and the runs and steps of the directory.

    Examples:
    ckpt completion bash  # the script for bash
    eval "$(ckpt completion bash)"; complete -p ckpt  # as a line of ~/.bashrc
    ckpt completion bash > ckpt.bash  # for ~/.local/share/bash-completion/completions/ckpt
    ckpt completion zsh > _ckpt  # for a directory of zsh's $fpath
    ckpt completion fish > ckpt.fish  # for ~/.config/fish/completions
    """
    shell = asked.given["shell"]
    require_known(shell, SHELLS, "completion for", f"one of: {', '.join(SHELLS)}")
    script = typer.completion.get_completion_script(  # type: ignore[attr-defined] # not listed
        prog_name="ckpt", complete_var="_CKPT_COMPLETE", shell=shell
    )
    console.out(f"{script}\n")
    return 0
