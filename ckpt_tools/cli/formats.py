"""``ckpt formats``: which file formats are known, and what cannot be seen in each."""

from __future__ import annotations

from ckpt_tools.cli import options, output


def formats(
    no_plugins: options.NoPlugins = False,
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    color: options.Color = None,
) -> int:
    """List the known file formats: what protects what in them, what cannot be seen, which framework loads
    them, where the facts come from, and which package adds them if it is not this one.
    """
    to = output.requested(("table", "json"), dict(locals()))
    output.leave_out_plugins(no_plugins)
    from ckpt_tools.formats import FORMATS, package_of

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
            "package": package_of(f.name),
        }
        for f in FORMATS
    ]
    output.broken_plugins(("formats", "manifests"))
    if to.format == "json":
        from ckpt_tools.output import json as emit

        to.out(emit.catalogue("formats", entries))
    else:
        from ckpt_tools.output import catalogue

        fields = ("suffixes", "names", "protects", "limits", "loader", "reference", "package")
        to.out(catalogue.pages(entries, fields, to.view))
    return 0
