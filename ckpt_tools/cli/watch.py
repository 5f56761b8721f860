"""``ckpt watch``: verify each checkpoint as it is saved, and report when the last good one was saved."""

from __future__ import annotations

from typing import Annotated, Any

from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.given import read_settings
from ckpt_tools.cli.options import argument, option
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import parsers
from ckpt_tools.storage.urls import absolute

FORMATS = ("jsonl",)
READING = ("jobs", "require", "settle", "key_file", "io", "limit_rate", "seal_dir", "trust_global")
_PORTS = 1 << 16


EXAMPLES = """
ckpt watch run --once  # verify what is new and settled, then exit (for cron)
ckpt watch run --once --limit-rate 200MB --io direct  # beside a running job
ckpt watch run --once --prune '--keep-last 3'  # say what would go; remove it with --apply
ckpt watch run --once --on-bad 'logger damaged: $CKPT_PATH'  # run a command when damage is found
timeout 10 ckpt watch run --metrics-port 0; test $? = 124  # until it is ended; 'ckpt hook install' has units
"""


@options.taking(
    "apply state_dir plan_dir seal_dir store_option require trust_global settle key_file jobs io",
    "limit_rate quiet",
    options.TRUST,
)
def watch(
    roots: Annotated[
        list[str],
        argument("ROOT", "Directories in which checkpoints are saved."),
    ],
    once: Annotated[bool, option("--once", help="One pass, then exit.")] = False,
    rescan: Annotated[
        str | None,
        option("--rescan", metavar="TIME", help="List ROOT again after this time; default: 60s."),
    ] = None,
    every: Annotated[
        str | None,
        option("--every", metavar="TIME", help="Verify old checkpoints again after this time; default: 7d."),
    ] = None,
    on_good: Annotated[
        str | None,
        option("--on-good", metavar="COMMAND", help="Shell command for each checkpoint that is good."),
    ] = None,
    on_bad: Annotated[
        str | None,
        option("--on-bad", metavar="COMMAND", help="Shell command for each checkpoint that is damaged."),
    ] = None,
    hook_timeout: Annotated[
        str | None,
        option(
            "--hook-timeout", metavar="TIME", help="Time that such a command may take at most; default: 10m."
        ),
    ] = None,
    seal_good: Annotated[bool, option("--seal", help="Seal checkpoints that are good.")] = False,
    prune: Annotated[
        str | None,
        option(
            "--prune",
            metavar="POLICY",
            help="Prune after each new good checkpoint: flags of 'ckpt prune', as one argument.",
        ),
    ] = None,
    metrics_file: Annotated[
        str | None,
        option("--metrics-file", metavar="FILE", help="Replace FILE with metrics for Prometheus."),
    ] = None,
    metrics_port: Annotated[
        str | None,
        option("--metrics-port", metavar="N", help="Serve metrics over HTTP; 0: any free port."),
    ] = None,
    metrics_address: Annotated[
        str | None,
        option("--metrics-address", metavar="ADDRESS", help="Where to serve them; default: 127.0.0.1."),
    ] = None,
    **given: Any,
) -> int:
    """Verify each checkpoint in ROOT once it is finished and no longer written, and again from time to time.
    Results are printed as JSON lines (docs/json.md). The command runs until it is ended, and continues from
    its state when it is started again. In ROOT nothing is written, except seals with --seal, and nothing is
    removed, except with --prune and --apply.

    Exit codes: 143 and 130 when a signal ended it; 2 or 5 when it cannot begin. With --once: 0 all finished
    checkpoints are good, 1 damage found, 3 there is no checkpoint, 5 something could not be looked at.
    """
    to = output.requested(FORMATS, given)
    found = read_settings(given, to, tuple(roots))
    output.broken_plugins()
    from ckpt_tools.guard.watch.loop import watch as run
    from ckpt_tools.guard.watch.niceness import give_way
    from ckpt_tools.guard.watch.options import WatchOptions
    from ckpt_tools.model.selection import ReadOptions
    from ckpt_tools.output import watching

    reading = {"jobs": 1, **found.named(READING)}
    read = ReadOptions(**reading, cache=True, trust=found.trust, layouts=found.layouts)
    asked = {
        "rescan": _seconds("--rescan", rescan, least=0.1),
        "every": _seconds("--every", every, least=0.1),
        "hook_timeout": _seconds("--hook-timeout", hook_timeout, least=0.1),
        "metrics_port": _port(metrics_port),
        "metrics_address": metrics_address,
        **_pruning(prune, given["apply"]),
    }
    choices = WatchOptions(
        read=read,
        once=once,
        on_good=on_good,
        on_bad=on_bad,
        seal=seal_good,
        state_dir=found.values.get("state-dir"),
        plan_dir=found.values.get("plan-dir"),
        metrics_file=metrics_file,
        **{name: value for name, value in asked.items() if value is not None},  # type: ignore[arg-type]
    )
    give_way()
    paths = [absolute(root) for root in roots]
    return run(paths, choices, lambda event: console.out(watching.line(event)))


def _pruning(text: str | None, apply: bool) -> dict[str, object]:
    """What of it is to be done, as WatchOptions has it."""
    if text is None:
        if apply:
            raise UsageError("--apply needs --prune", "say what to keep: --prune '--keep-last 3'")
        return {}
    from ckpt_tools.cli.prune import said

    policy, damaged = said("--prune", text)
    return {"prune": policy, "prune_damaged": damaged, "apply": apply}


def _seconds(flag: str, text: str | None, least: float) -> float | None:
    if text is None:
        return None
    try:
        seconds = parsers.duration(text)
    except ValueError as e:
        raise UsageError(f"{flag}: {e}") from e
    if seconds < least:
        raise UsageError(f"{flag}: {text!r} is below {least:g} s")
    return seconds


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(str(parsers.whole(0, _PORTS - 1)(text, "")))
    except ValueError as e:
        raise UsageError(f"--metrics-port: {e}") from e
