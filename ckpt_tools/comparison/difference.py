"""The differences between two files that were read, and which files are paired. Nothing is read here."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.formats import Anatomy, format_of
from ckpt_tools.inspection.digests import runs_by_name
from ckpt_tools.model.finding import Finding, Verdict, Word
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report, Scalar, Tensor
from ckpt_tools.reading.session import Session

_PATH_NAMES = frozenset({"archive_name", "save_id"})
"""Metadata keys whose value only repeats the name under which the file was first saved."""
_HIDES = frozenset({"needs-key", "wrong-key", "needs-extra", "too-complex"})
"""Findings with which part of the file was not read."""


class Change(Word):
    """The change of an item from A to B. ``not-compared`` is never counted as ``same``."""

    SAME = "same"
    CHANGED = "changed"
    RESHAPED = "reshaped"
    """Another shape or element type."""
    ADDED = "added"
    REMOVED = "removed"
    NOT_COMPARED = "not-compared"


class TensorSide(Struct, frozen=True):
    """One tensor name on one side; ``digest`` (XXH3-128, hex) is None if its bytes were not read. If several
    tensors have the name, dtype and shape are those of the first, the bytes those of all.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str | None = None


class TensorDifference(Struct, frozen=True):
    """One tensor and its two sides; None for a side without it. ``largest`` is how far apart two of its
    numbers are at most; None below level values, and if it is not known.
    """

    name: str
    change: Change
    a: TensorSide | None
    b: TensorSide | None
    largest: float | None = None


class MetadataDifference(Struct, frozen=True):
    """One metadata value that differs. Only ``change`` tells a missing value (None) from a stored None."""

    key: str
    change: Change
    a: Scalar
    b: Scalar


class FileDifference(Struct, frozen=True):
    """One file of A and its counterpart in B; the report is None on a side without it. ``name`` is its path
    below A, or below B if A has no such file.

    ``bytes_same`` compares the whole files if no tensor in them has a known place, or if a store's checksum
    tells it; else it is None. ``by_store`` is the algorithm of that checksum, "" if there is none.
    """

    name: str
    change: Change
    a: Report | None
    b: Report | None
    tensors: tuple[TensorDifference, ...] = ()
    metadata: tuple[MetadataDifference, ...] = ()
    bytes_same: bool | None = None
    by_store: str = ""


class Difference(Struct, frozen=True):
    """The answer of ``diff``. ``findings`` are on directories, ``bytes_read`` counts both sides."""

    a: str
    b: str
    level: Level
    files: tuple[FileDifference, ...] = ()
    findings: tuple[Finding, ...] = ()
    bytes_read: int = 0
    seconds: float = 0.0

    @property
    def reports(self) -> tuple[Report, ...]:
        """The reports on the files of both sides."""
        return tuple(r for f in self.files for r in (f.a, f.b) if r is not None)

    @property
    def tensors(self) -> Counter[Change]:
        """The number of tensors with each change."""
        return Counter(t.change for f in self.files for t in f.tensors)

    @property
    def differs(self) -> bool:
        """True if any file, tensor or metadata value is not the same."""
        return any(f.change not in (Change.SAME, Change.NOT_COMPARED) for f in self.files)

    @property
    def complete(self) -> bool:
        """True if all was compared that the level asks for."""
        unknown = any(f.change is Change.NOT_COMPARED for f in self.files)
        return not unknown and not self.tensors[Change.NOT_COMPARED]


class Side(Struct):
    """One file while it is compared. ``digests`` are those of its tensors by name, ``whole`` is that of the
    file, if no tensor has a known place; ``by_store`` is the algorithm of the store's checksum that set it.
    """

    report: Report
    anatomy: Anatomy
    digests: dict[str, str] = field(default_factory=dict)
    whole: str = ""
    by_store: str = ""

    @property
    def legible(self) -> bool:
        """True if the file was read completely: an item that was not found is not in the file."""
        is_sound = self.report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
        return is_sound and not any(f.code in _HIDES for f in self.report.findings)

    @property
    def stored(self) -> dict[str, int]:
        """Bytes in the file by tensor name, if the place is known: fewer than the shape needs if expanded."""
        where = runs_by_name(self.anatomy.tensors, self.report.size)
        return {name: sum(n for _, n in at) for name, at in where.items()}

    @property
    def forms(self) -> dict[str, list[Tensor]]:
        """The tensors by name, in file order; several may have one name."""
        out: dict[str, list[Tensor]] = defaultdict(list)
        for t in self.anatomy.tensors:
            out[t.name].append(t)
        return out


def compare(name: str, a: Side, b: Side, level: Level, *, described: bool = False) -> FileDifference:
    """Compare a file and its counterpart. For indexes of other files (``described``) only shapes count."""
    bytes_same = a.whole == b.whole if a.whole and b.whole else None
    tensors = tuple(_compare_tensors(a, b, level < Level.CONTENT or described or bool(bytes_same)))
    metadata = tuple(_compare_metadata(a, b))
    have_id = _names_its_save(a.report) and _names_its_save(b.report)
    changes = {t.change for t in tensors}
    if metadata or (bytes_same is False and not have_id) or not changes <= {Change.SAME, Change.NOT_COMPARED}:
        change = Change.CHANGED
    elif bytes_same or (a.legible and b.legible and Change.NOT_COMPARED not in changes):
        change = Change.SAME
    else:
        change = Change.NOT_COMPARED
    return FileDifference(name, change, a.report, b.report, tensors, metadata, bytes_same, a.by_store)


def _names_its_save(report: Report) -> bool:
    """Return True if a format stores an id or the path of the save, so that bytes always differ."""
    return report.format is not None and format_of(report.format).names_its_save


def describe_lone_file(name: str, change: Change, side: Side) -> FileDifference:
    """Return the difference of a file without a counterpart, ``side``: added or removed."""
    own = {tensor: _make_side(forms, None) for tensor, forms in side.forms.items()}
    if change is Change.ADDED:
        tensors = tuple(TensorDifference(tensor, change, None, in_b) for tensor, in_b in own.items())
        return FileDifference(name, change, None, side.report, tensors)
    tensors = tuple(TensorDifference(tensor, change, in_a, None) for tensor, in_a in own.items())
    return FileDifference(name, change, side.report, None, tensors)


def is_index(side: Side) -> bool:
    """Return True if the bytes of all tensors in a file lie in other files."""
    fmt, tensors = side.report.format, side.anatomy.tensors
    return fmt is not None and format_of(fmt).index and all(t.offset is None for t in tensors)


def _make_side(forms: Sequence[Tensor], digest: str | None) -> TensorSide:
    """Return the side of a tensor name; ``forms`` are the tensors that have it, in file order."""
    return TensorSide(forms[0].dtype, forms[0].shape, sum(t.nbytes for t in forms), digest)


def _compare_tensors(a: Side, b: Side, shapes_only: bool) -> Iterator[TensorDifference]:
    """Yield the difference of every tensor of A, then of the tensors that only B has."""
    in_a, in_b, stored_a, stored_b = a.forms, b.forms, a.stored, b.stored
    for name in dict.fromkeys([*in_a, *in_b]):
        side_a = _make_side(in_a[name], a.digests.get(name)) if name in in_a else None
        side_b = _make_side(in_b[name], b.digests.get(name)) if name in in_b else None
        if side_a is None:
            change = Change.ADDED if a.legible else Change.NOT_COMPARED
        elif side_b is None:
            change = Change.REMOVED if b.legible else Change.NOT_COMPARED
        elif [(t.dtype, t.shape) for t in in_a[name]] != [(t.dtype, t.shape) for t in in_b[name]]:
            change = Change.RESHAPED
        elif shapes_only:
            change = Change.SAME
        elif None in (side_a.digest, side_b.digest) or stored_a.get(name) != stored_b.get(name):
            change = Change.NOT_COMPARED
        else:
            change = Change.SAME if side_a.digest == side_b.digest else Change.CHANGED
        yield TensorDifference(name, change, side_a, side_b)


def _compare_metadata(a: Side, b: Side) -> Iterator[MetadataDifference]:
    """Yield a difference for each key whose values are not the same, but for keys in _PATH_NAMES."""
    in_a, in_b = a.report.metadata, b.report.metadata
    for key in dict.fromkeys(key for key in (*in_a, *in_b) if key not in _PATH_NAMES):
        x, y = in_a.get(key), in_b.get(key)
        if key in in_a and key in in_b:
            if not same_value(x, y):
                yield MetadataDifference(key, Change.CHANGED, x, y)
        elif a.legible if key in in_b else b.legible:
            yield MetadataDifference(key, Change.ADDED if key in in_b else Change.REMOVED, x, y)


def same_value(x: Scalar, y: Scalar) -> bool:
    """Return True if two values are the same; True is not 1, and NaN is NaN."""
    if isinstance(x, bool) != isinstance(y, bool):
        return False
    return x == y or (x != x and y != y)  # noqa: PLR0124 - only NaN differs from itself


class File(NamedTuple):
    """One file of a side. ``name`` is its path below the directory or behind the prefix that the caller gave,
    ``size`` is in bytes, -1 if it cannot be read; ``part`` is None outside a known layout.
    """

    path: str
    name: str
    size: int
    part: Part | None = None
    seen: tuple[Finding, ...] = ()

    @property
    def whose(self) -> Hashable:
        """The part's role and rank in a job, whatever its layout: pairs a dying gasp with a periodic save."""
        return self.part and (self.part.role, self.part.rank, self.part.coords)

    @property
    def when(self) -> Hashable:
        """The part's step and epoch, None outside a layout."""
        p = self.part
        return p and (p.step, p.epoch, p.step_in_epoch, p.generation)


Pair = tuple["File | None", "File | None"]
Key = Callable[[File], Hashable]


def files(s: Session) -> list[File]:
    """Return every checkpoint file of a session by name, also files that only an index names."""
    s.add_members()

    def name(path: str) -> str:
        if s.found.tree:
            return os.path.relpath(path, s.root)
        return os.path.relpath(path, os.path.dirname(s.root)) if s.found.alone else path[len(s.root) :]

    found = [File(p.path, name(p.path), p.size, p, p.findings) for p in s.parts]
    # a seal only if the caller named the seal itself
    bare = [*s.found.bare, *(seal for seal in s.found.seals if seal.path == s.root)]
    found += (File(path, name(path), size, None, seen) for path, size, _, seen in bare)
    return sorted(found, key=lambda f: f.name)


def match(a: Sequence[File], b: Sequence[File]) -> list[Pair]:
    """Return pairs in the order of names; a file without a counterpart is paired with None.

    Parts of a layout are matched by piece, role, rank and coordinates, and by step if a side holds several
    checkpoints; all other files by name.
    """
    left, pairs = (list(a), list(b)), list[Pair]()
    several = any(len(parts) > len({_describe(f) for f in parts}) for parts in map(_keep_parts, (a, b)))

    def pair_by(key: Key) -> None:
        """Pair the files that alone have a key on their side, but for the key None."""
        by_key: dict[Hashable, tuple[list[File], list[File]]] = defaultdict(lambda: ([], []))
        for i, side in enumerate(left):
            for f in side:
                by_key[key(f)][i].append(f)
        by_key.pop(None, None)
        found = [(in_a[0], in_b[0]) for in_a, in_b in by_key.values() if len(in_a) == len(in_b) == 1]
        paired = {id(f) for pair in found for f in pair}
        for side in left:
            side[:] = [f for f in side if id(f) not in paired]
        pairs.extend(found)

    pair_by(lambda f: f.part and (*_describe(f), several and f.when))
    pair_by(lambda f: f.part and (*_describe(f)[:-1], several and f.when))
    pair_by(lambda f: f.name)
    pair_by(lambda f: f.part and (f.whose, several and f.when))
    pairs += [*((f, None) for f in left[0]), *((None, f) for f in left[1])]
    return sorted(pairs, key=lambda p: next(f.name for f in p if f is not None))


def _keep_parts(side: Sequence[File]) -> list[File]:
    return [f for f in side if f.part is not None]


def _describe(f: File) -> tuple[Hashable, ...]:
    """Return what tells a part from others of its checkpoint; the prefix of its name is the last."""
    p = f.part
    return () if p is None else (p.layout, p.piece, f.whose, p.prefix)
