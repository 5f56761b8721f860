"""Nodes of one job exchange values and come to one conclusion.
All get it, or all fail, as soon as one does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError, UsageError
from ckpt_tools.job import reported
from ckpt_tools.job.boards import Board
from ckpt_tools.job.lines import number
from ckpt_tools.job.reported import Value
from ckpt_tools.job.waiting import Backoff, Clock
from ckpt_tools.model import ranges
from ckpt_tools.output.words import printable
from ckpt_tools.settings.checked_json import Check

_FAREWELL = 5.0
"""Seconds that the first node waits for the others to have read the end, where nothing tells whether they
still run.
"""


class Meeting:
    """``me`` of ``size`` nodes, the first of which concludes. Every wait ends after ``timeout`` seconds with
    CannotLook, and at once when a node that was there has ended.

    Nobody trusts what an earlier start left on the board: each process brings a number that was never used,
    its name, and a session is the set of them.
    """

    def __init__(self, board: Board, me: int, size: int, timeout: float, clock: Clock | None = None) -> None:
        self.board, self.me, self.size, self.timeout, self.clock = board, me, size, timeout, clock
        self.session, self.round, self.answered = "", 0, 0
        self.failed = False  # and all know it
        self.name = number()
        self.members: list[str] = [""] * size
        self.watch = board.watch(me == 0)

    def _waiting(self, what: Callable[[], str]) -> Iterator[None]:
        backoff = Backoff(self.timeout, self.clock)
        while True:
            yield
            if not backoff.pause(None if self.clock else self.watch.sleep):
                raise CannotLook(
                    f"no agreement within {self.timeout:g} s: {what()}",
                    "see why on that node, or wait longer with --timeout",
                )

    # ---- coming together

    def join(self) -> None:
        """Wait until all are there. The first offers a session to those it sees; who is not in it (an earlier
        start was) makes it offer another.
        """
        self.watch.announce(self.name)
        self.board.put(f"join.{self.me}", self.name.encode())
        if self.me == 0:
            self._gather_members()
            return
        for _ in self._waiting(lambda: f"node {self.me} did not hear from the first node"):
            offer = self._offered()
            if not offer or offer["members"][self.me : self.me + 1] != [self.name]:
                first = reported.member(self.board.get("join.0"))
                if first and self.watch.gone(first):
                    offer = self._offered() or {}
                    self._raised(offer if self.name in offer.get("members", ()) else {})
                    raise _ended(0)
                continue
            self._raised(offer)
            if offer["session"] != self.session:
                self.session, self.members = offer["session"], offer["members"]
                self.watch.follow(offer["watch"], self.members[0])
                self.board.put(f"{self.session}.ack.{self.me}", b"1")
            if self.board.get(f"{self.session}.go"):
                return
            if self.watch.gone(self.members[0]):
                if self.board.get(f"{self.session}.go"):
                    return
                self._raised(self._offered() or {})
                raise _ended(0)

    def _offered(self) -> Value | None:
        """The first node's offer to this one; None where there is none, or one of an earlier start: it cannot
        name this process.
        """
        data = self.board.get("offer")
        if data is None or self.name.encode() not in data:
            return None
        offer = reported.value(data, reported.OFFER, "node 0", reported.ALL, reported.FAILED_OFFER)
        if len(offer["members"]) != self.size:
            raise reported.refuse("node 0", f"there are {len(offer['members'])} nodes, and here {self.size}")
        return offer

    def _gather_members(self) -> None:
        self.members[0] = self.name
        offered: list[str] = []
        absent: list[int] = []
        for _ in self._waiting(lambda: f"{_nodes(absent)} did not come"):
            for i in range(1, self.size):
                self._meet(i)
            absent[:] = [i for i, name in enumerate(self.members) if not name]
            if absent:
                continue
            if self.members != offered:
                offered, self.session = list(self.members), number()
                self._offer({"session": self.session, "watch": dict(self.watch.offer)})
            absent[:] = [i for i in range(1, self.size) if not self.board.get(f"{self.session}.ack.{i}")]
            if not absent:
                self.board.put(f"{self.session}.go", b"1")
                return

    def _meet(self, i: int) -> None:
        """Take in that node ``i`` is there, or has come anew. Raises CannotLook when it was there and has
        failed or ended.
        """
        data = self.board.get(f"join.{i}")
        if data is None or not data.startswith(b"{"):
            name = reported.member(data)
            gone = name and self.watch.gone(
                name
            )  # from the first look on: it may join and end before the next
            if gone and name == self.members[i] and self.board.get(f"join.{i}") == data:
                raise _ended(i)
            self.members[i] = name
            return
        if (
            self.name.encode() in data or (self.members[i] or self.name).encode() in data
        ):  # else it was of an earlier start
            left = reported.value(data, reported.LEFT, f"node {i}", reported.ONE, reported.LEFT)
            if left["name"] == self.members[i] or left["first"] == self.name:
                self._said(i, left)
        self.members[i] = ""

    def _offer(self, value: Value) -> None:
        self.board.put("offer", json.dumps({**value, "members": self.members}).encode())

    # ---- one exchange after the other

    def exchange(
        self,
        value: Value,
        conclude: Callable[[Sequence[Value]], Value],
        checks: reported.Round = reported.NOTHING,
    ) -> Value:
        """Every node's value to the first, its conclusion to every node. What one node raised (``failure``),
        or concluding raises, is raised on all.

        Raises UsageError for what does not pass the checks, whoever says it.
        """
        self.round += 1
        key = f"{self.session}.{self.round}"
        if self.me:
            self.board.put(f"{key}.{self.me}", json.dumps(value).encode())
            for _ in self._waiting(lambda: f"node {self.me} did not hear from the first node"):
                answer = self._read(f"{key}.all", checks.told)
                if answer is None and self.watch.gone(self.members[0]):
                    answer = self._read(f"{key}.all", checks.told)
                    if answer is None:
                        raise _ended(0)
                if answer is not None:
                    return self._raised(answer)
        try:
            values = self._gather(key, value, checks.said)
            answer = conclude(values)
        except CkptError as error:
            self._conclude(failure(error))
            self.failed = True
            raise
        self._conclude(answer)
        return answer

    def _conclude(self, answer: Value) -> None:
        self.board.put(f"{self.session}.{self.round}.all", json.dumps(answer).encode())
        self.answered = self.round

    def _gather(self, key: str, mine: Value, check: Check) -> list[Value]:
        """The values of all; raises what the first node to fail raised."""
        self._said(0, mine)
        found: dict[int, Value] = {0: mine}
        for _ in self._waiting(
            lambda: f"{_nodes([i for i in range(self.size) if i not in found])} did not answer"
        ):
            for i in [i for i in range(self.size) if i not in found]:
                value = self._read(f"{key}.{i}", check, i)
                if value is None and self.watch.gone(self.members[i]):
                    value = self._read(f"{key}.{i}", check, i)
                    if value is None:
                        raise _ended(i)
                if value is not None:
                    self._said(i, value)
                    found[i] = value
            if len(found) == self.size:
                break
        return [found[i] for i in range(self.size)]

    def _said(self, i: int, value: Value) -> None:
        if "error" in value:
            raise _repeated(value, f"node {i}: ")

    def _raised(self, answer: Value) -> Value:
        if "error" in answer:
            self.failed = True
            raise _repeated(answer)
        return answer

    def _read(self, key: str, check: Check, of: int = 0) -> Value | None:
        """What node ``of`` has put up, or None. Raises UsageError where that is neither a failure nor what
        passes the check.
        """
        data = self.board.get(key)
        return (
            None
            if data is None
            else reported.value(data, check, f"node {of}", reported.ONE if of else reported.ALL)
        )

    # ---- leaving

    def abandon(self, error: BaseException) -> None:
        """Let the others fail where they wait, instead of waiting for this node."""
        if self.failed:
            return
        told = failure(_as_told(error))
        with suppress(CkptError):
            if self.me == 0 and not self.answered:
                for i in [i for i, name in enumerate(self.members) if not name]:  # whoever has come meanwhile
                    with suppress(UsageError):  # not signed by a node of this job
                        self.members[i] = reported.member(self.board.get(f"join.{i}"))
                self._offer({"session": "", "watch": {}, **told})
            elif self.me and not self.round:
                first = reported.member(self.board.get("join.0"))
                self.board.put(
                    f"join.{self.me}", json.dumps({**told, "name": self.name, "first": first}).encode()
                )
            if self.session:
                who = str(self.me) if self.me else "all"
                for n in range(max(1, self.round if self.me else self.answered + 1), self.round + 2):
                    self.board.put(f"{self.session}.{n}.{who}", json.dumps(told).encode())
        self.failed = True

    def leave(self) -> None:
        """Say good-bye; the first node keeps the board until the others have read everything,
        or have ended.
        """
        try:
            if self.me:
                with suppress(CannotLook):
                    self.board.put(f"{self.session}.bye.{self.me}", b"1")
            elif not self.failed:
                self._wait_for_others(self.timeout)
                self.board.drop(f"{self.session}.")
            elif self.board.keeper:
                self._wait_for_others(_FAREWELL)
        finally:
            self.watch.close()

    def _bye(self, i: int) -> bool:
        """Whether a node has said good-bye. What somebody else put in its place is no reason to fail now: all
        have what they need.
        """
        with suppress(CkptError):
            return bool(self.board.get(f"{self.session}.bye.{i}"))
        return False

    def _wait_for_others(self, most: float) -> None:
        backoff = Backoff(most, self.clock)
        away = set(range(1, self.size))
        while away:
            silent = backoff.clock.now() - backoff.started > _FAREWELL
            for i in sorted(away):
                name = self.members[i]
                if self._bye(i) or self.watch.gone(name) or (silent and not self.watch.alive(name)):
                    away.discard(i)
            if away and not backoff.pause(None if self.clock else self.watch.sleep):
                return


@contextmanager
def meeting(
    board: Board, me: int, size: int, timeout: float, clock: Clock | None = None
) -> Iterator[Meeting]:
    """A meeting that all have joined. What ends it early on this node, a signal too, the others are told."""
    m = Meeting(board, me, size, timeout, clock)
    try:
        m.join()
        yield m
    except BaseException as error:
        m.abandon(error)
        if not isinstance(error, Exception):  # a signal: whoever sent it waits
            m.watch.close()
            raise
        with suppress(CannotLook):
            m.leave()
        raise
    m.leave()


def failure(error: CkptError) -> Value:
    """What a node puts up instead of its value when it cannot go on."""
    return {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}


def _repeated(value: Value, who: str = "") -> CkptError:
    """The error of another node, without anything that could steer a terminal."""
    error, hint = ("\n".join(map(printable, value[name].split("\n"))) for name in ("error", "hint"))
    return BY_EXIT_CODE.get(value["exit_code"], CannotLook)(f"{who}{error}", hint)


def _as_told(error: BaseException) -> CkptError:
    if isinstance(error, CkptError):
        return error
    if isinstance(error, Exception):
        return CannotLook(
            f"internal error: {type(error).__name__}: {error}", "report it with what that node printed"
        )
    return CannotLook("it was interrupted or terminated by a signal", "start again when all nodes are up")


def _ended(i: int) -> CannotLook:
    return CannotLook(
        f"node {i} has ended without a message: killed, out of memory, or its machine went down",
        "find out why on that node, then start again",
    )


def _nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' if len(numbers) > 1 else ''} {ranges.words(ranges.ranges(numbers))}"
