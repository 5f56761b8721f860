"""Which checkpoints of a run are worth keeping, by number, step, time and size; and why. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

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
            raise UsageError(text, "say for example --keep 3, or --keep daily=7,every=10000")

    @property
    def keeps(self) -> bool:
        """Whether anything but the size is said."""
        return any(
            (
                self.keep_last,
                self.keep_every,
                self.keep_within is not None,
                self.keep_hourly,
                self.keep_daily,
                self.keep_weekly,
                self.keep_per_minutes,
                self.keep_kinds,
            )
        )


class Save(Struct, frozen=True):
    """A checkpoint of a run, as policies see it: ``size`` is in bytes; ``step`` is None where nothing tells
    it.
    """

    name: str
    step: int | None
    at_ns: int
    kind: Kind = Kind.PERIODIC
    size: int = 0


def kept(policy: Policy, saves: Sequence[Save], always: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name -> why it stays, of those of ``saves`` (of one run, newest first, all verified) that stay.

    ``always`` has those that stay whatever the policy says; they count as any other. Only ``max_total``
    removes what another flag keeps: the oldest first, until the rest has room, and never one of these.
    """
    always = always or {}
    why = dict[str, list[str]]()
    for save, reason in _reasons(policy, saves):
        why.setdefault(save.name, []).append(reason)
    if not policy.keeps:
        why = {save.name: [f"the newest that fit into {policy.max_total:,} bytes"] for save in saves}
    stays = {s.name: "; ".join(why.get(s.name, [])) for s in saves if s.name in why}
    if policy.max_total is not None:
        stays = _that_fit(policy.max_total, saves, stays, always)
    return {s.name: always.get(s.name) or stays[s.name] for s in saves if s.name in {*always, *stays}}


def _that_fit(
    most: int, saves: Sequence[Save], stays: Mapping[str, str], always: Mapping[str, str]
) -> dict[str, str]:
    """Those of ``stays`` that have room beside ``always``: once one has none, no older one stays."""
    room = most - sum(s.size for s in saves if s.name in always)
    out = {}
    for save in saves:
        if save.name in stays and save.name not in always:
            room -= save.size
            if room < 0:
                break
            out[save.name] = stays[save.name]
    return out


def _reasons(policy: Policy, saves: Sequence[Save]) -> Iterator[tuple[Save, str]]:
    yield from ((save, f"one of the last {policy.keep_last}") for save in saves[: policy.keep_last or 0])
    if every := policy.keep_every:
        for save in saves:
            if save.step is None:
                yield save, f"nothing tells its step, which may be a multiple of {every:,}"
            elif save.step % every == 0:
                yield save, f"its step is a multiple of {every:,}"
    yield from _by_time(policy, saves)
    yield from ((s, f"its kind is {s.kind}") for s in saves if s.kind in policy.keep_kinds)


def _by_time(policy: Policy, saves: Sequence[Save]) -> Iterator[tuple[Save, str]]:
    last = max((s.at_ns for s in saves), default=0)
    if policy.keep_within is not None:
        since = last - int(policy.keep_within * 1e9)
        yield from ((s, "saved shortly before the last one") for s in saves if s.at_ns >= since)
    for number, word, period in (
        (policy.keep_hourly, "hour", "%Y-%m-%d %H"),
        (policy.keep_daily, "day", "%Y-%m-%d"),
        (policy.keep_weekly, "week", "%G-%V"),
    ):
        yield from ((s, f"the last of its {word}") for s in _last_of_each(number or 0, period, saves))
    if policy.keep_per_minutes:
        for save in _first_within(policy.keep_per_minutes * _MINUTE, saves):
            yield save, f"the first within {policy.keep_per_minutes} minutes"


def _last_of_each(number: int, period: str, saves: Sequence[Save]) -> Iterator[Save]:
    """The latest of each of the last periods (of UTC) that have one."""
    seen = set[str]()
    for save in sorted(saves, key=lambda s: s.at_ns, reverse=True):
        now = time.strftime(period, time.gmtime(save.at_ns // 10**9))
        if now not in seen and len(seen) < number:
            seen.add(now)
            yield save


def _first_within(span_ns: int, saves: Sequence[Save]) -> Iterator[Save]:
    """The earliest, and each that was saved no sooner than that long after the one before."""
    before = None
    for save in sorted(saves, key=lambda s: s.at_ns):
        if before is None or save.at_ns - before >= span_ns:
            before = save.at_ns
            yield save
