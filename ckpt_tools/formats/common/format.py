"""What a format is: a frozen value with a name, a magic, checks by level, and its limits said aloud."""

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
"""Bytes of the file's beginning that a magic sees."""


class Damage(Exception):
    """Raised inside a check when nothing further can be read; verify turns it into its finding."""

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
    """What an index says about a file beside it: ``check`` compares the two. ``format`` names the index's
    format.

    A ``whole`` claim describes every byte of the file, so the file needs no format of its own (DCP's
    segments, TensorFlow's data shards, and a file may then be empty); any other is checked after the file's
    own format. An ``optional`` file need not be there.
    The check of a ``joint`` claim adds up what it finds in all files of its index, so one process must look
    at them, one after the other.
    With ``follow``, the check fills ``Anatomy.members`` in its turn, with paths relative to the index's
    directory (an OCDBT tree). ``fetch`` is the command that brings a file which nobody has fetched yet.
    ``spared`` says what can still be done without the file, where that is enough to resume: its loss is a
    warning. Of a ``stem`` the index knows the name but for its suffix, where no file has the name itself.
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
    """What a structure pass learns about one file; checks fill it in.

    ``metadata`` holds the scalars that matter (``epoch``, ``step_num``, ``args.world_size`` …), ``keys``
    every top-level name (``require``), ``sums`` the stored checksums with the bytes they cover (the content
    level is to check them), ``globals`` every "module name" that a pickle in the file names, ``unlisted``
    those that no list has. ``members`` is filled by indexes: a path relative to the file's own directory,
    with "/" between components, exactly as the index spells it (whoever uses it keeps it inside that
    directory) -> what is said about that file.
    ``places`` says where each tensor that is a piece of a larger one lies in it.
    ``end`` is where the last byte lies that a claim refers to, in files of which several claims each describe
    a part; -1 elsewhere.
    ``decoded`` counts the bytes that compressed data in the file may decode into, ``depth`` the pickles that
    the file lies in. ``windows`` are (offset,
    length) in bytes of whole files that lie inside this one. ``key`` decrypts, when the user gave one.
    ``regions`` is None unless a map of the bytes was asked for, ``stats`` empty below the level values.
    ``identity`` is that of the file that was read, None when it changed meanwhile.
    ``sealed`` has the digests of its tensors that a seal gives, by their names, ``files`` what a seal names.
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
        """Say what some bytes are that no checksum in ``sums`` covers (those are explained by their sums)."""
        if self.regions is not None and length > 0:
            self.regions.append(Region(offset, length, what, guard))

    def add_names(self, inner: Anatomy) -> None:
        """Take over what the pickles of something inside this file name."""
        self.globals += (g for g in inner.globals if g not in self.globals)
        have = {u.name for u in self.unlisted}
        self.unlisted += (u for u in inner.unlisted if u.name not in have)


RankGroups = tuple[tuple[int, ...], ...]
"""Ranks that hold the same state, group by group; every rank is in exactly one."""

Check = Callable[[Source, Anatomy], Iterator[Finding]]
"""Yields findings and fills the anatomy. May raise Damage, ShortRead (a file that ends early) and OSError,
nothing else.
"""


def nothing(_source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """The claim on a file that only has to be there."""
    return iter(())


def nothing_odd(_files: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """A format whose files are compared by their tensors alone."""
    return iter(())


def nothing_beside(_home: str, _notes: Notes) -> Iterator[Finding]:
    """A format without other files beside its indexes."""
    return iter(())


class Format(Struct, frozen=True):
    """What some bytes are. ``magic`` sees the first HEAD bytes and the file's size; ``suffixes`` are the
    names that may hold it.

    ``protects`` says what protects what, ``limits`` what cannot be seen, ``reference`` where the facts come
    from. ``names`` is a regular expression for whole names that no suffix describes. Without ``state`` such
    files also lie beside code and pretrained models, or are made before the first step: they are no sign of a
    training run. ``loader`` names the framework that loads such files (inspection/check.py), None says
    that there is nothing to load in them, "" that nobody is asked. ``unasked``: whoever loads such files
    unpickles what is in them without asking. An ``index`` describes files beside it (``Anatomy.members``).
    ``distinct``: no other file begins so. ``misnamed`` is how grave it is that a name says another format.
    ``index_of`` gives, for the name of a file that cannot be understood without its index, the names that
    index may have, and nothing for all others.
    ``ours`` is asked about a file that has the name but not the magic, where other software uses such names
    as well: False leaves it alone.
    ``crosscheck`` compares the files of this format in one run, and gives (path, finding). ``beside`` says
    what is wrong with the other files that the format keeps in a directory of its index files. ``final_mode``
    are the permission bits that the framework gives a finished file. ``hides_cuts``: a file cut between two
    of its records looks whole.
    ``names_its_save``: the bytes hold an id or the path of the save, so two saves of one state are never
    equal.
    ``rank_groups`` reads a directory of such files, which tell the ranks of a job of that size that hold the
    same state. It raises CkptError.
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
    crosscheck: Callable[[Sequence[tuple[Part, Report]]], Iterator[tuple[str, Finding]]] = nothing_odd
    beside: Callable[[str, Notes], Iterator[Finding]] = nothing_beside
    final_mode: int | None = None
    hides_cuts: bool = False
    names_its_save: bool = False
    rank_groups: Callable[[str, int], RankGroups] | None = None


def own_format(name: str, **told: Any) -> Format:
    """A format of this package: the rest of it is in named.py, and in the formats.toml of its family."""
    row = ROWS[name]
    if "protects" not in told:
        told |= _read_family(row.family)[name]
        told["limits"] = tuple(told["limits"])
    return Format(name, row.suffixes, names=row.names, state=row.state, index=row.describes, **told)


@cache
def _read_family(family: str) -> dict[str, Any]:
    return read_table(f"ckpt_tools.formats.{family}", "formats.toml")


def structure(source: Source, anatomy: Anatomy, check: Check) -> Iterator[Finding]:
    """Run a check and turn Damage into its finding: what every caller of a structure check wants."""
    try:
        yield from check(source, anatomy)
    except Damage as e:
        yield e.finding


def inside(
    source: Source, offset: int, length: int, check: Check, anatomy: Anatomy, *, prefix: str = ""
) -> Generator[Finding, None, Anatomy]:
    """Check a file that lies whole inside another; offsets are those of the outer file. What it learns is
    added to ``anatomy``, not its metadata.

    ``prefix`` goes before the names of its regions. A read beyond ``length`` is the inner file's truncation.
    Returns the inner anatomy.
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
    anatomy.add_names(inner)
    for t in inner.tensors:
        pieces = tuple((at + offset, length) for at, length in t.pieces)
        anatomy.tensors.append(
            replace(t, offset=None if t.offset is None else t.offset + offset, pieces=pieces)
        )
    from ckpt_tools.checksum import shifted

    anatomy.sums += (shifted(s, offset) for s in inner.sums)
    for r in inner.regions or ():
        anatomy.explain(r.offset + offset, r.length, prefix + r.what, r.guard)
    return inner


MANY = 20
"""Findings of one code that are given in full."""
_Arguments = ParamSpec("_Arguments")


def limited(check: Callable[_Arguments, Iterable[Finding]]) -> Callable[_Arguments, Iterator[Finding]]:
    """A check that gives MANY findings of each code and counts the rest; Damage comes after that."""

    @wraps(check)
    def first_of_each(*args: _Arguments.args, **options: _Arguments.kwargs) -> Iterator[Finding]:
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
                del damage  # else it and this frame keep each other, and all that was read

    return first_of_each
