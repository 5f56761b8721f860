"""Reports on many files, made by the workers of an engine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ckpt_tools.cache.codec import Seen, unpack
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy
from ckpt_tools.inspection.check import Ask, Inspection, Told, steps_twice
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.plain import encode
from ckpt_tools.model.report import Report
from ckpt_tools.reading.remote_report import ours, seen_from_here, unknown
from ckpt_tools.reading.request import Answer, Request
from ckpt_tools.reading.scheduler import Scheduler


class Inspecting(Scheduler[Seen]):
    """Has files inspected: their reports come back."""

    def sent(self, request: Request) -> tuple[Any, ...] | None:
        """What a worker needs to inspect a file."""
        if self.is_large(request):
            return None
        claims, require = tuple(map(encode, request.claims)), self.reader.options.require
        return "whole", request.path, int(request.level), request.expect, require, claims

    def steps(self, request: Request) -> Generator[Ask, Told, tuple[Report, Anatomy]]:
        """An inspection, here."""
        options = self.reader.options

        def once() -> Inspection:
            return Inspection(
                request.path,
                request.level,
                expect=request.expect,
                claims=request.claims,
                require=options.require,
                key=self.reader.key,
                explain=options.explain,
                progress=self.reader.progress,
                asks_store=self.pick is None,
            )

        return steps_twice(once)

    def ended(self, made: tuple[Report, Anatomy], opened_ns: int, *, changed: bool) -> Seen:
        """The report, and what may be kept of it."""
        report, anatomy = made
        if changed:
            found = finding("in-use", "size or modification time changed while the file was read")
            report, anatomy.identity = replace(report, findings=(found,), verdict=Verdict.UNKNOWN), None
        identity = anatomy.identity
        is_settled = identity is not None and identity.settled(opened_ns)
        return Seen(report, anatomy.places, identity if is_settled else None)

    def failed(self, error: OSError) -> Seen:
        """An inspection tells such errors itself."""
        raise error

    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Seen | None:
        """A worker's report, as it is to be told here."""
        got = Answer(*answer)
        made = unpack(request.path, got.packed) if got.packed is not None else None
        here = made and seen_from_here(request, host, made[0], got.identity)
        if not made or not here:
            return None
        self.count(request, got.bytes_read)
        return Seen(here[0], made[1], ours(request.path, here[1], begun_ns))

    def unknown(self, request: Request, why: str) -> Seen:
        """A report that nobody could make."""
        return Seen(unknown(request, why), {}, None)
