"""``ckpt formats``: the known file formats, and what cannot be seen in each."""

from __future__ import annotations

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.formats import FORMATS, package_of
from ckpt_tools.output import catalogue
from ckpt_tools.settings.resolve import require_known


@options.ask(
    ("table", "json"),
    parameter("FORMAT", "A format, such as torch_zip. Default: all.", offer=options.formats, name="name"),
    "no_plugins output_file format json color",
    settings=False,
)
def formats(asked: options.Asked) -> int:
    """List the known file formats: what protects each part of them, what cannot be seen, which framework
    loads them, where the facts come from, and which other package adds them, if one does.

    Examples:
    ckpt formats  # all known formats
    ckpt formats | grep torch  # one family of them
    ckpt formats --json  # the same for a program
    ckpt formats --json | python3 -m json.tool  # on several lines
    NO_COLOR=1 ckpt formats  # without colours
    """
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
    output.say_broken_plugins(("formats", "manifests"))
    if (name := asked.given["name"]) is not None:
        require_known(name, (f.name for f in FORMATS), "format", "'ckpt formats' lists all")
        entries = [entry for entry in entries if entry["name"] == name]
    fields = ("suffixes", "names", "protects", "limits", "loader", "reference", "package")
    return asked.catalogue("formats", entries, lambda view: catalogue.pages(entries, fields, view))
