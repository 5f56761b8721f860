"""``ckpt prune``: remove old checkpoints, if enough others are verified."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from ckpt_tools.cli import options, output
from ckpt_tools.cli.given import read_settings
from ckpt_tools.cli.options import option
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import parsers

if TYPE_CHECKING:
    from ckpt_tools.guard.prune import Policy

FORMATS = ("table", "json")
EXAMPLES = """
ckpt prune run --keep-last 3  # say what would go, and why the rest stays
ckpt prune run --keep-last 1 --keep-every 1000 --apply  # remove what neither of the two keeps
ckpt prune run --keep-hourly 24 --keep-daily 7  # keep the last of each hour, and of each day
ckpt prune run --max-total 20TiB  # keep the newest ones that fit
ckpt prune run --keep-last 3 --json  # the same for a program (docs/json.md)
"""


KEEP = {
    "keep_last": ("N", "Keep the last N."),
    "keep_every": ("STEPS", "Keep those whose step is a multiple of STEPS."),
    "keep_within": ("TIME", "Keep those saved at most this long before the last one."),
    "keep_hourly": ("N", "Keep the last one of each of the last N hours that have one."),
    "keep_daily": ("N", "Keep the last one of each of the last N days that have one."),
    "keep_weekly": ("N", "Keep the last one of each of the last N weeks that have one."),
    "keep_per_minutes": (
        "N",
        "Keep the first of each N minutes.",
    ),
    "max_total": ("SIZE", "Of those kept, remove the oldest until the rest fits into SIZE."),
    "keep_checkpoint_max": ("N", "The same as --keep-last."),
    "keep_checkpoint_per_n_minutes": ("N", "The same as --keep-per-minutes."),
}
"""What each flag takes, and what it means."""


@options.taking(
    "root run max_age no_cache settle plan_dir apply state_dir store_option",
    options.TRUST,
    options.PRINT,
    **{
        name: options.own(name, str | None, option(f"--{name.replace('_', '-')}", metavar=takes, help=about))
        for name, (takes, about) in KEEP.items()
    },
)
def prune(
    keep_kind: Annotated[
        list[str] | None,
        option("--keep-kind", metavar="KIND", help="Keep all of a kind, such as best."),
    ] = None,
    damaged: Annotated[
        bool,
        option("--damaged", help="Remove damaged checkpoints as well."),
    ] = False,
    **given: Any,
) -> int:
    """Remove old checkpoints of each run below ROOT: those that are verified, and that no flag keeps. Damaged
    checkpoints do not count, and stay without --damaged. The checkpoint that 'ckpt plan' chooses, the newest
    verified one, and those that are pinned, or named or needed by something else, are never removed. Without
    --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a question that only you can answer, or no flag says
    what to keep; 3 there is no checkpoint; 4 none is usable: nothing is removed; 5 something could not be
    looked at or removed.
    """
    policy = _policy({**given, "keep_kind": keep_kind})
    to = output.requested(FORMATS, given)
    found = read_settings(given, to)
    from msgspec.structs import replace

    from ckpt_tools.guard.prune import Policy
    from ckpt_tools.guard.prune import prune as remove

    selection = replace(found.selection(), cache=not found.values.get("no-cache", False))
    result = remove(
        found.root,
        Policy(**policy),
        damaged=damaged,
        apply=given["apply"],
        state_dir=found.values.get("state-dir"),
        selection=selection,
    )
    from ckpt_tools.output import changes

    to.out(changes.json(result) if to.format == "json" else changes.render(result, to.view))
    return 0


def said(flag: str, text: str) -> tuple[Policy, bool]:
    """What one word says that holds flags of this command: what to keep, and whether damaged ones go too.
    Raises UsageError for anything else.
    """
    from ckpt_tools.cli.app import parameters
    from ckpt_tools.guard.prune import Policy

    try:
        given = parameters("prune", shlex.split(text))
    except ValueError as e:
        raise UsageError(f"{flag}: {text!r} cannot be read: {e}") from e
    damaged = given.pop("damaged")
    if others := [
        name for name, value in given.items() if value and name not in {*_PARSERS, *_OTHER_NAMES, "keep_kind"}
    ]:
        hint = "other flags, and ROOT, are those of the command itself"
        raise UsageError(f"{flag}: {others[0].replace('_', '-')} does not say what to keep", hint)
    policy = Policy(**_policy(given))
    policy.require_one()
    return policy, damaged


_PARSERS: Mapping[str, parsers.Parse] = {
    "keep_last": parsers.whole(1),
    "keep_every": parsers.whole(1),
    "keep_within": parsers.duration,
    "keep_hourly": parsers.whole(1),
    "keep_daily": parsers.whole(1),
    "keep_weekly": parsers.whole(1),
    "keep_per_minutes": parsers.whole(1),
    "max_total": parsers.size,
}

_OTHER_NAMES = {
    "keep_checkpoint_max": "keep_last",
    "keep_checkpoint_per_n_minutes": "keep_per_minutes",
}


def _policy(given: Mapping[str, Any]) -> dict[str, Any]:
    """Raises UsageError for what a flag cannot mean."""
    given = {**given, **{name: given[name] or given[theirs] for theirs, name in _OTHER_NAMES.items()}}
    out = {name: _parsed(name, parse, given[name]) for name, parse in _PARSERS.items() if given[name]}
    kinds = given["keep_kind"] or ()
    return {**out, "keep_kinds": frozenset(_parsed("keep_kind", parsers.kind, kind) for kind in kinds)}


def _parsed(name: str, parse: parsers.Parse, text: str) -> object:
    try:
        return parse(text, "")
    except ValueError as e:
        raise UsageError(f"--{name.replace('_', '-')}: {e}") from e
