"""``ckpt formats``: the known file formats, and what cannot be seen in each."""

from __future__ import annotations

from typing import Annotated

from ckpt_tools.cli import options, output
from ckpt_tools.cli.words import Argument
from ckpt_tools.errors import UsageError


def formats(
    name: Annotated[
        str | None,
        Argument("FORMAT", "A format, such as torch_zip. Default: all."),
    ] = None,
    *,
    no_plugins: options.NoPlugins = False,
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    color: options.Color = None,
) -> int:
    """List the known file formats: what protects each part of them, what cannot be seen, which framework
    loads them, where the facts come from, and which other package adds them, if one does.
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
    if name is not None:
        entries = [entry for entry in entries if entry["name"] == _known(name, entries)]
    if to.format == "json":
        from ckpt_tools.output import json as emit

        to.out(emit.catalogue("formats", entries))
    else:
        from ckpt_tools.output import catalogue

        fields = ("suffixes", "names", "protects", "limits", "loader", "reference", "package")
        to.out(catalogue.pages(entries, fields, to.view))
    return 0


def _known(name: str, entries: list[dict[str, object]]) -> str:
    """Raises UsageError."""
    from ckpt_tools.settings.resolve import nearest

    names = [str(entry["name"]) for entry in entries]
    if name not in names:
        meant = nearest(name, names)
        hint = f"did you mean {meant}?" if meant else "'ckpt formats' lists all"
        raise UsageError(f"there is no format {name!r}", hint)
    return name
