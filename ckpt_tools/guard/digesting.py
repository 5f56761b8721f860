"""Files that the workers of an engine read, verify and digest, so that this process seals them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import msgpack

from ckpt_tools.cache.codec import unpack
from ckpt_tools.guard.targets import Target
from ckpt_tools.inspection.digest_pass import Digested, DigestPass
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.reader import Reader
from ckpt_tools.reading.scheduler import (
    AHEAD,
    BATCH,
    Request,
    Scheduler,
    say_other,
    say_unseen,
    seen_from_here,
)
from ckpt_tools.storage import Identity, opened

Outcome = Digested | OSError
"""What the pass saw, or why nobody could look."""
_FILES = 10_000
"""Files of which the digests are waited for at once."""


class Digesting(Scheduler[Outcome]):
    """Has files read as ``reading`` says. ``names`` are those that the seals have for them, ``before`` is
    what they were when none of them had been handed out.

    A worker that sees anything else under a name has seen nothing: what it digested is not what is sealed.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        reading: DigestPass,
        names: Mapping[str, str],
        before: Mapping[str, Identity | OSError],
    ) -> None:
        super().__init__(engine, reader)
        self._reading, self._names, self._before = reading, names, before

    def sent(self, request: Request) -> tuple[Any, ...] | None:
        if any(c.joint for c in request.claims):
            return None
        how = {"name": self._names[request.path], "expect": request.expect, "claims": request.claims}
        return "seal", request.path, how, self._reading._replace(jobs=1, io="auto", progress=None, key=None)

    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Outcome | None:  # noqa: ARG002 - nothing is kept
        """Return what a worker saw, if it is the file that is here."""
        wrong, came, read = answer
        if wrong is not None:
            try:
                opened(request.path).close()
            except OSError:
                return None  # nobody can read it, which is said as it is seen from here
            return OSError(0, say_unseen(wrong, host))
        if not came:
            return None
        packed, identity, file = came
        made = None if packed is None else unpack(request.path, packed)
        if packed is not None:
            here = seen_from_here(request, host, made[0], identity) if made is not None else None
            if made is None or here is None:
                return None
            if here[0] is not made[0]:
                return Digested(here[0], None)
        self.count(request, read)
        before = self._before[request.path]
        if isinstance(before, OSError) or identity is None or tuple(identity[:3]) != before[:3]:
            return OSError(0, say_other(host))  # that it was changed is seen when all are looked at again
        sealed = None if file is None else msgpack.decode(file, type=SealedFile)
        return Digested(None if made is None else made[0], sealed, before)

    def unknown(self, request: Request, why: str) -> Outcome:  # noqa: ARG002 - whoever asks knows it
        return OSError(0, why)


def batches(targets: Iterable[Target], sizes: Mapping[str, int], width: int) -> Iterator[list[Target]]:
    """Targets that are read together: enough for so many workers, and no more than is well kept at once."""
    some, files, size = list[Target](), 0, 0
    for target in targets:
        some.append(target)
        files += len(target.files)
        size += sum(sizes.get(path, 0) for path in target.files)
        if files >= _FILES or size >= 4 * AHEAD * BATCH * max(2, width):
            yield some
            some, files, size = [], 0, 0
    if some:
        yield some
