"""A command line that starts torchrun, read as torchrun reads it: how many nodes, which of them, how many
restarts, and the workers' own command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ckpt_tools.model.frozen import frozen

# torch/distributed/run.py get_args_parser(): every option takes a value but these; each can come from
# PET_<NAME>, and argparse takes any beginning that means one.
_FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
_VALUES = (
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
)
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}


@frozen
class TorchrunLine:
    """``options`` as given, by torchrun's long names; ``before`` are the words up to the workers' command,
    ``after`` that command.
    """

    options: Mapping[str, str]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def nodes(self) -> int | None:
        """How many nodes at most; None when it is not a number."""
        most = self.options.get("nnodes", "1").rpartition(":")[2]
        return int(most) if most.isdigit() else None

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may differ from start to start."""
        least, _, most = self.options.get("nnodes", "1").partition(":")
        return bool(most) and least != most

    @property
    def node(self) -> int | None:
        """This node's index where the line tells: rendezvous by c10d gives one out on its own."""
        word = self.options.get("node-rank", "")
        return int(word) if word.isdigit() else None

    @property
    def per_node(self) -> int | None:
        """Workers on each node; None for "gpu", "auto" and the like."""
        word = self.options.get("nproc-per-node", "1")
        return int(word) if word.isdigit() else None

    @property
    def restarts(self) -> int:
        """How often torchrun may start the workers again without starting anew itself."""
        word = self.options.get("max-restarts", "0")
        return int(word) if word.isdigit() else 0

    @property
    def endpoint(self) -> str:
        """Where the nodes meet, as far as the line tells."""
        return self.options.get("rdzv-endpoint", "") or self.options.get("master-addr", "")

    def inside(self, ours: Sequence[str]) -> list[str]:
        """The line that puts ``ours`` (ckpt run --worker …) between torchrun and the workers' command, which
        then gets a new decision at every restart.
        """
        kept = [w for w in self.before if _option(w) not in ("no-python", "module")]
        command = list(self.after)
        if "no-python" not in self.options:
            command = ["python", "-u", *(["-m"] if "module" in self.options else []), *command]
        return [*kept, "--no-python", *ours, "--", *command]


def parse(command: Sequence[str], env: Mapping[str, str]) -> TorchrunLine | None:
    """The torchrun line in ``command``; None when it starts something else."""
    start = _start(command)
    if start is None:
        return None
    options = {
        name: value
        for name in (*_FLAGS, *_VALUES)
        if (value := env.get(f"PET_{name.upper().replace('-', '_')}"))
    }
    i = start
    while i < len(command) and command[i].startswith("-"):
        word, sign, value = command[i].partition("=")
        name = _option(word)
        if name is None:
            i += 1
        elif name in _FLAGS:
            options[name], i = "1", i + 1
        elif sign:
            options[name], i = value, i + 1
        else:
            options[name], i = (command[i + 1] if i + 1 < len(command) else ""), i + 2
    return TorchrunLine(options, tuple(command[:i]), tuple(command[i:]))


def _start(command: Sequence[str]) -> int | None:
    """Where torchrun's options begin."""
    for i, word in enumerate(command):
        name = os.path.basename(word)
        if name == "torchrun":
            return i + 1
        if re.fullmatch(r"python[0-9.]*", name) and list(command[i + 1 : i + 3]) in (
            ["-m", "torch.distributed.run"],
            ["-m", "torch.distributed.launch"],
        ):
            return i + 3
    return None


def _option(word: str) -> str | None:
    if word in _SHORT:
        return _SHORT[word]
    if not word.startswith("--"):
        return None
    name = word[2:].partition("=")[0].replace("_", "-")
    known = [n for n in (*_FLAGS, *_VALUES) if n.startswith(name)]
    return name if name in known else known[0] if len(known) == 1 else None
