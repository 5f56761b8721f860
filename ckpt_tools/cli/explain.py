"""``ckpt explain``: what a finding means, and the rule that it is of."""

from __future__ import annotations

from typing import Annotated

from ckpt_tools.cli import options, output
from ckpt_tools.cli.words import Argument
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import CODES
from ckpt_tools.planning.rules.catalogue import RULES, codes_of, rules_of
from ckpt_tools.settings.resolve import nearest


def explain(
    code: Annotated[
        str,
        Argument("CODE", "A code of a finding, such as truncated, or a rule, such as save/missing-rank."),
    ],
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    color: options.Color = None,
) -> int:
    """Say what a finding or a rule means, how it affects the verdict, and what to do about it."""
    to = output.requested(("table", "json"), dict(locals()))
    if code not in CODES and code not in RULES:
        meant = nearest(code, (*CODES, *RULES))
        raise UsageError(
            f"there is no finding or rule {code!r}",
            f"did you mean {meant!r}?" if meant else "docs/codes.md and docs/rules.md list all of them",
        )
    if to.format == "json":
        to.out(_document(code))
    else:
        from ckpt_tools.output import catalogue

        to.out(catalogue.rule(RULES[code], to.view) if code in RULES else catalogue.code(code, to.view))
    return 0


def _document(name: str) -> str:
    from ckpt_tools.output import json as emit

    rule = RULES.get(name)
    codes = [CODES[code] for code in (codes_of(rule) if rule else (name,))]
    entries = [
        {
            "code": c.id,
            "severity": str(c.severity),
            "title": c.title,
            "hint": c.hint,
            "since": c.since,
            "rules": [r.id for r in rules_of(c.id)],
        }
        for c in codes
    ]
    if rule is None:
        return emit.catalogue("explain", entries)
    page = {"id": rule.id, "effect": str(rule.effect), "answer": rule.answer, "why": rule.why}
    return emit.catalogue("explain", entries, rule=page)
