"""``ckpt ls``: what is there."""

from __future__ import annotations

import time

from ckpt_tools.cli import console, options
from ckpt_tools.model import Scan

FORMATS = ("table", "json")


def ls(
    root: options.Root = None,
    kind: options.Kind = None,
    layout: options.Layout = None,
    run: options.Run = None,
    prefix: options.Prefix = None,
    max_step: options.MaxStep = None,
    world_size: options.WorldSize = None,
    fault_ranks: options.FaultRanks = None,
    save_interval: options.SaveInterval = None,
    order: options.Order = None,
    settle: options.Settle = None,
    jobs: options.Jobs = None,
    format: options.Format = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.Color = None,
    config: options.Config = None,
) -> int:
    """List the checkpoints below ROOT, newest first, from directory listings (and headers where names do not tell the step)."""
    given = dict(locals())
    to = options.output(FORMATS, given)
    found = options.settings(given, to)
    from ckpt_tools import pipeline

    result = pipeline.scan(found.root, found.selection())
    if to.format == "json":
        from ckpt_tools.emit import json as emit

        console.out(emit.render(result))
    else:
        from ckpt_tools.emit import table

        console.out(table.render(result, **to.paint, verbose=to.verbose, now=time.time()))
    return exit_code(result)


def exit_code(result: Scan) -> int:
    """5 when a directory could not be listed, 3 when there is no checkpoint, else 0."""
    if any(f.code == "unreadable" for f in result.findings):
        return 5
    return 0 if result.checkpoints else 3
