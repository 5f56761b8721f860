"""``ckpt hook install``: lines for a job script or a manifest, printed and never put anywhere. The snippets
are files in ckpt_tools/snippets.
"""

from __future__ import annotations

import json
import shlex
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated

import typer

from ckpt_tools.cli import console
from ckpt_tools.errors import UsageError
from ckpt_tools.model.frozen import frozen

EXAMPLE = "/path/to/checkpoints"
_PLACE = "@ROOT@"
What = Annotated[
    str | None,
    typer.Argument(metavar="[WHAT]", help="Which snippet; without it they are listed.", show_default=False),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help=f"Directory of the checkpoints, put in place of {EXAMPLE}.",
        show_default=False,
    ),
]


@frozen
class Snippet:
    """``about`` is the first sentence of its own comment."""

    name: str
    text: str
    yaml: bool

    @property
    def about(self) -> str:
        return next(line[2:] for line in self.text.splitlines() if line.startswith("# "))

    def filled(self, root: str) -> str:
        """The snippet with ``root`` in it, quoted as its language wants it. Raises UsageError for a name that
        YAML cannot say.
        """
        if self.yaml and not root.isprintable():
            raise UsageError(
                f"--root {root!r} holds characters that a manifest cannot say",
                "name a directory with printable characters",
            )
        return self.text.replace(
            _PLACE, json.dumps(root, ensure_ascii=False) if self.yaml else shlex.quote(root)
        )


def snippets() -> dict[str, Snippet]:
    """All of them by name, sorted."""
    found = {}
    for file in sorted(files("ckpt_tools").joinpath("snippets").iterdir(), key=lambda f: f.name):
        name, _, kind = file.name.partition(".")
        if kind in ("sh", "yaml"):
            found[name] = Snippet(name, file.read_text(encoding="utf-8"), kind == "yaml")
    return found


def hook_install(what: What = None, root: Root = None) -> int:
    """Print a job script or a manifest that starts training through ckpt: for Slurm, torchrun, msrun, mpirun,
    Kubernetes and MindCluster.

    Nothing is edited or installed: the comments inside say where it goes, and what stands at the top is yours
    to change. docs/hooks.md says what each exit code does there. Without WHAT, the snippets are listed.
    """
    known = snippets()
    if what is None:
        width = max(map(len, known))
        console.out("".join(f"{name:<{width}}  {s.about}\n" for name, s in known.items()))
        return 0
    if what not in known:
        near = get_close_matches(what, known, 1, 0.5)
        raise UsageError(
            f"there is no snippet {what!r}",
            f"did you mean {near[0]}?" if near else f"one of: {', '.join(known)}",
        )
    console.out(known[what].filled(root or EXAMPLE))
    return 0
