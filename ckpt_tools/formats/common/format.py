"""Formats as frozen values: a name, a magic, checks by level, limits in words; and the results of checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.named import ROWS
from ckpt_tools.model.finding import Finding, Notes, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Box, Guard, Level, Region, Report, Scalar, Stats, Tensor, Unlisted
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.tables import read_table
from ckpt_tools.storage import Identity, ShortRead, Source, Window

if TYPE_CHECKING:
    from ckpt_tools.checksum import Sum

HEAD = 64
"""Bytes at the file's beginning that a magic sees."""


class Damage(Exception):
    """Raised in a check if nothing further can be read; the caller reports its ``finding``."""

    def __init__(
        self,
        code: str,
        message: str,
        offset: int | None = None,
        severity: Severity | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.finding: Finding = finding(code, message, offset=offset, severity=severity, hint=hint)


class Claim(NamedTuple):
    """The claim of an index, in the format named ``format``, on a file beside it: ``check`` compares the two.

    A ``whole`` claim describes every byte of the file, so the file needs no format of its own and may be
    empty (DCP's segments, TensorFlow's data shards); other claims are checked after the file's own format. An
    ``optional`` file may be missing. The check of a ``joint`` claim adds up results over all files of its
    index, so one process must check them, one after the other. With ``follow``, the check itself fills
    ``Anatomy.members``, with paths relative to the index's directory (an OCDBT tree). ``fetch`` is the
    command that fetches a missing file. ``spared`` says what works without the file, if that is enough to
    resume: its loss is a warning. With ``stem``, the index may know the file's name without its suffix only.
    """

    format: str
    check: Check
    whole: bool = False
    optional: bool = False
    follow: bool = False
    joint: bool = False
    fetch: str = ""
    spared: str = ""
    stem: bool = False


class Anatomy(Struct):
    """The results of a structure pass over one file, which its checks fill in.

    ``metadata`` has the scalars that matter (``epoch``, ``step_num``, ``args.world_size`` …), ``keys`` every
    top-level name (``require``), ``sums`` the stored checksums with the bytes that they cover, for the
    content level. ``globals`` has every "module name" that a pickle in the file names, ``unlisted`` the names
    in no list. ``members`` has the claims of an index by the file's path: relative to the index's directory,
    with "/" between components, exactly as the index spells it (its users must keep it inside that
    directory). ``places`` has the box of each tensor that is a piece of a larger one. ``end`` is the offset
    behind the last byte that a claim refers to, if several claims describe parts of the file; -1 for other
    files. ``decoded`` counts the bytes that compressed data in the file may decode into, ``depth`` the
    pickles around the file. ``windows`` are (offset, length) in bytes of whole files inside this one. ``key``
    decrypts, if the user gave one. ``regions`` is None unless a map of the bytes is wanted, ``stats`` empty
    below the level values. ``identity`` is that of the file that was read, None if it changed meanwhile.
    ``sealed`` has a seal's digests of the file's tensors, by name, ``files`` the files that a seal names.
    """

    metadata: dict[str, Scalar] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    tensors: list[Tensor] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    failed: list[Sum] = field(default_factory=list)
    globals: list[str] = field(default_factory=list)
    unlisted: list[Unlisted] = field(default_factory=list)
    members: dict[str, Claim] = field(default_factory=dict)
    places: dict[str, Box] = field(default_factory=dict)
    end: int = -1
    decoded: int = 0
    depth: int = 0
    windows: list[tuple[int, int]] = field(default_factory=list)
    key: bytes | None = None
    regions: list[Region] | None = None
    stats: list[Stats] = field(default_factory=list)
    identity: Identity | None = None
    sealed: dict[str, str] = field(default_factory=dict)
    files: list[SealedFile] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Anatomy({len(self.tensors)} tensors)"  # a key is for no log

    def explain(self, offset: int, length: int, what: str, guard: Guard = Guard.STRUCTURE) -> None:
        """Add a region to the map, if one is wanted, for bytes that no checksum in ``sums`` covers."""
        if self.regions is not None and length > 0:
            self.regions.append(Region(offset, length, what, guard))

    def named(self, inner: Anatomy) -> None:
        """Add the names in pickles of a file inside this one to ``globals`` and ``unlisted``."""
        self.globals += (g for g in inner.globals if g not in self.globals)
        listed = {u.name for u in self.unlisted}
        self.unlisted += (u for u in inner.unlisted if u.name not in listed)


RankGroups = tuple[tuple[int, ...], ...]
"""Ranks that hold the same state, group by group; every rank is in exactly one."""

Check = Callable[[Source, Anatomy], Iterator[Finding]]
"""Yields findings, fills in the anatomy. May only raise Damage, ShortRead (the file ends early), OSError."""


def check_nothing(_source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """Yield nothing: the check for a file that only has to exist."""
    return iter(())


class Format(Struct, frozen=True):
    """One file format. ``magic`` sees the first HEAD bytes; ``suffixes`` are those of its files' names.

    ``protects`` says which checksum covers which bytes, ``limits`` which damage cannot be seen, ``reference``
    where the facts come from. ``names`` is a regular expression for whole names that no suffix describes.
    Without ``state``, such files are no sign of a training run: they also lie beside code and pretrained
    models, or are made before the first step. ``loader`` names the framework that loads such files
    (inspection/check.py), None if there is nothing to load in them, "" if no framework is tried. ``unasked``:
    the framework unpickles such files without asking. An ``index`` describes files beside it
    (``Anatomy.members``). ``distinct``: no other format has this magic. ``misnamed`` is the severity if a
    file's name says another format. ``index_of`` returns, for the name of a file that cannot be understood
    without its index, the names that index may have; () for other files. ``ours`` is asked about a file that
    has the name but not the magic, if other software uses such names as well: False leaves it alone.
    ``crosscheck`` compares the files of this format in one run, and yields (path, finding). ``beside`` yields
    findings for other files that the format keeps in a directory of its index files. ``final_mode`` has the
    permission bits that the framework gives a finished file. ``hides_cuts``: a file cut between two of its
    records looks whole. ``names_its_save``: the bytes have an id or the path of the save, so two saves of one
    state are never equal. ``rank_groups`` reads from a directory of such files, for a job of a given size,
    which ranks hold the same state. It raises CkptError.
    """

    name: str
    suffixes: tuple[str, ...]
    magic: Callable[[bytes], bool]
    checks: Mapping[Level, Check]
    protects: str
    limits: tuple[str, ...]
    reference: str
    names: str = ""
    state: bool = True
    loader: str | None = ""
    unasked: bool = False
    index: bool = False
    distinct: bool = True
    misnamed: Severity = Severity.WARNING
    index_of: Callable[[str], tuple[str, ...]] = field(default=lambda _: ())
    ours: Callable[[Source], bool] = field(default=lambda _: True)
    crosscheck: Callable[[Sequence[tuple[Part, Report]]], Iterator[tuple[str, Finding]]] = field(
        default=lambda _files: iter(())
    )
    beside: Callable[[str, Notes], Iterator[Finding]] = field(default=lambda _home, _notes: iter(()))
    final_mode: int | None = None
    hides_cuts: bool = False
    names_its_save: bool = False
    rank_groups: Callable[[str, int], RankGroups] | None = None


def make_format(
    name: str, magic: Callable[[bytes], bool], check: Check | None = None, **fields: Any
) -> Format:
    """Return a format of this package: named.py and its family's formats.toml have what ``fields`` lack."""
    row = ROWS[name]
    if check is not None:
        fields["checks"] = {Level.STRUCTURE: check}
    if "protects" not in fields:
        fields |= _read_family(row.family)[name]
        fields["limits"] = tuple(fields["limits"])
    return Format(name, row.suffixes, magic, names=row.names, state=row.state, index=row.describes, **fields)


@cache
def _read_family(family: str) -> dict[str, Any]:
    """Return the table of a family of formats: what each protects, its limits and its reference, by name."""
    return read_table(f"ckpt_tools.formats.{family}", "formats.toml")


def structure(source: Source, anatomy: Anatomy, check: Check) -> Iterator[Finding]:
    """Run a check of a file's structure; if it raises Damage, yield the finding of that as well."""
    try:
        yield from check(source, anatomy)
    except Damage as e:
        yield e.finding


def check_inner(
    source: Source, offset: int, length: int, check: Check, anatomy: Anatomy, *, prefix: str = ""
) -> Generator[Finding, None, Anatomy]:
    """Check a file that lies as a whole inside another, and return its own anatomy; add all but its metadata
    to ``anatomy``, with offsets of the outer file.

    ``prefix`` goes before the names of its regions. A read beyond ``length`` means that the inner file is
    cut.
    """
    inner = Anatomy(key=anatomy.key, regions=None if anatomy.regions is None else [])
    try:
        for f in structure(Window(source, offset, length), inner, check):
            yield replace(f, offset=None if f.offset is None else f.offset + offset)
    except ShortRead as e:
        if e.offset + e.wanted <= offset + length:
            raise  # the outer file itself ends early
        why = f"the file inside ends at byte {offset + length}, where more belongs"
        yield finding("truncated", why, offset=offset + length)
    anatomy.windows.append((offset, length))
    anatomy.keys |= inner.keys
    anatomy.named(inner)
    for t in inner.tensors:
        at, pieces = t.offset, tuple((start + offset, n) for start, n in t.pieces)
        anatomy.tensors.append(replace(t, offset=None if at is None else at + offset, pieces=pieces))
    from ckpt_tools.checksum.sums import shift_sum

    anatomy.sums += (shift_sum(s, offset) for s in inner.sums)
    for r in inner.regions or ():
        anatomy.explain(r.offset + offset, r.length, prefix + r.what, r.guard)
    return inner


MANY = 20
"""The most findings of one code that are reported one by one: 10,000 damaged records are one damaged file."""
_Arguments = ParamSpec("_Arguments")


def limit(check: Callable[_Arguments, Iterable[Finding]]) -> Callable[_Arguments, Iterator[Finding]]:
    """Wrap a check to yield MANY findings of each code at most, then how many more there are, then Damage."""

    @wraps(check)
    def yield_limited(*args: _Arguments.args, **options: _Arguments.kwargs) -> Iterator[Finding]:
        seen: Counter[str] = Counter()
        damage: Damage | None = None
        try:
            for f in check(*args, **options):
                seen[f.code] += 1
                if seen[f.code] <= MANY:
                    yield f
        except Damage as e:
            damage = e
        for code, n in seen.items():
            if n > MANY:
                yield finding(code, f"and {n - MANY:,} more of this kind")
        if damage:
            try:
                raise damage
            finally:
                del damage  # else the exception and this frame keep each other, and all data, in memory

    return yield_limited
