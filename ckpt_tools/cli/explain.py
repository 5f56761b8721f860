"""``ckpt explain``: what a finding means."""

from __future__ import annotations

from typing import Annotated

from ckpt_tools.cli import options, output
from ckpt_tools.cli.words import Argument
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import CODES
from ckpt_tools.settings.resolve import nearest


def explain(
    code: Annotated[
        str,
        Argument("CODE", "A code of a finding, such as truncated."),
    ],
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    color: options.Color = None,
) -> int:
    """Say what a finding means, how it affects the verdict, and what to do about it."""
    to = output.requested(("table", "json"), dict(locals()))
    if code not in CODES:
        meant = nearest(code, CODES)
        raise UsageError(
            f"there is no finding {code!r}",
            f"did you mean {meant!r}?" if meant else "docs/codes.md lists all of them",
        )
    if to.format == "json":
        from ckpt_tools.output import json as emit

        c = CODES[code]
        to.out(
            emit.catalogue(
                "explain",
                [
                    {
                        "code": c.id,
                        "severity": str(c.severity),
                        "title": c.title,
                        "hint": c.hint,
                        "since": c.since,
                    }
                ],
            )
        )
    else:
        from ckpt_tools.output import catalogue

        to.out(catalogue.code(code, to.view))
    return 0
