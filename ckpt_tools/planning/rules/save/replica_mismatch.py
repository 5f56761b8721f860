"""``save/replica-mismatch``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.saved_by import PLACES
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.planning.facts import SavesFacts, StandIn
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_NAMED = 5
"""How many tensors a message names."""


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield replicas, by layout, with other tensors than most of them, or of another size."""
    for c in facts.saves:
        groups: dict[object, list[Part]] = defaultdict(list)
        for p in c.parts:
            piece = facts.layouts.piece_of(p)
            copied = "dp" in piece.readers.replicated_over and not piece.readers.sharded
            if copied and p.rank is not None and p.size > 0:
                groups[p.piece, p.coords].append(p)
        for replicas in groups.values():
            if len(replicas) < 3:  # of two nobody knows which is odd
                continue
            signatures = [r.signature if (r := facts.reports.get(p.path)) else "" for p in replicas]
            for p, typical in _find_minority(replicas, signatures):
                yield Hit(p.path, f"its tensors differ, unlike {_describe_typical(typical)}", of_file=True)
            for p, typical in _find_minority(replicas, [p.size for p in replicas]):
                if abs(p.size - typical.size) * 100 > typical.size:
                    text = f"{p.size:,} bytes, unlike {_describe_typical(typical)}"
                    yield Hit(p.path, text, code="size-outlier", of_file=True)


def _describe_typical(typical: Part) -> str:
    return f"rank {typical.rank}'s file ({typical.size:,} bytes) and other replicas"


def _find_minority(replicas: Sequence[Part], values: Sequence[str | int]) -> Iterator[tuple[Part, Part]]:
    """Yield (odd replica, typical one) for values that are not that of more than half; "" is no value."""
    usual, n = Counter(values).most_common(1)[0]
    if 2 * n <= len(replicas) or not usual:
        return
    typical = replicas[values.index(usual)]
    for p, value in zip(replicas, values, strict=True):
        if value and value != usual:
            yield p, typical


def weigh(facts: StandIn) -> tuple[str, Finding | None]:
    """Return (why a file may stand in for a rank's own one, "" if it may not; a finding on it or None)."""
    part, rank, source = facts.part, facts.rank, facts.source
    if why := _find_other_place(facts):
        text = f"{part.path.rpartition('/')[2]} cannot stand in for rank {rank}: {why}"
        return "", finding_of(RULE, Hit(part.path, text, severity=Severity.WARNING))
    own, signature = facts.evidence.find_own_file(rank, part), facts.evidence.tensors(part).signature
    if own and signature and own.signature == signature:
        return f"{source}; its tensors have the names, types and shapes of {own.name}", None
    if own and signature:
        differ = f"its tensors differ from those of {own.name}"
        text = f"{_describe_owner(part)} cannot stand in for rank {rank}: {differ}"
        return "", finding_of(RULE, Hit(part.path, text, severity=Severity.WARNING))
    if facts.by_layout:
        return source, None
    text = f"{_describe_owner(part)} stands in for rank {rank}; only {source} says that they are equal"
    reason = f"{source}; nothing in the files proves or contradicts it"
    return _take_unproven(facts, reason, text)


def _find_other_place(facts: StandIn) -> str:
    """Return why a file is not of the coordinates of the rank that lacks one; "" if it may be."""
    part, topology = facts.part, facts.topology
    wanted, own = topology.coordinates(facts.rank), topology.coordinates(part.rank or 0)
    if different := [f"{axis}={n}" for axis, n in part.coords if wanted.get(axis, n) != n]:
        return f"it holds {' '.join(different)}"
    tensors = facts.evidence.tensors(part)
    if tensors.partial:
        return tensors.partial
    for axis, n in tensors.sizes.items():
        same_place = topology.sizes.get(axis, 1) == n and wanted.get(axis) == own.get(axis)
        if axis in PLACES and n > 1 and axis not in facts.piece.readers.replicated_over and not same_place:
            return f"it says {axis}={n}, so ranks of another {axis} hold another part of the model"
    return ""


def compare_bytes(facts: StandIn, reason: str, others: Sequence[Part]) -> tuple[str, Finding | None]:
    """Return the reason, proven by another replica, "" if that one differs; and a finding or None."""
    part, differences = facts.part, facts.evidence.differences
    if differences is None:
        return reason, None
    if not others:
        name = part.path.rpartition("/")[2]
        text = f"{name} is the only good member of its group: there is nothing to compare it with"
        return _take_unproven(facts, reason, text)
    differ = differences(part, others[0])
    if not differ:
        return f"{reason}; its tensors are bit for bit those of {_name_file(others[0])}", None
    more = f" and {len(differ) - _NAMED} more" if len(differ) > _NAMED else ""
    names = ", ".join(differ[:_NAMED]) + more
    text = f"{_name_file(part)} and {_name_file(others[0])} should hold the same state, but differ in {names}"
    return "", finding_of(RULE, Hit(part.path, text))


def _take_unproven(facts: StandIn, reason: str, text: str) -> tuple[str, Finding]:
    """Return the reason, "" with --strict, and the finding that the replica is unproven."""
    severity = Severity.WARNING if facts.strict else None
    hit = Hit(facts.part.path, text, severity=severity, code="replica-unproven")
    return "" if facts.strict else reason, finding_of(RULE, hit)


def _describe_owner(part: Part) -> str:
    return f"rank {part.rank}'s file" if part.rank is not None else "the file"


def _name_file(part: Part) -> str:
    return _describe_owner(part) if part.rank is not None else "/".join(part.path.split("/")[-2:])


RULE = Rule(
    id="save/replica-mismatch",
    codes=("replica-mismatch", "replica-unproven", "size-outlier"),
    effect=Effect.REJECT,
    answer="correct --replica-groups; --strict refuses what is not proven",
    check=check,
    why="""\
A file that should stand in for another's holds different tensors, or nothing proves that it holds
the same. A wrong substitute is worse than an older step.
For: the mission of this tool: replicas of MindSpore, MindIO TTP and pure data parallel jobs.
""",
)
