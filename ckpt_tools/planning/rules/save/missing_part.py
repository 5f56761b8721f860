"""``save/missing-part``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.completeness import label, saved_with, severity_of_gaps, usual_pieces, where
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
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


def describe_declared(says: str, what: str, path: str, hint: str = "") -> Finding:
    """Return that a save which a tracker names has lost something: it was finished."""
    severity = Severity.ERROR if hint else None
    return finding_of(RULE, Hit(path, f"{says}, so it was finished, {what}", hint, severity))


def describe_unlisted(name: str, by: str, path: str) -> Finding:
    """Return that of what the list ``by`` of a save names nothing is there that could be loaded."""
    text = f"{name}, with which {by} was saved, is not there, or nothing is in it"
    return finding_of(RULE, Hit(path, text))


def describe_unwritten(names: Sequence[str], path: str) -> Finding:
    """Return that chunks are not there of an array that its framework writes in full."""
    text = f"{ranges.names(names)} is not there, and its framework writes all of this array"
    return finding_of(RULE, Hit(path, text))


def describe_left_out(names: Sequence[str], path: str, severity: Severity) -> Finding:
    """Return that files are not there that an index need not name, and that the run's other saves have."""
    text = f"{ranges.names(names)} is not there, which the run's other checkpoints have"
    text += ": it would be read as zeros" if severity is Severity.WARNING else ""
    return finding_of(RULE, Hit(path, text, severity=severity))


def describe_undescribed(home: str) -> Finding:
    """Return that the file is gone that describes the chunks of an array."""
    return finding_of(RULE, Hit(home, "chunks of an array are in it, and nothing that describes them"))


def describe_no_role(c: Checkpoint, role: str, home: str) -> Finding:
    """Return that a save has no file of any of the roles of which its layout needs one."""
    return finding_of(RULE, Hit(home, f"{label(c)} has no {role} file"))


def describe_no_optimizer(path: str) -> Finding:
    """Return that the weights are alone, where the layout keeps an optimizer's state beside them."""
    text = "none of its files holds an optimizer's state: that would begin anew"
    return finding_of(RULE, Hit(path, text, "bring its file back, if the job saves one", Severity.WARNING))


def describe_remains(title: str, root: str, hint: str) -> Finding:
    """Return that only files are left that a framework writes beside those of a save."""
    text = f"files as {title} writes them, without the rest of a checkpoint: no job could load anything"
    return finding_of(RULE, Hit(root, text, hint))


def describe_nothing_loaded(c: Checkpoint, unknown: Sequence[Part]) -> Finding:
    """Return why a save has no file for any rank, although nothing is wrong with those of a known format."""
    if not unknown:
        return finding_of(RULE, Hit(c.path, "it has no file that is loaded"))
    name = unknown[0].path.rpartition("/")[2]
    text = f"{name} is called as a checkpoint, and is in no format that ckpt knows"
    hint = (
        "if it is one, describe all files of a save in ckpt.toml (docs/adding-a-layout.md):"
        " they are then judged by their names and sizes; if it is none, say --exclude GLOB"
    )
    return finding_of(RULE, Hit(c.path, text, hint, code="no-layout"))


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
