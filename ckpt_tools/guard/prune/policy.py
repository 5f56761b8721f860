"""Which checkpoints of a run are worth keeping, by number, step, time and size; and why. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.errors import UsageError
from ckpt_tools.model.part import Kind

_MINUTE = 60 * 10**9


class Policy(Struct, frozen=True):
    """What to keep of each run; a checkpoint stays that any of them keeps. ``keep_within`` is in seconds,
    ``max_total`` in bytes.

    ``keep_last`` is MindSpore's keep_checkpoint_max, ``keep_per_minutes`` its keep_checkpoint_per_n_minutes:
    of what was saved within N minutes the first stays (mindspore/train/callback/_checkpoint.py,
    CheckpointManager.keep_one_ckpoint_per_minutes). There the first of the two overrules the second; here
    both keep.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_within: float | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    keep_per_minutes: int | None = None
    keep_kinds: frozenset[Kind] = frozenset()
    max_total: int | None = None

    def require_one(self) -> None:
        """Raises UsageError where nothing is said."""
        if self == Policy():
            text = "what to keep is not said: nothing is removed without that"
            raise UsageError(text, "for example --keep 3, or --keep daily=7,every=10000")

    @property
    def keeps(self) -> bool:
        """Whether anything but the size is said."""
        return replace(self, max_total=None) != Policy()


class Save(Struct, frozen=True):
    """A checkpoint of a run, as policies see it: ``size`` is in bytes; ``step`` is None where nothing tells
    it.
    """

    name: str
    step: int | None
    at_ns: int
    kind: Kind = Kind.PERIODIC
    size: int = 0


def choose_kept(
    policy: Policy, saves: Sequence[Save], always: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Name -> why it stays, of those of ``saves`` (of one run, newest first, all verified) that stay.

    ``always`` has those that stay whatever the policy says; they count as any other. Only ``max_total``
    removes what another flag keeps: the oldest first, until the rest has room, and never one of these.
    """
    always = always or {}
    stays = dict[str, str]()
    for save, reason in _find_reasons(policy, saves):
        stays[save.name] = f"{stays[save.name]}; {reason}" if save.name in stays else reason
    if not policy.keeps:
        stays = {save.name: f"the newest that fit into {policy.max_total:,} bytes" for save in saves}
    if policy.max_total is not None:
        stays = _find_room(policy.max_total, saves, stays, always)
    return {s.name: always.get(s.name) or stays[s.name] for s in saves if s.name in {*always, *stays}}


def _find_room(
    most: int, saves: Sequence[Save], stays: Mapping[str, str], always: Mapping[str, str]
) -> dict[str, str]:
    """Those of ``stays`` that have room beside ``always``: once one has none, no older one stays."""
    room, out = most - sum(s.size for s in saves if s.name in always), dict[str, str]()
    for save in (s for s in saves if s.name in stays and s.name not in always):
        room -= save.size
        if room < 0:
            break
        out[save.name] = stays[save.name]
    return out


def _find_reasons(policy: Policy, saves: Sequence[Save]) -> Iterator[tuple[Save, str]]:
    yield from ((save, f"one of the last {policy.keep_last}") for save in saves[: policy.keep_last or 0])
    every = policy.keep_every or 0
    for save in saves if every else ():
        if save.step is None:
            yield save, f"nothing says its step, which may be a multiple of {every:,}"
        elif save.step % every == 0:
            yield save, f"its step is a multiple of {every:,}"
    yield from _find_by_time(policy, saves)
    yield from ((s, f"its kind is {s.kind}") for s in saves if s.kind in policy.keep_kinds)


def _find_by_time(policy: Policy, saves: Sequence[Save]) -> Iterator[tuple[Save, str]]:
    if policy.keep_within is not None:
        since = max((s.at_ns for s in saves), default=0) - int(policy.keep_within * 1e9)
        yield from ((s, "saved shortly before the last one") for s in saves if s.at_ns >= since)
    for number, word, period in (
        (policy.keep_hourly, "hour", "%Y-%m-%d %H"),
        (policy.keep_daily, "day", "%Y-%m-%d"),
        (policy.keep_weekly, "week", "%G-%V"),
    ):
        last_of = dict[str, Save]()  # of UTC, the latest first
        for save in sorted(saves, key=lambda s: s.at_ns, reverse=True):
            last_of.setdefault(time.strftime(period, time.gmtime(save.at_ns // 10**9)), save)
        yield from ((s, f"the last of its {word}") for s in [*last_of.values()][: number or 0])
    before, within = None, (policy.keep_per_minutes or 0) * _MINUTE
    for save in sorted(saves, key=lambda s: s.at_ns) if within else ():
        if before is None or save.at_ns - before >= within:
            before = save.at_ns
            yield save, f"the first within {policy.keep_per_minutes} minutes"
