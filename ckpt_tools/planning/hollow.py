"""Files of a model that are well-formed and hold none: no tensors, none with elements, or only zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from ckpt_tools.formats import format_of
from ckpt_tools.formats.common.zeros import all_zeros, is_weight, zero_tensors
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.planning.equal_files import place
from ckpt_tools.planning.rules.save import index_member, values
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import ShortRead, Source, opened

_PARTS = ("adapter", "ema", "export", "module", "parameter", "sharded", "controlnet")
_NETWORKS = ("prior", "prior_ema", "transformer", "transformer_ema", "unet", "unet_ema")
_KINDS = ("model", "layer", "expert")
MODELS = frozenset(
    [*_PARTS, *_NETWORKS, *_KINDS, *(f"critic_{kind}" for kind in _KINDS), "policy_model", "value_model"]
)
"""The roles of files that hold a model, or a part of one."""
OPTIMIZERS = frozenset(["optimizer", "critic_optimizer", "expert_optimizer", "critic_expert_optimizer"])
_NOT_SEEN = frozenset({"needs-key", "wrong-key", "needs-extra", "too-complex", "unread-pickle"})
Tensors = Mapping[str, Tensor]
Find = Callable[[Source, Sequence[Tensor]], Iterable[Tensor]]


def hollow(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What a checkpoint's files of a model lack, by themselves and beside other saves of the run. Of an
    optimizer, which may have no state before its first step or never, only what an older save has is missed.
    """
    older = [o for o in beside if (o.order, o.mtime_ns) < (c.order, c.mtime_ns)]
    for p in () if c.unfinished else c.parts:
        report, piece = s.reports.get(p.path), s.layouts.piece_of(p)
        if report is None or not _may_be_hollow(report) or not piece.loaded or piece.described:
            continue
        if report.tensors and not report.blank.empty:
            if p.role in MODELS:
                yield from _zeros(s, p, _same_place(p, older or (beside if c.step else ())))
        elif p.role in OPTIMIZERS:
            yield from _lacking(s, p, _same_place(p, older), alone=False)
        else:
            yield from _lacking_model(s, c, p, report, beside)


def _lacking_model(
    s: Session, c: Checkpoint, p: Part, report: Report, beside: Sequence[Checkpoint]
) -> Iterator[Finding]:
    """Return what a file lacks if its role or its name is that of a model."""
    piece = s.layouts.piece_of(p)
    if (named := piece.weak and p.name in _export_names(s)) or p.role in MODELS:
        of_it = not piece.weak and {o.role for o in c.parts}.isdisjoint(piece.tensors_in)
        # a GGUF file may hold a vocabulary alone, a pickle anything
        alone = named or (of_it and bool(format_of(report.format or "").loader))
        yield from _lacking(s, p, _same_place(p, beside), alone=alone)


def hollow_exports(s: Session) -> Iterator[Finding]:
    """The same of models' files that belong to no checkpoint: their names say what they are."""
    for path in [file.path for file in s.found.bare]:
        report = s.reports.get(path)
        if report is None or not _may_be_hollow(report) or (report.tensors and not report.blank.empty):
            continue
        if path.rpartition("/")[2] in _export_names(s):
            tensors = s.inspect(path, Level.STRUCTURE)[1].tensors
            if lost := {t.name for t in tensors if 0 in t.shape and is_weight(t)}:
                yield index_member.describe_without_elements(path, lost)
            if not tensors:
                yield index_member.describe_no_tensors(path)


def _may_be_hollow(report: Report) -> bool:
    """Whether a file that could be looked into seems to lack something; an index is another's table."""
    if report.format is None or (report.signature and not any(report.blank)):
        return False
    return report.level >= Level.STRUCTURE and _is_sound(report) and not format_of(report.format).index


def _is_sound(report: Report) -> bool:
    seen = all(f.code not in _NOT_SEEN for f in report.findings)
    return seen and report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)


def _export_names(s: Session) -> set[str]:
    exporters = (layout for layout in s.layouts if layout.exports_models)
    pieces = (p for layout in exporters for p in layout.pieces if p.role in MODELS and not p.weak)
    return {p.template.rpartition("/")[2] for p in pieces}


def _same_place(p: Part, saves: Iterable[Checkpoint]) -> list[Part]:
    """The files of other saves in the place of this one."""
    mine = place(p)
    return [o for save in saves for o in save.parts if o.role == p.role and place(o) == mine]


def _lacking(s: Session, p: Part, others: Sequence[Part], *, alone: bool) -> Iterator[Finding]:
    """No tensors, where ``others`` have some or the file ``alone`` must; else weights without elements."""
    mine, filled = _tensors(s, p), [(o, _filled(of)) for o in others if (of := _tensors(s, o))]
    if mine is None:
        return
    empty = mine.keys() - _filled(mine)
    full = next((o for o, names in filled if not mine or names), None)
    if len(empty) == len(mine) and full:
        yield index_member.describe_hollow(p.path, full, tensors=bool(mine))
        return
    if not mine and alone:
        yield index_member.describe_no_tensors(p.path)
    lost = empty & set[str]().union(*(names for _, names in filled))
    if _is_of_all_ranks(p):  # a rank may have none of a tensor
        lost |= empty & {t.name for t in filter(is_weight, mine.values())}
    if lost:
        yield index_member.describe_without_elements(p.path, lost)


def _filled(tensors: Tensors) -> set[str]:
    """Return the names of the tensors that have elements."""
    return {name for name, t in tensors.items() if 0 not in t.shape}


def _is_of_all_ranks(p: Part) -> bool:
    """Return True if a file is no rank's share: it is whole, or one of the shards of a model."""
    return p.rank is None and all(axis == "shard" for axis, _ in p.coords)


def _zeros(s: Session, p: Part, others: Sequence[Part]) -> Iterator[Finding]:
    """Weights that are nothing but zeros, and in none of the ``others``."""
    sound = [(o, tensors) for o in others if (tensors := _tensors(s, o))]
    zeros = _zero_names(s, p, zero_tensors, _tensors(s, p) or {}) if sound else set[str]()
    for o, tensors in sound:
        same = {name: tensors[name] for name in zeros & tensors.keys()}
        zeros = same.keys() - _zero_names(s, o, all_zeros, same)
    if zeros:
        yield values.describe_zeros(zeros, p.path, sound[0][0])


def _zero_names(s: Session, p: Part, find: Find, tensors: Tensors) -> set[str]:
    try:
        with closing(opened(p.path)) as source:
            return {t.name for t in find(source, list(tensors.values()))}
    except (OSError, ShortRead) as e:
        s.unread[p.path] = str(e)
        return set()


def _tensors(s: Session, p: Part) -> Tensors | None:
    """The tensors of a file by their names; None where it is damaged."""
    report, anatomy = s.inspect(p.path, Level.STRUCTURE, expect=s.layouts.piece_of(p).formats)
    return {t.name: t for t in anatomy.tensors} if _is_sound(report) else None
