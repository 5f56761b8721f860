"""``save/missing-part``."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.completeness import label, saved_with, severity_of_gaps, usual_pieces, where
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule
from ckpt_tools.planning.rules.save.missing_rank import find_first_ranks


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield roles without any file that every save of the layout has."""
    for c in facts.saves:
        layout = facts.layouts.of(c)
        if c.unfinished:
            continue
        follows = find_first_ranks(c, layout) is not None
        severity = Severity.ERROR if follows else severity_of_gaps(c, facts.expected)
        for text in [] if layout.committed else _list_needed(c, facts):
            yield Hit(where(c), f"{label(c)} has {text}", severity=severity, follows=follows)
        for what in () if follows else saved_with(c, layout, survivable=True).values():
            text = f"{label(c)} has {what}: training goes on with other random numbers"
            yield Hit(where(c), text, severity=Severity.WARNING, effect=Effect.WARN)


def _list_needed(c: Checkpoint, facts: SavesFacts) -> list[str]:
    """Return what its layout needs; if it has that, and what its siblings have, what is saved with it."""
    layout = facts.layouts.of(c)
    roles = {layout.piece(p.piece).role for p in c.parts}
    texts = [f"no {role} file" for role in layout.needs if role not in roles]
    usual = (p for p in usual_pieces(c, facts.expected) if not p.survivable and p.role not in roles)
    if texts or any(p.role not in layout.needs for p in usual):
        return texts
    return list(saved_with(c, layout, survivable=False).values())


RULE = Rule(
    id="save/missing-part",
    code="missing-part",
    effect=Effect.REJECT,
    answer="restore the file that is named from a copy of this save",
    check=check,
    why="""\
A file that every save of this layout has, or that an index of the save names, is absent. Many
loaders go on without it: an optimizer or a scheduler that begins anew is noticed days later, if at
all.
For: torch/distributed/checkpoint/filesystem.py (.metadata), allenai/OLMo#855, cgarciae/ciclo#12.
""",
)
