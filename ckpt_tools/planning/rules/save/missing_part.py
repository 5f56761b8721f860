"""``save/missing-part``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.completeness import find_lacking, find_usual, name_kind, name_place, rate_gaps
from ckpt_tools.layouts import Piece
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
from ckpt_tools.planning.rules.save.missing_rank import find_first_ranks

GONE = "nothing of it is there"
_THEIRS = "which the run's other checkpoints have"


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield roles without any file that every save of the layout has, or at least half of the run's saves."""
    for c in facts.saves:
        layout = facts.layouts.of(c)
        if c.unfinished:
            continue
        follows = find_first_ranks(c, layout) is not None
        severity = Severity.ERROR if follows else rate_gaps(c, facts.expected)
        roles = {layout.piece(p.piece).role for p in c.parts}
        usual = [p for p in find_usual(c, facts.expected) if p.role not in roles]
        lacking = [f"no {role} file" for role in layout.complete.needs if role not in roles]
        for text in _list_needed(c, facts, lacking, usual):
            yield Hit(name_place(c), f"{name_kind(c)} has {text}", severity=severity, follows=follows)
        if follows:
            continue
        spared = find_lacking(c, layout, survivable=True)  # such as random states: resuming can do without
        more = sorted({p.role for p in usual if p.readers.survivable} - spared.keys())
        for text in (*spared.values(), *(f"no {role} file, {_THEIRS}" for role in more)):
            why = f"{name_kind(c)} has {text}: training goes on with other random numbers"
            yield Hit(name_place(c), why, severity=Severity.WARNING, effect=Effect.WARN)


def _list_needed(c: Checkpoint, facts: SavesFacts, lacking: list[str], usual: Sequence[Piece]) -> list[str]:
    """Return texts on missing roles: ``lacking`` and usual ones; else roles saved with present ones."""
    layout = facts.layouts.of(c)
    if layout.complete.by_name:
        return []
    for piece in usual:
        if not piece.readers.survivable and piece.role not in layout.complete.needs:
            theirs = (p.name for o in facts.expected.checkpoints for p in o.parts if p.piece == piece.name)
            lacking.append(f"no {piece.role} file like {next(theirs, piece.name)}, {_THEIRS}")
    return lacking or list(find_lacking(c, layout, survivable=False).values())


def describe_no_text(name: str, home: str) -> Finding:
    text = f"it has no {name}, which the directory of each other save has"
    return finding_of(RULE, Hit(home, text, severity=Severity.WARNING))


def describe_declared(tracker: str, target: object, what: str, path: str) -> Finding:
    """Return the finding that a save lost files: a tracker names it, so it was finished, but ``what``."""
    text = f"{tracker.rpartition('/')[2]} names {target}, so it was finished, {what}"
    hint = "it was removed or moved, or the disk that it is on is not mounted here"
    return finding_of(RULE, Hit(path, text, hint, Severity.ERROR))


def describe_unlisted(name: str, by: str, path: str) -> Finding:
    text = f"{name}, with which {by} was saved, is not there, or nothing is in it"
    return finding_of(RULE, Hit(path, text))


def describe_gone(names: Sequence[str], path: str, why: str, severity: Severity | None = None) -> Finding:
    return finding_of(RULE, Hit(path, f"{ranges.names(names)} is not there, {why}", severity=severity))


def describe_undescribed(home: str) -> Finding:
    return finding_of(RULE, Hit(home, "chunks of an array are in it, and nothing that describes them"))


def describe_no_role(c: Checkpoint, role: str, home: str) -> Finding:
    return finding_of(RULE, Hit(home, f"{name_kind(c)} has no {role} file"))


def describe_lost_link(path: str) -> Finding:
    text = "its target is not there, and may be newer than the choice"
    return finding_of(RULE, Hit(path, text, severity=Severity.WARNING, code="dangling-link"))


def describe_remains(title: str, root: str, hint: str) -> Finding:
    text = f"files as {title} writes them, without the rest of a checkpoint: no job could load anything"
    return finding_of(RULE, Hit(root, text, hint))


def describe_nothing_loaded(c: Checkpoint, unknown: Sequence[Part]) -> Finding:
    """Return the finding that no rank loads any file of a save: ``unknown`` are of no known format."""
    if not unknown:
        return finding_of(RULE, Hit(c.path, "it has no file that is loaded"))
    name = unknown[0].path.rpartition("/")[2]
    text = f"{name} is named like a checkpoint, but is in no format that ckpt knows"
    hint = "if it is one, describe its files in ckpt.toml (docs/adding-a-layout.md); else add --exclude GLOB"
    return finding_of(RULE, Hit(c.path, text, hint, code="no-layout"))


RULE = Rule(
    id="save/missing-part",
    codes=("missing-part", "dangling-link", "symlink-loop"),
    effect=Effect.REJECT,
    answer="restore the file that is named from a copy of this save, or --exclude this save",
    check=check,
    why="""\
A file that every save of this layout has, that at least half of the run's other saves have, or that an
index of the save names, is absent, or a link to it leads nowhere. Many loaders go on without it: an
optimizer or a scheduler that starts from scratch is noticed days later, if at all.
For: torch/distributed/checkpoint/filesystem.py (.metadata), allenai/OLMo#855, cgarciae/ciclo#12;
haotian-liu/LLaVA#1496: checkpoint-N with a projector only; Hugging Face's cache (snapshots/ link to
blobs/), copies without -L.
""",
)
