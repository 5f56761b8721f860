"""``ckpt report``: an HTML page with everything that is known about a tree."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ckpt_tools import api
from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.verify import PART, exit_code
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json
from ckpt_tools.output.report import data, page
from ckpt_tools.output.report.advice import Gathered, Start, advise
from ckpt_tools.output.report.data import find_damaged
from ckpt_tools.settings.resolve import Settings
from ckpt_tools.storage.urls import to_absolute

RUNS = 64
"""The most runs below one root that have a plan; the report gives the number of the others."""


@options.ask(
    ("html", "json"),
    options.paths("Directories of checkpoints.", "ROOT"),
    "output_file level order run max_step save_interval world_size require require_seal seal_dir",
    "verify_key trust_global settle max_age no_cache key_file store_option strict jobs io limit_rate",
    "sample max_duration format json progress_as quiet color",
    options.TRUST,
    trees_in="paths",
)
def report(asked: options.Asked) -> int:
    """Verify every ROOT, plan its runs, and write one HTML page about it that needs no network: what to do
    next, saves over time, ranks by checkpoints, the bytes of damaged files.

    Exit codes are those of 'ckpt verify': 0 nothing broken at this level; 1 damage found; 3 nothing
    recognised; 5 something could not be looked at, or the page could not be written.

    Examples:
    ckpt report run -o report.html  # a page that needs no network
    ckpt report run -o values.html --level values  # with statistics of the numbers in all tensors
    ckpt report run/iter_0000020 -o newest.html --level structure  # without reading the contents
    ckpt report run kept -o both.html  # of several trees
    ckpt report run --json  # the same for a program (docs/json.md)
    """
    to, settings = asked.to, asked.settings
    if to.format == "html":  # errors about the page come before any file is read
        if to.terminal:
            raise UsageError("an HTML page cannot be shown on a terminal", "add -o report.html")
        page.require()
    gathered = _gather(asked.given["paths"], settings, to)
    code = exit_code(gathered.verification, settings.values.get("strict", False))
    document = data.document(replace(gathered, exit_code=code))
    to.out(page.render(document) if to.format == "html" else json.dump(document))
    if to.file and not to.quiet:
        console.problem("note", f"{to.file}: {advise(gathered).sentence}")
    return code


def _gather(paths: Sequence[str], settings: Settings, to: output.Output) -> Gathered:
    """Verify, then list, then plan: in this order no file is read twice, as plans use fresh verdicts."""
    started, roots = time.time(), tuple(dict.fromkeys(to_absolute(p) for p in paths))
    keep = not settings.values.get("no-cache", False)
    with output.reading(to) as how:
        result = api.verify(paths, **settings.reading(*PART), cache=keep, **how)
        unfiltered = replace(settings.selection(), run=None, max_step=None)  # all that a plan may choose from
        scans = tuple(api.scan(root, unfiltered, trackers=True) for root in roots)
        # Plans may use verdicts of this command, and older ones as --max-age allowed when it began.
        age = settings.values.get("max-age", 0.0) + time.time() - started + 1
        selection = replace(settings.selection(), cache=keep, max_age=age)
        starts = tuple(start for scan in scans for start in _find_starts(scan, selection))
    maps = {}  # byte regions of damaged files, by path
    known = {**settings.select(("key_file",)), "trust": settings.trust, "layouts": settings.layouts}
    for path in (result.files[at].report.path for at in find_damaged(result.files)):
        with suppress(CkptError):  # gone or unreadable by now: the report has its findings already
            maps[path] = api.show(path, Level.STRUCTURE, explain=True, **known)[0].regions
    omitted = max(0, sum(len(_list_runs(scan)) for scan in scans) - len(starts)) if len(starts) >= RUNS else 0
    return Gathered(roots, started, result, scans, starts, maps, runs_omitted=omitted)


def _find_starts(scan: Scan, selection: Selection) -> Iterator[Start]:
    """Yield the plan of a root; if the root has several runs to choose from, a plan for each run."""
    runs = _list_runs(scan)
    if not runs and not scan.bare:
        return
    first = _plan(scan.root, selection)
    if not isinstance(first.error, UsageError) or len(runs) < 2 or selection.run is not None:
        yield first
        return
    for run in runs[:RUNS]:
        yield _plan(scan.root, replace(selection, run=run))


def _list_runs(scan: Scan) -> list[str]:
    return list(dict.fromkeys(c.run for c in scan.checkpoints))


def _plan(root: str, selection: Selection) -> Start:
    """Return the plan of a root, or the error that there is none."""
    try:
        return Start(root, selection.run, api.plan(root, selection))
    except CkptError as error:
        return Start(root, selection.run, error.plan, error)
