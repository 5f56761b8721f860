"""Files of a checkpoint that are gone, as saves beside it show, or that are well-formed and empty."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from ckpt_tools.formats import format_of
from ckpt_tools.formats.common.zeros import ZEROS, filter_zeros, find_zeros, is_weight, is_zero
from ckpt_tools.layouts import Claim, Purpose
from ckpt_tools.layouts.common import lost_files
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report, Tensor
from ckpt_tools.planning.equal_files import make_series_key
from ckpt_tools.planning.rules.rule import make_finding
from ckpt_tools.planning.rules.save import missing_part, unfinished, values
from ckpt_tools.planning.trackers import is_tracked
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import ShortRead, Source, opened
from ckpt_tools.storage.listing import list_names
from ckpt_tools.storage.retry import exists
from ckpt_tools.storage.urls import join_inside

_ALIKE = 8
"""How many files of a checkpoint are looked for in a directory that may be one without its index."""
_CHUNK = re.compile(r"\d+(?:\.\d+)*")
_OTHERS = 2
"""How many other saves must have a text: one alone may have it by chance."""
_ZEROED = r"(?i:(?:^|[/._])(?:opt|optim|optimizer|param_states)(?:[/._]|_?state))"
"""Names of optimizer states: gradients accumulated over several steps are zeros again after them."""
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


def find_lost(s: Session, c: Checkpoint, beside: Sequence[Checkpoint], level: Level) -> Iterator[Finding]:
    """Yield files that a save lost, as others of its run or (deeper than presence) its own list tell."""
    if not c.unfinished:
        yield from map(make_finding, s.layouts.of(c).lost(c, beside))
        yield from _find_lost_chunks(s, c, beside)
        yield from _find_orphaned_chunks(s, c) if s.found.strange else ()
        yield from _find_lost_entries(s, c) if level > Level.PRESENCE else ()


def _find_lost_entries(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield entries of a checkpoint's own list that do not exist, or hold nothing that is loaded."""
    listed = s.layouts.of(c).beside.listed  # the role of the listing file, and the pattern of its entries
    if listed is None:
        return
    loaded = [f"{p.path}/" for p in c.parts if s.layouts.piece_of(p).loaded]
    own_paths = {p.path for p in c.parts}

    def is_empty(path: str) -> bool:
        try:
            return all(f"{path}/{name}" in own_paths for name in list_names(path))
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False

    for part in [p for p in c.parts if p.role == listed[0]]:
        entries = filter(None, map(listed[1].fullmatch, s.report(part, Level.STRUCTURE).metadata))
        for path in filter(None, (join_inside(os.path.dirname(part.path), m[1]) for m in entries)):
            if not any(file.startswith(f"{path}/") for file in loaded) and _look(s, path, is_empty):
                name = path.removeprefix(f"{c.path}/")
                yield missing_part.describe_unlisted(name, part.name, c.path)


def _look(s: Session, path: str, test: Callable[[str], bool]) -> bool:
    """Return whether a path passes a test; False if it cannot be read, which is added to ``s.unread``."""
    try:
        return test(path)
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False


def _rate_zeros(name: str) -> Severity:
    """Return WARNING for the name of an optimizer state, which may be zeros; else ERROR."""
    return Severity.WARNING if re.search(_ZEROED, name) else Severity.ERROR


def _find_lost_chunks(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield chunks that an array may lack if they are zeros alone, and that were lost: their framework writes
    all of this array after step 0, or the saves ``beside`` have these chunks.
    """
    written, above = s.layouts.of(c).beside.written, f"{c.path}/"
    for index in [p.path for p in c.parts if p.path in s.indexes.left_out]:
        names = [p.removeprefix(above) for p in s.indexes.left_out[index] if p.startswith(above)]
        array = os.path.dirname(index).removeprefix(above)
        if names and c.step and written is not None and written.fullmatch(array):
            yield missing_part.describe_gone(names, index, "and its framework writes all of this array")
        elif beside and (
            lost := [n for n in names if all(_look(s, f"{o.path}/{n}", exists) for o in beside)]
        ):
            why = "which the run's other checkpoints have, and would be read as zeros"
            yield missing_part.describe_gone(lost, index, why, _rate_zeros(lost[0]))


def _find_orphaned_chunks(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield directories with chunks of an array whose description file is gone."""
    described = {os.path.dirname(p.path) for p in c.parts if lost_files.is_array(s.layouts.piece_of(p))}
    for home in s.found.strange if described else ():
        above = home
        while len(above) > len(c.path) and above not in described:  # there may be one for each axis
            above = os.path.dirname(above)
        if above == c.path and _look(s, home, lambda home: all(map(_CHUNK.fullmatch, list_names(home)))):
            yield missing_part.describe_undescribed(home)


def find_headless(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield directories beside a checkpoint with the same data files, and nothing that describes them."""
    above, base = f"{c.path}/", f"{os.path.dirname(c.path)}/"
    data = [p.path.removeprefix(above) for p in c.parts if p.role == "data" and p.path.startswith(above)]
    known = {p.home for p in s.parts}  # and no hand-made copy is a save
    known |= {f"{base}{f.path.removeprefix(base).partition('/')[0]}" for f in s.aside}
    data_directories = {os.path.dirname(name) for name in data}
    for path in s.found.strange:
        name, _, below = path.removeprefix(base).partition("/")
        home = f"{base}{name}"
        if not path.startswith(base) or below not in data_directories or home in known:
            continue
        known.add(home)
        has_same_files = all(_look(s, os.path.join(home, name), exists) for name in data[:_ALIKE])
        if has_same_files and not is_tracked(s, c, home):
            yield unfinished.describe_headless(home, c)


def find_lost_texts(s: Session) -> Iterator[Finding]:
    """Yield warnings about directories of saves that lack a file which all others of their run have."""
    runs = defaultdict[str, set[str]](set)
    for p in s.parts:
        if p.home and s.layouts.of(p).is_last_resort:
            runs[p.run].add(p.home)
    beside = defaultdict[str, set[str]](set)
    texts = (*(f.path for f in s.found.bare), *s.found.trackers.values(), *s.found.texts) if runs else ()
    for path in texts:
        beside[os.path.dirname(path)].add(os.path.basename(path))
    for homes in runs.values():
        for home in sorted(homes) if len(homes) > _OTHERS else ():
            others = [beside[o] for o in homes if o != home]
            for name in sorted(set.intersection(*others) - beside[home]):
                yield missing_part.describe_no_text(name, home)


def find_no_model(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield a finding if a save has no file of a model, nor others: hooks save models under any name."""
    layout, home, mine = s.layouts.of(c), c.parts[0].home, {p.path for p in c.parts}
    roles = layout.complete.needs_any
    if not c.unfinished and home and roles and not any(p.role in roles for p in c.parts):
        files = [p.path for p in s.parts] + [file.path for file in s.found.bare]
        others = any(path.startswith(f"{home}/") and path not in mine for path in files)
        if home not in s.found.strange and not others:
            yield missing_part.describe_no_role(c, roles[0], home)


def find_odd_files(rows: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Yield (path, finding) for files whose content or mode differs from most others of their run."""
    of_format = defaultdict[str, list[tuple[Part, Report]]](list)
    for part, report in rows:
        if report.format is not None:
            of_format[report.format].append((part, report))
    modes = defaultdict[int, list[tuple[Part, Report]]](list)
    for name, same in of_format.items():
        yield from format_of(name).crosscheck(same)
        if (mode := format_of(name).final_mode) is not None:
            modes[mode] += same
    for final, same in modes.items():
        without = [(part, report) for part, report in same if report.mode != final]
        if 2 * len(without) < len(same):
            for part, report in without:
                yield part.path, unfinished.describe_mode(part.path, report.mode, final)


# ---- well-formed and empty


def find_zeroed(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield raw tensor files of zeros alone, which are not zeros in the saves before and after."""

    def may_be_zeros(path: str) -> bool:
        report = s.report_file(path, Level.STRUCTURE)
        return report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or bool(report.metadata.get(ZEROS))

    def is_all_zero(path: str) -> bool:
        with closing(opened(path)) as source:
            return is_zero(source)

    for part in c.parts if beside and not c.unfinished else ():
        report = s.reports.get(part.path)
        if report is None or not report.metadata.get(ZEROS) or not part.path.startswith(f"{c.path}/"):
            continue
        name = part.path.removeprefix(f"{c.path}/")
        others = [os.path.join(o.path, name) for o in beside]
        unlike = all(_look(s, path, exists) for path in others) and not any(map(may_be_zeros, others))
        if unlike and _look(s, part.path, is_all_zero):
            yield values.describe_zero_file(part.path, _rate_zeros(name))


def find_hollow(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield models' files without tensors or numbers; optimizers' only if an older save has some."""
    older = [o for o in beside if (o.order, o.mtime_ns) < (c.order, c.mtime_ns)]
    for p in () if c.unfinished else c.parts:
        report, piece = s.reports.get(p.path), s.layouts.piece_of(p)
        if report is None or not _may_be_hollow(report) or not piece.loaded or piece.claim is Claim.DESCRIBED:
            continue
        if report.tensors and not report.blank.empty:
            if p.role in MODELS:
                yield from _find_zeros(s, p, _find_counterparts(p, older or (beside if c.step else ())))
        elif p.role in OPTIMIZERS:
            yield from _find_missing_beside(s, p, _find_counterparts(p, older), alone=False)
        else:
            yield from _find_missing_in_model(s, c, p, report, beside)


def _find_missing_in_model(
    s: Session, c: Checkpoint, p: Part, report: Report, beside: Sequence[Checkpoint]
) -> Iterator[Finding]:
    """Yield what a file lacks if its role or its name is that of a model."""
    piece = s.layouts.piece_of(p)
    if (has_export_name := piece.claim is Claim.WEAK and p.name in _find_export_names(s)) or p.role in MODELS:
        elsewhere = any(o.role in piece.content.tensors_in for o in c.parts)
        of_it = piece.claim is not Claim.WEAK and not elsewhere
        # a GGUF file may hold a vocabulary alone, a pickle anything
        alone = has_export_name or (of_it and bool(format_of(report.format or "").loader))
        yield from _find_missing_beside(s, p, _find_counterparts(p, beside), alone=alone)


def find_hollow_exports(s: Session) -> Iterator[Finding]:
    """Yield findings on empty models' files of no checkpoint, whose names only exports have."""
    for path in [file.path for file in s.found.bare]:
        report = s.reports.get(path)
        zeros = report is not None and report.tensors and not report.blank.empty
        if report is None or zeros or not _may_be_hollow(report):
            continue
        if path.rpartition("/")[2] in _find_export_names(s):
            mine = {t.name: t for t in s.inspect(path, Level.STRUCTURE)[1].tensors}
            yield from _find_missing_tensors(path, mine, (), alone=True, whole=True)


def _may_be_hollow(report: Report) -> bool:
    """Return True if a file that was read seems to lack tensors or elements; False for an index."""
    if report.format is None or (report.signature and not any(report.blank)):
        return False
    return report.level >= Level.STRUCTURE and _is_sound(report) and not format_of(report.format).index


def _is_sound(report: Report) -> bool:
    """Return True if a file was read, and is not broken."""
    seen = all(f.code not in _NOT_SEEN for f in report.findings)
    return seen and report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)


def _find_export_names(s: Session) -> set[str]:
    """Return the names that models' files have in layouts of exports, without weak (common) names."""
    exporters = (layout for layout in s.layouts if layout.purpose is Purpose.EXPORTS)
    models = (p for layout in exporters for p in layout.pieces if p.role in MODELS)
    return {p.file_template for p in models if p.claim is not Claim.WEAK}


def _find_counterparts(p: Part, saves: Iterable[Checkpoint]) -> list[Part]:
    """Return the files of other saves that have this one's role, rank, coordinates and name."""
    mine = make_series_key(p)
    return [o for save in saves for o in save.parts if o.role == p.role and make_series_key(o) == mine]


def _find_missing_beside(s: Session, p: Part, others: Sequence[Part], *, alone: bool) -> Iterator[Finding]:
    """Yield what a file lacks that its counterparts in other saves have."""
    if (mine := _read_tensors(s, p)) is not None:
        filled = [(o, _find_filled_names(of)) for o in others if (of := _read_tensors(s, o))]
        # a rank may hold no element of a tensor, but a whole file or a shard of a model must
        whole = p.rank is None and all(axis == "shard" for axis, _ in p.coords)
        yield from _find_missing_tensors(p.path, mine, filled, alone=alone, whole=whole)


def _find_missing_tensors(
    path: str, mine: Tensors, filled: Sequence[tuple[Part, set[str]]], *, alone: bool, whole: bool
) -> Iterator[Finding]:
    """Yield that a file lacks tensors or elements. ``filled``: files of other saves, with names of tensors
    that have elements; ``alone``: it must have tensors even without these; ``whole``: it is no rank's share.
    """
    empty = mine.keys() - _find_filled_names(mine)
    full = next((o for o, names in filled if not mine or names), None)
    if len(empty) == len(mine) and full:
        yield values.describe_no_tensors(path, full, elements=bool(mine))
        return
    if not mine and alone:
        yield values.describe_no_tensors(path)
    lost = empty & set[str]().union(*(names for _, names in filled))
    if lost := lost | (empty & {t.name for t in filter(is_weight, mine.values())} if whole else set()):
        yield values.describe_without_elements(path, lost)


def _find_filled_names(tensors: Tensors) -> set[str]:
    """Return the names of tensors that have elements."""
    return {name for name, t in tensors.items() if 0 not in t.shape}


def _find_zeros(s: Session, p: Part, others: Sequence[Part]) -> Iterator[Finding]:
    """Yield weights that are nothing but zeros here, and in none of the ``others``."""
    sound = [(o, tensors) for o in others if (tensors := _read_tensors(s, o))]
    zeros = _read_zero_names(s, p, find_zeros, _read_tensors(s, p) or {}) if sound else set[str]()
    for o, tensors in sound:
        same = {name: tensors[name] for name in zeros & tensors.keys()}
        zeros = same.keys() - _read_zero_names(s, o, filter_zeros, same)
    if zeros:
        yield values.describe_zeros(zeros, p.path, sound[0][0])


def _read_zero_names(s: Session, p: Part, find: Find, tensors: Tensors) -> set[str]:
    """Return names of tensors that ``find`` finds to be zeros; notes a file that cannot be read."""
    try:
        with closing(opened(p.path)) as source:
            return {t.name for t in find(source, list(tensors.values()))}
    except (OSError, ShortRead) as e:
        s.unread[p.path] = str(e)
        return set()


def _read_tensors(s: Session, p: Part) -> Tensors | None:
    """Return the tensors of a file by name; None if it is damaged."""
    report, anatomy = s.inspect(p.path, Level.STRUCTURE, expect=s.layouts.piece_of(p).formats)
    return {t.name: t for t in anatomy.tensors} if _is_sound(report) else None
