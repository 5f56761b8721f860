"""Many files read by an engine: work of equal bytes, each unit read by one of its workers, the reports put
together here.

A file that is no larger than two units is inspected whole by a worker, its structure too: that takes a small
read per record, which is slow over a network.
What an index beside it says goes with it. Of larger ones, and those that only make sense together, the
structure is read here and the content is cut into ranges, so that one huge file is read by many workers; what
they found is then judged here exactly as if this process had read it.
"""

from __future__ import annotations

import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Generic, TypeVar

from ckpt_tools.checksum import Picked
from ckpt_tools.checksum.remote import Content, Result
from ckpt_tools.errors import CannotLook
from ckpt_tools.inspection.check import Told
from ckpt_tools.inspection.digest_pass import Wanted
from ckpt_tools.model.report import Level
from ckpt_tools.reading import engines, work_units
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.reader import Reader
from ckpt_tools.reading.remote_report import other, replaced, unseen
from ckpt_tools.reading.request import Request
from ckpt_tools.reading.work_units import Open, Unit, mismatches_of, portions, unit_of
from ckpt_tools.reading.worker import work
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import count

_HEADER = 64 * 1024
"""What the structure of a file counts for."""
AHEAD = 3
"""Units handed out per call that runs at once: a worker that is done finds its next one waiting."""
Pick = Callable[[Request, Wanted], "Picked | None"]


Came = TypeVar("Came")


class Scheduler(ABC, Generic[Came]):
    """Hands out work to an engine; what comes of a file is for those to say who want it. ``pick`` says which
    blocks of a file are to be read, nothing more is handed out when it is ``over``.

    The reader's progress hears of bytes that a worker has read, once for each unit that came back. With
    ``by_ctime`` a worker must see the file with the same time of its last change, not only of its last write.
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
        self._open, self._unit = 0, work_units.UNIT
        self._whole, self._ranges = Unit(self._unit), Unit(self._unit)
        self._most = max(32, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._alone = time.monotonic()
        self._done: list[tuple[Request, Came]] = []
        self._again = list[tuple[Request, Generator[Any, Told, Any], Wanted, int]]()

    # ---- what is wanted of a file

    @abstractmethod
    def sent(self, request: Request) -> tuple[Any, ...] | None:
        """What a worker is told who reads the file whole; None for one that is begun here."""

    @abstractmethod
    def steps(self, request: Request) -> Generator[Any, Told, Any]:
        """The structure of a file that is begun here; its content is asked for with a yield."""

    @abstractmethod
    def ended(self, made: Any, opened_ns: int, *, changed: bool) -> Came:
        """What came of a file that was begun here: ``made`` is the value of its steps."""

    @abstractmethod
    def failed(self, error: OSError) -> Came:
        """What it means that nobody here can look at a file that was begun."""

    @abstractmethod
    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Came | None:
        """What a worker on ``host`` found; None when it is better read here."""

    @abstractmethod
    def unknown(self, request: Request, why: str) -> Came:
        """What it means that nobody lived to say what is in a file."""

    # ---- what goes out

    def read(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Came]]:
        """Every file that could be read so, in the order in which they are done. What is left out is to be
        read here. Raises CannotLook when the engine is gone.
        """
        requests = list(requests)
        self._unit = unit_of(sum(max(0, r.size) for r in requests), self.engine.width())
        self._whole, self._ranges = Unit(self._unit), Unit(self._unit)
        self._alone = time.monotonic()
        try:
            for request in requests:
                if self.over():
                    break
                self._hand_out(request)
                while self._busy() or self._open >= self._most:
                    self._collect()
                yield from self._taken()
            self._submit_whole()
            self._submit_ranges()
            while self._out or self._again:
                self._ask_again()
                self._collect()
                yield from self._taken()
            yield from self._taken()
        finally:
            self._abandon()

    def _busy(self) -> bool:
        """Whether enough is handed out."""
        return len(self._out) >= AHEAD * max(2, self.engine.width())

    def _hand_out(self, request: Request) -> None:
        sent = self._sent(request)
        if sent is None:
            self._begin(request)
            if self._open >= self._most:
                self._submit_ranges()
            return
        size = _HEADER if request.level is Level.STRUCTURE else request.size
        if self._whole.add(request, (), size, *sent):
            self._submit_whole()

    def _abandon(self) -> None:
        """Cancel what is still out, and close what was opened for it."""
        for future in self._out:
            future.cancel()
        for unit in [*self._out.values(), self._ranges]:
            for owner, _ in unit.owners:
                if isinstance(owner, Open):
                    owner.steps.close()
        for _, steps, *_ in self._again:
            steps.close()
        self._out.clear()

    def _sent(self, request: Request) -> tuple[Any, ...] | None:
        own = self.pick is not None or self.reader.key is not None or self.reader.options.explain
        if own or any(c.joint for c in request.claims):
            return None
        try:
            return self.sent(request)
        except TypeError:
            return None

    def is_large(self, request: Request) -> bool:
        """Whether a file is so large that its content is better read by many workers."""
        return request.size > 2 * self._unit and request.level is Level.CONTENT

    def _taken(self) -> Iterator[tuple[Request, Came]]:
        done, self._done = self._done, []
        yield from done

    def _submit_whole(self) -> None:
        self._submit(self._whole)
        self._whole = Unit(self._unit)

    def _submit_ranges(self) -> None:
        self._submit(self._ranges)
        self._ranges = Unit(self._unit)

    def _submit(self, unit: Unit) -> None:
        if unit.files:
            try:
                self._out[self.engine.executor.submit(work, tool_version(), tuple(unit.files))] = unit
            except Exception as e:
                raise self.engine.failed(e) or e from e

    def _begin(self, request: Request) -> None:
        """The structure of a file, here; its content goes into units."""
        opened_ns = time.time_ns()
        steps = self.steps(request)
        try:
            ask = next(steps)
        except StopIteration as done:
            self._done.append((request, self.ended(done.value, opened_ns, changed=False)))
            return
        except OSError as e:
            self._done.append((request, self.failed(e)))
            return
        self._ask_for(request, steps, ask, opened_ns)

    def _ask_for(
        self, request: Request, steps: Generator[Any, Told, Any], ask: Wanted, opened_ns: int
    ) -> None:
        """Have the content read that the steps ask for."""
        source = ask[0]
        try:
            picked = None if self.pick is None else self.pick(request, ask)
            one = Open(request, steps, ask, Content(source.size, ask[1], picked), opened_ns)
        except TypeError:  # it holds what is not for other machines, such as a key
            source.bytes_read = 0  # it will be counted when it is read
            steps.close()
            return
        self._open += 1
        one.left += 1  # until all of it is out
        self._hand_out_ranges(one)
        one.left -= 1
        self._close(one)

    def _ask_again(self) -> None:
        """Have the contents read a second time that steps ask for again."""
        again, self._again = self._again, []
        for asked in again:
            self._ask_for(*asked)
        self._submit_ranges()

    def _hand_out_ranges(self, one: Open) -> None:
        source = one.ask[0]
        for numbers, size in portions(one.content, self._unit - self._ranges.bytes, self._unit):
            if one.left > 1 and self.over():
                return
            one.left += 1
            items = tuple(one.content.items[i] for i in numbers)
            about = source.path, source.size, source.stat.st_mtime_ns
            more = (source.stat.st_ctime_ns,) if self.by_ctime else ()
            if self._ranges.add(one, numbers, size, "read", *about, items, *more):
                self._submit_ranges()
            while self.pick is not None and self._busy():  # so that little is out when it is over
                self._collect()

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
            self._take(self._out.pop(future), future)

    def _take(self, unit: Unit, future: Future[Any]) -> None:
        try:
            version, host, defect, answers = future.result()
        except (Exception, CancelledError) as e:
            if (gone := self.engine.failed(e)) is not None:
                raise gone from e
            self._fatal(unit)
            return
        if version != tool_version():
            raise CannotLook(
                f"the worker on {host} has ckpt-tools {version}, this is {tool_version()}",
                "install the same version, and the same plug-ins, on all machines",
            )
        if defect:
            raise CannotLook(
                f"the worker on {host} failed: {defect}",
                "if it has enough memory, this is a bug in ckpt: please report it",
            ) from None
        for (owner, numbers), answer in zip(unit.owners, answers, strict=True):
            if isinstance(owner, Open):
                self._take_ranges(owner, numbers, host, answer)
            else:
                self._take_whole(owner, unit.begun_ns, host, answer)

    def _fatal(self, unit: Unit) -> None:
        """Nobody lived to say what is in these files."""
        why = "every worker that read it died: look into their logs, for memory and for the file system"
        for owner, _ in unit.owners:
            if isinstance(owner, Open):
                owner.wrong, owner.left = owner.wrong or OSError(0, why), owner.left - 1
                self._close(owner)
            else:
                self._done.append((owner, self.unknown(owner, why)))

    def _take_whole(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> None:
        came = self.answered(request, begun_ns, host, answer)
        if came is None:
            return  # it is read here
        self._done.append((request, came))

    def count(self, request: Request, bytes_read: int) -> None:
        """A worker has read so much of a file."""
        count(bytes_read)
        self.reader.opened(request.path)
        self.reader.progress(bytes_read)

    def _take_ranges(self, one: Open, numbers: tuple[int, ...], host: str, answer: Sequence[Any]) -> None:
        wrong: Result | None
        wrong, results, empty, read = answer
        one.left -= 1
        source = one.ask[0]
        source.bytes_read += read
        self.reader.opened(one.request.path)
        self.reader.progress(read)
        if one.ask[2] is not None:
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
            ask = one.steps.send(mismatches_of(one, self.reader.progress))
        except StopIteration as done:
            came = self.ended(done.value, one.opened_ns, changed=one.changed)
        except OSError as e:
            came = self.failed(e)
        else:  # it is read once more before it is called damaged, when all others are out
            self._again.append((one.request, one.steps, ask, one.opened_ns))
            return
        self._done.append((one.request, came))
