"""``save/seal-unusable``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_LISTED = 16
"""Files said by name that a seal does not name."""


def describe_unnamed(paths: Sequence[str], base: str) -> Iterator[Finding]:
    """Yield the files of a sealed directory that no seal of it names."""
    for path in paths[:_LISTED]:
        yield finding_of(RULE, Hit(path, "the seal of its checkpoint does not name it", code="seal-extra"))
    if more := paths[_LISTED:]:
        text = f"{len(more):,} more files that its seal does not name"
        yield finding_of(RULE, Hit(base, text, code="seal-extra"))


def describe_loaded(paths: Sequence[str]) -> Finding:
    """Return that the seal of a save does not name files to load: they may be of another save."""
    more = f", nor {len(paths) - 1:,} more of the files to load" if paths[1:] else ""
    why = f"the seal of its checkpoint does not name it{more}"
    return finding_of(RULE, Hit(paths[0], why, code="seal-extra", severity=Severity.WARNING))


RULE = Rule(
    id="save/seal-unusable",
    code="seal-broken",
    more=("seal-incomplete", "seal-extra", "seal-stale"),
    effect=Effect.WARN,
    answer="ckpt seal --again CHECKPOINT after looking at it",
    why="""\
A seal cannot be read, is of another save, misses ranks, or does not name a file beside it. It
proves nothing about what it does not cover, and nothing against it.
For: a job that died between the last shard and its seal.
""",
)
