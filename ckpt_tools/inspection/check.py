"""One file and a level in, one report out: the only stage that reads files."""

from __future__ import annotations

import errno
import re
from collections.abc import Generator, Iterable, Iterator, Sequence

from ckpt_tools.checksum import Crc, InflateError, Outcome, Progress, Sum, covered, mismatches
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import HEAD, Anatomy, Claim, Format, structure
from ckpt_tools.formats.common.counters import optimizer_step
from ckpt_tools.formats.common.zero_pages import MOST, lost_pages, watching
from ckpt_tools.inspection.recognise import recognise
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.report import Level, Region, Report
from ckpt_tools.model.tensor import Stats, Tensor
from ckpt_tools.storage import LocalSource, ShortRead, Stopped, opened

_SHALLOW = frozenset({"needs-extra", "needs-key", "wrong-key"})
_LINKS = {errno.ELOOP: "symlink-loop"}
_ROLE = re.compile(
    r"optimizer|scheduler|scaler|rng_state|random_states|training_args|pytorch_model|adapter_model"
)
"""Names that transformers and accelerate give to the parts of a checkpoint (transformers/trainer.py,
accelerate/utils/constants.py).
"""
_BLIND = NOT_SEEN | {"not-loaded", "wrong-key"}


def signature(tensors: Iterable[Tensor]) -> str:
    """Digest of names, dtypes and shapes in file order (XXH3-128, hex); "" when there are none."""
    import xxhash

    digest, any_ = xxhash.xxh3_128(), False
    for t in tensors:
        any_ = True
        digest.update(f"{t.name}\0{t.dtype}\0{t.shape}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest() if any_ else ""


def _os_finding(e: OSError) -> Finding:
    return finding(_LINKS.get(e.errno or 0, "unreadable"), e.strerror or str(e))


def unreadable(path: str, error: OSError) -> Report:
    """The report on a file of which nothing could be seen."""
    return _report(path, None, -1, [_os_finding(error)], Anatomy(), Level.PRESENCE, None)


Ask = tuple[LocalSource, "list[Sum]", "list[tuple[int, int]]"]
"""The content of a file that is asked for: its stored checksums, and the list to which the zero pages that no
checksum covers are to be added.
"""
Told = Iterator[tuple[Sum, Outcome]]


def inspect(
    path: str,
    level: Level,
    *,
    expect: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    jobs: int = 0,
    progress: Progress | None = None,
    require: Sequence[str] = (),
    key: bytes | None = None,
    explain: bool = False,
    io: str = "pread",
) -> tuple[Report, Anatomy]:
    """Read one file to ``level`` and report. ``expect`` names the formats its layout allows, ``require``
    entries that must be in it.

    ``claims`` is what indexes beside the file say about it, ``key`` decrypts, and with ``explain`` the report
    has a map of the file's bytes. ``io`` is one of ``storage.IO``.
    Never raises for what is in the file; OSErrors become the finding ``unreadable`` and the verdict unknown.
    When ``progress`` raises Stopped, the report has the level that was reached until then, and what was
    found.
    A file of no known format whose name says nothing gets ``format`` None and no findings.
    """
    steps = inspecting(
        path,
        level,
        expect=expect,
        claims=claims,
        progress=progress,
        require=require,
        key=key,
        explain=explain,
        io=io,
        hold=True,
    )
    try:
        source, sums, empty = next(steps)
        steps.send(mismatches(source, sums, jobs=jobs, progress=progress, gaps=True, watch=watching(empty)))
    except StopIteration as done:
        result: tuple[Report, Anatomy] = done.value
        return result
    raise AssertionError("the content of a file is asked for once")


def inspecting(
    path: str,
    level: Level,
    *,
    expect: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    progress: Progress | None = None,
    require: Sequence[str] = (),
    key: bytes | None = None,
    explain: bool = False,
    io: str = "pread",
    hold: bool = False,
) -> Generator[Ask, Told, tuple[Report, Anatomy]]:
    """``inspect``, but for who reads the content: a yield asks for it, at most once, and what is sent
    back are its mismatches, which may raise as reading does.

    With ``hold`` a small file whose content will be asked for is read at once.
    """
    name, found, anatomy = (
        path.rpartition("/")[2],
        list[Finding](),
        Anatomy(key=key, regions=[] if explain else None),
    )
    fmt: Format | None = None
    reached = Level.PRESENCE
    try:
        source = opened(path, io, hold=hold and level >= Level.CONTENT)
    except OSError as e:
        return unreadable(path, e), anatomy
    with source:
        try:
            fmt = recognise(source, name, expect, claims, found)
            if fmt is not None and level >= Level.STRUCTURE:
                _structure(source, fmt, name, claims, require, anatomy, found)
                reached = Level.STRUCTURE
            if fmt is not None and level >= Level.CONTENT and not cut_short(found, source.size):
                yield from _content(source, anatomy, found)
                reached = Level.CONTENT
            if fmt is not None and level >= Level.VALUES and worst(found) is not Verdict.BROKEN:
                reached = _deeper(source, fmt, level, claims, anatomy, found, progress)
        except ShortRead as e:
            found.append(
                finding(
                    "truncated",
                    f"the file ends at byte {e.offset + e.got}, where {e.wanted - e.got} more bytes belong",
                    offset=e.offset + e.got,
                )
            )
        except OSError as e:
            found.append(_os_finding(e))
        except Stopped:
            pass
        found = _held_still(source, anatomy, found)
        return _report(path, fmt, source.size, found, anatomy, reached, source), anatomy


def _held_still(source: LocalSource, anatomy: Anatomy, found: list[Finding]) -> list[Finding]:
    """What was found, or that the file changed while it was read, which makes that worthless."""
    try:
        anatomy.identity = source.identity()
        if source.changed():
            return [finding("in-use", "size or modification time changed while the file was read")]
    except OSError as e:
        return [*found, _os_finding(e)]
    return found


def cut_short(found: Sequence[Finding], size: int) -> bool:
    """Whether the file's end is known to be missing: what is left of it need not be read to know that it is
    broken.
    """
    return any(
        f.code == "truncated" and f.severity is Severity.ERROR and (f.offset or size) >= size for f in found
    )


def _structure(
    source: LocalSource,
    fmt: Format,
    name: str,
    claims: Sequence[Claim],
    require: Sequence[str],
    anatomy: Anatomy,
    found: list[Finding],
) -> None:
    """The format's own check, unless a claim describes the file whole or alone; then every claim."""
    whole = any(c.whole for c in claims)
    if not whole and (
        fmt.magic(source.read(0, min(HEAD, source.size))) or fmt.name not in {c.format for c in claims}
    ):
        found += structure(source, anatomy, fmt.checks[Level.STRUCTURE])
    for claim in claims:
        found += (
            f for f in structure(source, anatomy, claim.check) if f not in found
        )  # two indexes may say the same about a file
    if 0 <= anatomy.end < source.size:
        what = f"{source.size - anatomy.end} bytes follow the last that anything refers to"
        found.append(finding("trailing-data", what, offset=anatomy.end, severity=Severity.WARNING))
    if (count := optimizer_step(source, anatomy.tensors)) is not None:
        anatomy.metadata.setdefault("optimizer_step", count)
    if not whole and fmt.loader is not None:
        found += _missing_keys(anatomy, require)
    found += _other_role(name, anatomy)


def _deeper(
    source: LocalSource,
    fmt: Format,
    level: Level,
    claims: Sequence[Claim],
    anatomy: Anatomy,
    found: list[Finding],
    progress: Progress | None,
) -> Level:
    """The levels values and load; returns the one reached."""
    from ckpt_tools.inspection.tensor_values import values

    found += _numbers(values(source, anatomy, progress), anatomy)
    if (not fmt.index and any(map(_hidden, anatomy.tensors))) or any(f.code in _SHALLOW for f in found):
        return Level.CONTENT
    if level < Level.LOAD:
        return Level.VALUES
    # A file that only its index explains is loaded in its parts, or with the index.
    loader = "torch" if anatomy.windows else None if any(c.whole for c in claims) else fmt.loader
    if loader is None:  # nothing in it is for a loader
        return Level.LOAD
    if not loader:
        return Level.VALUES
    from ckpt_tools.inspection.loadability import load

    if progress:
        progress(0)  # the last moment to stop: the loader itself is not watched
    done, said = load(loader, source.path, source.size, anatomy.windows)
    found += said
    return Level.LOAD if done else Level.VALUES


def _content(source: LocalSource, anatomy: Anatomy, found: list[Finding]) -> Generator[Ask, Told, None]:
    """Adds to ``found`` one by one, so that what was found before a stop is kept."""
    empty = list[tuple[int, int]]()
    for s, actual in (yield source, anatomy.sums, empty):
        found.append(finding(s.code, f"{s.what}: {difference(s, actual)}", offset=s.offset))
    if len(empty) < MOST:  # more are a pattern
        found += lost_pages(source, anatomy.tensors, empty)


def _hidden(t: Tensor) -> bool:
    """Whether a tensor has numbers whose place in the file is not known."""
    return t.nbytes > 0 and (t.offset is None or (bool(t.pieces) and not any(n for _, n in t.pieces)))


def _numbers(found: Generator[Finding, None, list[Stats]], anatomy: Anatomy) -> Iterator[Finding]:
    anatomy.stats = yield from found


def difference(s: Sum, actual: int | bytes | InflateError) -> str:
    """A stored checksum against the one computed, in words."""
    if isinstance(actual, InflateError):
        return str(actual)
    a, b = (f"{v:08x}" if isinstance(v, int) else v.hex() for v in (actual, s.expected))
    name = s.hash.name if isinstance(s.hash, Crc) else "CRC-32C" if isinstance(s.expected, int) else "digest"
    return f"{name} {a}, stored {b}" if a else "does not match"


def _other_role(name: str, anatomy: Anatomy) -> Iterable[Finding]:
    """A trainer's file whose archive was first saved under the trainer's name for something else. Other
    renames are everyday (model_best.pth.tar).
    """
    now, first = _ROLE.match(name), _ROLE.match(str(anatomy.metadata.get("archive_name", "")))
    if now and first and now[0] != first[0]:
        yield finding("wrong-role", f"the name says {now[0]}, the archive was saved as {first[0]}", offset=0)


def _missing_keys(anatomy: Anatomy, require: Sequence[str]) -> Iterable[Finding]:
    for key in require:
        if key not in anatomy.keys and key not in anatomy.metadata:
            yield finding("missing-key", f"there is no entry {key!r}")


def _report(
    path: str,
    fmt: Format | None,
    size: int,
    found: list[Finding],
    anatomy: Anatomy,
    level: Level,
    source: LocalSource | None,
) -> Report:
    verdict = Verdict.UNKNOWN if any(f.code in _BLIND for f in found) else worst(found)
    protected = sum(stop - start for start, stop, _ in covered(anatomy.sums))
    return Report(
        path,
        fmt.name if fmt else None,
        size,
        verdict,
        level,
        min(round(protected / size, 6), 1.0) if size > 0 else 0.0,
        anatomy.metadata,
        tuple(found),
        signature(anatomy.tensors),
        len(anatomy.tensors),
        source.bytes_read if source else 0,
        source.stat.st_mtime_ns if source else 0,
        source.stat.st_mode & 0o7777 if source else 0,
        _regions(anatomy, size),
        tuple(anatomy.stats),
        tuple(anatomy.unlisted),
    )


def _regions(anatomy: Anatomy, size: int) -> tuple[Region, ...]:
    if anatomy.regions is None or size <= 0:
        return ()
    from ckpt_tools.inspection.byte_map import regions_of  # only where a map of the bytes was asked for

    return regions_of(anatomy, size)


def prefix_signature(path: str, expect: Sequence[str], tensors: int) -> str:
    """The signature of a file's first ``tensors`` tensors: equal to that of a copy cut at a record border."""
    return signature(inspect(path, Level.STRUCTURE, expect=expect)[1].tensors[:tensors])
