"""``choice/another-writer``."""

from collections.abc import Iterator, Mapping

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_NAMED = 8
How = int | tuple[int, int | None] | None
"""By its time (ns after ckpt began), its sizes before and now (None: gone), or its directory's time."""


def describe(root: str, written: Mapping[str, How], unknown: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what was written while ckpt looked, by path, and why that is unknown of others."""
    yield from (finding_of(RULE, Hit(path, _say(how))) for path, how in list(written.items())[:_NAMED])
    if (more := len(written) - _NAMED) > 0:
        yield finding_of(RULE, Hit(root, f"{more} more files and directories were written while ckpt looked"))
    for path, why in list(unknown.items())[:_NAMED]:
        text = f"whether something else writes there is unknown: {why}"
        yield finding_of(RULE, Hit(path, text, code="unreadable"))


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
    codes=("another-writer",),
    effect=Effect.WARN,
    answer="end the other process before this job starts",
    why="""\
Something wrote in the run while it was looked at. If it is a second job, the saves of both mix.
For: processes that a killed launcher leaves behind.
""",
)
