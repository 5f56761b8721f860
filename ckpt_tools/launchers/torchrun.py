"""torchrun (torch elastic): its workers have a run id. RANK is not stable: a restart may give a worker
another RANK, and another WORLD_SIZE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from ckpt_tools.errors import UsageError
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

if TYPE_CHECKING:
    from argparse import ArgumentParser

_WORDS = (
    "LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"
    " TORCHELASTIC_MAX_RESTARTS"
)
# torch/distributed/run.py get_args_parser(): every option but these takes a value
_FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
_OPTIONS = (
    "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval"
    " start-method event-log-handler role log-dir redirects tee local-ranks-filter"
    " duplicate-stdout-filters duplicate-stderr-filters node-rank master-addr master-port local-addr"
    " logs-specs numa-binding signals-to-handle shutdown-timeout"
)
_SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}
_UNQUOTED = re.compile(r"-m|--mod.*|--no[-_].*|--")
"""Matches the words of a line that say what kind of program the script is."""
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
    """Return the parts of a torchrun line, with options from PET_<NAME>; None for another program."""
    start = _find_start(command)
    if start is None:
        return None
    found = vars(_make_parser(env).parse_known_args(command[start:])[0])
    program = [found["script"], *found["words"]]
    before = [word for word in command[start : len(command) - len(program)] if not _UNQUOTED.fullmatch(word)]
    if not found["no_python"]:
        program = ["python", "-u", *(["-m"] if found["module"] else []), *program]
    nodes = found["nnodes"] or "1"
    least, _, most = nodes.partition(":")
    endpoint = found["rdzv_endpoint"] or found["master_addr"]
    if endpoint.startswith("["):  # an IPv6 address with a port stands in brackets
        host, _, port = endpoint[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = endpoint.partition(":")
    return LaunchLine(
        launcher="torchrun",
        nodes=_number(nodes.rpartition(":")[2]),
        elastic=bool(most) and least != most,
        node=_number(found["node_rank"]),
        per_node=_number(found["nproc_per_node"] or "1"),
        restarts=_number(found["max_restarts"]) or 0,
        job=found["rdzv_id"],
        endpoint=endpoint,
        host=host,
        port=port if port.isdecimal() else found["master_port"] or _PORT,
        before=(*command[:start], *before, "--no-python"),
        command=tuple(program),
    )


def _make_parser(env: Mapping[str, str]) -> ArgumentParser:
    """Return a parser that reads a line as torchrun's own does: with prefixes of options, and PET_<NAME>."""
    from argparse import REMAINDER, ArgumentParser

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"torchrun cannot be started so: {message}", "see torchrun --help")

    parser = Parser(add_help=False)
    for name in (*_FLAGS, *_OPTIONS.split()):
        words = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}", _SHORT.get(name, f"--{name}")))
        value = env.get(f"PET_{name.upper().replace('-', '_')}", "")
        parser.add_argument(*words, action="store_true" if name in _FLAGS else "store", default=value)
    parser.add_argument("script")
    parser.add_argument("words", nargs=REMAINDER)
    return parser


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
