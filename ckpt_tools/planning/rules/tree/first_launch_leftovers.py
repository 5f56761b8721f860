"""``tree/first-launch-leftovers``: there is no checkpoint, but something that a training run leaves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from posixpath import commonpath, relpath

from ckpt_tools.discovery.completeness import why_unfinished
from ckpt_tools.errors import CkptError, NoneUsable, NotRecognised
from ckpt_tools.findings import WAIT
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common import templates
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import EarlierStart, LoadPlan
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of

FRESH = "to start from nothing anyway add --allow fresh"
BYSTANDERS = "if the files have nothing to do with checkpoints add --exclude GLOB"
_LISTED = 16
"""How many files have a finding of their own; one more finding counts the others."""
_NUMBER = re.compile(r"\d+")


def find_interrupted(
    root: str, layouts: Layouts, begun: Sequence[Checkpoint], young: Collection[str]
) -> Iterator[Hit]:
    """Yield saves of one run that lack the file written last, although they are named like finished saves.
    Runs that differ in a number alone are taken for one run: they may be the directories of its steps.

    A job that dies in its first save leaves one such save. Of several the earlier ones were finished, as
    training went on, and have lost the file since. ``young`` are paths that may still be written.
    """
    runs: dict[tuple[str, str], list[Checkpoint]] = {}
    for c in begun:
        if not any(p.unfinished for p in c.parts):
            runs.setdefault((c.layout, _NUMBER.sub("", c.run)), []).append(c)
    several = [c for saves in runs.values() if len(saves) > 1 for c in saves]
    if several:
        layout = layouts.of(several[0])
        why, names = why_unfinished(several[0], layout), name_paths(root, [c.path for c in several])
        text = f"{root} holds {len(several)} saves and none is whole ({names}: each {why}), which is more"
        text += " than a first launch leaves: some of them may have been whole, and have lost files"
        lost = say_hidden(layout, layout.complete.commit) or "bring the lost files back"
        yield Hit(root, text, f"{lost}; {FRESH}", error=NotRecognised)
        for c in several[:_LISTED]:
            yield Hit(c.path, f"it {why}", WAIT if c.path in young else lost, code="unfinished-save")


def find_trackers(root: str, hits: Sequence[Hit]) -> Iterator[Hit]:
    """Yield one hit that stops, then the ``hits`` on trackers: each was written after a checkpoint."""
    dangling = [hit for hit in hits if hit.code == "dangling-tracker"]
    text = "; ".join(f"{hit.path}: {hit.message}" for hit in dangling or hits)
    if dangling:
        yield Hit(root, text, f"bring that checkpoint back; {FRESH}", error=NoneUsable)
    elif hits:
        text = f"{text}: only you know whether there was a checkpoint"
        yield Hit(root, text, FRESH, error=NotRecognised)
    yield from hits


def describe_tracker(
    path: str, target: str, says: int | str | Finding | None, writer: Layout | None, *, sure: bool
) -> Hit | None:
    """Return the hit on a tracker: ``target`` is where it leads if it is a dangling link, ``says`` what was
    read in it. None if that makes no sense and other files have this name too (not ``sure``). ``writer`` is
    the layout that writes such files as a part of a checkpoint, and not as its tracker.
    """
    if target:
        return Hit(path, f"it leads to {target}, which is not there", code="dangling-tracker")
    if isinstance(says, int | str):
        text = f"it names {says}, which is not there or was never finished"
        return Hit(path, text, code="dangling-tracker")
    code, text, hint = "bad-tracker", "it is empty, or not what its framework writes", ""
    if says:
        code, text, hint = says.code, says.message, says.hint
    if code == "bad-tracker" and writer:
        text = f"{writer.title} writes it, and what belongs to it is not there"
        return Hit(path, text, say_hidden(writer), code="missing-part")
    return Hit(path, text, hint, code=code) if sure or code != "bad-tracker" else None


def find_links(root: str, dangling: Sequence[str]) -> Iterator[Hit]:
    """Yield hits on links whose targets do not exist: they may lie on a lost mount."""
    if dangling:
        text = f"{root} holds links whose targets are not there: {name_paths(root, dangling)}"
        yield Hit(root, text, f"bring that back, or mount it; {BYSTANDERS}; {FRESH}", error=NoneUsable)
        yield from say_each("dangling-link", "its target is not there", dangling)


def find_seals(root: str, sealed: Sequence[str]) -> Iterator[Hit]:
    if sealed:
        text = f"{root} holds seals of files that are not there: {name_paths(root, sealed)}"
        yield Hit(root, text, f"bring it back; {FRESH}", error=NoneUsable)
        yield from say_each("seal-missing", "it was sealed, and is not there", sealed)


def find_aside(root: str, aside: Sequence[Finding]) -> Iterator[Hit]:
    """Yield a hit if ROOT holds only copies that somebody put aside (``aside``: a finding on each)."""
    if aside:
        put_away = {f.code for f in aside} == {"in-quarantine"}
        what = "what was put into quarantine" if put_away else "copies that somebody made by hand"
        text = f"{root} holds only {what}: {name_paths(root, [f.path for f in aside])}"
        yield Hit(root, text, f"{aside[0].hint}; {FRESH}", error=NoneUsable)


def find_remains(root: str, layout: Layout | None, homes: Sequence[str]) -> Iterator[Hit]:
    """Yield hits on files that ``layout`` writes beside saves, else on ``homes``: empty save directories."""
    if layout:
        what = f"files as {layout.title} writes them, without the rest of a checkpoint"
        todo = say_hidden(layout) or "bring the rest back"
    elif homes:
        what = f"directories named like saves, with nothing of a save in them: {name_paths(root, homes)}"
        todo = "bring back what was in it"
    else:
        return
    text = f"{root} holds {what}: only you know whether it is left over from one"
    yield Hit(root, text, f"{todo}; {BYSTANDERS}; {FRESH}", error=NotRecognised)
    yield from say_each(RULE.codes[0], "named like a save's directory, with nothing of a save in it", homes)


def find_headless(begun: Sequence[Checkpoint], layouts: Layouts) -> Iterator[Hit]:
    """Yield hits on the first save that has later files, but none that its framework writes first."""
    for c in begun:
        first = layouts.of(c).complete.first
        roles = {p.role for p in c.parts if not layouts.piece_of(p).readers.survivable}
        if first and roles and roles.isdisjoint(first):  # random states are written without an order
            why = f"it has no {first[0]} file, which is written before the others"
            text = f"{c.path}: {why}: no job that dies in its first save leaves that"
            yield Hit(c.path, text, f"bring the lost files back; {FRESH}", error=NotRecognised)
            yield Hit(c.path, why, code="missing-part")
            return


def find_whole(path: str | None, *, save: bool) -> Iterator[Hit]:
    """Yield hits on a whole save (``save``), or a whole file, with a temporary name; nothing for None."""
    if path is not None and save:
        text = f"{path} has all files of a save, and the name of one that was not finished"
        yield Hit(path, text, f"rename it if it is whole; {FRESH}", error=NotRecognised)
    elif path is not None:
        why = "it is whole, and has the name of one that was not finished"
        todo = templates.AGAIN if path.endswith(templates.DOWNLOADS) else "rename it to resume from it"
        yield Hit(path, f"{path}: {why}", f"{todo}; {FRESH}", error=NotRecognised)
        yield Hit(path, why, code="unfinished-save")


def say_hidden(layout: Layout, *roles: str) -> str:
    """Return the hint to copy again if all files that a layout or ``roles`` need are hidden; else ""."""
    hidden = list[str]()
    for role in roles or (*layout.complete.needs, layout.complete.commit):
        pieces = (p for p in layout.pieces if p.role == role and p.required)
        names = dict.fromkeys(p.template.rpartition("/")[2] for p in pieces)
        own = tuple(name for name in names if name.startswith("."))
        hidden += own if all(name.endswith(own) for name in names) else ()
    if not hidden:
        return ""
    again = "a copy may have left hidden files out; copy again with 'cp -a' or 'rsync -a'"
    return f"no {' or '.join(hidden)} is there: {again}"


def name_paths(root: str, paths: Sequence[str]) -> str:
    """Return the first two paths, relative to ROOT, and how many more there are, as text."""
    shown = ", ".join(relpath(p, root) if p != root else p for p in paths[:2])
    return f"{shown} and {len(paths) - 2:,} more" if len(paths) > 2 else shown


def say_each(code: str, text: str, paths: Sequence[str]) -> Iterator[Hit]:
    """Yield a hit on each path; one hit on their common directory counts those beyond ``_LISTED``."""
    yield from (Hit(path, text, code=code) for path in paths[:_LISTED])
    if len(paths) > _LISTED:
        above = commonpath(paths).replace(":/", "://" if "://" in paths[0] else ":/", 1)
        yield Hit(above, f"{len(paths) - _LISTED:,} more such files", code=code)


def stop_without_earlier(before: EarlierStart, root: str, plan: LoadPlan | None = None) -> CkptError:
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
