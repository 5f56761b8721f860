"""``save/signature-changed``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.layouts import Claim, Compared, Layout
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind, Part, shown
from ckpt_tools.model.ranges import tensor_names
from ckpt_tools.model.report import Report
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule

_COUNTS = re.compile(r"[./]state[./]\d+[./]step$")
"""The updates that an optimizer has made of a parameter (torch/optim/adam.py)."""


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield files with other tensors than most of their series; only cut files where saves may differ."""
    of_first_save = {p.path for c in facts.saves for p in c.parts if facts.first in (None, c.order)}
    for odd, typical, is_first in find_changed(facts):
        hit = compare(odd, typical, facts)
        is_unlike = _has_same_tensors(odd, facts.layouts.of(odd))
        mine, theirs = (facts.tensors(p).keys() for p in (odd, typical))
        # what an optimizer's first step makes (torch/optim/optimizer.py)
        only_states = all(is_optimizer_state(name) or _COUNTS.search(name) for name in theirs - mine)
        may_lack = is_first and odd.path in of_first_save and mine < theirs and only_states
        if hit.severity is Severity.ERROR or (is_unlike and not may_lack):
            yield hit


def find_changed(facts: SavesFacts) -> Iterator[tuple[Part, Part, bool]]:
    """Yield files of a rank whose tensors differ from most of its files in the run (of two equally frequent
    signatures the older file's is usual), each with a typical file, and whether it is the first one.
    """
    series: dict[object, list[tuple[Part, Report]]] = defaultdict(list)
    for p, report in facts.rows:
        layout = facts.layouts.of(p)
        comparable = _has_same_tensors(p, layout) or facts.hides_cuts(report.format)
        if comparable and _is_comparable(report):
            role = p.role if layout.same_tensors is Compared.BY_ROLE else p.piece
            form = p.coords, p.generation, report.format, p.kind is Kind.RELEASE
            series[p.layout, p.run, role, p.rank, form].append((p, report))
    for rows in series.values():
        rows.sort(key=lambda row: (row[0].step or 0, row[0].epoch or 0, row[0].step_in_epoch or 0))
        usual = Counter(r.signature for _, r in rows).most_common(1)[0][0]
        typical = next(p for p, r in rows if r.signature == usual)
        yield from ((p, typical, p is rows[0][0]) for p, r in rows if r.signature != usual)


def _is_comparable(report: Report) -> bool:
    """Return True if a file has tensors, all of which could be read."""
    return report.tensors > 0 and not any(f.code in ("truncated", "bad-header") for f in report.findings)


def _has_same_tensors(p: Part, layout: Layout) -> bool:
    """Return True if all saves of a part have the same tensors, as far as its layout knows."""
    return layout.same_tensors is not Compared.NONE and layout.piece(p.piece).claim is not Claim.WEAK


def compare(odd: Part, typical: Part, facts: SavesFacts) -> Hit:
    """Return a hit on how tensors differ; an error if the file is the typical one cut after some record."""
    a, b = facts.report(odd), facts.report(typical)
    fewer = a.tensors < b.tensors and facts.hides_cuts(a.format)
    if fewer and facts.begins_with(typical, a):
        whole = f"{shown(typical)} ({b.tensors} tensors)"
        text = f"it ends after {a.tensors} tensors, exactly like {whole} cut between two records"
        return Hit(odd.path, text, severity=Severity.ERROR, of_file=True)
    mine, theirs = (facts.tensors(p) for p in (odd, typical))
    both = mine.keys() & theirs.keys()
    rows = (
        ("it lacks", theirs.keys() - mine.keys()),
        ("it has besides", mine.keys() - theirs.keys()),
        ("of another shape:", {n for n in both if mine[n].shape != theirs[n].shape}),
        ("of another type:", {n for n in both if mine[n].dtype != theirs[n].dtype}),
    )
    differences = "; ".join(f"{how} {tensor_names(names)}" for how, names in rows if names)
    text = f"unlike {shown(typical)}: {differences or 'in another order'}"
    return Hit(odd.path, text, severity=Severity.WARNING, of_file=True)


RULE = Rule(
    id="save/signature-changed",
    codes=("signature-changed",),
    effect=Effect.WARN,
    answer="ckpt diff A B shows what changed",
    check=check,
    why="""\
A file's tensors have other names, shapes or types than those of the same file in other saves.
Either the model was changed on purpose, or the file belongs to another run.
For: huggingface/transformers#20082, OpenRLHF/OpenRLHF#839: weights of shape [0] after ZeRO-3.
""",
)
