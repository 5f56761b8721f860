"""Files that no layout recognises, as the facts of rule ``choice/unplaced-newer``."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.discovery.exclude import hint_exclude, hint_exclude_all, is_set_aside, make_clause
from ckpt_tools.discovery.found import BareFile
from ckpt_tools.discovery.seals import DVC, stands_for_nothing_here
from ckpt_tools.discovery.unrecognised import NO_STATE, is_other, is_packed_state, is_unread, read_format
from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.formats.common.held import OF_ONE_ARRAY
from ckpt_tools.layouts.common import counters, templates
from ckpt_tools.layouts.files import read_convention
from ckpt_tools.layouts.guess import guess
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.plan import Rejected
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.facts import UnplacedFile
from ckpt_tools.planning.lost_files import find_headless
from ckpt_tools.planning.rules.choice import unplaced_newer
from ckpt_tools.planning.rules.rule import Hit, error_of, finding_of
from ckpt_tools.planning.rules.save import file_verdict
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.listing import list_entries
from ckpt_tools.storage.retry import ABSENT, exists
from ckpt_tools.storage.stalls import retry_call

_MAY_BE_DATA = frozenset(("npz", "npy")) | NO_STATE
"""Formats whose files are mostly data sets and results."""
_MAY_BE_WHOLE = frozenset({"pointer-not-data", "bad-header", "wrong-format"})
"""Errors of files that may be whole elsewhere, or in a format that ckpt does not know."""
_NAMED = 8
"""How many files a hint names one by one."""
_MOST = 512
"""How many files are opened, the newest first: a directory of more without a layout is a data set."""


def require_none_newer(s: Session, c: Checkpoint, asked: Selection) -> list[Finding]:
    """Return warnings about unplaced files that are later than ``c`` and damaged; [] if the caller chose the
    files. Raises UsageError if a sound one may be later, or a damaged one where no older save is wanted.
    """
    flags_given = (asked.layout, asked.prefix, asked.kind, asked.max_step) != (None,) * 4
    if flags_given or asked.resume_from == "tracker" or asked.level is Level.PRESENCE:
        return []
    found = list(_find_hits(s, c, c.parts[0].base if asked.run is not None else s.root))
    if hits := [hit for hit in found if hit.effect is None or asked.no_fallback or asked.strict]:
        first = hits[0].path
        to_exclude = hint_exclude_all(s.root, c, [h.path for h in hits], {p.path for p in s.parts})
        if len(hits) > _NAMED:
            to_exclude = f"--exclude GLOB, so that all {len(hits):,} such files are left out"
        todo = "fetch it (dvc pull)" if first.endswith(DVC) else describe_how_to_place(s, first)
        hint = f"{todo}; or {make_clause(to_exclude)}"
        raise error_of(unplaced_newer.RULE, replace(hits[0], hint=hint))
    return [finding_of(unplaced_newer.RULE, hit) for hit in found]


def _find_hits(s: Session, c: Checkpoint, above: str) -> Iterator[Hit]:
    """Yield hits on unplaced files in the directory ``above`` that may be later than ``c``."""
    optimizer = any("optim" in p.role for p in c.parts)
    optimizer = optimizer or any(s.known(p).held.trained for p in c.parts[:_MOST])
    homes = tuple({f"{p.home}/" for p in c.parts if p.home})
    beside = "" if homes or optimizer else c.parts[0].base  # weights alone: a state may lie beside them
    headless = tuple(f"{f.path}/" for f in find_headless(s, s.members(c)))

    def may_count(path: str) -> bool:
        return path.startswith(f"{above}/") and not path.startswith(headless)

    unplaced = find_unplaced_files(s, c.mtime_ns, may_count, homes, beside)
    yield from unplaced_newer.find_unplaced(s.root, unplaced, c, optimizer=optimizer)


def require_fetched(s: Session, c: Checkpoint, rejected: Sequence[Rejected]) -> None:
    """Raise UsageError if a rejected, newer save has only a pointer in place of its data (Git LFS, DVC)."""
    found = (f for r in rejected if r.checkpoint.order != c.order for f in r.findings)
    if f := next((f for f in found if f.code == "pointer-not-data" and f.severity is Severity.ERROR), None):
        name = os.path.relpath(f.path, s.root)
        raise file_verdict.ask_for_data(
            c, f, name, f"{f.hint}; or {make_clause(hint_exclude(s.root, c, f.path))}"
        )


def require_no_stranger(s: Session, c: Checkpoint, asked: Selection) -> None:
    """Raise UsageError if another layout loads a file in the save's directory, which no rank would load."""
    homes = {p.home for p in c.parts if p.home}
    above = tuple(f"{home}/" for home in homes) if all(p.role != "model" for p in c.parts) else ()
    for p in s.parts if homes and asked.layout is None else ():
        is_stranger = p.layout != c.layout and (p.home in homes or p.home.startswith(above))
        if is_stranger and s.layouts.piece_of(p).loaded:
            name = os.path.relpath(p.path, s.root)
            todo, exclude = describe_how_to_place(s), hint_exclude(s.root, c, p.path)
            hint = f"{todo}; if it has nothing to do with it, {exclude}"
            raise unplaced_newer.ask_about_stranger(c, p.path, name, hint)


def describe_how_to_place(s: Session, path: str = "") -> str:
    """Return what to do about a file that no layout recognises and that may belong to a save."""
    if any(path.startswith(f"{p.home}/") for p in s.parts if p.home):  # none is guessed for files of saves
        return f"if it is a part of this save, {unplaced_newer.format_layout_hint(s.root, sure=False)}"
    return f"if it is a save of this run, {make_layout_hint(s)}"


def make_layout_hint(s: Session) -> str:
    """Return the hint how to describe files that no layout recognises (``ckpt layouts --guess``)."""
    files = find_undescribed(s)
    without_layout = all(s.layouts.of(p).is_last_resort for p in s.parts)
    others = {os.path.relpath(p.path, s.root) for p in s.parts} - files.keys()
    is_sure = without_layout and bool(files) and guess(files, others, partial(look_inside, s)).is_sure
    return unplaced_newer.format_layout_hint(s.root, sure=is_sure)


def find_undescribed(s: Session) -> dict[str, int]:
    """Return sizes, by path below ROOT, of files that may be states and need a layout of their own."""
    sizes = {p.path: p.size for p in s.parts if s.layouts.of(p).is_last_resort}
    sizes |= {f.path: f.size for f in find_unplaced_files(s, 0, bool) if f.state}
    kinds = set(map(_get_directory_and_suffix, sizes))
    sizes |= {f.path: f.size for f in s.found.bare if _get_directory_and_suffix(f.path) in kinds}
    if not sizes:
        mixed = _find_mixed_layouts(s.parts)
        sizes = {p.path: p.size for p in s.parts if p.layout in mixed}
    return {os.path.relpath(path, s.root): sizes[path] for path in sorted(sizes)}


def look_inside(s: Session, path: str) -> str:
    """Return what a file below ROOT holds: ``state`` (a model too), ``optimizer`` (alone), or ""."""
    held = s.report_file(os.path.join(s.root, path), Level.STRUCTURE).held
    return ("state" if held.weights else "optimizer") if held.optimizer else ""


def _find_mixed_layouts(parts: Sequence[Part]) -> set[str]:
    """Return the layouts of saves whose directories contain, or lie in, that of a save of another layout."""
    homes = {(f"{p.home}/", p.layout) for p in parts if p.home}
    pairs = ((outer, inner) for outer in homes for inner in homes if inner[0].startswith(outer[0]))
    return {layout for (_, one), (_, two) in pairs if one != two for layout in (one, two)}


def _get_directory_and_suffix(path: str) -> tuple[str, str]:
    return os.path.dirname(path), os.path.splitext(path)[1]


def find_unplaced_files(
    s: Session, since_ns: int, is_inside: Callable[[str], bool], own: tuple[str, ...] = (), beside: str = ""
) -> Iterator[UnplacedFile]:
    """Yield files that no layout and no index explains, newest first: files that pass ``is_inside``, written
    at ``since_ns`` or later, outside of saves' directories. Files below the choice's ``own`` directories, and
    in ``beside``, count whatever their time. Adds unreadable files to ``s.unplaced``.
    """

    def may_count(f: BareFile) -> bool:
        is_near = f.path.startswith(own) or os.path.dirname(f.path) == beside
        return is_near or (f.mtime_ns >= since_ns and is_inside(f.path))

    rows = list(filter(may_count, (*_find_bare(s), *_find_strange(s))))
    if not rows:
        return
    explained = _find_explained(s)
    homes = {p.home for p in s.parts if not f"{p.home}/".startswith(own)}
    files = {f.path: f for f in rows if f.path not in explained and not _is_in_save(f.path, homes, s.root)}
    unhidden = (f for f in files.values() if not s.indexes.hidden(f.path))  # else its index is wrong
    for file in sorted(unhidden, key=lambda f: (-f.mtime_ns, f.path))[:_MOST]:
        yield _read_facts(s, file, inside=file.path.startswith(own) or file.mtime_ns < since_ns)


def _find_explained(s: Session) -> set[str]:
    """Return paths of files that a layout, an index or a tracker of a known format accounts for."""
    parts = {p.path for p in s.parts}
    known = {*parts, *s.indexes.members(parts), *(f.path for f in s.found.lone)}
    trackers = {(name, p.base) for p in s.parts if (name := s.layouts.of(p).tracker.state_copy)}
    known |= {found[0] for row in trackers if (found := s.state_tracker(*row)) is not None}
    return known | {p.path for p in s.companions if not s.layouts.piece_of(p).loaded}


def _is_in_save(path: str, homes: set[str], root: str) -> bool:
    """Return True if a file below ``root`` lies in a directory of ``homes``, or of an unfinished save."""
    while len(path := os.path.dirname(path)) > len(root):
        if path in homes or templates.is_begun(os.path.basename(path)):
            return True
    return False


def _find_bare(s: Session) -> Iterator[BareFile]:
    """Yield files whose names tell a format that can hold a state, or none. Raises CannotLook (DVC)."""
    for f in s.found.bare:
        name = f.path.rpartition("/")[2]
        allowed = formats.names.allowed(name)
        may_be = formats.names.only_state(name) or any(map(_holds_state, allowed))
        may_be = may_be or not (allowed or is_other(name))  # of a loop's weak name: the content tells
        # a .dvc file may stand for a directory that is not here
        data, is_dvc = f.path.removesuffix(DVC), f.path.endswith(DVC)
        may_be = may_be or (is_dvc and "." not in os.path.basename(data) and stands_for_nothing_here(data))
        if may_be and (f.size > 0 or formats.names.only_state(name)) and not formats.names.placed(f.path):
            yield f


def _find_strange(s: Session) -> Iterator[BareFile]:
    """Yield files whose names no format has. Adds directories that cannot be listed to ``s.unplaced``."""
    keep = partial(s.found.excluded.keep, s.root)
    for directory in s.found.strange:
        try:
            for entry in list_entries(directory, keep):
                if is_set_aside(entry.name) or templates.TEMPORARY.search(entry.name):
                    continue  # temporary files have warnings of their own
                if is_other(entry.name) and not is_packed_state(entry.name):
                    continue
                st = _get_status(entry)
                if st is not None and stat.S_ISREG(st.st_mode) and st.st_size:
                    yield BareFile(entry.path, st.st_size, st.st_mtime_ns, ())
        except OSError as e:
            s.unplaced.append(Unseen(e.filename or directory, e.strerror or str(e)))


def _get_status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the stat result of an entry; None if it is gone, or a link that leads nowhere."""
    try:
        return retry_call(entry.stat)
    except OSError as e:
        if isinstance(e, ABSENT) or e.errno == errno.ELOOP:  # a link that leads to itself
            return None
        raise


def _read_facts(s: Session, file: BareFile, *, inside: bool) -> UnplacedFile:
    """Return what a file's name and content tell; ``inside``: it lies in the directory of the choice."""
    name = os.path.basename(file.path)
    known = UnplacedFile(file.path, file.size, file.mtime_ns, None, state=True, inside=inside)
    if name.endswith(DVC):  # the data itself is not here
        return replace(known, format="kept by DVC", broken=True)
    if is_packed_state(name):
        return replace(known, format="packed or encrypted")
    if is_unread(name):
        return replace(known, format="one that ckpt cannot read")
    if allowed := formats.names.allowed(name):
        return _read_content(s, known, file, allowed[0])
    known = _find_format(s, known)
    # it may be of another kind, so an optimizer's state that it does not show may be there
    trained = inside and _holds_state(known.format) and _read_content(s, known, file, "").optimizer
    return replace(known, optimizer=trained or None)


def _read_content(s: Session, known: UnplacedFile, file: BareFile, of_name: str) -> UnplacedFile:
    """Return ``known`` with what the content tells; ``of_name``: the format that the name tells, or ""."""
    report = s.report_file(file.path, Level.STRUCTURE, file.findings)
    s.unplaced += (Unseen(file.path, f.message) for f in report.findings if f.code in NOT_SEEN)
    of, broken = report.format or of_name, report.verdict is Verdict.BROKEN
    if report.verdict in (Verdict.OK, Verdict.SUSPECT):
        step = max(counters.read_all_steps(report.metadata), default=None)
        array = of in OF_ONE_ARRAY and is_optimizer_state(os.path.relpath(os.path.dirname(file.path), s.root))
        known = replace(known, optimizer=report.held.trained or array, step=step)
    # what shows that it was cut or flipped; "" if it may be whole as it is, or elsewhere
    errors = [f for f in report.findings if f.is_error]
    codes = {f.code for f in errors}
    is_sure = report.verdict is Verdict.BROKEN and "pointer-not-data" not in codes and codes - _MAY_BE_WHOLE
    damage = errors[0].message if is_sure else ""
    return replace(known, format=of, state=_holds_state(of), broken=broken, damage=damage)


def _find_format(s: Session, file: UnplacedFile) -> UnplacedFile:
    """Return a file without a format in its name with that of its first bytes, and whether it is a state."""
    try:
        of = read_format(file.path)
    except OSError as e:
        s.unplaced.append(Unseen(file.path, e.strerror or str(e)))
        of = None
    loop, _ = read_convention(file.path)
    is_named_like_save = of is None and loop is not None and "/" not in loop.templates[0]
    if of is None and exists(f"{file.path.removesuffix('.bin')}.idx"):
        of = "data"  # megatron/core/datasets/indexed_dataset.py, fairseq: x.bin and x.idx
    return replace(file, format=of, state=is_named_like_save or _holds_state(of))


def _holds_state(of: str | None) -> bool:
    """Return True if files of a format can hold a training state, and are not mostly data sets."""
    return of is not None and of not in _MAY_BE_DATA and formats.names.holds_state(of)
