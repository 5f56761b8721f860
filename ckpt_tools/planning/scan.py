"""What checkpoints are below a root: what ``ckpt ls`` lists."""

from __future__ import annotations

from ckpt_tools.crosscheck.steps import step_in_contents
from ckpt_tools.crosscheck.trackers import as_told, told
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.findings import finding
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning.choose import rank
from ckpt_tools.planning.filters import belongs
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session
from ckpt_tools.reading.unseen import not_seen, unread_files


def scan_root(
    root: str, selection: Selection, *, trackers: bool = False, progress: Progress | None = None
) -> Scan:
    """From directory listings, and a structure pass where names do not tell the step; ``trackers`` are read
    where that is asked for. Raises CannotLook.
    """
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
    rows = [as_told(s, c) for c in _listed(s, selection)]
    checkpoints = [c for c, _ in rows]
    expected = {
        run: n
        for (_, run), members in s.runs(checkpoints).items()
        if (n := selection.world_size or completeness.expected_ranks(members, s.layouts))
    }
    unfinished = "a temporary file of a save that never finished"
    findings = [
        *not_seen(s),
        *unread_files(s),
        *s.notes,
        *(f for _, damage in rows for f in damage),
        *(finding("unfinished-save", unfinished, path=p) for p in s.found.unfinished),
    ]
    return Scan(
        root=s.root,
        checkpoints=tuple(checkpoints),
        expected=expected,
        findings=tuple(findings),
        bare=len(s.found.bare),
        unrecognised=s.found.unrecognised,
        excluded=len(s.found.excluded.paths),
        layouts=s.layouts,
        trackers=tuple(told(s, checkpoints)) if trackers else (),
    )


def _listed(s: Session, selection: Selection) -> list[Checkpoint]:
    """The checkpoints that the filters leave, newest first by modification time, or by step where that is
    asked for.
    """
    everything, most = grouping.group(s.parts, s.layouts, selection.save_interval), selection.max_step

    def wanted(c: Checkpoint) -> bool:
        if not belongs(c, selection) or selection.kind not in (None, c.kind):
            return False
        step = c.step if c.step is not None or most is None else step_in_contents(s, c, everything)
        return most is None or (step is not None and step <= most)

    left = [c for c in everything if wanted(c)]
    return rank(left, "step") if selection.order == "step" else left
