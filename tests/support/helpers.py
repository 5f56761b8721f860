"""What the tests of formats share."""

from __future__ import annotations

import gc
import io
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from places import FORMAT_FILES

from ckpt_tools import checksum
from ckpt_tools.checksum.sums import find_covered
from ckpt_tools.findings import finding
from ckpt_tools.formats import BY_NAME, FORMATS, HEAD, Anatomy, Claim, Format, names, structure
from ckpt_tools.inspection.check import regions_of
from ckpt_tools.inspection.indexes import claims_by_path, is_index
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level, Region
from ckpt_tools.storage import BytesSource, ShortRead, Source


def findings(
    data: bytes | Source, fmt: Format, anatomy: Anatomy, claims: Sequence[Claim] = (), path: str = ""
) -> Iterator[Finding]:
    """The findings of the structure check, the claims and the stored checksums, one by one, as `verify` puts
    them together.
    """
    source = BytesSource(data, path) if isinstance(data, bytes) else data
    whole = any(c.whole for c in claims)
    try:
        if not whole:
            yield from structure(source, anatomy, fmt.checks[Level.STRUCTURE])
        for claim in claims:
            yield from structure(source, anatomy, claim.check)
        if 0 <= anatomy.end < source.size:
            yield finding(
                "trailing-data", "bytes that nothing refers to", offset=anatomy.end, severity=Severity.WARNING
            )
        for s, _ in checksum.mismatches(source, anatomy.sums, jobs=1):
            yield finding(s.code, s.what, offset=s.offset)
    except ShortRead as e:
        yield finding("truncated", str(e), offset=e.offset)


def look(
    data: bytes, fmt: Format | None = None, anatomy: Anatomy | None = None, claims: Sequence[Claim] = ()
) -> list[Finding]:
    """All findings; without ``fmt`` the magic decides."""
    fmt = fmt or next((f for f in FORMATS if f.magic(data[:HEAD])), None)
    if fmt is None:
        return [finding("wrong-format", "no format has this beginning")]
    return list(findings(data, fmt, Anatomy() if anatomy is None else anatomy, claims))


def bad(found: list[Finding]) -> list[Finding]:
    """Those that change the verdict."""
    return [f for f in found if f.severity > Severity.NOTE]


def codes(found: Iterable[Finding]) -> set[str]:
    """The codes of those that change the verdict."""
    return {f.code for f in found if f.severity > Severity.NOTE}


def flipped(data: bytes, bit: int) -> bytes:
    """With one bit the other way; they are counted from the lowest of the first byte."""
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w", method) as z:
            for name, data in members.items():
                z.writestr(zipfile.ZipInfo(name), data, method)
        return out.getvalue()


def is_bad(
    data: bytes, fmt: Format, claims: Sequence[Claim] = (), key: bytes | None = None, path: str = ""
) -> bool:
    """Whether any finding changes the verdict; stops at the first."""
    return any(f.severity > Severity.NOTE for f in findings(data, fmt, Anatomy(key=key), claims, path))


def left_behind(run: Callable[[], object]) -> int:
    """Objects that twenty runs leave, without the garbage collector: it knows nothing of cycles through
    zstandard's objects.
    """
    run()  # what is imported on first use does not count
    gc.collect()
    gc.freeze()  # what is there is not counted: after many tests that takes longer than the runs
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(20):
            run()
        return len(gc.get_objects()) - before
    finally:
        gc.enable()


def protected(anatomy: Anatomy) -> int:
    """How many bytes stored checksums cover."""
    return sum(stop - start for start, stop, _ in find_covered(anatomy.sums))


@dataclass
class Fixture:
    """One file of a good fixture: alone, or in a directory of files of which some describe others."""

    path: Path

    @cached_property
    def _at(self) -> int:
        return next(i for i, part in enumerate(self.path.parts) if part in ("good", "bad"))

    @cached_property
    def home(self) -> Path | None:
        """The directory of the set that the file is in."""
        deeper = len(self.path.parts) > self._at + 2
        return Path(*self.path.parts[: self._at + 2]) if deeper else None

    @cached_property
    def format(self) -> Format:
        return BY_NAME[self.path.parts[self._at - 1]]

    @cached_property
    def name(self) -> str:
        return str(self.path.relative_to(FORMAT_FILES))

    @cached_property
    def data(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def key(self) -> bytes | None:
        """``<name>.key`` in the format's own directory holds the key of an encrypted file."""
        beside = FORMAT_FILES / self.format.name / f"{self.path.name}.key"
        return beside.read_bytes() if beside.exists() else None

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Path in the set -> content, for every file of the set; only this file when it is alone."""
        if self.home is None:
            return {self.path.name: self.data}
        files = (p for p in sorted(self.home.rglob("*")) if p.is_file())
        return {str(p.relative_to(self.home)): p.read_bytes() for p in files}

    @cached_property
    def own(self) -> str:
        """This file's path in the set."""
        return self.path.name if self.home is None else str(self.path.relative_to(self.home))

    @cached_property
    def said(self) -> dict[str, list[Claim]]:
        """Path in the set -> what the indexes and its own path say about it."""
        said = claims(self.files)[0]
        for own in self.files if self.home is not None else ():
            if names.addressed(own):
                said[own].extend(claims_by_path(str(self.home / own)))
        return said

    def anatomy(self, *, explain: bool = False) -> tuple[Anatomy, list[Finding]]:
        anatomy = Anatomy(key=self.key, regions=[] if explain else None)
        said = self.said.get(self.own, ())
        found = list(findings(self.data, self.format_of(self.own), anatomy, said, self.own))
        return anatomy, found

    def format_of(self, own: str) -> Format:
        """The format of a file of the set: the one it claims by its beginning among those its name allows,
        else that of the claim on it.
        """
        if self.home is None:
            return self.format
        from ckpt_tools.inspection.recognise import allow_by_name

        if placed := names.placed(f"/{own}"):
            return BY_NAME[placed.format]
        head, said = self.files[own][:HEAD], self.said.get(own, ())
        named = [f for f in allow_by_name(own.rpartition("/")[2]) if f.magic(head)]
        if named or any(c.whole for c in said):
            return named[0] if named else BY_NAME[said[0].format]
        return next((f for f in FORMATS if f.magic(head)), None) or BY_NAME[said[0].format]

    def regions(self) -> tuple[Region, ...]:
        return regions_of(self.anatomy(explain=True)[0], len(self.data))

    def notices(self, data: bytes) -> bool:
        """Whether the file's damage shows, in it or in what it says about others."""
        said = self.said
        if is_bad(data, self.format_of(self.own), said.get(self.own, ()), self.key, self.own):
            return True  # most damage shows by itself, and that is quick
        placed = names.placed(f"/{self.own}")
        if self.home is not None and (placed or is_index(self.own.rpartition("/")[2])):
            said, missing = claims({**self.files, self.own: data})
            others = [o for o in self.files if o != self.own and said.get(o)]
            if missing or any(is_bad(self.files[o], self.format_of(o), said[o]) for o in others):
                return True
            if any(said.get(o, []) == [] and self.said.get(o) for o in self.files):
                return True  # a file that lost its description
        return is_bad(data, self.format_of(self.own), said.get(self.own, ()), self.key, self.own)


def claims(files: Mapping[str, bytes]) -> tuple[dict[str, list[Claim]], list[str]]:
    """What the indexes among ``files`` say, and the members they name that are not there."""
    from ckpt_tools.inspection.recognise import allow_by_name

    out: dict[str, list[Claim]] = defaultdict(list)
    missing = []
    for own, data in files.items():
        name = own.rpartition("/")[2]
        placed = names.placed(f"/{own}")
        fmt = next((f for f in allow_by_name(name) if f.index and f.magic(data[:HEAD])), None)
        fmt = BY_NAME[placed.format] if placed else fmt
        if fmt is None:
            continue
        home = placed.base.lstrip("/") if placed else own.rpartition("/")[0]
        waiting, seen = [(data, tuple[Claim, ...]())], set[tuple[str, Claim]]()
        while waiting:
            found, said = waiting.pop()
            anatomy = Anatomy()
            list(findings(found, fmt, anatomy, said, own))
            for member, claim in anatomy.members.items():
                path = f"{home}/{member}".lstrip("/")
                if path not in files:
                    missing += [] if claim.optional else [path]
                    continue
                out[path].append(claim)
                if claim.follow and (path, claim) not in seen:
                    seen.add((path, claim))
                    waiting.append((files[path], (claim._replace(whole=True),)))
    return out, missing
