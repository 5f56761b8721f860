"""``save/replica-mismatch``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield files that the layout says hold the same, with other tensors than most, or of another size."""
    for c in facts.saves:
        groups: dict[object, list[Part]] = defaultdict(list)
        for p in c.parts:
            piece = facts.layouts.piece_of(p)
            if p.rank is not None and "dp" in piece.replicated_over and not piece.sharded and p.size > 0:
                groups[p.piece, p.coords].append(p)
        for same in groups.values():
            if len(same) > 2:  # of two nobody knows which is odd
                yield from _find_unlike(same, facts)


def _find_unlike(same: Sequence[Part], facts: SavesFacts) -> Iterator[Hit]:
    signatures = [r.signature if (r := facts.reports.get(p.path)) else "" for p in same]
    for p, typical in _minority(same, signatures):
        yield Hit(p.path, f"its tensors differ, unlike {_beside(typical)}", of_file=True)
    for p, typical in _minority(same, [p.size for p in same]):
        if abs(p.size - typical.size) * 100 > typical.size:
            text = f"{p.size:,} bytes, unlike {_beside(typical)}"
            yield Hit(p.path, text, code="size-outlier", of_file=True)


def _beside(typical: Part) -> str:
    return f"rank {typical.rank}'s file ({typical.size:,} bytes) and other replicas"


def _minority(same: Sequence[Part], values: Sequence[str | int]) -> Iterator[tuple[Part, Part]]:
    """(part, one of the others) for parts of another value than more than half of them; "" is none."""
    usual, n = Counter(values).most_common(1)[0]
    if 2 * n <= len(same) or not usual:
        return
    typical = same[values.index(usual)]
    for p, value in zip(same, values, strict=True):
        if value and value != usual:
            yield p, typical


RULE = Rule(
    id="save/replica-mismatch",
    code="replica-mismatch",
    more=("replica-unproven", "size-outlier"),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="correct --replica-groups; --strict refuses what is not proven",
    check=check,
    why="""\
A file that should stand in for another's holds different tensors, or nothing proves that it holds
the same. A wrong substitute is worse than an older step.
For: the mission of this tool: replicas of MindSpore, MindIO TTP and pure data parallel jobs.
""",
)
