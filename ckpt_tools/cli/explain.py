"""``ckpt explain``: what a finding means, and the rule that it is of."""

from __future__ import annotations

from ckpt_tools.cli import options
from ckpt_tools.cli.options import parameter
from ckpt_tools.findings import CODES
from ckpt_tools.output import catalogue
from ckpt_tools.output.json import fields
from ckpt_tools.planning.rules.catalogue import RULES, find_rules
from ckpt_tools.settings.resolve import require_known


@options.ask(
    ("table", "json"),
    parameter(
        "CODE",
        "A code of a finding, such as truncated, or a rule, such as save/missing-rank.",
        offer=options.words(*sorted(CODES), *sorted(RULES)),
        required=True,
    ),
    "output_file format json color",
    settings=False,
)
def explain(asked: options.Asked) -> int:
    """Say what a finding or a rule means, how it affects the verdict, and what to do about it.

    Examples:
    ckpt explain crc-mismatch  # what it means, and what to do
    ckpt explain truncated  # a file that ends early
    ckpt explain unsafe-pickle  # a pickle that would run code
    ckpt explain rank-mismatch --json  # the same for a program
    ckpt explain save/missing-rank  # the page of a rule, which 'ckpt plan -v' names
    """
    code = asked.given["code"]
    require_known(
        code, (*CODES, *RULES), "finding or rule", "docs/codes.md and docs/rules.md list all of them"
    )
    rule = RULES.get(code)
    about = ("code=id", "severity", "title", "hint", "since")
    entries = [
        {**fields(CODES[one], *about), "rules": [r.id for r in find_rules(one)]}
        for one in (rule.codes if rule else (code,))
    ]
    if rule is None:
        return asked.catalogue("explain", entries, lambda view: catalogue.code(code, view))
    more = fields(rule, "id", "effect", "answer", "why")
    return asked.catalogue("explain", entries, lambda view: catalogue.rule(rule, view), rule=more)
