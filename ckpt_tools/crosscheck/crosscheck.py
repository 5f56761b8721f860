"""What only several files together show: ranks that are missing, steps that disagree, tensors that changed, trackers that lie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ckpt_tools.crosscheck import consistency
from ckpt_tools.crosscheck.duplicates import same_content
from ckpt_tools.crosscheck.mindformers_records import records
from ckpt_tools.crosscheck.trackers import declared, missing
from ckpt_tools.crosscheck.unfinished import TORN
from ckpt_tools.crosscheck.writers import contradictions
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.sidecars import gone, read_note
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.inspection.check import prefix_signature
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session, with_findings


def across(s: Session, whole_tree: bool, level: Level = Level.STRUCTURE) -> list[Finding]:
    """Findings across the files of each run; those of one file are added to its report."""
    out: list[Finding] = []
    if whole_tree:
        out += _pieces(s)
        out += (
            f
            for home in sorted({os.path.dirname(i) for i in s.found.indexes if i.endswith(".index")})
            for f in state_file(home)
        )
    judged = {f.path for f in out}
    for checkpoints in s.runs(grouping.group(s.parts)).values():
        parts = [
            p for c in checkpoints if not c.unfinished for p in c.parts
        ]  # what a save left half written proves nothing
        wrong = set[str]()
        for path, f in (
            *consistency.consistency(parts, s.reports),
            *contradictions([(p, s.reports[p.path]) for p in parts]),
        ):
            wrong |= {path} if f.severity is Severity.ERROR else set()
            s.reports[path] = with_findings(s.reports[path], [f])
        for odd, typical in consistency.signatures(parts, s.reports):
            s.reports[odd.path] = with_findings(s.reports[odd.path], [changed(odd, typical, s)])
        named = [
            p
            for c in checkpoints
            if not c.unfinished
            for p in s.members(c).parts
            if p.path in s.reports and p.path not in wrong
        ]
        copied = [row[:2] for row in same_content(named, s)] if level >= Level.CONTENT and whole_tree else ()
        for path, f in (*trailers(parts, s), *modes(parts, s), *ciphers(parts, s), *copied):
            s.reports[path] = with_findings(s.reports[path], [f])
        incomplete: set[str] = set()
        finished = [c for c in checkpoints if not c.unfinished]
        run = completeness.expected(
            finished,
            told=lambda c: consistency.saved_sizes(s.reports[p.path] for p in c.parts if p.path in s.reports),
        )
        for c in checkpoints:
            if c.unfinished:
                out.append(_begun(s, c))
                continue
            gaps = completeness.missing(c, run) if whole_tree else []
            torn = [
                p
                for p in c.parts
                if any(f.code in TORN and f.severity is Severity.ERROR for f in s.reports[p.path].findings)
            ]
            if (
                whole_tree
                and (torn or any(f.severity is not Severity.NOTE for f in gaps))
                and s.unfinished(c, finished)
            ):
                text = "; ".join(f.message for f in gaps) or f"{len(torn)} of its files end early"
                gaps = [
                    finding(
                        "unfinished-save",
                        text,
                        path=c.path,
                        ranks=next((f.ranks for f in gaps if f.ranks), ()),
                    )
                ]
                _soften(s, torn)
            if any(f.severity is not Severity.NOTE for f in gaps):
                incomplete.add(c.path)
            out += [*gaps, *(completeness.losses(c, run) if whole_tree else ()), *completeness.doubled(c)]
            if len({p.generation for p in c.parts}) > 1:
                out.append(
                    finding(
                        "generation-mismatch",
                        f"{completeness.label(c)} joins files of different restarts",
                        path=c.path,
                        severity=_restarts(c, finished),
                    )
                )
        for odd, typical, what in (row for c in finished for row in consistency.replicas(c, s.reports)):
            code, text = (
                ("size-outlier", f"{odd.size:,} bytes")
                if what == "size"
                else ("signature-changed", "its tensors differ")
            )
            other = (
                typical.path.rpartition("/")[2]
                if typical.rank is None
                else f"rank {typical.rank}'s file ({typical.size:,} bytes)"
            )
            s.reports[odd.path] = with_findings(
                s.reports[odd.path], [finding(code, f"{text}, unlike {other} and other replicas")]
            )
        for c, between in consistency.straddled(finished) if whole_tree else ():
            out.append(
                finding(
                    "mixed-attempts",
                    f"{completeness.label(between)} was written between its first and its last file",
                    path=c.path,
                )
            )
        if whole_tree:
            out += records(finished)
        if whole_tree and finished:
            out += (f for f in tracker_findings(s, finished, incomplete.copy) if f.path not in judged)
    return out


def _begun(s: Session, c: Checkpoint) -> Finding:
    """A save without the file that is written last: damage where the tracker names it, else it never finished."""
    if tracker := declared(s, c):
        text = f"{tracker.rpartition('/')[2]} names this checkpoint, so it was finished, {missing(c)}"
        return finding("missing-part", text, path=c.parts[0].home or c.path)
    _soften(s, c.parts)
    return finding(
        "unfinished-save", f"this save {completeness.why_unfinished(c)}", path=c.parts[0].home or c.path
    )


def _restarts(c: Checkpoint, others: Sequence[Checkpoint]) -> Severity:
    """After a crash in the middle of a save the ranks count restarts differently: no matter, as long as the files were written together."""
    spread = max(p.mtime_ns for p in c.parts) - min(p.mtime_ns for p in c.parts)
    nearest = min((abs(o.mtime_ns - c.mtime_ns) for o in others if o is not c), default=0)
    return Severity.NOTE if spread < nearest else Severity.WARNING


def _soften(s: Session, torn: Iterable[Part]) -> None:
    """What a save that never finished left half written is no damage of a checkpoint."""
    for p in torn:
        report = s.reports.get(p.path)
        if report and report.verdict is Verdict.BROKEN:
            softer = tuple(
                replace(f, severity=Severity.WARNING) if f.code in TORN else f for f in report.findings
            )
            s.reports[p.path] = replace(report, findings=softer, verdict=worst(softer))


def _pieces(s: Session) -> Iterator[Finding]:
    """Pieces of tensors that do not make up the whole."""
    if s.places:
        from ckpt_tools.formats.safetensors.dcp_sharding import together

        yield from (
            replace(f, path=home) for home, files in s.places.items() for f in together(files.values())
        )


def state_file(home: str) -> Iterator[Finding]:
    """TensorFlow's text file ``checkpoint`` beside its bundles: well-formed, and naming a bundle that is there. Absolute paths may be another machine's."""
    from ckpt_tools.formats.tensorflow.state import parse

    path = os.path.join(home, "checkpoint")
    data = read_note(path, 1 << 20)
    if data is None:
        return
    if isinstance(data, Finding):
        yield data
        return
    try:
        named = parse(data).latest
    except Damage as e:
        yield replace(e.finding, path=path)
        return
    if named and not os.path.isabs(named):
        wrong = gone(
            os.path.join(home, f"{named}.index"), path, f"it names {named[:200]!r}, which is not there"
        )
        yield from () if wrong is None else (wrong,)


def tracker_findings(
    s: Session, checkpoints: Sequence[Checkpoint], incomplete: Callable[[], set[str]]
) -> Iterator[Finding]:
    """What the tracker beside a run gets wrong, if its layout has one. ``incomplete`` gives the paths of checkpoints that lack parts."""
    layout, base = BY_NAME[checkpoints[0].layout], checkpoints[0].parts[0].base
    if layout.tracker is None:
        return
    said = s.tracker(layout.name, base)
    if said is None:
        if layout.always_tracked and f"{base}/".startswith(f"{s.root}/"):  # above ROOT nobody looked
            yield finding("missing-tracker", f"there is no {layout.tracker}", path=base)
    elif isinstance(said[1], Finding):
        yield said[1]
    else:
        yield from consistency.trackers(checkpoints, said[1], said[0], incomplete())


def ciphers(parts: Sequence[Part], s: Session) -> Iterator[tuple[str, Finding]]:
    """Encrypted files of another mode than most of their run: saved by another job, with another key."""
    modes = Counter(
        said for p in parts if isinstance(said := s.reports[p.path].metadata.get("encryption"), str)
    )
    usual = modes.most_common(1)[0][0] if len(modes) > 1 else None
    for p in parts:
        said = s.reports[p.path].metadata.get("encryption")
        if usual and said and said != usual and 2 * modes[usual] > modes.total():
            yield (
                p.path,
                finding(
                    "signature-changed", f"it is encrypted with {said}, the run's other files with {usual}"
                ),
            )


def changed(odd: Part, typical: Part, s: Session) -> Finding:
    """A part whose tensors differ from its siblings': an error when it is a sibling cut off after some record, which no format of its own shows."""
    a, b = s.reports[odd.path], s.reports[typical.path]
    other = typical.path.rpartition("/")[2]
    if a.tensors < b.tensors and a.format == "mindspore_ckpt":
        formats = BY_NAME[typical.layout].piece(typical.piece).formats
        if prefix_signature(typical.path, formats, a.tensors) == a.signature:
            text = f"it ends after {a.tensors} tensors, exactly like {other} ({b.tensors} tensors) cut between two records"
            return finding("signature-changed", text, severity=Severity.ERROR)
    return finding(
        "signature-changed",
        f"{a.tensors} tensors, unlike {other} and others of this rank ({b.tensors} tensors)",
    )


def trailers(parts: Sequence[Part], s: Session) -> Iterator[tuple[str, Finding]]:
    """MindSpore files without the CRC trailer that most files of their run carry: cut by exactly its 17 bytes, or saved otherwise."""
    rows = [
        p
        for p in parts
        if p.kind is Kind.PERIODIC
        and s.reports[p.path].format == "mindspore_ckpt"
        and s.reports[p.path].tensors
    ]
    without = [p for p in rows if not s.reports[p.path].metadata.get("crc_trailer")]
    if without and 2 * len(without) < len(rows):
        for p in without:
            yield (
                p.path,
                finding(
                    "signature-changed",
                    "no CRC trailer, unlike the run's other files: cut by its 17 bytes, or saved with other settings",
                ),
            )


def modes(parts: Sequence[Part], s: Session) -> Iterator[tuple[str, Finding]]:
    """MindSpore's save_checkpoint ends with chmod 0400 (mindspore/train/serialization.py, _exec_save): a file without it among files that have it was copied, or cut."""
    rows = [p for p in parts if s.reports[p.path].format in ("mindspore_ckpt", "mindspore_encrypted")]
    without = [p for p in rows if s.reports[p.path].mode != 0o400]
    if 2 * len(without) < len(rows):
        for p in without:
            yield (
                p.path,
                finding(
                    "mode-not-final",
                    f"its mode is {s.reports[p.path].mode:04o}, that of the run's other files 0400",
                ),
            )
