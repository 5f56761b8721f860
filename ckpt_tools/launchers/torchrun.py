"""torchrun (torch elastic): its workers have a run id. RANK is not stable: a restart may give a worker
another RANK, and another WORLD_SIZE.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import (
    HINT,
    TORCH,
    Launcher,
    LaunchLine,
    Started,
    clear,
    number,
    read,
    settled,
    show,
)

_WORDS = (
    "LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"
    " TORCHELASTIC_MAX_RESTARTS"
)
# torch/distributed/run.py get_args_parser(): every option but these takes a value. Each option can come from
# the variable PET_<NAME>, and argparse accepts any unambiguous prefix of an option.
_FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
_OPTIONS = (
    "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval"
    " start-method event-log-handler role log-dir redirects tee local-ranks-filter"
    " duplicate-stdout-filters duplicate-stderr-filters node-rank master-addr master-port local-addr"
    " logs-specs numa-binding signals-to-handle shutdown-timeout"
)
_VALUES = tuple(_OPTIONS.split())
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
_PORT = "29500"


def _detect(env: Mapping[str, str]) -> Started | None:
    """Return what torchrun tells its workers by variables; None if it did not start this process."""
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    has_id = env["TORCHELASTIC_RUN_ID"] != "none"  # the default of --rdzv-id with a master address
    started = read(
        env,
        "torchrun",
        ("TORCHELASTIC_RUN_ID",) if has_id else (),
        **TORCH,
        local_world_size="LOCAL_WORLD_SIZE",
        node="GROUP_RANK",
        nodes="GROUP_WORLD_SIZE",
        restart="TORCHELASTIC_RESTART_COUNT",
        max_restarts="TORCHELASTIC_MAX_RESTARTS",
    )
    if any(number(env, name) is None for name in TORCH.values()):
        what = show(env, *TORCH.values(), "TORCHELASTIC_RUN_ID")
        why = "torchrun gives its workers RANK, WORLD_SIZE and LOCAL_RANK, and not all are numbers here"
        return settled(clear(started, f"{what}: {why}", HINT))
    rank, local, here = started.rank, started.local_rank, started.local_world_size
    if rank and local and here and rank.value % (here.value or 1) != local.value:
        started = replace(started, local_rank=None)  # --virtual-local-rank gives all workers 0
    return settled(started)


# ---- a command line that starts torchrun, parsed as torchrun parses it


def read_line(command: Sequence[str], env: Mapping[str, str]) -> LaunchLine | None:
    """Return the parts of a torchrun line, with options from PET_<NAME>; None for one without a script."""
    start = _find_start(command)
    if start is None:
        return None
    options = {name: env.get(f"PET_{name.upper().replace('-', '_')}", "") for name in (*_FLAGS, *_VALUES)}
    before, words = list(command[:start]), deque(command[start:])
    while words and words[0].startswith("-"):
        word, sign, value = (taken := words.popleft()).partition("=")
        if word == "--":
            break
        option = _find_option(word)
        if option not in ("no-python", "module"):
            before.append(taken)
        if option in _VALUES and not sign and words:
            before.append(value := words.popleft())
        if option:
            options[option] = "1" if option in _FLAGS else value
    return _make_line(options, before, words) if words else None


def _make_line(options: Mapping[str, str], before: Iterable[str], command: Iterable[str]) -> LaunchLine:
    """Return the line of ``options`` (by long name), the words ``before`` the command, and the command."""
    program = list(command)
    if not options["no-python"]:
        program = ["python", "-u", *(["-m"] if options["module"] else []), *program]
    nodes = options["nnodes"] or "1"
    least, _, most = nodes.partition(":")
    endpoint = options["rdzv-endpoint"] or options["master-addr"]
    if endpoint.startswith("["):  # an IPv6 address with a port stands in brackets
        host, _, port = endpoint[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = endpoint.partition(":")
    return LaunchLine(
        launcher="torchrun",
        nodes=_number(nodes.rpartition(":")[2]),
        elastic=bool(most) and least != most,
        node=_number(options["node-rank"]),
        per_node=_number(options["nproc-per-node"] or "1"),
        restarts=_number(options["max-restarts"]) or 0,
        job=options["rdzv-id"],
        endpoint=endpoint,
        host=host,
        port=port if port.isdecimal() else options["master-port"] or _PORT,
        before=(*before, "--no-python"),
        command=tuple(program),
    )


def _find_option(word: str) -> str | None:
    """Return the long name of the torchrun option that a word names or abbreviates; None if there is none."""
    if word in _SHORT:
        return _SHORT[word]
    name = word[2:].replace("_", "-")
    known = [n for n in (*_FLAGS, *_VALUES) if word.startswith("--") and n.startswith(name)]
    return name if name in known else known[0] if len(known) == 1 else None


def _find_start(command: Sequence[str]) -> int | None:
    """Return the index of the first word after torchrun (or python -m torch.distributed.run), else None."""
    for i, word in enumerate(command):
        name = os.path.basename(word)
        if name == "torchrun":
            return i + 1
        modules = (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"])
        if re.fullmatch(r"python[0-9.]*", name) and list(command[i + 1 : i + 3]) in modules:
            return i + 3
    return None


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


LAUNCHER = Launcher(
    name="torchrun",
    variables=(*TORCH.values(), *_WORDS.split()),
    detect=_detect,
    read_line=read_line,
    reference=(
        "torch 2.13: torch/distributed/run.py, section Environment Variables;"
        " torch/distributed/elastic/agent/server/local_elastic_agent.py, _start_workers"
    ),
)
