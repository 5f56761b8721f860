"""All rules by their id, and the rule that each finding belongs to."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Rule

SCOPES = ("tree", "order", "save", "pair", "choice")
"""What a rule looks at: ROOT, the order of saves, one save, two saves, or the choice."""


def _collect() -> dict[str, Rule]:
    rules = {}
    for scope in SCOPES:
        package = import_module(f"{__package__}.{scope}")
        for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
            rule: Rule = import_module(f"{package.__name__}.{name}").RULE
            rules[rule.id] = rule
    return rules


RULES: dict[str, Rule] = _collect()
"""In the order of their scopes."""


BY_CODE: dict[str, str] = {code: r.id for r in RULES.values() for code in r.codes}
"""The rule of each code."""


def find_rule(finding: Finding) -> str:
    """Return the id of the rule that made a finding; "" for a code of a newer version."""
    return finding.rule or BY_CODE.get(finding.code, "")
