"""What nodes may say to each other, round by round: each value is checked before anything follows it, whoever
signed it.

A node runs as the same user, and may still be broken, of another version, or taken over: what it says never
leaves the types, bounds and places below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ckpt_tools.errors import UsageError
from ckpt_tools.findings import CODES
from ckpt_tools.job.hosts import valid
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.settings.checked_json import (
    Check,
    Invalid,
    NoJson,
    count,
    fields,
    listed,
    nothing_or,
    number,
    parsed,
    path,
    text,
    truth,
    whole,
    wrong,
)
from ckpt_tools.settings.parsers import MAX_RANK
from ckpt_tools.storage.urls import is_url

Value = dict[str, Any]
ONE, ALL = 32 << 20, 64 << 20
"""Bytes that one node says at once, and that the first one tells of all."""
LISTED = 32
"""Candidates that a node names, at most: the newest ones."""
_WORDS, _NAME, _FINDINGS = 1 << 20, 4096, 1 << 17
_NUMBER = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"[0-9a-f]{0,64}\Z")
_TWICE = re.compile(r"(.*)#[0-9]{1,8}\Z", re.DOTALL)
HINT = (
    "run the same version of ckpt with the same options on every node; where that is so, see what runs on"
    " that node"
)


class Round(NamedTuple):
    """What a node says in one exchange, and what the first node tells of it."""

    said: Check
    told: Check


def value(data: bytes, check: Check, who: str, most: int, failure: Check | None = None) -> Value:
    """What a node has put up: a failure, or what passes the check. Raises UsageError for anything else."""
    try:
        if len(data) > most:
            raise Invalid(f"it is {len(data):,} bytes, of {most:,} at most")
        found = parsed(data)
        if not isinstance(found, dict):
            wrong("", "an object")
        ((failure or FAILED) if "error" in found else check)(found, "")
    except (NoJson, Invalid) as e:
        raise UsageError(f"{who} says what no node of this job says: {e}", HINT) from e
    return found


def refuse(who: str, what: str) -> UsageError:
    """The error for what is well formed and cannot be."""
    return UsageError(f"{who} says what no node of this job says: {what}", HINT)


# ---- words


def only(needed: Mapping[str, Check]) -> Check:
    """An object of exactly these fields."""
    inside = fields(needed, {})

    def inner(value: object, at: str) -> None:
        inside(value, at)
        if isinstance(value, dict) and (more := value.keys() - needed.keys()):
            wrong(f"{at}.{min(more)[:80]!r}", "no field of it")

    return inner


def few(check: Check, most: int) -> Check:
    """A list of so many at most."""
    inside = listed(check)

    def inner(value: object, at: str) -> None:
        if isinstance(value, list) and len(value) > most:
            wrong(at, f"a list of {most:,} at most")
        inside(value, at)

    return inner


def short(most: int) -> Check:
    """A text of so many characters at most."""

    def inner(value: object, at: str) -> None:
        text(value, at)
        if len(str(value)) > most:
            wrong(at, f"a text of {most:,} characters at most")

    return inner


def among(known: Collection[Any]) -> Check:
    """One of these."""

    def inner(value: object, at: str) -> None:
        if isinstance(value, bool) or not isinstance(value, str | int) or value not in known:
            wrong(at, "one of those that ckpt knows")

    return inner


def like(pattern: re.Pattern[str], wanted: str) -> Check:
    """A text of that form."""

    def inner(value: object, at: str) -> None:
        if not isinstance(value, str) or not pattern.match(value):
            wrong(at, wanted)

    return inner


def below(value: object, at: str) -> None:
    """A relative name of something below a directory: nothing in it leads up, out or nowhere."""
    short(_NAME)(value, at)
    names = str(value).split("/")
    if not all(names) or {".", ".."} & set(names):
        wrong(at, "a relative name without . and ..")


def plain(value: object, at: str) -> None:
    """The same, as a word of a command: without line breaks and other controls."""
    below(value, at)
    if re.search(r"[\x00-\x1f\x7f]", str(value)):
        wrong(at, "a name without control characters")


def here_or_below(value: object, at: str) -> None:
    """The same, or the directory itself."""
    if value != ".":
        below(value, at)


def place(value: object, at: str) -> None:
    """An absolute path on another node, which becomes a word of --transfer."""
    path(value, at)
    plain(str(value).partition("://")[2] if is_url(str(value)) else str(value)[1:], at)


def rank(value: object, at: str) -> None:
    """The number of a rank."""
    count(value, at)
    if isinstance(value, int) and value > MAX_RANK:
        wrong(at, f"{MAX_RANK:,} at most")


def like_host(value: object, at: str) -> None:
    """The name of a machine, or its address."""
    if not valid(value):
        wrong(at, "the name of a host: letters, digits, hyphens and dots, or an IPv6 address")


def host(value: object, at: str) -> None:
    """The name of a machine, with the number of its node where several have it."""
    found = _TWICE.match(value) if isinstance(value, str) else None
    like_host(found[1] if found else value, at)


def _pair(first: Check, second: Check) -> Check:
    def inner(value: object, at: str) -> None:
        if not isinstance(value, list) or len(value) != 2:
            wrong(at, "a list of two")
        first(value[0], f"{at}[0]")
        second(value[1], f"{at}[1]")

    return inner


def _listed(*checks: Check) -> Check:
    """A list with one value for each check."""

    def inner(value: object, at: str) -> None:
        if not isinstance(value, list) or len(value) != len(checks):
            wrong(at, f"a list of {len(checks)}")
        for i, (check, item) in enumerate(zip(checks, value, strict=True)):
            check(item, f"{at}[{i}]")

    return inner


_word, _name, _maybe = short(_NAME), short(_NAME), nothing_or(whole)
_number = like(_NUMBER, "a number of 32 hexadecimal digits")
_node = rank
_number_or_none = like(re.compile(r"([0-9a-f]{32})?\Z"), "a number of 32 hexadecimal digits, or nothing")

# ---- coming together

_WHY: dict[str, Check] = {"error": short(_WORDS), "hint": short(_WORDS), "exit_code": among(range(256))}
_listens = only({"port": among(range(1, 1 << 16)), "hosts": few(like_host, 8)})


def _watch(value: object, at: str) -> None:
    """Where the first node listens, if it does."""
    if value != {}:
        _listens(value, at)


FAILED = only(_WHY)
"""What a node puts up instead of a value."""
LEFT = only({**_WHY, "name": _number, "first": _number_or_none})
"""Instead of its name."""
OFFER = only({"session": _number, "members": few(_number, MAX_RANK), "watch": _watch})
FAILED_OFFER = only(
    {**_WHY, "session": _number_or_none, "members": few(_number_or_none, MAX_RANK), "watch": _watch}
)


def member(data: bytes | None) -> str:
    """A node's name from the board; "" where there is none yet, or none that is a name. Never raises."""
    name = (data or b"").decode("ascii", "replace")
    return name if _NUMBER.match(name) else ""


# ---- the rounds of an agreement

_FINDING = only(
    {
        "code": among(CODES),
        "severity": among([int(s) for s in Severity]),
        "message": short(_WORDS),
        "offset": _maybe,
        "hint": short(_WORDS),
        "path": _word,
        "ranks": few(_pair(rank, rank), _FINDINGS),
        "follows": truth,
        "rule": short(_WORDS),
    }
)
_FINDINGS_OF = few(_FINDING, _FINDINGS)
_FILE = only(
    {
        "role": _word,
        "path": path,
        "size": count,
        "mtime_ns": whole,
        "level": among([int(v) for v in Level]),
        "coverage": number,
        "source_rank": nothing_or(rank),
        "substituted": truth,
        "node": nothing_or(host),
        "reason": short(_WORDS),
        "etag": _word,
        "version": _word,
    }
)
_ROW = only({"rank": rank, "files": few(_FILE, _FINDINGS)})
_PART = only(
    {
        "path": place,
        "layout": _word,
        "piece": _word,
        "role": _word,
        "run": _word,
        "base": here_or_below,
        "home": nothing_or(here_or_below),
        "prefix": _word,
        "kind": among([str(k) for k in Kind]),
        "rank": nothing_or(rank),
        "coords": few(_pair(_word, rank), 64),
        "step": _maybe,
        "epoch": _maybe,
        "step_in_epoch": _maybe,
        "generation": _maybe,
        "unfinished": truth,
        "size": count,
        "mtime_ns": whole,
        "findings": few(_maybe, 0),
    }
)
_OFFERED = few(only({"node": _node, "below": plain, "part": _PART, "ranks": few(rank, MAX_RANK)}), MAX_RANK)


def identity(value: object, at: str) -> None:
    """What names a checkpoint on every node (wire.identity)."""
    _word(value, at)
    try:
        words = parsed(str(value).encode("utf-8", "surrogateescape"))
    except NoJson:
        wrong(at, "what names a checkpoint")
    _listed(_word, here_or_below, _word, _maybe, _maybe, _maybe, _maybe)(words, at)


_SEEN = only(
    {
        "id": identity,
        "mtime": whole,
        "kind": among([str(k) for k in Kind]),
        "step": _maybe,
        "path": here_or_below,
    }
)
_EARLIER = nothing_or(_listed(_maybe, _word, number, number, few(_pair(_word, number), _FINDINGS)))
_RANKS = _pair(rank, rank)
_ENTRY = only(
    {
        "id": identity,
        "kind": among([str(k) for k in Kind]),
        "step": _maybe,
        "path": here_or_below,
        "without": few(_pair(_node, truth), MAX_RANK),
    }
)
LISTING = Round(
    only(
        {
            "host": like_host,
            "asked": like(_DIGEST, "a digest"),
            "ranks": _RANKS,
            "candidates": few(_SEEN, LISTED),
            "more": truth,
            "earlier": _EARLIER,
        }
    ),
    only({"order": listed(_ENTRY), "hosts": listed(host), "ranks": listed(_RANKS)}),
)
JUDGEMENT = Round(
    only({"ok": truth, "read": truth, "findings": _FINDINGS_OF}),
    only({"ok": truth, "read": truth, "findings": listed(_FINDING), "lacking": listed(_node)}),
)
WANTED = Round(only({"want": few(rank, MAX_RANK)}), only({"want": listed(few(rank, MAX_RANK))}))
OFFERS = Round(only({"rows": _OFFERED}), only({"rows": _OFFERED}))
LOADED = Round(
    only({"ranks": few(_ROW, MAX_RANK), "fingerprint": like(_DIGEST, "a digest")}),
    only({"ranks": listed(_ROW), "fingerprint": like(_DIGEST, "a digest")}),
)
NOTHING = Round(only({}), only({}))
