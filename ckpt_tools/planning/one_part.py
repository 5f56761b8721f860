"""Whether ``--run`` or ``--prefix`` names one part of a state whose other parts lie beside it: each rank
would load that one, and nothing would tell. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity

_NAMED = 3
"""Names of other parts that a sentence has."""


def one_part(
    requested: Sequence[Checkpoint],
    everything: Sequence[Checkpoint],
    layouts: Layouts,
    joining: Callable[[], str],
) -> Finding | None:
    """A warning where runs that were left out read like other parts of the requested one, each in a directory
    of its own: whoever names that directory may mean it.

    Raises UsageError where they are files of the same directory.
    """
    mine, others = _by_run(requested, layouts), _by_run(everything, layouts)
    asked = next(iter(mine), None)
    names = sorted(run for run in others if run not in mine and _are_parts(run, others[run], mine))
    if not names or asked is None:
        return None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = f"{asked} reads like one part of a state, with {', '.join(names[:_NAMED])}{more} beside it"
    homes = {c.parts[0].base for members in mine.values() for c in members}
    if homes.isdisjoint(c.parts[0].base for run in names for c in others[run]):
        path, hint = mine[asked][0].path, f"if they are one, {joining()}"
        return finding("missing-part", text, path=path, severity=Severity.WARNING, hint=hint)
    raise UsageError(
        text, f"if they are one, {joining()}; if it is all of it, leave the others out with --exclude"
    )


Runs = dict[str, list[Checkpoint]]


def _by_run(checkpoints: Sequence[Checkpoint], layouts: Layouts) -> Runs:
    """Those of layouts that know no arrangement."""
    runs: Runs = {}
    for c in checkpoints:
        if layouts.of(c).last_resort:
            runs.setdefault(c.run, []).append(c)
    return runs


def _are_parts(run: str, members: Sequence[Checkpoint], mine: Runs) -> bool:
    """Whether a run is called like another part of one of ``mine``, and has a checkpoint of the same step."""
    from ckpt_tools.layouts.common.named_parts import are_parts  # only where there are several

    steps = {c.order for c in members}
    like = (asked for name, asked in mine.items() if are_parts((name, run)))
    return any(not steps.isdisjoint(c.order for c in asked) for asked in like)
