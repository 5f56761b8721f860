"""Several newer saves are of fewer ranks than the job is taken to have."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.planning.order import OrderFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def _check(f: OrderFacts) -> Iterator[Hit]:
    if f.fewer is not None:
        size, world, newest = f.fewer.size, f.fewer.world, f.fewer.newest
        text = (
            f"how many ranks the job has is in doubt: several newer saves, the last of them {newest.path}"
            f" ({newest.label}), have files of {size} ranks, and {world} is only the highest rank on disk"
        )
        hint = f"say --world-size {size} if the job has {size} ranks now, or --world-size {world}"
        yield Hit(newest.path, text, f"{hint} to resume from {f.newest.label}")


RULE = Rule(
    id="order/fewer-ranks",
    code="",
    effect=Effect.ASK,
    answer="--world-size N",
    why="""\
Nothing but the highest rank on disk tells how many ranks the job has, and at least two newer saves have
all files of a smaller job. One save without its highest ranks was cut off; several are of a job that has
fewer ranks now, which would start from an older save.
For: elastic jobs that went on with fewer nodes, planned where no launcher tells the world size.
""",
    check=_check,
)
