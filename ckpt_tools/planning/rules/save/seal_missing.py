"""``save/seal-missing``."""

from __future__ import annotations

from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.seal import SealedCheckpoint
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_lost_save(was: SealedCheckpoint, path: str, seal: str) -> Finding:
    """Return that of a save that was sealed only the seal is left."""
    if was.step is not None:
        when = f"step {was.step:,}"
    elif was.epoch is None:
        when = "a step that nothing tells"
    else:
        within = "" if was.step_in_epoch is None else f", step {was.step_in_epoch:,} of it"
        when = f"epoch {was.epoch:,}{within}"
    why = f"a checkpoint at {when} was sealed here, and its files are not there"
    hint = f"bring it back; if it was removed on purpose, remove its seal, {seal}, as well"
    return finding_of(RULE, Hit(path, why, hint, Severity.WARNING))


RULE = Rule(
    id="save/seal-missing",
    code="seal-missing",
    effect=Effect.REJECT,
    answer="restore the file; ckpt seal --again CHECKPOINT if it was removed on purpose",
    why="""\
A seal names a file that is not there. The save was whole when it was sealed, so it has lost
something since.
For: partial copies and clean-up scripts.
""",
)
