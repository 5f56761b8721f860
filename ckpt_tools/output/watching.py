"""What ``ckpt watch`` says, event by event -> lines for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ckpt_tools.model.answers import Event
from ckpt_tools.output.page import PLAIN, Page, View
from ckpt_tools.output.words import plural, size

_STYLES = {"good": "green", "bad": "bold red", "suspect": "yellow", "problem": "yellow"}
_WAITS = {
    "unfinished": "not finished by its job",
    "young": "written less than --settle ago",
    "queued": "waiting for its turn",
}
"""Why a checkpoint was not checked yet."""


def render(event: Event, view: View = PLAIN) -> str:
    """Return the time of day with the event in words, and each finding below it."""
    page = Page(view)
    when = time.strftime("%H:%M:%S", time.localtime(event.time))
    style = _STYLES.get(str(event.fields.get("state", event.type)), "")
    page.text(f"{when}  {_SAY[event.type](event.fields, event.root)}", style)
    page.findings(event.findings, event.root or "")
    return page.done()


def _say_checkpoint(f: Mapping[str, Any], _: str | None) -> str:
    seal = f", {f['seal']}" if "seal" in f else ""
    return f"{f['state']}: {_label(f)}, {plural(f['files'], 'file')}, {size(f['bytes'])}{seal}"


def _say_pass(f: Mapping[str, Any], root: str | None) -> str:
    counts = [f"{n:,} {state}" for state, n in f["checkpoints"].items() if n and state != "waiting"]
    counts += [f"{n:,} not checked yet: {_WAITS[why]}" for why, n in f["not_checked"].items()]
    plan = f["plan"]
    start = f"a job would resume from {_label(plan)}"
    if plan["path"] is None:
        start = f"a job could not resume: {plan['why']}" if plan["why"] else "nothing to resume from"
    return f"{root}: {', '.join(counts) or 'no checkpoint'}; {start}"


def _say_hook(f: Mapping[str, Any], _: str | None) -> str:
    ended = f"ended with {f['exit_code']}" if f["in_time"] else "took too long and was ended"
    return f"the command of --on-{f['on']} for {f['path']} {ended}: {f['output'].strip()}".rstrip(": ")


def _label(f: Mapping[str, Any]) -> str:
    return str(f["path"]) + (f" (step {f['step']:,})" if f["step"] is not None else "")


_SAY: Mapping[str, Callable[[Mapping[str, Any], str | None], str]] = {
    "started": lambda f, _: f"watching {', '.join(f['roots'])} (Ctrl-C ends it; --json prints JSON lines)",
    "checkpoint": _say_checkpoint,
    "gone": lambda f, _: f"gone: {_label(f)}, which was {f['state']}",
    "pass": _say_pass,
    "restart": lambda f, _: f"a job started from {_label(f)}" + f", again (x{f['again']})" * bool(f["again"]),
    "hook": _say_hook,
    "problem": lambda f, _: f"warning: {f['message']}",
    "stopped": lambda f, _: f"stopped ({f['why']})",
}
