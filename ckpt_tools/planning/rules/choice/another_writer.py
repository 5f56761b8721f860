"""``choice/another-writer``."""

from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_NAMED = 8


def describe(root: str, written: Sequence[str], unknown: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on paths that were written meanwhile, and on ``unknown`` ones, each with why."""
    text = "it was written, renamed or removed while ckpt looked"
    yield from (finding_of(RULE, Hit(path, text)) for path in written[:_NAMED])
    if more := written[_NAMED:]:
        yield finding_of(RULE, Hit(root, f"{len(more)} more files and directories were written meanwhile"))
    for path, why in list(unknown.items())[:_NAMED]:
        text = f"whether something else writes there is unknown: {why}"
        yield finding_of(RULE, Hit(path, text, code="unreadable"))


def describe_processes(root: str, left: Sequence[int]) -> Iterator[Finding]:
    if left:
        pids = ",".join(map(str, left))
        text = f"processes of an earlier start are alive (pid {pids}): what they save would mix with this job"
        hint = f"look at them (ps -fp {pids}), and end those that train: kill {pids.replace(',', ' ')}"
        yield finding_of(RULE, Hit(root, text, hint))


RULE = Rule(
    id="choice/another-writer",
    codes=("another-writer",),
    effect=Effect.WARN,
    answer="end the other process before this job starts",
    why="""\
Something wrote in the run while it was looked at, or processes of an earlier start are still alive.
If it is a second job, the saves of both mix.
For: processes that a killed launcher leaves behind.
""",
)
