"""``save/sibling-has-role``."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.completeness import label, saved_with, severity_of_gaps, usual_pieces, where
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
from ckpt_tools.planning.rules.save.missing_rank import find_first_ranks


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield roles without any file that at least half of the run's saves have."""
    for c in facts.saves:
        layout = facts.layouts.of(c)
        if c.unfinished:
            continue
        follows = find_first_ranks(c, layout) is not None
        severity = Severity.ERROR if follows else severity_of_gaps(c, facts.expected)
        roles = {layout.piece(p.piece).role for p in c.parts}
        usual = [p for p in usual_pieces(c, facts.expected) if p.role not in roles]
        for piece in usual if not layout.committed else ():
            if not piece.survivable and piece.role not in layout.needs:
                text = f"{label(c)} has no {piece.name} file, which the run's other checkpoints have"
                yield Hit(where(c), text, severity=severity, follows=follows)
        spared = {p.role for p in usual if p.survivable} - saved_with(c, layout, survivable=True).keys()
        for role in () if follows else sorted(spared):
            text = f"{label(c)} has no {role} file, which the run's other checkpoints have: training goes on"
            text += " with other random numbers"
            yield Hit(where(c), text, severity=Severity.WARNING, effect=Effect.WARN)


def describe_no_text(name: str, home: str) -> Finding:
    """Return that a save lacks a text that the directory of each other save has."""
    text = f"it has no {name}, which the directory of each other save has"
    return finding_of(RULE, Hit(home, text, severity=Severity.WARNING))


RULE = Rule(
    id="save/sibling-has-role",
    code="missing-part",
    effect=Effect.REJECT,
    answer="restore the file that is named, or --exclude this save",
    check=check,
    why="""\
The run's other saves have a file for this role, and this one has not. A save without what its
siblings have was cut short or thinned out.
For: haotian-liu/LLaVA#1496: checkpoint-N with a projector only.
""",
)
