"""A command line that starts torchrun, read as torchrun reads it: how many nodes, which of them, how many
restarts, and the workers' own command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ckpt_tools.launchers.launcher import LaunchLine

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


_PORT = "29500"


def read_line(command: Sequence[str], env: Mapping[str, str]) -> LaunchLine | None:
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
    kept = [w for w in command[start:i] if _option(w) not in ("no-python", "module")]
    return _line(options, [*command[:start], *kept], command[i:])


def _line(options: Mapping[str, str], before: Sequence[str], after: Sequence[str]) -> LaunchLine:
    """What the options say, by torchrun's long names: ``before`` are the words up to the workers' command
    that stay before another one, ``after`` that command.
    """
    nodes = options.get("nnodes", "1")
    least, _, most = nodes.partition(":")
    endpoint = options.get("rdzv-endpoint", "") or options.get("master-addr", "")
    host, port = _split(endpoint)
    program = list(after)
    if "no-python" not in options:
        program = ["python", "-u", *(["-m"] if "module" in options else []), *program]
    return LaunchLine(
        launcher="torchrun",
        nodes=_number(nodes.rpartition(":")[2]),
        elastic=bool(most) and least != most,
        node=_number(options.get("node-rank", "")),
        per_node=_number(options.get("nproc-per-node", "1")),
        restarts=_number(options.get("max-restarts", "0")) or 0,
        job=options.get("rdzv-id", ""),
        endpoint=endpoint,
        host=host,
        port=port if port.isdigit() else options.get("master-port", _PORT),
        before=(*before, "--no-python"),
        command=tuple(program),
    )


def _number(word: str) -> int | None:
    return int(word) if word.isdigit() else None


def _split(endpoint: str) -> tuple[str, str]:
    """The host of an endpoint, and its port or ""; an IPv6 address with a port stands in brackets."""
    if endpoint.startswith("["):
        host, _, rest = endpoint[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, number = endpoint.partition(":")
    return host, number


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
