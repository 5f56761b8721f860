"""Many files read by an engine: work of equal bytes, each unit read by one of its workers, the reports put
together here.

A file that is no larger than two units is inspected whole by a worker, its structure too: that takes a small
read per record, which is slow over a network. Of larger ones, and those that only make sense together, the
structure is read here and the content is cut into ranges, so that one huge file is read by many workers; what
they found is then judged here exactly as if this process had read it.
"""

from __future__ import annotations

import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Generic, TypeVar

from ckpt_tools.checksum import Picked
from ckpt_tools.checksum.remote import Content
from ckpt_tools.errors import CannotLook
from ckpt_tools.inspection.check import Told
from ckpt_tools.inspection.digest_pass import Wanted
from ckpt_tools.model.report import Level
from ckpt_tools.reading import engines, work_units
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.reader import Reader
from ckpt_tools.reading.work_units import EACH, FILES, Open, Request, Unit, portions, unit_of
from ckpt_tools.reading.worker import work
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import OpenFile, Stopped, count, stalls
from ckpt_tools.storage.retry import status

AHEAD = 3
"""Units handed out per call that runs at once: a worker that is done finds its next one waiting."""
_HEADER = 64 * 1024
"""What the structure of a file counts for."""
_BEAT = 0.1
"""Seconds between two looks at whether somebody wants to stop."""
Pick = Callable[[Request, Wanted], "Picked | None"]
Came = TypeVar("Came")


class Scheduler(ABC, Generic[Came]):
    """Hands out work to an engine. ``pick`` says which blocks of a file are to be read, nothing more is
    handed out when it is ``over``. What comes of a file is for those to say who want it:

    ``sent`` is what a worker is told who reads it whole, None where it is begun here. ``steps`` are those of
    a file that is begun here: its content is asked for with a yield. ``ended`` says what came of them,
    ``answered`` what a worker on a host found (None: it is better read here), ``unknown`` that nobody lived
    to say it.
    With ``by_ctime`` a worker must see the file with the same time of its last change as well.
    """

    by_ctime = False

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        pick: Pick | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine, self.reader, self.pick, self.over = engine, reader, pick, over
        self._out: dict[Future[Any], Unit] = {}
        self._open, self._unit, self._files = 0, work_units.UNIT, FILES
        self._whole, self._ranges = Unit(), Unit()
        self._most = max(32, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._heard = time.monotonic()
        self._done: list[tuple[Request, Came]] = []
        self._asked: list[Open] = []

    @abstractmethod
    def sent(self, request: Request) -> tuple[Any, ...] | None: ...

    @abstractmethod
    def steps(self, request: Request) -> Generator[Any, Told, Any]: ...

    @abstractmethod
    def ended(self, made: Any, opened_ns: int, *, changed: bool) -> Came: ...

    @abstractmethod
    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Came | None: ...

    @abstractmethod
    def unknown(self, request: Request, why: str) -> Came: ...

    def is_large(self, request: Request) -> bool:
        """Return True for a file whose content is better read by many workers."""
        return request.size > 2 * self._unit and request.level is Level.CONTENT

    def count(self, request: Request, bytes_read: int) -> None:
        """Take note that a worker has read so much of a file."""
        count(bytes_read)
        self.reader.opened(request.path)
        self.reader.progress(bytes_read)

    def read(self, requests: list[Request]) -> Iterator[tuple[Request, Came]]:
        """Yield every file that could be read so, in the order in which they are done. What is left out is to
        be read here. The list is emptied: a million take as much memory as their reports. Raises CannotLook
        when an engine elsewhere is gone, and Stopped when workers here are to be waited for no longer.
        """
        requests.reverse()
        width = max(2, self.engine.width())
        self._unit = unit_of(sum(max(0, r.size) for r in requests), width)
        self._files = max(1, min(FILES, len(requests) // (EACH * width)))
        self._heard = time.monotonic()
        try:
            while requests and not self.over():
                self._hand_out(requests.pop())
                while self._is_busy() or self._open >= self._most:
                    self._collect()
                yield from self._taken()
            self._whole = self._submit(self._whole)
            self._ranges = self._submit(self._ranges)
            while self._out or self._asked:
                self._ask()  # again, of what is read once more before it is called damaged
                self._ranges = self._submit(self._ranges)
                self._collect()
                yield from self._taken()
            yield from self._taken()
        except Stopped:
            yield from self._taken()
            raise
        finally:
            self._abandon()

    def _is_busy(self) -> bool:
        return len(self._out) >= AHEAD * max(2, self.engine.width())

    def _taken(self) -> Iterator[tuple[Request, Came]]:
        done, self._done = self._done, []
        yield from done

    def _abandon(self) -> None:
        """Cancel what is still out, and close what was opened for it."""
        for future in self._out:
            future.cancel()
        for unit in [*self._out.values(), self._ranges]:
            for owner, _ in unit.owners:
                if isinstance(owner, Open):
                    owner.steps.close()
        for one in self._asked:
            one.steps.close()
        self._out.clear()

    # ---- what goes out

    def _hand_out(self, request: Request) -> None:
        try:
            sent = None if self._is_ours(request) else self.sent(request)
        except TypeError:  # it holds what is not for other processes
            sent = None
        if sent is not None:
            size = _HEADER if request.level is Level.STRUCTURE else request.size
            self._whole.add(request, (), size, *sent)
            if self._is_full(self._whole):
                self._whole = self._submit(self._whole)
        elif not self.engine.here:
            self._go_on(Open(request, self.steps(request), time.time_ns()), None)
            self._ask()
            if self._open >= self._most:
                self._ranges = self._submit(self._ranges)

    def _is_ours(self, request: Request) -> bool:
        """Return True for a file that no worker may read whole."""
        options, elsewhere = self.reader.options, not self.engine.here
        hidden = elsewhere and self.reader.key is not None
        return self.pick is not None or hidden or options.explain or any(c.joint for c in request.claims)

    def _is_full(self, unit: Unit) -> bool:
        return unit.bytes >= self._unit or len(unit.files) >= self._files

    def _submit(self, unit: Unit) -> Unit:
        """Hand out a unit, and return the next one."""
        if not unit.files:
            return unit
        try:
            self._out[self.engine.executor.submit(work, tool_version(), tuple(unit.files))] = unit
        except Exception as e:
            raise self.engine.failed(e) or e from e
        return Unit()

    def _go_on(self, one: Open, found: Told | None) -> None:
        """Judge a file as far as it goes, until its content is asked for."""
        try:
            one.ask = one.steps.send(found)  # type: ignore[arg-type]  # None begins
        except StopIteration as done:
            self._done.append((one.request, self.ended(done.value, one.opened_ns, changed=one.changed)))
        else:
            self._asked.append(one)

    def _ask(self) -> None:
        """Have the contents read that were asked for."""
        asked, self._asked = self._asked, []
        for one in asked:
            source, sums, _ = one.ask
            try:
                picked = None if self.pick is None else self.pick(one.request, one.ask)
                content = Content(source.size, sums, picked)
            except TypeError:  # it holds what is not for other machines, such as a key
                source.bytes_read = 0  # it will be counted when it is read
                one.steps.close()
                continue
            one.content, one.results, one.wrong, one.changed = content, {}, None, False
            self._open += 1
            one.left = 1  # until all of it is out
            times = source.stat.st_mtime_ns, *((source.stat.st_ctime_ns,) if self.by_ctime else ())
            for numbers, size in portions(content, self._unit - self._ranges.bytes, self._unit):
                if one.left > 1 and self.over():
                    break
                one.left += 1
                items = tuple(content.items[i] for i in numbers)
                self._ranges.add(one, numbers, size, "read", source.path, items, source.size, *times)
                if self._is_full(self._ranges):
                    self._ranges = self._submit(self._ranges)
                while self.pick is not None and self._is_busy():  # so that little is out when it is over
                    self._collect()
            self._close(one)

    # ---- what comes back

    def _collect(self) -> None:
        """Wait for some unit and take in what it found."""
        done, _ = wait(self._out, timeout=_BEAT, return_when=FIRST_COMPLETED)
        for future in done:
            self._take(self._out.pop(future), future)
        self.reader.progress(0)
        here, width, now = self.engine.here, self.engine.width(), time.monotonic()
        if done or (width and not here):
            self._heard = now
        if here and (self.over() or not width or stalls.overdue(self._heard)):
            raise Stopped
        if not here and now - self._heard > engines.GRACE:
            raise CannotLook(
                f"{self.engine.name} has had no worker for {engines.GRACE:.0f} s",
                "start workers, and look into their logs for why they end",
            )

    def _take(self, unit: Unit, future: Future[Any]) -> None:
        try:
            version, host, defect, answers = future.result()
        except (Exception, CancelledError) as e:
            if self.engine.here:
                return  # it is read here
            if (gone := self.engine.failed(e)) is not None:
                raise gone from e
            self._give_up(unit)
            return
        if version != tool_version():
            raise CannotLook(
                f"the worker on {host} has ckpt-tools {version}, this is {tool_version()}",
                "install the same version, and the same plug-ins, on all machines",
            )
        if defect and self.engine.here:
            return
        if defect:
            raise CannotLook(
                f"the worker on {host} failed: {defect}",
                "if it has enough memory, this is a bug in ckpt: please report it",
            ) from None
        for (owner, numbers), answer in zip(unit.owners, answers, strict=True):
            if isinstance(owner, Open):
                self._take_ranges(owner, numbers, host, answer)
            elif (came := self.answered(owner, unit.begun_ns, host, answer)) is not None:
                self._done.append((owner, came))

    def _give_up(self, unit: Unit) -> None:
        """Nobody lived to say what is in these files."""
        why = "every worker that read it died: look into their logs, for memory and for the file system"
        for owner, _ in unit.owners:
            if isinstance(owner, Open):
                owner.wrong = owner.wrong or OSError(0, why)
                self._close(owner)
            else:
                self._done.append((owner, self.unknown(owner, why)))

    def _take_ranges(self, one: Open, numbers: tuple[int, ...], host: str, answer: Sequence[Any]) -> None:
        wrong, came, read = answer
        state, results, empty = came or ("", (), ())
        source, _, gaps = one.ask
        source.bytes_read += read
        self.reader.opened(one.request.path)
        self.reader.progress(read)
        if gaps is not None:
            gaps.extend(empty)
        for i, result in zip(numbers, results, strict=False):  # fewer, when the last of them is a failure
            one.results[i] = ("os", result[1], f"{result[2]} (on {host})") if result[0] == "os" else result
        if wrong or state:
            one.changed |= state == "changed" or _is_replaced(source)
            one.wrong = one.wrong or OSError(0, unseen(wrong, host) if wrong else other(host))
        self._close(one)

    def _close(self, one: Open) -> None:
        """Judge a file when all of it has come back."""
        one.left -= 1
        if not one.left:
            self._open -= 1
            self._go_on(one, self._found(one))

    def _found(self, one: Open) -> Told:
        if one.wrong is not None:
            raise one.wrong
        yield from one.content.found(one.ask[0], one.results, self.reader.progress)


def _is_replaced(source: OpenFile) -> bool:
    """Return True if the name stands for another file by now."""
    try:
        now = status(source.path)
    except OSError:
        return True
    return (now.st_size, now.st_mtime_ns) != (source.stat.st_size, source.stat.st_mtime_ns)


def unseen(why: str, host: str) -> str:
    return f"{why} on {host}, while this machine can open it: mount its file system there at the same place"


def other(host: str) -> str:
    return f"on {host} there is another file of this name: mount the same file system there"
