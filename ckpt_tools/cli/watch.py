"""``ckpt watch``: verify each checkpoint as it is saved, and report when the last good one was saved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import UsageError
from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.guard.watch.loop import Watcher
from ckpt_tools.model.answers import Event
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.output import jsonl, watching
from ckpt_tools.settings import parsers
from ckpt_tools.storage.urls import to_absolute

_PORTS = 1 << 16
_LEAST = 0.1
"""The least seconds of --rescan, --every and --timeout."""


@options.ask(
    ("text", "json"),
    options.paths("Directories in which checkpoints are saved.", "ROOT"),
    parameter("--once", "One pass, then exit."),
    parameter("--rescan TIME", "List ROOT again after this time; default: 60s."),
    parameter("--every TIME", "Verify old checkpoints again after this time; default: 7d."),
    parameter("--on-good COMMAND", "Shell command for each checkpoint that is good."),
    parameter("--on-bad COMMAND", "Shell command for each checkpoint that is damaged."),
    parameter("--timeout TIME", "Time that such a command may take at most; default: 10m."),
    parameter("--seal", "Seal checkpoints that are good.", name="seal_good"),
    parameter(
        "--metrics WHERE",
        "Metrics for Prometheus: PORT or ADDRESS:PORT (default: 127.0.0.1; port 0: any that is free),"
        " or a FILE that is replaced. Repeat the flag for both.",
        many=True,
    ),
    "plan_dir settle jobs limit_rate json quiet",
    "require seal_dir state_dir store_option trust_global key_file io",
    "metrics_address",
    options.TRUST,
    trees_in="paths",
)
def watch(asked: options.Asked) -> int:
    """Verify each checkpoint in ROOT once it is finished and no longer written, and again from time to time.
    On a terminal it prints lines for people; elsewhere, and with --json, JSON lines (docs/json.md). It runs
    until it is ended, and continues from its state when it is started again. Only --seal writes in ROOT.

    Exit codes: 143 and 130 when a signal ended it; 2 or 5 when it cannot begin. With --once: 0 all finished
    checkpoints are good, 1 damage found, 3 there is no checkpoint, 5 something could not be looked at.

    Examples:
    ckpt watch run --once  # verify what is new and settled, then exit (for cron)
    CKPT_IO=direct ckpt watch run --once --limit-rate 200MB  # beside a running job
    ckpt watch run --once --on-good 'ckpt prune "$CKPT_WATCH_ROOT" --keep 3'  # --apply removes
    ckpt watch run --once --on-bad 'logger damaged: $CKPT_PATH'  # run a command when damage is found
    timeout 10 ckpt watch run --metrics 0; test $? = 124  # until it is ended; 'ckpt hook install' has units
    """
    settings, given = asked.settings, asked.given
    output.say_broken_plugins()
    read = ReadOptions(**{"jobs": 1, **settings.reading()}, cache=True)
    said: dict[str, Any] = {}
    for name, flag in (("rescan", "rescan"), ("every", "every"), ("hook_timeout", "timeout")):
        if given[flag] is not None:
            said[name] = _read_seconds(f"--{flag}", given[flag])
    said |= _read_metrics(given["metrics"] or ())
    if given["metrics_address"]:
        said["metrics_address"] = given["metrics_address"]
    choices = WatchOptions(
        read=read,
        once=given["once"],
        on_good=given["on_good"],
        on_bad=given["on_bad"],
        seal=given["seal_good"],
        state_dir=asked.state_dir,
        plan_dir=settings.values.get("plan-dir"),
        **said,
    )
    give_way()
    to, paths = asked.to, [to_absolute(root) for root in given["paths"]]

    def say(event: Event) -> None:
        is_for_people = to.terminal and to.format == "text"
        console.out(watching.render(event, to.view) if is_for_people else jsonl.line(event))

    return Watcher(paths, choices, say).run()


def give_way() -> None:
    """Give this process and its children the lowest priority, for CPUs and so for disks (ioprio_set(2))."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # whatever its priority was


def _read_seconds(flag: str, text: str) -> float:
    """Return the seconds of a flag's value. Raise UsageError."""
    seconds = output.read_value(flag, parsers.duration, text)
    if seconds < _LEAST:
        raise UsageError(f"{flag}: {text!r} is below {_LEAST:g} s")
    return seconds


def _read_metrics(places: Sequence[str]) -> dict[str, Any]:
    """Return options of WatchOptions for the values of --metrics. Raise UsageError."""
    found: dict[str, Any] = {}
    for place in places:
        address, mark, port = place.rpartition(":")
        if "/" in place or not (mark or place.isdigit()):
            said: dict[str, Any] = {"metrics_file": place}
        else:
            said = {"metrics_port": output.read_value("--metrics", parsers.whole(0, _PORTS - 1), port)}
            said |= {"metrics_address": address.strip("[]")} if address else {}
        if said.keys() & found.keys():
            raise UsageError(f"--metrics {place}: another one is named already", "name one file and one port")
        found |= said
    return found
