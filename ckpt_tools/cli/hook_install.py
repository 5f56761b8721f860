"""``ckpt hook install``: the files of ckpt_tools/cli/snippets, printed and never put anywhere."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from typing import NamedTuple

from ckpt_tools.cli import console, options
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import UsageError
from ckpt_tools.settings.resolve import require_known

EXAMPLE = "/path/to/checkpoints"
_PLACE = "@ROOT@"


class Snippet(NamedTuple):
    """``kind`` is the ending of its file, ``about`` the first sentence of its comment or description."""

    name: str
    text: str
    kind: str

    @property
    def about(self) -> str:
        if self.kind == "json":
            return str(json.loads(self.text)["description"])
        return next(line[2:] for line in self.text.splitlines() if line.startswith("# "))

    def fill(self, root: str) -> str:
        """The snippet with ``root`` quoted in it. Raises UsageError for what YAML or systemd cannot say."""
        quoted = shlex.quote(root) if self.kind == "sh" else json.dumps(root, ensure_ascii=False)
        if self.kind != "sh" and not root.isprintable():
            text = f"--root {root!r} holds characters that a manifest cannot say"
            raise UsageError(text, "name a directory with printable characters")
        if self.kind == "service":  # systemd.service(5), systemd.unit(5)
            escaped = root.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
            quoted = f'"{escaped}"'
        return self.text.replace(_PLACE, quoted)


def snippets() -> dict[str, Snippet]:
    found = {}
    for file in sorted(files("ckpt_tools.cli").joinpath("snippets").iterdir(), key=lambda f: f.name):
        name, _, kind = file.name.partition(".")
        if kind in ("sh", "yaml", "json", "service"):
            found[name] = Snippet(name, file.read_text(encoding="utf-8"), kind)
    return found


@options.ask(
    ("text",),
    parameter("WHAT", "Which snippet; without it they are listed.", offer=lambda: list(snippets())),
    parameter("--root DIR", f"Directory of the checkpoints, put in place of {EXAMPLE}."),
    reads_settings=False,
)
def hook_install(asked: options.Asked) -> int:
    """Print a job script or a manifest that starts training through ckpt, for Slurm, torchrun, msrun, mpirun,
    Kubernetes and MindCluster; or files to go with 'ckpt watch': a systemd unit, a sidecar, alert rules, a
    dashboard.

    Nothing is edited or installed: comments in the text say where it goes, and the values at its top are
    yours to change. docs/hooks.md says what each exit code does there. Without WHAT, the snippets are listed.

    Examples:
    ckpt hook install  # list the snippets
    ckpt hook install slurm  # a batch script for Slurm
    ckpt hook install torchrun  # lines for torchrun
    ckpt hook install kubernetes  # a manifest for Kubernetes
    ckpt hook install msrun --root /data/run  # with the directory filled in
    """
    known, what = snippets(), asked.given["what"]
    if what is None:
        width = max(map(len, known))
        console.out("".join(f"{name:<{width}}  {s.about}\n" for name, s in known.items()))
        return 0
    require_known(what, known, "snippet", f"one of: {', '.join(known)}")
    console.out(known[what].fill(asked.given["root"] or EXAMPLE))
    return 0
