"""The checkpoints below a root, as ``ckpt ls`` lists them, and the steps that their files tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.layouts import whole
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning.choice_warnings import describe_state
from ckpt_tools.planning.choose import allows, belongs
from ckpt_tools.planning.order import find_places, order_saves, step_at
from ckpt_tools.planning.rules.save import unfinished
from ckpt_tools.planning.trackers import find_declared, find_trackers
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session, Told
from ckpt_tools.reading.unseen import missed, not_seen, unread_files
from ckpt_tools.storage.urls import is_url

_LOOKED_INTO = 32
"""Checkpoints of a listing whose files are asked for their step, the newest ones."""
_READ = 8
"""Files, and siblings, that are asked at most."""
_COUNTERS = {"optimizer": "optimizer_step", "scheduler": "last_epoch"}
"""By the role of a file: what in it every step of training counts on, in one unit over all of a run."""


def scan_root(
    root: str, selection: Selection, *, trackers: bool = False, progress: Progress | None = None
) -> Scan:
    """List the checkpoints below a root; contents tell steps that names do not. Raises CannotLook."""
    options = ReadOptions(
        jobs=selection.jobs,
        settle=selection.settle,
        key_file=selection.key_file,
        exclude=selection.exclude,
        trust=selection.trust,
        layouts=selection.layouts,
        stores=selection.stores,
        progress=progress,
    )
    s = open_session(root, options, listing=True)
    rows = [(c, find_declared(s, c)) for c in _add_numbers_inside(s, _list_saves(s, selection))]
    checkpoints = [replace(c, unfinished=False) if declared else c for c, declared in rows]
    expected = {
        run: n
        for (_, run), members in s.runs(checkpoints).items()
        if (n := selection.world_size or completeness.expected_ranks(members, s.layouts))
    }
    damage = (f for _, f in rows if f)
    findings = [*not_seen(s), *unread_files(s), *s.notes, *damage, *_find_unfinished(s)]
    findings += missed(s, {f.path for f in findings if f.path and f.code in NOT_SEEN})
    return Scan(
        root=s.root,
        checkpoints=tuple(checkpoints),
        expected=expected,
        findings=tuple(findings),
        bare=len(s.bare_paths - {path for path, _ in _find_trackers(s, checkpoints)}),
        unrecognised=s.found.unrecognised,
        excluded=len(s.found.excluded.paths),
        layouts=s.layouts,
        trackers=tuple(find_trackers(s, checkpoints)) if trackers else (),
        states=_describe_states(s, checkpoints, expected),
    )


def _describe_states(
    s: Session, saves: Sequence[Checkpoint], expected: Mapping[str, int]
) -> dict[CheckpointKey, str]:
    """Return what a job finds in each save, as roles tell; the newest ones on a disk are read."""
    newest, states = {c.key for c in sorted(saves, key=lambda c: -c.mtime_ns)[:_LOOKED_INTO]}, {}
    for c in saves:
        parts = list({p.role: p for p in c.parts}.values())
        present = completeness.ranks_present(c, s.layouts.of(c))
        gone = any(p.size < 0 for p in c.parts)
        if c.unfinished or gone or (present is not None and present < expected.get(c.run, present)):
            states[c.key] = "partial"
        elif any(p.role == "optimizer" and p.size > 0 for p in parts):
            states[c.key] = "resumable"
        elif c.key in newest and not is_url(s.root):
            for p in parts:
                s.report(p, Level.STRUCTURE)
            states[c.key] = describe_state(parts, s)
    return states


def _find_unfinished(s: Session) -> Iterator[Finding]:
    """What saves and downloads have not finished."""
    yield from map(unfinished.describe_temporary, s.found.unfinished)
    for part in s.parts:
        yield from (replace(f, path=part.path) for f in part.findings if f.code == "unfinished-save")


def _list_saves(s: Session, selection: Selection) -> list[Checkpoint]:
    """Return the checkpoints that the filters leave, newest first by time, or by step if asked."""
    everything = grouping.group(s.parts, s.layouts, selection.save_interval)

    def step(c: Checkpoint) -> int | None:
        return read_step(s, c, everything) if c.step is None else c.step

    left = [c for c in everything if belongs(c, selection) and allows(selection, c, step)]
    if selection.order != "step":
        return left
    return order_saves(left, "step", places=find_places(left, s.layouts, lambda _: None))


def _find_trackers(s: Session, checkpoints: Sequence[Checkpoint]) -> Iterator[Told]:
    """Those beside the checkpoints that are files of a known format."""
    for name, base in dict.fromkeys((c.layout, p.base) for c in checkpoints for p in c.parts[:1]):
        if s.layouts[name].tracker.state_copy:
            yield from s.trackers(name, base)


def _add_numbers_inside(s: Session, listed: list[Checkpoint]) -> list[Checkpoint]:
    """Add to the newest saves the steps and epochs that only contents tell."""
    asked = [c for c in listed if c.parts and not c.unfinished]
    asked = [c for c in asked if c.step is None or "{step" not in s.layouts.piece_of(c.parts[0]).template]
    newest = {c.key for c in sorted(asked, key=lambda c: -c.mtime_ns)[:_LOOKED_INTO]}

    def count(c: Checkpoint) -> int | None:
        few = len(listed) <= _LOOKED_INTO and c.parts and not c.unfinished
        return read_count(s, c, listed, Level.STRUCTURE) if few else None

    places = find_places(listed, s.layouts, count)

    def numbered(c: Checkpoint) -> Checkpoint:
        epoch = read_epoch(s, c) if c.epoch is None else c.epoch
        step = read_step(s, c, listed) if c.step is None else c.step
        return replace(c, step=step_at(step, c, places), epoch=epoch)

    return [numbered(c) if c.key in newest else c for c in listed]


# ---- what contents tell of the step


def read_step(
    session: Session, c: Checkpoint, checkpoints: Sequence[Checkpoint], level: Level = Level.STRUCTURE
) -> int | None:
    """Return the step that most of its files tell; a breakpoint counts in the epoch of its siblings."""
    layout = session.layouts.of(c)
    read = [(p, session.report(p, level).metadata) for p in c.parts[:_READ]]
    steps = [step for p, m in read if (step := layout.steps(p, m)[0]) is not None]
    if steps or c.kind is not Kind.DYING_GASP:
        return max(steps, key=steps.count, default=None)
    same = (o for o in checkpoints if o.run == c.run and o.kind is Kind.PERIODIC)
    near = sorted(same, key=lambda o: abs(o.mtime_ns - c.mtime_ns))[:_READ]
    siblings = [(o.parts[0], session.report(o.parts[0], level).metadata) for o in near]
    return next((step for p, _ in read if (step := layout.counting.place(p, siblings)) is not None), None)


def read_epoch(session: Session, c: Checkpoint, level: Level = Level.STRUCTURE) -> int | None:
    """The epoch that the first of its files tells that tells one."""
    layout = session.layouts.of(c)
    told = (layout.steps(p, session.report(p, level).metadata)[1] for p in c.parts[:_READ])
    return next((epoch for epoch in told if epoch is not None), None)


def read_count(
    session: Session, c: Checkpoint, checkpoints: Sequence[Checkpoint], level: Level
) -> int | None:
    """Return what its files count over the whole run: the layout's entry, else the optimizer's steps."""
    if c.kind is Kind.DYING_GASP:
        return read_step(session, c, checkpoints, level)
    if key := session.layouts.of(c).counting.restarts:
        told = (whole(session.report(p, level).metadata.get(key)) for p in c.parts[:_READ])
        steps = [step for step in told if step is not None]
        return max(steps, key=steps.count, default=None)
    for role, counter in _COUNTERS.items():
        part = next((p for p in c.parts if p.role == role), c.parts[0] if len(c.parts) == 1 else None)
        if part and (count := whole(session.report(part, level).metadata.get(counter))) is not None:
            return count
    return None
