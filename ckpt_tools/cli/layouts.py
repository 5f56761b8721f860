"""``ckpt layouts``: which arrangements of directories are known."""

from __future__ import annotations

from ckpt_tools.cli import console, options


def layouts(format: options.Format = None, json: options.Json = False, color: options.Color = None) -> int:
    """List the known layouts: which files make a checkpoint, which file names the latest, and what cannot be seen."""
    to = options.output(("table", "json"), dict(locals()))
    from ckpt_tools.layouts import LAYOUTS

    entries: list[dict[str, object]] = [
        {
            "name": layout.name,
            "title": layout.title,
            "pieces": [{"name": p.name, "role": p.role, "template": p.template} for p in layout.pieces],
            "tracker": layout.tracker,
            "reshardable": layout.reshardable,
            "limits": list(layout.limits),
            "reference": layout.reference,
        }
        for layout in LAYOUTS
    ]
    if to.format == "json":
        from ckpt_tools.emit import json as emit

        console.out(emit.catalogue("layouts", entries))
    else:
        from ckpt_tools.emit import table

        lines = [{**entry, "files": [f"{p.template} ({p.role})" for p in layout.pieces]} for entry, layout in zip(entries, LAYOUTS, strict=True)]
        console.out(table.catalogue(lines, ("name", "title", "files", "tracker", "limits"), **to.paint))
    return 0
