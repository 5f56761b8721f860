"""``save/seal-mismatch``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.seal import SealedCheckpoint
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_LISTED = 16
"""How many files that neither a seal nor a signature names have a finding of their own."""


def describe_lost_save(sealed: SealedCheckpoint, path: str, seal: str) -> Finding:
    """Return the warning that of a save at ``path`` only the file ``seal`` is left."""
    if sealed.step is not None:
        when = f"step {sealed.step:,}"
    elif sealed.epoch is None:
        when = "a step that nothing tells"
    else:
        within = "" if sealed.step_in_epoch is None else f", step {sealed.step_in_epoch:,} of it"
        when = f"epoch {sealed.epoch:,}{within}"
    why = f"a checkpoint at {when} was sealed here, and its files are not there"
    hint = f"bring it back; if it was removed on purpose, remove its seal, {seal}, as well"
    return finding_of(RULE, Hit(path, why, hint, Severity.WARNING, code="seal-missing"))


def describe_unsealed(paths: Sequence[str]) -> Finding:
    """Return the warning that files which are to be loaded are not in the seal of their checkpoint."""
    more = f", nor {len(paths) - 1:,} more of the files to load" if paths[1:] else ""
    why = f"the seal of its checkpoint does not name it{more}"
    return finding_of(RULE, Hit(paths[0], why, code="seal-extra", severity=Severity.WARNING))


def describe_unnamed(paths: Sequence[str], base: str, signature: str = "") -> Iterator[Finding]:
    """Yield findings on files of a sealed or signed directory that no seal, or no signature, names."""
    code, each = "seal-extra", "the seal of its checkpoint does not name it"
    all_others = "more files that its seal does not name"
    if signature:
        code, all_others = "signature-invalid", "more files not signed"
        each = f"{signature.rpartition('/')[2]} signs the files of its directory, and not this one"
    yield from (finding_of(RULE, Hit(path, each, code=code)) for path in paths[:_LISTED])
    if more := paths[_LISTED:]:
        yield finding_of(RULE, Hit(base, f"{len(more):,} {all_others}", code=code))


RULE = Rule(
    id="save/seal-mismatch",
    codes=(
        *("seal-mismatch", "seal-missing", "seal-broken", "seal-incomplete", "seal-extra", "seal-stale"),
        *("not-sealed", "signature-invalid"),
    ),
    effect=Effect.REJECT,
    answer="restore the file; ckpt seal --again CHECKPOINT if it was changed on purpose; CKPT_VERIFY_KEY",
    why="""\
A file is not the one that was sealed or signed, or it is not there; or no seal or signature covers it,
and --require-seal or CKPT_VERIFY_KEY asks for one. Its structure may be perfect: only the seal shows that
weights were changed. A seal that cannot be read, is of another save or misses ranks proves nothing about
what it does not cover, and nothing against it: that is a warning.
For: flipped bits in tensors, which neither zip nor safetensors protects (pytorch/pytorch#126952);
partial copies; shared storage on which others can write; model-signing (OpenSSF).
""",
)
