"""What differs between two files, and the values of that answer. Nothing is read here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from ckpt_tools.formats import Anatomy, format_of
from ckpt_tools.inspection.digests import placed
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level, Report, Scalar
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.tensor import Tensor

_PATH_NAMES = frozenset({"archive_name", "save_id"})
"""Metadata that only repeats the name under which the file was first saved."""
_HIDES = frozenset({"needs-key", "wrong-key", "needs-extra", "too-complex"})
"""Findings that say that part of the file was not seen."""


class Change(str, Enum):
    """What happened to an item between A and B. ``not-compared`` is never the same as ``same``."""

    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"
    RESHAPED = "reshaped"
    """Another shape or element type."""
    CHANGED = "changed"
    NOT_COMPARED = "not-compared"

    def __str__(self) -> str:
        return self.value


class TensorSide(Struct, frozen=True):
    """A tensor on one side; ``digest`` (XXH3-128, hex) is None when its bytes were not read. A name that
    occurs more than once has the type and shape of the first, and the bytes of all.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str | None = None


class TensorDifference(Struct, frozen=True):
    """One tensor, and what it is on either side (None: it is not there)."""

    name: str
    change: Change
    a: TensorSide | None
    b: TensorSide | None


class MetadataDifference(Struct, frozen=True):
    """One metadata value that is not the same. Only ``change`` tells an absent value from a None."""

    key: str
    change: Change
    a: Scalar
    b: Scalar


class FileDifference(Struct, frozen=True):
    """A file of A and its counterpart in B, None if there is none. ``name`` is its path below A, else below
    B.

    ``bytes_same`` compares the whole files if no tensor in them has a known place, or if seals or the
    checksum of a store say whether they are the same; otherwise it is None. ``by_store`` is the algorithm of
    that checksum, "" if there is none.
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
    """The answer of ``diff``. ``findings`` are those of directories, ``bytes_read`` of both sides."""

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
    def tensors(self) -> Mapping[Change, int]:
        """How many tensors there are of each change."""
        return Counter(t.change for f in self.files for t in f.tensors)

    @property
    def differs(self) -> bool:
        """Whether any file, tensor or metadata value is not the same."""
        return any(f.change not in (Change.SAME, Change.NOT_COMPARED) for f in self.files)

    @property
    def complete(self) -> bool:
        """Whether everything was compared that the level asks for."""
        unknown = any(f.change is Change.NOT_COMPARED for f in self.files)
        return not unknown and not self.tensors[Change.NOT_COMPARED]


class Side(Struct):
    """One file while it is compared: ``digests`` of its tensors, or of the ``whole`` file where no tensor has
    a place, or seals of both sides say it; ``sealed`` is what a seal says of a file that was not written
    since. ``by_store`` is the algorithm of the store's checksum that says what ``whole`` does.
    """

    report: Report
    anatomy: Anatomy
    sealed: SealedFile | None = None
    digests: dict[str, str] = field(default_factory=dict)
    whole: str = ""
    by_store: str = ""

    @property
    def legible(self) -> bool:
        """Whether what is not seen in the file is not there."""
        return self.report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN) and not any(
            f.code in _HIDES for f in self.report.findings
        )

    @property
    def stored(self) -> dict[str, int]:
        """Bytes that the file holds of each tensor with a place: fewer than its shape needs if expanded."""
        where = placed(self.anatomy.tensors, self.report.size)
        return {name: sum(n for _, n in at) for name, at in where.items()}

    @property
    def forms(self) -> dict[str, list[Tensor]]:
        """The tensors of each name, in file order."""
        out: dict[str, list[Tensor]] = defaultdict(list)
        for t in self.anatomy.tensors:
            out[t.name].append(t)
        return out


def compare(name: str, a: Side, b: Side, level: Level, *, described: bool = False) -> FileDifference:
    """Compare a file and its counterpart; of a ``described`` index only the shapes count."""
    bytes_same = a.whole == b.whole if a.whole and b.whole else None
    tensors = tuple(_tensors(a, b, level < Level.CONTENT or described or bool(bytes_same)))
    metadata = tuple(_metadata(a, b))
    ids = _names_its_save(a.report) and _names_its_save(b.report)
    changes = {t.change for t in tensors}
    if metadata or (bytes_same is False and not ids) or not changes <= {Change.SAME, Change.NOT_COMPARED}:
        change = Change.CHANGED
    elif bytes_same or (a.legible and b.legible and Change.NOT_COMPARED not in changes):
        change = Change.SAME
    else:
        change = Change.NOT_COMPARED
    return FileDifference(name, change, a.report, b.report, tensors, metadata, bytes_same, a.by_store)


def _names_its_save(report: Report) -> bool:
    """Return True if a file holds an id or the path of its save: its bytes always differ."""
    return report.format is not None and format_of(report.format).names_its_save


def lone(name: str, change: Change, side: Side) -> FileDifference:
    """A file without a counterpart."""
    new = change is Change.ADDED
    tensors = []
    for tensor, forms in side.forms.items():
        here = _side(forms, None)
        tensors.append(TensorDifference(tensor, change, None if new else here, here if new else None))
    return FileDifference(
        name, change, None if new else side.report, side.report if new else None, tuple(tensors)
    )


def is_index(side: Side) -> bool:
    """Whether the bytes of the tensors that the file tells of lie in files beside it."""
    fmt, tensors = side.report.format, side.anatomy.tensors
    return fmt is not None and format_of(fmt).index and all(t.offset is None for t in tensors)


def _side(forms: Sequence[Tensor], digest: str | None) -> TensorSide:
    return TensorSide(forms[0].dtype, forms[0].shape, sum(t.nbytes for t in forms), digest)


def _shapes(forms: Sequence[Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(t.dtype, t.shape) for t in forms]


def _tensors(a: Side, b: Side, shapes_say_all: bool) -> Iterator[TensorDifference]:
    """Yield every tensor of A, then those that only B has."""
    in_a, in_b, stored_a, stored_b = a.forms, b.forms, a.stored, b.stored
    for name in dict.fromkeys([*in_a, *in_b]):
        one = _side(in_a[name], a.digests.get(name)) if name in in_a else None
        other = _side(in_b[name], b.digests.get(name)) if name in in_b else None
        if one is None:
            change = Change.ADDED if a.legible else Change.NOT_COMPARED
        elif other is None:
            change = Change.REMOVED if b.legible else Change.NOT_COMPARED
        elif _shapes(in_a[name]) != _shapes(in_b[name]):
            change = Change.RESHAPED
        elif shapes_say_all:
            change = Change.SAME
        elif None in (one.digest, other.digest) or stored_a.get(name) != stored_b.get(name):
            change = Change.NOT_COMPARED
        else:
            change = Change.SAME if one.digest == other.digest else Change.CHANGED
        yield TensorDifference(name, change, one, other)


def _metadata(a: Side, b: Side) -> Iterator[MetadataDifference]:
    in_a, in_b = a.report.metadata, b.report.metadata
    for key in dict.fromkeys([*in_a, *in_b]):
        x, y = in_a.get(key), in_b.get(key)
        if key in _PATH_NAMES:
            continue
        if key not in in_a:
            if a.legible:
                yield MetadataDifference(key, Change.ADDED, None, y)
        elif key not in in_b:
            if b.legible:
                yield MetadataDifference(key, Change.REMOVED, x, None)
        elif not same_value(x, y):
            yield MetadataDifference(key, Change.CHANGED, x, y)


def same_value(x: Scalar, y: Scalar) -> bool:
    """Whether two values are the same; True is not 1, and NaN is NaN."""
    if isinstance(x, bool) != isinstance(y, bool):
        return False
    return x == y or (x != x and y != y)  # noqa: PLR0124 - only NaN differs from itself
