"""``ckpt launchers``: which launcher started this process, and which are known."""

from __future__ import annotations

import os

from ckpt_tools.cli import console, options


def launchers(format: options.Format = None, json: options.Json = False, color: options.Color = None) -> int:
    """List the known launchers and say what each makes of the environment; the first that answers is believed."""
    to = options.output(("table", "json"), dict(locals()))
    from ckpt_tools.launchers import LAUNCHERS

    entries: list[dict[str, object]] = []
    for launcher in LAUNCHERS:
        started = launcher.detect(os.environ)
        entries.append(
            {
                "name": launcher.name,
                "variables": list(launcher.variables),
                "rank": started.rank if started else None,
                "world_size": started.world_size if started else None,
                "reference": launcher.reference,
            }
        )
    if to.format == "json":
        from ckpt_tools.emit import json as emit

        console.out(emit.catalogue("launchers", entries))
    else:
        from ckpt_tools.emit import table

        console.out(table.catalogue(entries, ("name", "rank", "world_size", "variables"), **to.paint))
    return 0
