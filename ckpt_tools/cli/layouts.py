"""``ckpt layouts``: which arrangements of directories are known, and what the templates of one match."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt_tools.cli import console, options, output
from ckpt_tools.errors import UsageError

Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Say what each template matches below ROOT, and what misses it narrowly.",
        show_default=False,
    ),
]

_ORDERS = ("config", "trust_group", "trust_owner", "trust_dir")


def layouts(
    root: options.Root = None,
    check: Check = False,
    layout: options.Layout = None,
    trust_group: options.TrustGroup = False,
    trust_owner: options.TrustOwner = None,
    trust_dir: options.TrustDir = None,
    format: options.Format = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.Color = None,
    config: options.Config = None,
) -> int:
    """List the known layouts: which files make a checkpoint, which file names the latest, and what cannot be
    seen.

    With --check: try the templates of your own layouts (or of the one that --layout names) on ROOT. Exit 1
    when a template matches nothing.
    """
    given = dict(locals())
    to = output.asked(("table", "json"), given)
    asked = (
        ("root", "layout", *_ORDERS) if check else _ORDERS
    )  # a list scans no tree, so the file of this directory may teach
    settings = options.settings({k: given[k] for k in asked}, to)
    from ckpt_tools.layouts import BY_NAME, LAYOUTS, active

    if check:
        return _check(settings.root, settings.values.get("layout"), to)
    if root is not None:
        raise UsageError("a ROOT is only looked at with --check", "say --check, or leave ROOT out")
    shown = active() if settings.layouts else LAYOUTS
    entries: list[dict[str, object]] = [
        {
            "name": one.name,
            "title": one.title,
            "pieces": [{"name": p.name, "role": p.role, "template": p.template} for p in one.pieces],
            "tracker": one.tracker,
            "reshardable": one.reshardable,
            "limits": list(one.limits),
            "reference": one.reference,
        }
        for one in shown
    ]
    if to.format == "json":
        from ckpt_tools.output import json as emit

        console.out(emit.catalogue("layouts", entries))
    else:
        from ckpt_tools.output import catalogue

        lines = [
            {
                **entry,
                "files": [
                    *dict.fromkeys(f"{p.template} ({p.role})" for p in BY_NAME[str(entry["name"])].pieces)
                ],
            }
            for entry in entries
        ]
        console.out(catalogue.table(lines, ("name", "title", "files", "tracker", "limits"), to.view))
    return 0


def _check(root: str, name: str | None, to: output.Output) -> int:
    from ckpt_tools.discovery.layout_check import check_layouts
    from ckpt_tools.layouts import BY_NAME, LAYOUTS, active

    own = [one for one in active() if one not in LAYOUTS]
    if name is not None and name not in BY_NAME:
        raise UsageError(f"there is no layout {name!r}", "'ckpt layouts' lists them")
    chosen = [BY_NAME[name]] if name is not None else own
    if not chosen:
        raise UsageError(
            "there is no layout of your own to check",
            "add [[layout]] to ckpt.toml, or name one with --layout",
        )
    rows = check_layouts(root, chosen, active())
    entries: list[dict[str, object]] = [
        {
            "layout": row.layout,
            "template": row.template,
            "matched": row.matched,
            "example": row.example or None,
            "near_misses": [
                {"path": m.path, "fits": m.fits, "expected": m.expected, "found": m.found} for m in row.misses
            ],
        }
        for row in rows
    ]
    if to.format == "json":
        from ckpt_tools.output import json as emit

        console.out(emit.catalogue("layouts-check", entries))
    else:
        from ckpt_tools.output import catalogue

        lines = [
            {
                "layout": row.layout,
                "template": row.template,
                "matched": f"{row.matched}{f', such as {row.example}' if row.example else ''}",
                "near misses": [
                    f"{m.path}: fits up to {m.fits!r}, then {m.expected!r} is expected and {m.found!r} is"
                    " there"
                    for m in row.misses
                ],
            }
            for row in rows
        ]
        console.out(catalogue.table(lines, ("layout", "template", "matched", "near misses"), to.view))
    return 0 if all(row.matched for row in rows) else 1
