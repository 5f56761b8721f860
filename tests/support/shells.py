"""Real interactive shells on a terminal of their own: keys in, the words of the command that comes of them out."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROMPT, DONE = "@READY@", "@DONE@"
START = {
    # Bash and zsh run a function in place of the command, which keeps the words that it was given.
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
PREPARE = {
    "bash": """
bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; bind '"\\C-t": insert-completions'
ckpt() { printf '%s\\0' "$@" > "$WORDS"; printf '@%s\\n' DONE@; }
eval "$(command ckpt completion bash)"
PS1=@READ; PS1=${PS1}Y@
""",
    "zsh": """
unsetopt prompt_cr prompt_sp beep zle_bracketed_paste; zle_bracketed_paste=()
autoload -Uz compinit; compinit -D -u
ckpt() { printf '%s\\0' "$@" > "$WORDS"; printf '@%s\\n' DONE@; }
eval "$(command ckpt completion zsh)"
_insert_all() { _main_complete; compstate[insert]=all; }
zle -C insert-all complete-word _insert_all; bindkey '^T' insert-all
PS1=@READ; PS1=${PS1}Y@
""",
}
ALL = "\x14"
"""The key that inserts all that is offered."""


class Shell:
    """One interactive shell in ``home``, which finds ``ckpt``."""

    def __init__(self, name: str, home: Path, env: Mapping[str, str]) -> None:
        self.words = home.parent / f"{name}.words"
        env = {**env, "WORDS": str(self.words), "TERM": "dumb", "LC_ALL": "C.UTF-8", "HOME": str(home)}
        self.mine, theirs = pty.openpty()
        self.process = subprocess.Popen(
            START[name], cwd=home, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""
        (home.parent / f"{name}.rc").write_text(PREPARE[name])
        self.type(f". {home.parent / name}.rc\n", until=PROMPT)

    def type(self, keys: str, until: str) -> str:
        """What the terminal shows from these keys on until that text."""
        os.write(self.mine, keys.encode())
        shown = ""
        while until not in shown:
            shown += os.read(self.mine, 65536).decode(errors="replace")
        return shown

    def completed(self, keys: str) -> list[bytes]:
        """The words of the command that is run when the keys, and then Return, are pressed."""
        self.words.unlink(missing_ok=True)
        self.type(f"{keys}\n", until=DONE)
        return self.words.read_bytes().split(b"\0")[:-1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.mine)


def with_ckpt(where: Path) -> dict[str, str]:
    """An environment whose first ``ckpt`` is this one."""
    where.mkdir()
    (where / "ckpt").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m ckpt_tools "$@"\n')
    (where / "my-trainer").write_text("#!/bin/sh\n")
    for command in where.iterdir():
        command.chmod(0o755)
    keep = ("LD_LIBRARY_PATH", "PYTHONPATH")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    return {**kept, "PATH": f"{where}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}


def fish(home: Path, env: Mapping[str, str], line: str) -> list[str]:
    """What fish offers at the end of ``line``, each with what it means behind a tab."""
    assert shutil.which("fish")
    code = "ckpt completion fish | source; complete -C $argv[1]"
    env = {**env, "HOME": str(home.parent), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["fish", "--no-config", "-c", code, line], cwd=home, env=env, capture_output=True, check=True
    )
    assert not done.stderr, done.stderr
    return done.stdout.decode(errors="surrogateescape").splitlines()
