"""``save/groups-needed``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.errors import CkptError
from ckpt_tools.findings import CODES
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.facts import Gap
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of


def ask(c: Checkpoint, findings: Sequence[Finding]) -> CkptError:
    """Return the question which ranks hold the same state, as ranks without a file need another's."""
    text = "; ".join(f.message for f in findings if f.code == RULE.codes[0])
    return error_of(RULE, Hit(c.path, f"{text} ({c.path})", CODES[RULE.codes[0]].hint))


def check(gaps: Iterable[Gap]) -> Iterator[Hit]:
    """Yield ranks without a file whose replica group nobody has told."""
    unknown = "and no rank is known to hold the same state"
    for gap in gaps:
        if gap.asked:
            who = ranges.ranks(gap.ranks, gap.world)
            text = f"there is no file in this checkpoint, {unknown}, for {who}"
            if ranges.size(gap.ranks) == 1:
                text = f"{who} has no file in this checkpoint, {unknown}"
            yield Hit(gap.path, text, ranks=gap.ranks)


def describe_failed(rank: int, path: str) -> Finding:
    text = f"rank {rank} failed while this checkpoint was saved, so its file is not trusted"
    return finding_of(RULE, Hit(path, text, code="fault-rank"))


RULE = Rule(
    id="save/groups-needed",
    codes=("replica-groups-needed", "fault-rank"),
    effect=Effect.ASK,
    answer="--replica-groups GROUPS, --strategy-dir DIR, --parallel tp=N,pp=N, or --replica-groups all",
    check=check,
    why="""\
A rank has no file, and which ranks hold the same state is not known. The parallel sizes, a strategy
file or the caller can tell; a guess would hand a rank another one's shard. So it is with the file of a
device that --fault-ranks says had failed: what it computed may be wrong although its bytes are in order.
For: MindSpore's *_breakpoint.ckpt and MindIO TTP, which save one replica of each state.
""",
)
