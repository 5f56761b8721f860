"""``choice/unplaced-newer``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote

from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.errors import CkptError, NoneUsable, NotRecognised
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.planning.facts import UnplacedFile
from ckpt_tools.planning.rules.rule import DOUBT, Effect, Hit, Rule, error_of, name_below
from ckpt_tools.planning.rules.tree.first_launch_leftovers import BYSTANDERS, Sign

_LARGE = 64 << 20
"""Bytes of a file in no known format that may be a state where there is no save."""


def find_unplaced(
    root: str, files: Iterable[UnplacedFile], chosen: Checkpoint | None = None, *, optimizer: bool = False
) -> Iterator[Hit]:
    """Yield files that may hold a training state and be later than the choice, which may have an
    ``optimizer``'s state; without a choice all states, and large files in no known format.
    """
    for file in files:
        is_large = file.format is None and file.size >= _LARGE
        if not (_may_be_later(file, chosen, optimizer) if chosen else file.state or is_large):
            continue
        name = name_below(file.path, root)
        if chosen and file.damage:
            text = f"{name} is not older than {chosen.label}, and damaged ({file.damage})"
            yield Hit(file.path, text, "remove it, or bring back a sound copy", Severity.WARNING, Effect.WARN)
            continue
        text = f"no layout recognises {name} (format: {file.format or 'unknown'}), maybe a training state"
        if chosen:
            why = "holds an optimizer's state and lies beside" if file.inside else "is not older than"
            text += f": it {why} {chosen.label} ({chosen.path})"
            text = f"{DOUBT}{text}"
        yield Hit(file.path, text)


def find_at_launch(root: str, unplaced: Sequence[UnplacedFile], describe: str) -> Iterator[Sign]:
    """Yield files that may be a save where there is none; ``describe`` says how to place them."""
    paths = {hit.path for hit in find_unplaced(root, unplaced)}
    files = [file for file in unplaced if file.path in paths]
    broken = all(file.broken for file in files)
    why = f"maybe a training state{', but unusable' * broken}, and no layout recognises it"
    todo, error = f"if they are saves, {describe}; {BYSTANDERS}", NoneUsable if broken else NotRecognised
    yield from (Sign(file.path, why, todo, RULE.codes[0], error, RULE) for file in files)


def _may_be_later(file: UnplacedFile, chosen: Checkpoint, optimizer: bool) -> bool:
    """Return True if a file may be a later state than the choice, which may have an ``optimizer``'s state."""
    if file.inside:
        return file.state and file.optimizer is True
    has_later_step = file.step is not None and file.step > chosen.order[0]
    holds_less = optimizer and file.optimizer is False and not has_later_step
    return file.state and file.size > 0 and file.mtime_ns >= chosen.mtime_ns and not holds_less


def format_layout_hint(root: str, *, sure: bool) -> str:
    """Return the hint how to describe files; if not ``sure`` no lines are guessed: they may mix saves."""
    if not sure:
        return "describe the layout in ckpt.toml: docs/adding-a-layout.md"
    return f"'ckpt layouts --guess {quote(root)}' prints the lines for ckpt.toml"


def ask_for_rank_layout(c: Checkpoint, path: str, root: str) -> CkptError:
    """Return the question about a file of the choice that is named like one rank's, without a layout."""
    text = f"{path} of {name_kind(c)} is named like the file of one rank, and no layout says of which"
    return error_of(RULE, Hit(path, text, format_layout_hint(root, sure=True)))


def ask_about_stranger(c: Checkpoint, path: str, name: str, hint: str) -> CkptError:
    """Return the question about a file in the choice's directory that only another layout loads."""
    text = f"{c.path} is taken for a checkpoint of the layout {c.layout}, which does not load {name}"
    return error_of(RULE, Hit(path, text, hint))


RULE = Rule(
    id="choice/unplaced-newer",
    codes=("no-layout",),
    effect=Effect.ASK,
    answer="its layout in ckpt.toml (ckpt layouts --guess ROOT), or --exclude with exactly that path",
    why="""\
A file that no layout recognises may hold a training state, and is not older than the choice. It may be
the newest save of this run under another name, so the older one is not taken without asking. Weights
alone that tell no later step are none where the choice has an optimizer's state; beside a choice of
weights alone a file with an optimizer's state is one however old it is.
A damaged one cannot be resumed from: a warning.
For: loops of one's own, and saves that were renamed by hand.
""",
)
