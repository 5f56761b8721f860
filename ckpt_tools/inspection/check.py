"""One file and a level in, one report out: the only stage that reads files."""

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
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.checksum import Crc, Extent, InflateError, Outcome, Progress, Sum, covered, mismatches
from ckpt_tools.checksum.sums import xxh3
from ckpt_tools.findings import NOT_SEEN, finding, of_file
from ckpt_tools.formats import HEAD, Anatomy, Claim, Format, names, structure
from ckpt_tools.formats.common.counters import optimizer_step, scalar_counters
from ckpt_tools.formats.common.held import find_held
from ckpt_tools.formats.common.zeros import MOST, lost_pages, watching, zero_tensors
from ckpt_tools.formats.named import MANIFESTS
from ckpt_tools.inspection.digests import digests_of, page_digests, placed
from ckpt_tools.inspection.recognise import recognise
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity, Verdict, cut_short, worst
from ckpt_tools.model.report import NO_METADATA, Blank, Guard, Held, Level, Region, Report, Tensor
from ckpt_tools.model.seal import NOT_KEPT
from ckpt_tools.storage import OpenFile, ShortRead, Source, Stopped, opened
from ckpt_tools.storage.retry import is_link
from ckpt_tools.storage.urls import absolute, is_url

if TYPE_CHECKING:
    from ckpt_tools.inspection.kept_checksum import KeptChecksum

_SHALLOW = frozenset({"needs-extra", "needs-key", "wrong-key"})
_NO_FILE = {errno.ELOOP: "symlink-loop", errno.EISDIR: "not-a-file"}
"""Errors that say what a path is, and not that it could not be looked at."""
_ROLE = re.compile(
    r"optimizer|scheduler|scaler|rng_state|random_states|training_args|pytorch_model|adapter_model"
)
"""Names of parts of a checkpoint (transformers/trainer.py, accelerate/utils/constants.py)."""
_BLIND = NOT_SEEN | {"not-loaded", "wrong-key"}
Told = Iterator[tuple[Sum, Outcome]]
Read = Callable[[OpenFile, "list[Sum]", "list[tuple[int, int]]"], Told]
"""Reads the content of a file: called with it, its stored checksums, and the list to which the zero pages
that no checksum covers are to be added. Yields the checksums that do not match; may raise as reading does.
"""


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
    io: str = "auto",
    again: bool = True,
) -> tuple[Report, Anatomy]:
    """Read one file to ``level`` with ``jobs`` threads and report: an ``Inspection`` as a whole. What looks
    broken in a store is read ``again`` before it is called so, unless the store's own checksum says that
    these are the bytes that it has.
    """

    def read(source: OpenFile, sums: list[Sum], empty: list[tuple[int, int]]) -> Told:
        return mismatches(source, sums, jobs=jobs, progress=progress, gaps=True, watch=watching(empty))

    make = partial(
        Inspection, path, level, expect, claims, progress, require, key, explain, io, asks_store=True
    )
    first = make()
    report, anatomy = first.run(read)
    if not again or first.proven or not is_in_doubt(report):
        return report, anatomy
    from ckpt_tools.inspection.kept_checksum import weigh_again  # what lies on disks is read once

    second = make()
    later, anatomy = second.run(read)
    return weigh_again(report, later, progress, stopped=second.stopped, as_kept=second.as_kept), anatomy


def is_in_doubt(report: Report) -> bool:
    """Return True if a report may be about damage that the store of the file does not have."""
    wrong = report.verdict is Verdict.BROKEN or any(f.code == NOT_KEPT for f in report.findings)
    return wrong and is_url(report.path)


class Inspection(Struct):
    """One pass over one file, to ``level``. ``expect`` names the formats its layout allows, ``claims`` is
    what indexes beside the file say about it, ``require`` names entries that must be in it.

    ``key`` decrypts, and with ``explain`` the report has a map of the file's bytes. ``io`` is that of
    ``opened``. Never raises for what is in the file; OSErrors become the finding ``unreadable`` and the
    verdict unknown. When ``progress`` raises Stopped, the pass is ``stopped``, and the report has the level
    that was reached and what was found until then.
    A file of no known format whose name says nothing gets ``format`` None and no findings.
    Where it ``asks_store``, all content that is read of an object is compared with the checksum that its
    store keeps of it: ``as_kept`` where that fits, ``proven`` where nothing was wrong before, either.
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
    asks_store: bool = False
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

    def run(self, read: Read) -> tuple[Report, Anatomy]:
        """Read the file, its content with ``read``."""
        anatomy = self.anatomy = Anatomy(key=self.key, regions=[] if self.explain else None)
        certain = names.may_be_index(self.path.rpartition("/")[2])  # what it says is believed of others
        try:
            source = opened(self.path, self.io, hold=self.level >= Level.CONTENT, certain=certain)
        except OSError as e:
            return unreadable(self.path, e), anatomy
        with source:
            try:
                self._levels(source, read)
            except ShortRead as e:
                at, more = e.offset + e.got, e.wanted - e.got
                why = f"the file ends at byte {at}, where {more} more bytes belong"
                self.found.append(finding("truncated", why, offset=at))
            except OSError as e:
                self.found.append(_os_finding(e))
            except Stopped:
                self.stopped = True
            if worst(self.found) is not Verdict.OK:
                from ckpt_tools.formats.common.pointers import instead  # only where something is wrong

                self.found = instead(source, self.found)
            try:
                anatomy.identity = source.identity()
                if anatomy.identity is None and source.changed():  # which makes worthless what was found
                    what = "size or modification time changed while the file was read"
                    self.found = [finding("in-use", what)]
            except OSError as e:
                self.found.append(_os_finding(e))
            return self._report(source), anatomy

    def _levels(self, source: OpenFile, read: Read) -> None:
        """One level after the other, as far as is asked for and as makes sense."""
        name, found = self.path.rpartition("/")[2], self.found
        self.format, wrong = recognise(source, name, self.expect, self.claims)
        found += wrong
        if self.format is None:
            return
        if self.level >= Level.STRUCTURE:
            self._structure(source, self.format, name)
            self.reached = Level.STRUCTURE
        if self.level >= Level.CONTENT and not cut_short(found, source.size):
            self._content(source, read)
            if worst(found) is not Verdict.BROKEN:
                here, done = not is_url(self.path), source.bytes_read  # of each tensor in a store: a request
                self.zeros = len(list(zero_tensors(source, self.anatomy.tensors, every=here)))
                self.pages = page_digests(source) if here else b""
                source.bytes_read = done  # no byte counts twice
            self.reached = Level.CONTENT
        if self.level >= Level.VALUES and worst(found) is not Verdict.BROKEN:
            self.reached = self._deeper(source, self.format)

    def _structure(self, source: OpenFile, fmt: Format, name: str) -> None:
        """The format's own check, unless a claim describes the file whole or alone; then every claim."""
        anatomy, found, is_whole = self.anatomy, self.found, any(c.whole for c in self.claims)
        if not is_whole and _has_a_say(fmt, source, name, self.claims):
            found += structure(source, anatomy, fmt.checks[Level.STRUCTURE])
        for claim in self.claims:  # two indexes may say the same about a file
            found += (f for f in structure(source, anatomy, claim.check) if f not in found)
        if 0 <= anatomy.end < source.size:
            what = f"{source.size - anatomy.end} bytes follow the last that anything refers to"
            found.append(finding("trailing-data", what, offset=anatomy.end, severity=Severity.WARNING))
        if (count := optimizer_step(source, anatomy.tensors)) is not None:
            anatomy.metadata.setdefault("optimizer_step", count)
        for key, number in scalar_counters(source, anatomy.tensors, anatomy.keys).items():
            anatomy.metadata.setdefault(key, number)
        found += _find_renamed(name, anatomy, () if is_whole or fmt.loader is None else self.require)
        self.held = find_held(name, fmt.name, anatomy, found)

    def _content(self, source: OpenFile, read: Read) -> None:
        empty, sealed = list[tuple[int, int]](), dict[int, Sum]()
        kept: KeptChecksum | None = None
        if self.asks_store and is_url(self.path):
            from ckpt_tools.inspection.kept_checksum import kept_checksum, say_not_kept

            kept = kept_checksum(source, self.anatomy.sums)
        is_sound = worst(self.found) is not Verdict.BROKEN
        told = read(source, self.anatomy.sums if kept is None else kept.sums, empty)
        for s, actual in told if kept is None else kept.taken(told):
            if s.code == "seal-mismatch":
                sealed[len(self.found)] = s
            self.found.append(finding(s.code, f"{s.what}: {difference(s, actual)}", offset=s.offset))
        if kept is not None:
            if (other := kept.finding()) is not None:
                self.found[:] = say_not_kept(other)  # all else is about bytes that the store does not have
                return
            self.as_kept, self.proven = kept.same, is_sound and kept.same
        if sealed and self.anatomy.sealed:
            for i, said in _hit_tensors(source, self.anatomy, sealed, self.progress).items():
                self.found[i] = replace(self.found[i], message=f"{self.found[i].message}; {said}")
        if len(empty) < MOST:  # more are a pattern
            self.found += lost_pages(source, self.anatomy.tensors, empty)

    def _deeper(self, source: OpenFile, fmt: Format) -> Level:
        """The levels values and load; return the one reached."""
        anatomy, found = self.anatomy, self.found
        try:
            from ckpt_tools.inspection.tensor_values import values
        except ImportError:
            hint = "pip install 'ckpt-tools[values]'"
            found.append(finding("needs-extra", "looking at values needs numpy", hint=hint))
            return Level.CONTENT
        found += values(source, anatomy, self.progress)
        if (not fmt.index and any(map(_is_hidden, anatomy.tensors))) or any(
            f.code in _SHALLOW for f in found
        ):
            return Level.CONTENT
        if self.level < Level.LOAD:
            return Level.VALUES
        # A file that only its index explains is loaded in its parts, or with the index.
        is_whole = any(c.whole for c in self.claims)
        loader = "torch" if anatomy.windows else None if is_whole else fmt.loader
        if loader is None:  # nothing in it is for a loader
            return Level.LOAD
        if not loader:
            return Level.VALUES
        from ckpt_tools.storage.local import on_this_machine

        if self.progress:
            self.progress(0)  # the last moment to stop: the loader itself is not watched
        try:
            with on_this_machine(source) as path:
                done, wrong = load(loader, path, source.size, anatomy.windows)
        except OSError as e:
            done, wrong = False, [_os_finding(e)]
        found += wrong
        return Level.LOAD if done else Level.VALUES

    def _report(self, source: OpenFile) -> Report:
        anatomy, found, size = self.anatomy, self.found, source.size
        protected = sum([stop - start for start, stop, _ in covered(anatomy.sums)])
        if protected == size:  # by a seal, for one: then it does not matter that the format itself has none
            found = [f for f in found if f.code != "not-checksummed"]
        return Report(
            path=self.path,
            format=self.format.name if self.format else None,
            size=size,
            verdict=Verdict.UNKNOWN if any(f.code in _BLIND for f in found) else worst(found),
            level=self.reached,
            coverage=min(round(protected / size, 6), 1.0) if size > 0 else 0.0,
            metadata=anatomy.metadata or NO_METADATA,
            findings=tuple(of_file(f, self.path) for f in found),
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
    """Return the report on a file of which nothing could be seen."""
    found = _os_finding(error)
    if isinstance(error, FileNotFoundError) and is_link(path):
        found = finding("dangling-link", found.message)
    verdict = Verdict.UNKNOWN if found.code in _BLIND else worst([found])
    return Report(path, None, -1, verdict, Level.PRESENCE, findings=(of_file(found, path),))


def _os_finding(e: OSError) -> Finding:
    return finding(_NO_FILE.get(e.errno or 0, "unreadable"), e.strerror or str(e))


def signature(tensors: Iterable[Tensor]) -> str:
    """Return a digest of names, dtypes and shapes in file order (XXH3-128, hex); "" if there are none."""
    import xxhash

    text = "".join([f"{t.name}\0{t.dtype}\0{t.shape}\n" for t in tensors])
    digest = xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
    return sys.intern(digest) if text else ""  # all ranks' files may have the same


def prefix_signature(path: str, expect: Sequence[str], tensors: int) -> str:
    """Return the signature of a file's first ``tensors`` tensors: that of a copy cut at a record border."""
    return signature(inspect(path, Level.STRUCTURE, expect=expect)[1].tensors[:tensors])


def difference(s: Sum, actual: int | bytes | InflateError) -> str:
    """A stored checksum against the one computed, in words."""
    if isinstance(actual, InflateError):
        return str(actual)
    a, b = (f"{v:08x}" if isinstance(v, int) else v.hex() for v in (actual, s.expected))
    name = s.hash.name if isinstance(s.hash, Crc) else "CRC-32C" if isinstance(s.expected, int) else "digest"
    return f"{name} {a}, stored {b}" if a else "does not match"


def _has_a_say(fmt: Format, source: OpenFile, name: str, claims: Sequence[Claim]) -> bool:
    """Return True if the format's own check is for the file: not where only a claim gives it that format."""
    if all(c.format != fmt.name for c in claims):
        return True
    if names.family[fmt.name] == MANIFESTS:  # their magics are those of any text
        return fmt.name in names.allowed(name)
    return fmt.magic(source.read(0, min(HEAD, source.size)))


def _find_renamed(name: str, anatomy: Anatomy, require: Sequence[str]) -> Iterator[Finding]:
    """Yield required entries that are missing, and that a trainer's file was saved as another."""
    for key in require:
        if key not in anatomy.keys and key not in anatomy.metadata:
            yield finding("missing-key", f"there is no entry {key!r}")
    now, first = _ROLE.match(name), _ROLE.match(str(anatomy.metadata.get("archive_name", "")))
    if now and first and now[0] != first[0]:
        yield finding("wrong-role", f"the name says {now[0]}, the archive was saved as {first[0]}", offset=0)


def _is_hidden(t: Tensor) -> bool:
    """Return True if a tensor has numbers whose place in the file is not known."""
    return t.nbytes > 0 and (t.offset is None or (bool(t.pieces) and not any(n for _, n in t.pieces)))


def _hit_tensors(
    source: Source, anatomy: Anatomy, wrong: Mapping[int, Sum], progress: Progress | None
) -> dict[int, str]:
    """Return what to say of each sealed chunk in ``wrong``: the tensors with bytes in it, which are all that
    is read, that differ from what was sealed. Says nothing of digests of the whole file.
    """
    where, hit = placed(anatomy.tensors, source.size), dict[int, list[str]]()
    for i, s in wrong.items():
        chunk = s.pieces[0]
        if s.hash is xxh3 and isinstance(chunk, Extent):
            start, stop = chunk.offset, chunk.offset + chunk.length
            hit[i] = [t for t, runs in where.items() if any(at < stop and start < at + n for at, n in runs)]
    asked = {name for inside in hit.values() for name in inside}
    now = digests_of(source, [t for t in anatomy.tensors if t.name in asked], progress, jobs=1)
    return {i: _say_hit(inside, now, anatomy.sealed) for i, inside in hit.items()}


def _say_hit(inside: list[str], now: Mapping[str, str], sealed: Mapping[str, str]) -> str:
    hit = [name for name in inside if name in sealed and now.get(name) not in (None, sealed[name])]
    if hit:
        return f"{len(hit):,} of {len(sealed):,} tensors hit: {ranges.names(hit)}"
    if all(name in sealed and name in now for name in inside):
        return "no tensor is hit"
    return "which tensors are hit is not known"


# ---- The map of a file's bytes: what each range is and what protects it (--explain-bytes).


def regions_of(anatomy: Anatomy, size: int) -> tuple[Region, ...]:
    """Return the map of a file's bytes, in file order: checksums, what is explained, and the rest."""
    spans = [Region(a, b - a, s.what, Guard.CHECKSUM) for a, b, s in covered(anatomy.sums)]
    for layer in (sorted(anatomy.regions or ()), [Region(0, size, "unexplained", Guard.UNPROTECTED)]):
        gaps, at = list[tuple[int, int]](), 0
        for r in [*spans, Region(size, 0, "", Guard.UNPROTECTED)]:
            if min(r.offset, size) > at:
                gaps.append((at, min(r.offset, size)))
            at = max(at, r.offset + r.length)
        first = 0
        for r in layer:
            stop = r.offset + r.length
            while first < len(gaps) and gaps[first][1] <= r.offset:
                first += 1
            i = first
            while i < len(gaps) and gaps[i][0] < stop:
                start = max(r.offset, gaps[i][0])
                spans.append(r._replace(offset=start, length=min(stop, gaps[i][1]) - start))
                i += 1
        spans.sort(key=lambda span: span[:2])
    out, at = [], 0
    for r in spans:
        stop = r.offset + r.length
        if at < stop <= size:
            start = max(r.offset, at)
            out.append(r._replace(offset=start, length=stop - start))
            at = stop
    return tuple(out)


INSTALL = {
    "torch": "pip install 'ckpt-tools[torch]'",
    "safetensors": "pip install 'safetensors' numpy",
    "mindspore": "pip install mindspore",
    "tensorflow": "pip install tensorflow-cpu",
}
"""How to get each loader; those of TensorFlow and MindSpore are too large to be extras."""
_MEMORY = 8 << 30  # bytes beyond twice the file's size: what importing a framework takes
_SECONDS, _PER_GIB = 120, 30
_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_v": "4",
}


def _limits(memory: int, seconds: int) -> None:  # pragma: no cover - runs in the child, before it starts
    import resource

    def lower(which: int, value: int) -> None:
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, 0)  # nothing is written, whatever the loader thinks
    lower(resource.RLIMIT_CPU, seconds * (os.cpu_count() or 1))
    lower(resource.RLIMIT_DATA, memory)


def _text() -> str:
    return (importlib.resources.files("ckpt_tools") / "inspection" / "load_child.py").read_text()


def load(
    loader: str, path: str, size: int, windows: Sequence[tuple[int, int]] = ()
) -> tuple[bool, list[Finding]]:
    """Whether the loader came to an answer, and what is wrong. ``windows`` are (offset, length) in bytes of
    files inside the file.

    The child may use twice the file's size and 8 GiB, two minutes and 30 s per GiB; it can write no file.
    """
    seconds = _SECONDS + _PER_GIB * (size >> 30)
    try:
        done = subprocess.run(  # noqa: S603  # our own interpreter with our own text
            [sys.executable, "-c", _text(), loader, absolute(path), json.dumps(list(windows))],
            cwd="/",  # python -c looks for modules where it starts: not among somebody's files
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            preexec_fn=lambda: _limits(2 * size + _MEMORY, seconds),  # only system calls, no locks
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
