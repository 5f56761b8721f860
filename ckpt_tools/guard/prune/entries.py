"""What ``ckpt prune`` must know of a tree: every checkpoint with what was found in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import CannotLook, explain_refusal
from ckpt_tools.guard.targets import Checked, Group, list_groups, verify
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity, Verdict, blind
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choose
from ckpt_tools.planning.rules.save.missing_rank import find_first_ranks
from ckpt_tools.planning.verification import read_step
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import HINT, list_unlisted
from ckpt_tools.settings import plugins
from ckpt_tools.storage.listing import list_entries
from ckpt_tools.storage.retry import is_directory, is_link, lstat
from ckpt_tools.storage.urls import is_url

Seen = tuple[tuple[int, str, tuple[object, ...]], ...]
"""(index of the path, what follows it, what identifies the file and its bytes) of each file."""


class Entry(Struct, frozen=True):
    """One checkpoint. ``members`` are its files, with the ones that its indexes name; ``checked`` is None if
    it was not verified. ``why`` says why not, or why it is not good. ``seen`` is how its files were before.
    """

    checkpoint: Checkpoint
    group: Group
    members: frozenset[str]
    checked: Checked | None = None
    why: str = ""
    seen: Seen = ()

    @property
    def name(self) -> str:
        """The path of its first file."""
        return self.checkpoint.key.path

    @property
    def good(self) -> bool:
        """Whether it is verified and sound: it counts for policies, and may be removed."""
        return self.checked is not None and not self.why

    @property
    def damaged(self) -> bool:
        """Whether damage was found in its own files."""
        c = self.checked
        if c is None or c.verdict is not Verdict.BROKEN or c.written:
            return False
        return any(f.severity is Severity.ERROR and self.group.holds(f.path) for f in c.findings)

    @property
    def newness(self) -> tuple[object, ...]:
        c = self.checkpoint
        return (c.restarts, c.order, c.generation or 0, c.mtime_ns)

    @property
    def run(self) -> tuple[str, str]:
        return self.checkpoint.layout, self.checkpoint.run


def find_entries(s: Session, selection: Selection) -> list[Entry]:
    """Return every checkpoint, those that ``selection`` asks about verified. Raises CannotLook."""
    _require_all_seen(s)
    s.add_members()
    everything = grouping.group(s.parts, s.layouts, selection.save_interval)
    group_of = {g.checkpoint.key: g for g in list_groups(s) if g.checkpoint}
    runs, found = s.runs(everything), [c for c in everything if c.key in group_of]
    unasked = {c.key: _why_not_asked(s, c, selection) for c in found}
    asked = [c for c in found if not unasked[c.key]]
    seen = {c.key: identify_files(group_of[c.key].paths) for c in asked}
    verified, out = verify(s, asked), list[Entry]()
    for c in found:
        checked, group, members = verified.get(c.key), group_of[c.key], s.members(c).parts
        why = unasked[c.key] if checked is None else _why_not_good(checked)
        lacks_step = checked is not None and c.step is None
        numbered = replace(c, step=read_step(s, c, runs[c.layout, c.run])) if lacks_step else c
        paths = frozenset(part.path for part in members)
        out.append(Entry(numbered, group, paths, checked, why, seen.get(c.key, ())))
    return out


def _require_all_seen(s: Session) -> None:
    """Raise CannotLook if a plug-in failed, or something cannot be looked at: it may need the others."""
    for f in plugins.findings():
        raise CannotLook(f"{f.message}, so nothing is removed", f.hint)
    if blind(unseen := list_unlisted(s)):
        first = unseen[0]
        text = f"{first.path}: {first.message}: what lies there is unknown, so nothing is removed"
        raise CannotLook(text, HINT.partition(",")[0])


def identify_files(paths: Sequence[str]) -> Seen:
    """Return what lies at and below some paths. A rename does not change the result; writing there does."""
    out = list[tuple[int, str, tuple[object, ...]]]()
    for number, path in enumerate(paths):
        for file in list_below(path) if is_directory(path) and not is_link(path) else [path]:
            with explain_refusal(f"cannot look at {file}"), suppress(FileNotFoundError):
                out.append((number, file[len(path) :], _identify(file)))
    return tuple(out)


def _identify(path: str) -> tuple[object, ...]:
    if is_url(path):
        from ckpt_tools.storage.stores.mounts import object_of

        return object_of(path)[:4]  # without its version, which no list tells
    info = lstat(path)
    return info.st_ino, info.st_size, info.st_mtime_ns


def list_below(home: str) -> Iterator[str]:
    """Yield the paths of the files and links below a directory; no link is followed. Raises CannotLook."""
    with explain_refusal(f"cannot list {home}"):
        for e in list_entries(home):
            if e.is_dir(follow_symlinks=False):
                yield from list_below(e.path)
            else:
                yield e.path


def _why_not_asked(s: Session, c: Checkpoint, selection: Selection) -> str:
    """Return why a checkpoint is not verified and may not be removed; "" if it is to be verified."""
    if not choose.belongs(c, selection):
        return "it is of another run than was asked for"
    if c.unfinished:
        return "it is not finished"
    if find_first_ranks(c, s.layouts.of(c)):
        return "its first ranks' files are not here: it may be another node's part of a save"
    if c.kind is Kind.RELEASE or s.layouts.of(c).of_exports:
        return "it is the outcome of a run, and no save of it"
    return ""


def _why_not_good(checked: Checked) -> str:
    """Return why a verified checkpoint is not good, or "". Raises CannotLook if a file could not be read."""
    causes = [f for f in checked.findings if f.path not in checked.hidden]
    if blind(causes):
        what = next(f for f in causes if f.code == "unreadable")
        raise CannotLook(f"{what.path}: {what.message}: nothing is removed", HINT.partition(",")[0])
    codes = ", ".join(checked.codes[:4])
    if checked.written:
        return "it is being written"
    if checked.verdict is Verdict.BROKEN:
        return f"it is damaged ({codes}), and removed only with --damaged"
    if checked.verdict is Verdict.UNKNOWN:
        return f"nobody knows whether it is whole ({codes or 'not verified'})"
    if checked.level < Level.CONTENT:
        return f"it could be verified only as deep as {checked.level}"
    return ""


def find_age(entry: Entry, now_ns: int) -> float:
    """Return the seconds since its files' contents or metadata last changed. Raises CannotLook."""
    try:
        infos = [lstat(path) for path in {*entry.group.files, *entry.group.paths}]
    except OSError as e:
        text = f"{e.filename} is not what it was a moment ago: {e.strerror}"
        raise CannotLook(text, "somebody else changes this tree: run it again") from e
    return (now_ns - max(max(i.st_mtime_ns, i.st_ctime_ns) for i in infos)) / 1e9
