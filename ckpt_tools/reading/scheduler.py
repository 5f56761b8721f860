"""Many files read by an engine: work of equal bytes, each unit read by one of its workers, the reports put together here.

A file that is no larger than two units is looked at whole by a worker, its structure too: that takes a small read per record, which is slow over a network. What an index beside
it says goes with it. Of larger ones, and those that only make sense together, the structure is looked at here and the content is cut into ranges, so that one huge file is read by many workers; what they found is then
judged here exactly as if this process had read it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import replace
from typing import Any

from ckpt_tools import __version__
from ckpt_tools.cache.codec import Seen, unpack
from ckpt_tools.checksum import Picked
from ckpt_tools.checksum.remote import Content, Result
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy
from ckpt_tools.inspection.check import Ask, looking
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plain import encode
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading import engines, work_units
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.remote_report import other, ours, replaced, seen_from_here, unknown, unseen
from ckpt_tools.reading.work_units import Open, Unit, Want, portions, told, unit_of
from ckpt_tools.reading.worker import work
from ckpt_tools.storage import count

_HEADER = 64 * 1024
"""What the structure of a file counts for."""
AHEAD = 3
"""Units handed out per call that runs at once: a worker that is done finds its next one waiting."""


class Spread:
    """Reads files by an engine. ``progress`` is called with bytes that a worker has read, once for each unit that came back.

    ``pick`` says which blocks of a file are to be read, nothing more is handed out when it is ``over``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        require: tuple[str, ...],
        key: bytes | None,
        explain: bool,
        progress: Callable[[int], None],
        pick: Callable[[Want, Ask], Picked | None] | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine, self.require, self.key, self.explain, self.progress = (
            engine,
            require,
            key,
            explain,
            progress,
        )
        self.pick, self.over = pick, over
        self._out: dict[Future[Any], Unit] = {}
        self._open, self._unit = 0, work_units.UNIT
        self._most = max(32, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._alone = time.monotonic()
        self._done: list[tuple[Want, Seen]] = []

    def read(self, wants: Iterable[Want]) -> Iterator[tuple[Want, Seen]]:
        """Every file that could be read so, in the order in which they are done. What is left out is to be read here. Raises CannotLook when the engine is gone."""
        wants = list(wants)
        self._unit = unit_of(sum(max(0, w.size) for w in wants), self.engine.width())
        whole, ranges = Unit(self._unit), Unit(self._unit)
        self._alone = time.monotonic()
        try:
            for want in wants:
                if self.over():
                    break
                if (claims := self._sent(want)) is not None:
                    size = _HEADER if want.level is Level.STRUCTURE else want.size
                    if whole.add(
                        want, (), size, "look", want.path, int(want.level), want.expect, self.require, claims
                    ):
                        whole = self._submit(whole)
                else:
                    ranges = self._begin(want, ranges)
                    if self._open >= self._most:
                        ranges = self._submit(ranges)
                while len(self._out) >= AHEAD * max(2, self.engine.width()) or self._open >= self._most:
                    self._collect()
                yield from self._taken()
            self._submit(whole)
            self._submit(ranges)
            while self._out:
                self._collect()
                yield from self._taken()
            yield from self._taken()
        finally:
            for future in self._out:
                future.cancel()
            for unit in [*self._out.values(), ranges]:
                for owner, _ in unit.owners:
                    if isinstance(owner, Open):
                        owner.steps.close()
            self._out.clear()

    def _sent(self, want: Want) -> tuple[Any, ...] | None:
        """The claims on a file that a worker may look at whole; None for one that is begun here."""
        large = want.size > 2 * self._unit and want.level is Level.CONTENT
        if (
            large
            or self.pick is not None
            or self.key is not None
            or self.explain
            or any(c.joint for c in want.claims)
        ):
            return None
        try:
            return tuple(map(encode, want.claims))
        except TypeError:
            return None

    def _taken(self) -> Iterator[tuple[Want, Seen]]:
        done, self._done = self._done, []
        yield from done

    def _submit(self, unit: Unit) -> Unit:
        if unit.files:
            try:
                self._out[self.engine.executor.submit(work, __version__, tuple(unit.files))] = unit
            except Exception as e:
                raise self.engine.failed(e) or e from e
        return Unit(self._unit)

    def _begin(self, want: Want, unit: Unit) -> Unit:
        """The structure of a file, here; its content goes into units."""
        opened_ns = time.time_ns()
        steps = looking(
            want.path,
            want.level,
            expect=want.expect,
            claims=want.claims,
            require=self.require,
            key=self.key,
            explain=self.explain,
            progress=self.progress,
        )
        try:
            ask = next(steps)
        except StopIteration as done:
            self._finished(want, done.value, opened_ns)
            return unit
        source = ask[0]
        try:
            picked = None if self.pick is None else self.pick(want, ask)
            one = Open(want, steps, ask, Content(source.size, ask[1], picked), opened_ns)
        except TypeError:  # it holds what is not for other machines, such as a key
            source.bytes_read = 0  # it will be counted when it is read
            steps.close()
            return unit
        self._open += 1
        one.left += 1  # until all of it is out
        for numbers, size in portions(one.content, self._unit - unit.bytes, self._unit):
            if one.left > 1 and self.over():
                break
            one.left += 1
            items = tuple(one.content.items[i] for i in numbers)
            if unit.add(one, numbers, size, "read", want.path, source.size, source.stat.st_mtime_ns, items):
                unit = self._submit(unit)
            while self.pick is not None and len(self._out) >= AHEAD * max(
                2, self.engine.width()
            ):  # so that little is out when it is over
                self._collect()
        one.left -= 1
        self._close(one)
        return unit

    # ---- what comes back

    def _collect(self) -> None:
        """Wait for some unit and take in what it found."""
        done, _ = wait(self._out, timeout=1.0, return_when=FIRST_COMPLETED)
        if done or self.engine.width():
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > engines.GRACE:
            raise CannotLook(
                f"{self.engine.name} has had no worker for {engines.GRACE:.0f} s",
                "start workers, and look into their logs for why they end",
            )
        for future in done:
            unit = self._out.pop(future)
            try:
                version, host, defect, answers = future.result()
            except (Exception, CancelledError) as e:
                if (gone := self.engine.failed(e)) is not None:
                    raise gone from e
                self._fatal(unit)
                continue
            if version != __version__:
                raise CannotLook(
                    f"the worker on {host} has ckpt-tools {version}, this is {__version__}",
                    "install the same version on all machines",
                )
            if defect:
                raise CannotLook(
                    f"the worker on {host} failed: {defect}",
                    "if it has enough memory, this is a bug in ckpt: please report it",
                ) from None
            for (owner, numbers), answer in zip(unit.owners, answers, strict=True):
                if isinstance(owner, Open):
                    self._ranges(owner, numbers, host, *answer)
                else:
                    self._whole(owner, unit.begun_ns, host, *answer)

    def _fatal(self, unit: Unit) -> None:
        """Nobody lived to say what is in these files."""
        why = "every worker that read it died: look into their logs, for memory and for the file system"
        for owner, _ in unit.owners:
            if isinstance(owner, Open):
                owner.wrong, owner.left = owner.wrong or OSError(0, why), owner.left - 1
                self._close(owner)
            else:
                self._done.append((owner, Seen(unknown(owner, why), {}, None)))

    def _whole(
        self,
        want: Want,
        begun_ns: int,
        host: str,
        packed: bytes | None,
        identity: tuple[int, ...] | None,
        read: int,
    ) -> None:
        made = unpack(want.path, packed) if packed is not None else None
        here = made and seen_from_here(want, host, made[0], identity)
        if not made or not here:
            return  # it is read here
        count(read)
        self.progress(read)
        self._done.append((want, Seen(here[0], made[1], ours(want.path, here[1], begun_ns))))

    def _ranges(
        self,
        one: Open,
        numbers: tuple[int, ...],
        host: str,
        wrong: Result | None,
        results: Sequence[Result],
        empty: Any,
        read: int,
    ) -> None:
        one.left -= 1
        source = one.ask[0]
        source.bytes_read += read
        self.progress(read)
        one.ask[2].extend(empty)
        for i, result in zip(numbers, results, strict=False):  # fewer, when the last of them is a failure
            one.results[i] = ("os", result[1], f"{result[2]} (on {host})") if result[0] == "os" else result
        if wrong:
            one.changed |= wrong[0] == "changed" or replaced(source)
            one.wrong = one.wrong or OSError(0, unseen(wrong[2], host) if wrong[0] == "os" else other(host))
        self._close(one)

    def _close(self, one: Open) -> None:
        """Judge a file when all of it has come back."""
        if one.left:
            return
        self._open -= 1
        try:
            one.steps.send(told(one, self.progress))
        except StopIteration as done:
            report, anatomy = done.value
        if one.changed:
            changed = finding("in-use", "size or modification time changed while the file was read")
            report, anatomy.identity = replace(report, findings=(changed,), verdict=Verdict.UNKNOWN), None
        self._finished(one.want, (report, anatomy), one.opened_ns)

    def _finished(self, want: Want, made: tuple[Report, Anatomy], opened_ns: int) -> None:
        report, anatomy = made
        identity = (
            anatomy.identity if anatomy.identity is not None and anatomy.identity.settled(opened_ns) else None
        )
        self._done.append((want, Seen(report, anatomy.places, identity)))
