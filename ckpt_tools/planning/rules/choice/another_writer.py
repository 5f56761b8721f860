"""``choice/another-writer``."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from ckpt_tools.planning.rules.rule import Effect, Hit, Rule

_NAMED = 8
How = int | tuple[int, int | None] | None
"""By its time (ns after ckpt began), its sizes before and now (None: gone), or its directory's time."""


class WriterFacts(Struct, frozen=True):
    """What was ``written`` while ckpt looked, by path, and why that is ``unknown`` of others."""

    root: str
    written: Mapping[str, How]
    unknown: Mapping[str, str]


def check(facts: WriterFacts) -> Iterator[Hit]:
    """Yield what somebody else has written, or may have."""
    yield from (Hit(path, _say(how)) for path, how in list(facts.written.items())[:_NAMED])
    if (more := len(facts.written) - _NAMED) > 0:
        yield Hit(facts.root, f"{more} more files and directories were written while ckpt looked")
    for path, why in list(facts.unknown.items())[:_NAMED]:
        yield Hit(path, f"whether something else writes there is unknown: {why}", code="unreadable")


def _say(how: How) -> str:
    if how is None:
        return "an entry was added, renamed or removed while ckpt looked"
    if isinstance(how, int):
        return f"it was written {how / 1e9:.1f} s after ckpt began to look"
    before, now = how
    if now is None:
        return "it has vanished while ckpt looked"
    return f"it has changed{'' if before == now else f' from {before:,} to {now:,} bytes'} while ckpt looked"


RULE = Rule(
    id="choice/another-writer",
    code="another-writer",
    effect=Effect.WARN,
    answer="end the other process before this job starts",
    why="""\
Something wrote in the run while it was looked at. If it is a second job, the saves of both mix.
For: processes that a killed launcher leaves behind.
""",
    check=check,
)
