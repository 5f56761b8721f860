"""``ckpt formats``: which file formats are known, and what cannot be seen in each."""

from __future__ import annotations

from ckpt_tools.cli import options, output


def formats(
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    color: options.Color = None,
) -> int:
    """List the known file formats: what protects what in them, what cannot be seen, which framework loads
    them, and where the facts come from.
    """
    to = output.requested(("table", "json"), dict(locals()))
    from ckpt_tools.formats import FORMATS

    entries: list[dict[str, object]] = [
        {
            "name": f.name,
            "suffixes": list(f.suffixes),
            "names": f.names or None,
            "levels": ["structure", "content", *(["values", "load"] if f.loader else [])],
            "index": f.index,
            "loader": f.loader or None,
            "protects": f.protects,
            "limits": list(f.limits),
            "reference": f.reference,
        }
        for f in FORMATS
    ]
    if to.format == "json":
        from ckpt_tools.output import json as emit

        to.out(emit.catalogue("formats", entries))
    else:
        from ckpt_tools.output import catalogue

        fields = ("suffixes", "names", "protects", "limits", "loader", "reference")
        to.out(catalogue.pages(entries, fields, to.view))
    return 0
