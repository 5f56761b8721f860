"""``tree/first-launch-leftovers``: there is no checkpoint, but something that a training run leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from posixpath import commonpath, relpath

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.errors import CannotLook, CkptError, NoneUsable, NotRecognised
from ckpt_tools.layouts import Layout
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of
from ckpt_tools.settings.checked_json import Number, Path

FRESH = "to start from nothing anyway add --allow fresh"
BYSTANDERS = "if the files have nothing to do with checkpoints add --exclude GLOB"
_LISTED = 16
"""How many signs have a finding of their own; one more finding counts the others."""


class Sign(Struct, frozen=True):
    """A file or directory that speaks against a start from nothing."""

    path: str
    why: str  # what it is: the second half of a sentence
    todo: str = ""  # how to resume from it after all
    code: str = ""  # of its finding; "" if the plan has one on it anyway
    error: type[CkptError] = NotRecognised  # NoneUsable if there surely was a save
    rule: Rule | None = None  # if it is not this one


class EarlierStart(Struct, frozen=True):
    """What the last start of a job resumed from, as its log has it; ``decided_at`` in seconds since 1970."""

    path: Path
    step: int | None = None
    decided_at: Number = 0.0


def ask(root: str, signs: Sequence[Sign]) -> CkptError:
    """Return the question what ``signs`` of one kind mean; the first of them is explained."""
    sign, names = signs[0], name_paths(root, [sign.path for sign in signs])
    text = f"there is no checkpoint in {root}, but {names}: {sign.why}"
    if sign.error is NotRecognised:
        text += "; only you know whether there was one"
    hints = (sign.todo, "" if sign.error is CannotLook else FRESH)
    return error_of(sign.rule or RULE, Hit(sign.path, text, "; ".join(filter(None, hints))), sign.error)


def describe(signs: Iterable[Sign]) -> list[Finding]:
    """Return findings on signs of one kind; those beyond ``_LISTED`` have one on their common directory."""
    with_code = [sign for sign in signs if sign.code]
    shown = with_code[:_LISTED]
    if more := with_code[_LISTED:]:
        above = commonpath([sign.path for sign in with_code])
        above = above.replace(":/", "://" if "://" in with_code[0].path else ":/", 1)
        shown.append(replace(with_code[0], path=above, why=f"{len(more):,} more such files"))
    return [finding_of(sign.rule or RULE, Hit(sign.path, sign.why, code=sign.code)) for sign in shown]


def say_hidden(layout: Layout, *roles: str) -> str:
    """Return the hint to copy again if all files that a layout or ``roles`` need are hidden; else ""."""
    hidden = list[str]()
    for role in roles or (*layout.complete.needs, layout.complete.commit):
        pieces = (p for p in layout.pieces if p.role == role and p.required)
        names = dict.fromkeys(p.template.rpartition("/")[2] for p in pieces)
        with_dot = tuple(name for name in names if name.startswith("."))
        hidden += with_dot if all(name.endswith(with_dot) for name in names) else ()
    again = "a copy may have left hidden files out; copy again with 'cp -a' or 'rsync -a'"
    return f"no {' or '.join(hidden)} is there: {again}" if hidden else ""


def name_paths(root: str, paths: Sequence[str]) -> str:
    """Return the first two paths, relative to ROOT, and how many more there are, as text."""
    shown = ", ".join(relpath(p, root) if p != root else p for p in paths[:2])
    return f"{shown} and {len(paths) - 2:,} more" if len(paths) > 2 else shown


def stop_without_earlier(before: EarlierStart, root: str, plan: LoadPlan | None = None) -> CkptError:
    """Return the error that an earlier start resumed from a checkpoint, and none is there any more."""
    earlier = f"an earlier start resumed from step {before.step} ({before.path})"
    hint = f"is the file system mounted? {FRESH[0].upper()}{FRESH[1:]}"
    text = f"there is no checkpoint in {root}, but {earlier}"
    return error_of(RULE, Hit(root, text, hint), NoneUsable, plan)


RULE = Rule(
    id="tree/first-launch-leftovers",
    codes=("unrecognised-file", "set-aside", "in-quarantine", "versions-kept"),
    effect=Effect.STOP,
    answer="bring back, rename, finish or move away what is named, or --allow fresh to start from nothing",
    why="""\
There is no checkpoint, but something that a training run leaves: unfinished saves, a tracker, copies that
somebody put aside (*.bak, .trash, quarantine), large files of no known kind; or an earlier start resumed
from one here. It is no first launch where something was trained before: a mount may be lost. What names a
save that is gone (a tracker, a link, a seal, the log of starts) or is only put aside is exit 4, all else
exit 2.
For: Megatron-LM checkpointing.py load_checkpoint(), which starts at random where it finds no tracker.
""",
)
