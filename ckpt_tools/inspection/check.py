"""Check one file up to a level and report on it, also by its own loader: the only stage that reads files."""

from __future__ import annotations

import errno
import importlib.resources
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.checksum import Crc, Extent, Progress, Sum, mismatches
from ckpt_tools.checksum.compare import Computed, InflateError
from ckpt_tools.checksum.sums import find_covered, xxh3
from ckpt_tools.findings import NOT_SEEN, adapt_hint, finding
from ckpt_tools.formats import HEAD, Anatomy, Claim, Format, names, structure
from ckpt_tools.formats.common.counters import optimizer_step, scalar_counters
from ckpt_tools.formats.common.held import find_held
from ckpt_tools.formats.common.zeros import MOST, find_lost_pages, find_zeros, watch_zeros
from ckpt_tools.formats.named import MANIFESTS
from ckpt_tools.inspection.digests import digests_of, page_digests, runs_by_name
from ckpt_tools.inspection.recognise import recognise
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity, Verdict, is_cut, worst
from ckpt_tools.model.report import NO_METADATA, Blank, Guard, Held, Level, Region, Report, Tensor
from ckpt_tools.model.seal import NOT_KEPT
from ckpt_tools.storage import OpenFile, ShortRead, Source, Stopped, opened
from ckpt_tools.storage.retry import is_link
from ckpt_tools.storage.urls import is_url, to_absolute

_SHALLOW = frozenset({"needs-extra", "needs-key", "wrong-key"})  # with one, the level values is not reached
_NO_FILE = {errno.ELOOP: "symlink-loop", errno.EISDIR: "not-a-file"}
"""OSErrors that say what a path is; any other one says that the path could not be looked at."""
_ROLE = re.compile(
    r"optimizer|scheduler|scaler|rng_state|random_states|training_args|pytorch_model|adapter_model"
)
"""File names of the parts of a checkpoint (transformers/trainer.py, accelerate/utils/constants.py)."""
_MAKE_UNKNOWN = NOT_SEEN | {"not-loaded", "wrong-key"}  # with one of these findings the verdict is unknown
_NOT_READ = frozenset({"unreadable", "in-use", "wrong-key"})
"""Those of them with which an error may be none; with the others it is damage all the same."""


def inspect(path: str, level: Level, *, again: bool = True, **how: Any) -> tuple[Report, Anatomy]:
    """Return the report and the anatomy of a file, read up to ``level``; ``how`` are further fields of
    ``Inspection``. A file in a store that looks broken is read ``again`` before the report says so, unless
    the store's own checksum proves that the store has these bytes.
    """
    report, inspection = examine(partial(Inspection, path, level, **how), again=again)
    return report, inspection.anatomy


def examine(make: Callable[[], Inspection], *, again: bool = True) -> tuple[Report, Inspection]:
    """Return the report of an inspection, and the inspection that it rests on: of a file in a store the
    second one if the first is in doubt, and ``again`` is set.
    """
    first = make()
    report = first.run()
    if not again or first.proven or not _is_in_doubt(report):
        return report, first
    from ckpt_tools.inspection.kept_checksum import weigh_again  # a file on a disk is read once

    second = make()
    later = second.run()
    weighed = weigh_again(report, later, first.progress, stopped=second.stopped, as_kept=second.as_kept)
    return weighed, second


def _is_in_doubt(report: Report) -> bool:
    """Return True if the damage in a report may have arisen between the store of the file and here."""
    wrong = report.verdict is Verdict.BROKEN or any(f.code == NOT_KEPT for f in report.findings)
    return wrong and is_url(report.path)


class Inspection(Struct):
    """One pass over one file, up to ``level``. ``expect`` names the formats its layout allows,
    ``claims`` are statements of indexes about the file, ``require`` names entries that it must have.

    ``key`` decrypts the file, ``explain`` adds a map of its bytes to the report, ``io`` is a parameter of
    ``opened``. Never raises for the content of the file; an OSError becomes the finding ``unreadable`` and
    the verdict unknown. If ``progress`` raises Stopped, ``stopped`` is set, and the report has the level
    ``reached`` and the findings until then.
    A file of no known format whose name tells no format gets ``format`` None and no findings. Its content is
    read only for the checksums that ``computes`` returns for its size, and that ``computed`` then has;
    ``as_bytes``: no format is looked for.
    The content of an object is compared with the checksum that its store keeps: ``as_kept`` if they are
    equal, ``proven`` if the file had no error before the content was read, either. ``wrong`` are the stored
    checksums that do not match.
    """

    path: str
    level: Level
    expect: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    progress: Progress | None = None
    require: Sequence[str] = ()
    key: bytes | None = None
    explain: bool = False
    io: str = "auto"
    jobs: int = 0
    computes: Callable[[int], Computed] | None = None
    as_bytes: bool = False
    computed: Computed | None = None
    as_kept: bool = False
    proven: bool = False
    stopped: bool = False
    anatomy: Anatomy = field(default_factory=Anatomy)
    format: Format | None = None
    reached: Level = Level.PRESENCE
    zeros: int = 0
    held: Held = Held()
    pages: bytes = b""
    found: list[Finding] = field(default_factory=list)
    wrong: list[Sum] = field(default_factory=list)

    def run(self, source: OpenFile | None = None) -> Report:
        """Return the report on the file, or on the ``source`` that is to take its place. Call once."""
        anatomy = self.anatomy = Anatomy(key=self.key, regions=[] if self.explain else None)
        certain = names.may_be_index(self.path.rpartition("/")[2])  # other files are judged by it
        try:
            source = source or opened(self.path, self.io, hold=self.level >= Level.CONTENT, certain=certain)
        except OSError as e:
            return unreadable(self.path, e)
        with source:
            try:
                self._check_levels(source)
            except ShortRead as e:
                at, more = e.offset + e.got, e.wanted - e.got
                why = f"the file ends at byte {at}, where {more} more bytes belong"
                self.found.append(finding("truncated", why, offset=at))
            except OSError as e:
                self.found.append(_os_finding(e))
            except Stopped:
                self.stopped = True
            if worst(self.found) is not Verdict.OK:
                from ckpt_tools.formats.common.pointers import follow_pointer  # only where something is wrong

                self.found = follow_pointer(source, self.found)
            try:
                anatomy.identity = source.identity()
                if anatomy.identity is None and source.changed():  # the findings are worth nothing then
                    what = "size or modification time changed while the file was read"
                    self.found = [finding("in-use", what)]
            except OSError as e:
                self.found.append(_os_finding(e))
            return self._make_report(source)

    def _check_levels(self, source: OpenFile) -> None:
        """Recognise the format and check level by level, up to ``level`` or to damage that hides the rest."""
        name, found = self.path.rpartition("/")[2], self.found
        if not self.as_bytes:
            self.format, wrong = recognise(source, name, self.expect, self.claims)
            found += wrong
        fmt = self.format
        if fmt is None and (self.computes is None or found):
            return
        if fmt is not None and self.level >= Level.STRUCTURE:
            self._check_structure(source, fmt, name)
            self.reached = Level.STRUCTURE
        if self.level >= Level.CONTENT and not is_cut(found, source.size):
            self._check_content(source)
            if fmt is not None and worst(found) is not Verdict.BROKEN:
                is_local, bytes_read = not is_url(self.path), source.bytes_read  # else a tensor is a request
                self.zeros = len(list(find_zeros(source, self.anatomy.tensors, every=is_local)))
                self.pages = page_digests(source) if is_local else b""
                source.bytes_read = bytes_read  # no byte counts twice
            self.reached = Level.CONTENT
        if fmt is not None and self.level >= Level.VALUES and worst(found) is not Verdict.BROKEN:
            self.reached = self._check_values_and_load(source, fmt)

    def _check_structure(self, source: OpenFile, fmt: Format, name: str) -> None:
        """Run the format's own check, unless a claim takes its place, and then the check of each claim."""
        anatomy, found, is_whole = self.anatomy, self.found, any(c.whole for c in self.claims)
        if not is_whole and _own_check_applies(fmt, source, name, self.claims):
            found += structure(source, anatomy, fmt.checks[Level.STRUCTURE])
        for claim in self.claims:  # two indexes may lead to equal findings
            found += (f for f in structure(source, anatomy, claim.check) if f not in found)
        if 0 <= anatomy.end < source.size:
            what = f"{source.size - anatomy.end} bytes follow the last that anything refers to"
            found.append(finding("trailing-data", what, offset=anatomy.end, severity=Severity.WARNING))
        if (count := optimizer_step(source, anatomy.tensors)) is not None:
            anatomy.metadata.setdefault("optimizer_step", count)
        for key, number in scalar_counters(source, anatomy.tensors, anatomy.keys).items():
            anatomy.metadata.setdefault(key, number)
        found += _check_names(name, anatomy, () if is_whole or fmt.loader is None else self.require)
        self.held = find_held(name, fmt.name, anatomy, found)

    def _check_content(self, source: OpenFile) -> None:
        """Read the content: add a finding for each checksum that does not match, and for lost pages."""
        zero_pages, before, kept = list[tuple[int, int]](), len(self.found), None
        is_sound = worst(self.found) is not Verdict.BROKEN
        if is_url(self.path):
            from ckpt_tools.inspection.kept_checksum import find_difference, kept_checksum, say_not_kept

            kept = kept_checksum(source)
        self.computed = self.computes(source.size) if self.computes is not None else None
        further = list(filter(None, (kept, self.computed)))
        differing = mismatches(
            source,
            [*self.anatomy.sums, *(s for one in further for s in one.sums)],
            jobs=self.jobs,
            progress=self.progress,
            gaps=self.format is not None,  # else nothing says what a page of zeros means
            watch=watch_zeros(zero_pages),
        )
        for one in further:
            differing = one.collect(differing)
        for s, actual in differing:
            self.wrong.append(s)
            self.found.append(finding(s.code, f"{s.what}: {difference(s, actual)}", offset=s.offset))
        if kept is not None:
            if (not_kept := find_difference(kept)) is not None:
                self.found[:] = say_not_kept(not_kept)  # the others are about bytes that the store has not
                return
            self.as_kept = kept.value == kept.of.value
        self.proven = is_sound and self.as_kept
        sealed = {i: s for i, s in enumerate(self.wrong, before) if s.code == "seal-mismatch"}
        for i, text in _describe_hit(source, self.anatomy, sealed, self.progress).items():
            self.found[i] = replace(self.found[i], message=f"{self.found[i].message}; {text}")
        if len(zero_pages) < MOST:  # more are a pattern
            self.found += find_lost_pages(source, self.anatomy.tensors, zero_pages)

    def _check_values_and_load(self, source: OpenFile, fmt: Format) -> Level:
        """Check the levels values and load, as far as asked for; return the level that was reached."""
        anatomy, found = self.anatomy, self.found
        try:
            from ckpt_tools.inspection.tensor_values import values
        except ImportError:
            hint = "pip install 'ckpt-tools[values]'"
            found.append(finding("needs-extra", "looking at values needs numpy", hint=hint))
            return Level.CONTENT
        found += values(source, anatomy, self.progress)
        has_hidden = not fmt.index and any(map(_is_hidden, anatomy.tensors))
        if has_hidden or any(f.code in _SHALLOW for f in found):
            return Level.CONTENT
        if self.level < Level.LOAD:
            return Level.VALUES
        # A file that only its index explains is loaded in its parts, or with the index.
        is_whole = any(c.whole for c in self.claims)
        loader = "torch" if anatomy.windows else None if is_whole else fmt.loader
        if loader is None:  # the file has nothing that a loader loads
            return Level.LOAD
        if not loader:
            return Level.VALUES
        from ckpt_tools.storage.local import on_this_machine

        if self.progress:
            self.progress(0)  # the last moment to stop: a running loader cannot be stopped
        try:
            with on_this_machine(source) as path:
                done, wrong = load(loader, path, source.size, anatomy.windows)
        except OSError as e:
            done, wrong = False, [_os_finding(e)]
        found += wrong
        return Level.LOAD if done else Level.VALUES

    def _make_report(self, source: OpenFile) -> Report:
        anatomy, found, size = self.anatomy, self.found, source.size
        protected = sum([stop - start for start, stop, _ in find_covered(anatomy.sums)])
        if protected == size:  # by a seal, for example: a format without checksums does not matter then
            found = [f for f in found if f.code != "not-checksummed"]
        return Report(
            path=self.path,
            format=self.format.name if self.format else None,
            size=size,
            verdict=_find_verdict(found),
            level=self.reached,
            coverage=min(round(protected / size, 6), 1.0) if size > 0 else 0.0,
            metadata=anatomy.metadata or NO_METADATA,
            findings=tuple(adapt_hint(f, self.path) for f in found),
            signature=signature(anatomy.tensors),
            tensors=len(anatomy.tensors),
            bytes_read=source.bytes_read,
            mtime_ns=source.stat.st_mtime_ns,
            mode=source.stat.st_mode & 0o7777,
            regions=regions_of(anatomy, size) if anatomy.regions is not None and size > 0 else (),
            stats=tuple(anatomy.stats),
            unlisted=tuple(anatomy.unlisted),
            held=self.held,
            pages=self.pages,
            blank=Blank(len([t for t in anatomy.tensors if 0 in t.shape]), self.zeros),
        )


def unreadable(path: str, error: OSError) -> Report:
    """Return the report on a file that could not be opened; its size is -1."""
    found = _os_finding(error)
    if isinstance(error, FileNotFoundError) and is_link(path):
        found = finding("dangling-link", found.message)
    return Report(path, None, -1, _find_verdict([found]), Level.PRESENCE, findings=(adapt_hint(found, path),))


def _find_verdict(found: list[Finding]) -> Verdict:
    """Return UNKNOWN if findings say that a file was not seen, unless they show damage all the same."""
    codes, verdict = {f.code for f in found}, worst(found)
    damaged = verdict is Verdict.BROKEN and _NOT_READ.isdisjoint(codes)
    return verdict if damaged or _MAKE_UNKNOWN.isdisjoint(codes) else Verdict.UNKNOWN


def _os_finding(e: OSError) -> Finding:
    return finding(_NO_FILE.get(e.errno or 0, "unreadable"), e.strerror or str(e))


def signature(tensors: Iterable[Tensor]) -> str:
    """Return the XXH3-128 (hex) of the names, dtypes and shapes in file order; "" if there is no tensor."""
    import xxhash

    text = "".join([f"{t.name}\0{t.dtype}\0{t.shape}\n" for t in tensors])
    digest = xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
    return sys.intern(digest) if text else ""  # all ranks' files may have the same


def difference(s: Sum, actual: int | bytes | InflateError) -> str:
    """Return in words how the ``actual`` value differs from the stored checksum."""
    if isinstance(actual, InflateError):
        return str(actual)
    computed, stored = (f"{v:08x}" if isinstance(v, int) else v.hex() for v in (actual, s.expected))
    name = s.hash.name if isinstance(s.hash, Crc) else "CRC-32C" if isinstance(s.expected, int) else "digest"
    return f"{name} {computed}, stored {stored}" if computed else "does not match"


def _own_check_applies(fmt: Format, source: OpenFile, name: str, claims: Sequence[Claim]) -> bool:
    """Return True if the format's own check applies: False if claims give the format and the bytes do not."""
    if all(c.format != fmt.name for c in claims):
        return True
    if names.family[fmt.name] == MANIFESTS:  # their magics are those of any text
        return fmt.name in names.allowed(name)
    return fmt.magic(source.read(0, min(HEAD, source.size)))


def _check_names(name: str, anatomy: Anatomy, require: Sequence[str]) -> Iterator[Finding]:
    """Yield findings for required entries that are missing, and for a file name that tells a wrong role."""
    for key in require:
        if key not in anatomy.keys and key not in anatomy.metadata:
            yield finding("missing-key", f"there is no entry {key!r}")
    role, saved = _ROLE.match(name), _ROLE.match(str(anatomy.metadata.get("archive_name", "")))
    if role and saved and role[0] != saved[0]:
        yield finding("wrong-role", f"the name says {role[0]}, the archive was saved as {saved[0]}", offset=0)


def _is_hidden(t: Tensor) -> bool:
    """Return True if a tensor has bytes whose place in the file is not known."""
    return t.nbytes > 0 and (t.offset is None or (bool(t.pieces) and not any(n for _, n in t.pieces)))


def _describe_hit(
    source: Source, anatomy: Anatomy, wrong: Mapping[int, Sum], progress: Progress | None
) -> dict[int, str]:
    """Return a text for each chunk in ``wrong`` (index of its finding -> chunk): which tensors in the chunk
    differ from the sealed digests. Reads these tensors alone; a digest of the whole file gets no text.
    """
    if not wrong or not anatomy.sealed:
        return {}
    where, in_chunk = runs_by_name(anatomy.tensors, source.size), dict[int, list[str]]()
    for i, s in wrong.items():
        chunk = s.pieces[0]
        if s.hash is xxh3 and isinstance(chunk, Extent):
            start, stop = chunk.offset, chunk.offset + chunk.length
            in_chunk[i] = [t for t, runs in where.items() if any(p < stop and start < p + n for p, n in runs)]
    in_any = {name for in_one in in_chunk.values() for name in in_one}
    current = digests_of(source, [t for t in anatomy.tensors if t.name in in_any], progress, jobs=1)
    return {i: _say_hit(in_one, current, anatomy.sealed) for i, in_one in in_chunk.items()}


def _say_hit(inside: list[str], current: Mapping[str, str], sealed: Mapping[str, str]) -> str:
    """Say which tensors ``inside`` a chunk differ, from their digests ``current`` and the ``sealed`` ones."""
    hit = [name for name in inside if name in sealed and current.get(name) not in (None, sealed[name])]
    if hit:
        return f"{len(hit):,} of {len(sealed):,} tensors hit: {ranges.names(hit)}"
    if all(name in sealed and name in current for name in inside):
        return "no tensor is hit"
    return "which tensors are hit is not known"


# ---- The map of a file's bytes: the meaning of each range, and its protection (--explain-bytes).


def regions_of(anatomy: Anatomy, size: int) -> tuple[Region, ...]:
    """Return the map of all bytes, in file order: ranges with a checksum, explained ranges, and the rest."""
    covered = find_covered(anatomy.sums)
    spans = [Region(start, stop - start, s.what, Guard.CHECKSUM) for start, stop, s in covered]
    for layer in (sorted(anatomy.regions or ()), [Region(0, size, "unexplained", Guard.UNPROTECTED)]):
        spans = sorted([*spans, *_fill_gaps(spans, layer, size)], key=lambda span: span[:2])
    return tuple(spans)


def _fill_gaps(spans: Sequence[Region], layer: Iterable[Region], size: int) -> Iterator[Region]:
    """Yield the parts of a layer's regions that neither ``spans`` nor an earlier region covers. All are in
    file order, and nothing lies behind ``size``.
    """
    at, i = 0, 0
    for r in layer:
        at, stop = max(at, r.offset), min(r.offset + r.length, size)
        while at < stop:
            while i < len(spans) and spans[i].offset + spans[i].length <= at:
                i += 1
            taken = spans[i] if i < len(spans) else Region(size, 0, "", r.guard)
            if at < (end := min(stop, taken.offset)):
                yield r._replace(offset=at, length=end - at)
            at = max(end, min(stop, taken.offset + taken.length))


INSTALL = {
    "torch": "pip install 'ckpt-tools[torch]'",
    "safetensors": "pip install 'safetensors' numpy",
    "mindspore": "pip install mindspore",
    "tensorflow": "pip install tensorflow-cpu",
}
"""How to get each loader; those of TensorFlow and MindSpore are too large to be extras."""
_MEMORY = 8 << 30  # bytes beyond twice the file's size, for the import of a framework
_SECONDS, _PER_GIB = 120, 30  # the time limit: seconds, and further seconds per GiB of the file
_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_v": "4",
}


def _set_limits(memory: int, seconds: int) -> None:  # pragma: no cover - runs in the child, before it starts
    import resource

    def lower(which: int, value: int) -> None:
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, 0)  # nothing is written, whatever the loader thinks
    lower(resource.RLIMIT_CPU, seconds * (os.cpu_count() or 1))
    lower(resource.RLIMIT_DATA, memory)


def _loader_script() -> str:
    return (importlib.resources.files("ckpt_tools") / "inspection" / "load_child.py").read_text()


def load(
    loader: str, path: str, size: int, windows: Sequence[tuple[int, int]] = ()
) -> tuple[bool, list[Finding]]:
    """Return True if the loader came to an answer, and the findings. ``windows`` are (offset, length) in
    bytes of files inside the file.

    The child may use twice the file's size and 8 GiB, two minutes and 30 s per GiB; it can write no file.
    """
    seconds = _SECONDS + _PER_GIB * (size >> 30)
    try:
        done = subprocess.run(  # noqa: S603  # our own interpreter with our own text
            [sys.executable, "-c", _loader_script(), loader, to_absolute(path), json.dumps(list(windows))],
            cwd="/",  # python -c looks for modules where it starts: not among somebody's files
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            preexec_fn=lambda: _set_limits(2 * size + _MEMORY, seconds),  # only system calls, no locks
        )
    except subprocess.TimeoutExpired:
        return False, [finding("not-loaded", f"{loader} did not finish within {seconds} s")]
    if done.returncode < 0:
        number = -done.returncode
        name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            why = f"{loader} was ended by {name}: it took more time or memory than it was given"
            return False, [finding("not-loaded", why)]
        return True, [finding("load-failed", f"{loader} died of {name} while it loaded the file")]
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        outcome, message, version = answer["outcome"], answer["message"], answer.get("version", loader)
    except (ValueError, IndexError, KeyError, TypeError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        return False, [finding("not-loaded", f"{loader} could not be run: {last[0][:300]}")]
    if outcome == "loaded":
        return True, []
    if outcome == "failed":
        return True, [finding("load-failed", f"{version}: {message}")]
    if outcome == "missing":
        why = f"{loader} is not installed here: {message[:200]}"
        return False, [finding("needs-extra", why, hint=INSTALL[loader], severity=Severity.NOTE)]
    return False, [finding("not-loaded", f"{version}: {message}")]
