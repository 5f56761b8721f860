"""``ckpt prune``: remove old checkpoints, if enough others are verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import UsageError
from ckpt_tools.guard.prune import Policy
from ckpt_tools.guard.prune import prune as remove
from ckpt_tools.settings import parsers

WORDS: Mapping[str, tuple[str, parsers.Parse]] = {
    "last": ("keep_last", parsers.whole(1)),
    "every": ("keep_every", parsers.whole(1)),
    "within": ("keep_within", parsers.duration),
    "hourly": ("keep_hourly", parsers.whole(1)),
    "daily": ("keep_daily", parsers.whole(1)),
    "weekly": ("keep_weekly", parsers.whole(1)),
    "kind": ("keep_kinds", parsers.kind),
    "total": ("max_total", parsers.size),
}
"""By word of --keep the field of Policy, and the parser of its value."""
MEANING = (
    "What stays: last=N (or N), every=STEPS (their multiples), within=TIME of the last, hourly=N, daily=N and"
    " weekly=N (the last of each), kind=KIND; total=SIZE: of these the"
    " newest that fit."
)


@options.ask(
    ("table", "json"),
    parameter("--keep WORDS", MEANING, name="keep_what", many=True),
    parameter("--damaged", "Remove damaged checkpoints as well."),
    "root run no_cache settle plan_dir apply max_age store_option",
    options.TREE,
)
def prune(asked: options.Asked) -> int:
    """Remove old checkpoints of each run below ROOT: those that are verified, and that no flag keeps. Damaged
    checkpoints do not count, and stay without --damaged. The checkpoint that 'ckpt plan' chooses, the newest
    verified one, and those that are pinned, or named or needed by something else, are never removed. Without
    --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a question that only you can answer, or no flag says
    what to keep; 3 there is no checkpoint; 4 none is usable: nothing is removed; 5 something could not be
    looked at or removed.

    Examples:
    ckpt prune run --keep 3  # say what would go, and why the rest stays
    ckpt prune run --keep last=1,every=1000 --apply  # remove what neither of the two keeps
    ckpt prune run --keep hourly=24,daily=7  # keep the last of each hour, and of each day
    ckpt prune run --keep total=20TiB  # keep the newest ones that fit
    ckpt prune run --keep 3 --json  # the same for a program (docs/json.md)
    """
    settings, given = asked.settings, asked.given
    policy = read_policy("--keep", given["keep_what"] or ())
    result = remove(
        settings.root,
        policy,
        damaged=given["damaged"],
        apply=given["apply"],
        selection=settings.selection(cache=True),
    )
    return asked.answer("changes", result)


def read_policy(flag: str, texts: Iterable[str]) -> Policy:
    """Return the policy of words such as ``last=3,daily=7``; a number alone means last. Raise UsageError."""
    found: dict[str, Any] = {}
    for one in (word.strip() for text in texts for word in text.split(",")):
        word, _, value = f"last={one}".partition("=") if one.isdigit() else one.partition("=")
        origin, hint = f"{flag} {one}", f"{flag}: {MEANING}"
        name, parse = WORDS[output.read_value(origin, parsers.one_of(*WORDS), word, hint)]
        read: Any = output.read_value(origin, parse, value, hint)
        if name == "keep_kinds":
            read = found.get(name, frozenset()) | {read}
        elif found.setdefault(name, read) != read:
            raise UsageError(f"{flag}: {word} is said twice", "say it once")
        found[name] = read
    return Policy(**found)
