"""``save/signature-invalid``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_LISTED = 16
"""Files said by name that were not signed."""


def describe_unsigned(paths: Sequence[str], signature: str, home: str) -> Iterator[Finding]:
    """Yield the files of a signed directory of which its signature says nothing."""
    name = signature.rpartition("/")[2]
    for path in paths[:_LISTED]:
        yield finding_of(RULE, Hit(path, f"{name} signs the files of its directory, and not this one"))
    if len(paths) > _LISTED:
        yield finding_of(RULE, Hit(home, f"{len(paths) - _LISTED:,} more files not signed"))


RULE = Rule(
    id="save/signature-invalid",
    code="signature-invalid",
    effect=Effect.REJECT,
    answer="the right --verify-key; else do not load the file",
    why="""\
--verify-key asks for a signature, and none that fits the key covers the file. Somebody else wrote
it, or it was changed after it was signed.
For: model-signing (OpenSSF), which signs manifests.
""",
)
