"""Parse raw values (of flags, variables and TOML files) into typed values, or say which values are valid."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url

Parse = Callable[..., object]
"""Takes a raw value (the text of a flag or variable, or a TOML value) and the directory from which relative
paths start; returns the setting's value. One that reads a file also takes whose files are trusted.

Raises ValueError with a message that says which values are valid, and Untrusted.
"""

MAX_RANK = 1 << 24
"""The highest rank: no job has more, and a typing error such as 0-99999999999 must not fill the memory."""

_SEPARATOR = re.compile(r"\s*,\s*|\s+")  # "1,,2" has an empty rank, which is an error: some script forgot one

Groups = dict[str, tuple[tuple[int, ...], ...]]
EVERYONE = "*"
"""The role that stands for ``all`` in Groups: every rank holds the same state."""
_ALL: Groups = {EVERYONE: ()}


def whole(minimum: int, maximum: int | None = None) -> Callable[[object, str], int]:
    """Return a parser of whole numbers from ``minimum`` to ``maximum``, both included."""

    def parse(value: object, _base: str) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004 - resolve() waits for ValueError
        if value < minimum:
            raise ValueError(f"{value} is below {minimum}")
        if maximum is not None and value > maximum:
            raise ValueError(f"{value} is above {maximum}")
        return value

    return parse


def text(value: object, _base: str) -> str:
    """Return a text. Raise ValueError for another type, and for ""."""
    if value == "":
        raise ValueError("it is empty")
    if not isinstance(value, str):
        quoted = ": put it in quotes" if isinstance(value, (bool, int, float)) else ""
        raise ValueError(f"{value!r} is not a text{quoted}")  # noqa: TRY004 - as in whole()
    return value


_FIELDS = ("{path}", "{files}", "{step}", "{epoch}")


def resume_args(value: object, base: str) -> tuple[str, ...]:
    """Return the words of --resume-args, from a list or from one text that is split as a shell splits it."""
    words = value if isinstance(value, list) else shlex.split(text(value, base))
    for word in words:
        unknown = [m for m in re.findall(r"(?<!\$)\{\w+\}", text(word, base)) if m not in _FIELDS]
        if unknown:
            raise ValueError(f"it knows {', '.join(_FIELDS)}, not {unknown[0]}")
        if "{files}" in word and word != "{files}":
            raise ValueError(f"{word!r}: {{files}} stands for several words: write it as a word of its own")
    if not words:
        raise ValueError("it is empty")
    return tuple(words)


def tree(value: object, base: str) -> str:
    """Return a path, joined to ``base`` if relative, or a URL without its signature (storage/signed.py)."""
    if isinstance(value, str) and is_url(value):
        from ckpt_tools.storage.signed import strip_query

        return strip_query(value)
    return path(value, base)


def path(value: object, base: str) -> str:
    """Return a path of this machine, joined to ``base`` if relative. Raise ValueError for a URL."""
    given = text(value, base)
    if is_url(given):
        raise ValueError("it lies in a store: name a directory or a file of this machine")
    if len(given) > 4096:  # the limit of Linux
        raise ValueError(f"{given!r} is longer than a path can be")
    return os.path.join(base, os.path.expanduser(given) if base else given)


def meeting(value: object, base: str) -> str:
    """Return where nodes meet: HOST:PORT as it is, or a path."""
    return value if isinstance(value, str) and is_address(value) else path(value, base)


def is_address(text: str) -> bool:
    return re.fullmatch(r"[^/\s]+:[0-9]{1,5}", text) is not None


def scheduler(value: object, base: str) -> str:
    """Return ``threads``, ``mpi``, an address, or file:PATH, whose relative path starts from ``base``."""
    name = text(value, base)
    if name.startswith("file:"):
        return f"file:{path(name.removeprefix('file:').removeprefix('//'), base)}"
    if name not in ("threads", "mpi") and not re.fullmatch(r"[a-z]+://[^/\s].*", name):
        known = "neither threads nor mpi, nor an address such as tcp://HOST:8786, nor file:FILE.json"
        raise ValueError(f"{name!r} is {known}")
    return name


def flag(value: object, _base: str) -> bool:
    if isinstance(value, str):
        answer = value.strip().lower()
        if answer in ("1", "true", "yes", "on"):
            return True
        if answer in ("0", "false", "no", "off"):
            return False
    if isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is neither true nor false: use 1 or 0")


def nearest(given: str, words: Iterable[str], alike: float = 0.5) -> str | None:
    """Return the word that was probably meant; None if no word is ``alike`` enough (0 to 1)."""
    return next(iter(get_close_matches(given, list(words), 1, alike)), None)


def word(value: object, words: Sequence[str]) -> str:
    """Return a value that is one of ``words``. Raise ValueError, with the one that was probably meant."""
    if value not in words:
        close = nearest(str(value), words)
        meant = f"; did you mean {close}?" if close else ""
        raise ValueError(f"{value!r} is not one of {', '.join(words)}{meant}")
    return str(value)


def one_of(*words: str) -> Callable[[object, str], str]:
    """Return a parser that accepts these words."""

    def parse(value: object, _base: str) -> str:
        return word(value, words)

    return parse


def level(value: object, _base: str) -> Level:
    return Level[word(value, [str(level) for level in Level]).upper()]


def kind(value: object, _base: str) -> Kind:
    return Kind(word(value, [str(kind) for kind in Kind]))


_CENTURY = 100 * 365 * 86400.0


def duration(value: object, _base: str = "") -> float:
    """Return the seconds of ``120``, ``2m`` or ``1h30m``; at most a century, which timers can still hold."""
    units = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(min(value, _CENTURY))
    text, number = value.strip() if isinstance(value, str) else "", r"[0-9]+(?:\.[0-9]+)?"
    seconds = sum(float(n) * units[u] for n, u in re.findall(rf"({number})(ms|s|m|h|d|)", text))
    if not re.fullmatch(rf"{number}|(?:{number}(?:ms|s|m|h|d))+", text) or seconds == float("inf"):
        raise ValueError(f"{value!r} is not a duration: use seconds (120) or a unit (90s, 2m, 1h30m)")
    return min(seconds, _CENTURY)


def size(value: object, _base: str = "") -> int:
    """Return the bytes of ``200MB``, ``50GiB`` or ``1.5T``; a letter alone counts in 1024s, as in du."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    spelled = r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:(b?)|([kmgtp])(i?b|))\s*"
    m = re.fullmatch(spelled, value.lower()) if isinstance(value, str) else None
    if m is None or float(m[1]) == 0:
        raise ValueError(f"{value!r} is not a size: use bytes (1000000) or a unit (200MB, 50GiB)")
    return max(1, int(float(m[1]) * (1000 if m[4] == "b" else 1024) ** " kmgtp".index(m[3] or " ")))


def _read_ranks(texts: Iterable[str]) -> list[int]:
    """Return the ranks of texts such as ``3`` and ``5-7``. Raise ValueError."""
    ranks: list[int] = []
    for text in texts:
        m = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
        first, last = (int(m[1]), int(m[2] or m[1])) if m else (1, 0)
        if first > last:
            raise ValueError(f"{text!r} is not a rank or a range of ranks: use 1,3-5")
        if last > MAX_RANK:
            raise ValueError(f"rank {last} is above {MAX_RANK}")
        ranks.extend(range(first, last + 1))
    return ranks


def rank_set(value: object, _base: str = "") -> frozenset[int]:
    """Return the ranks of ``1,3-5``, of a number, or of a list of these. Raise ValueError."""
    words = re.split(_SEPARATOR, value.strip()) if isinstance(value, str) else value
    if isinstance(words, int):
        words = [words]
    if not isinstance(words, list) or any(isinstance(w, bool) for w in words):
        raise ValueError(f"{value!r} is not a list of ranks: use 1,3-5")
    return frozenset(_read_ranks(str(w) for w in words))


Members = tuple[tuple[int, ...], ...]


def _read_groups(value: object, where: str) -> Members:
    """Return the groups of one role: lists of ranks, or lines (or parts between ``;``) such as ``0,4``."""
    if isinstance(value, str):
        lines = (line.partition("#")[0].strip() for line in re.split(r"[;\n]", value))
        value = [re.split(_SEPARATOR, line) for line in lines if line]
    if not isinstance(value, list) or not value or not all(isinstance(g, list) and g for g in value):
        raise ValueError(f"{where}: {value!r} names no groups such as [[0, 4], [1, 5]] or '0,4;1,5'")
    groups = tuple(tuple(_read_ranks(str(r) for r in group)) for group in value)
    seen: set[int] = set()
    for rank in chain.from_iterable(groups):
        if rank in seen:
            raise ValueError(f"{where}: rank {rank} occurs twice; each rank belongs to one group of a role")
        seen.add(rank)
    return groups


def _read_group_file(path: str, trusted: Trust) -> Groups:
    """Return the groups by role of a file with lines or JSON; the role "" stands for every role."""
    try:
        text = trust.read(path, 64 << 20, trusted).decode()  # the groups of the largest job are a fraction
        value = json.loads(text) if text.lstrip()[:1] in ("[", "{") else text
    except (OSError, ValueError, RecursionError) as e:
        hint = "use groups such as '0,4;1,5', or a file of them"
        raise ValueError(f"{path!r} cannot be read ({e}): {hint}") from e
    by_role = value if isinstance(value, dict) else {"": value}
    return {role: _read_groups(groups, path) for role, groups in by_role.items()}


def _read_group_entry(entry: str, base: str, trusted: Trust) -> Groups:
    """Return the groups of one entry: ``all``, ``[ROLE=]0,4;1,5`` or ``[ROLE=]FILE``. Raise ValueError."""
    if entry == "all":
        return _ALL
    m = re.fullmatch(r"(?:([A-Za-z_][\w-]*)=)?(.+)", entry)
    if not m:
        raise ValueError(f"{entry!r} is neither groups such as '0,4;1,5' nor a file of them")
    role, groups = m[1] or "", m[2]
    if re.fullmatch(r"[0-9,;\s-]+", groups):
        return {role: _read_groups(groups, repr(groups))}
    by_role = _read_group_file(path(groups, base), trusted)
    if role and set(by_role) != {""}:
        raise ValueError(f"{groups} names the roles itself: drop '{role}='")
    return {role: by_role[""]} if role else by_role


def _list_group_entries(value: object, base: str, trusted: Trust) -> Iterator[Groups]:
    """Yield the groups of each role of a table, or of each entry of a list or a text of lines."""
    if isinstance(value, dict):
        for role, given in value.items():
            if isinstance(given, list):
                yield {role: _read_groups(given, role)}
            else:
                yield _read_group_entry(f"{role}={given}", base, trusted)
    elif isinstance(value, list) and value and all(isinstance(v, list) for v in value):
        yield {"": _read_groups(value, "replica-groups")}
    else:
        for entry in value if isinstance(value, list) else text(value, base).strip().splitlines():
            yield _read_group_entry(text(entry, base).strip(), base, trusted)


def replica_groups(value: object, base: str = "", trusted: Trust = OURS) -> Groups:
    """Return groups by role ("" for every role) from ``0,4;1,5``, ``model=0,2;1,3``, ``FILE``, ``role=FILE``
    or ``all``, or a list or table of these. A file has a group per line, or JSON of lists (by role) of ranks.
    """
    groups: Groups = {}
    for found in _list_group_entries(value, base, trusted):
        for role, members in found.items():
            if role == EVERYONE and found is not _ALL:
                raise ValueError(f"there is no role {role!r}: use all")
            if role in groups:
                raise ValueError(f"groups of {f'role {role}' if role else 'every role'} are given twice")
            groups[role] = members
    return groups


def names(value: object, _base: str) -> tuple[str, ...]:
    """Return the names in a list, or in a text between commas. Raise ValueError."""
    words = value.split(",") if isinstance(value, str) else value
    return _read_texts(words, "a list of names: use epoch_num,state_dict")


def _read_texts(value: object, what: str) -> tuple[str, ...]:
    """Return the texts of a list, or a text's lines. Raise ValueError with ``what`` if there are none."""
    given = value.strip().splitlines() if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(g, str) and g.strip() for g in given):
        raise ValueError(f"{value!r} is not {what}")
    return tuple(g.strip() for g in given)


def globs(value: object, _base: str) -> tuple[str, ...]:
    """Return patterns relative to ROOT, one per line. Raise ValueError for one that can match everything."""
    given = _read_texts(value, "a pattern such as logs or data/*.bin")
    for glob in given:
        pieces = glob.rstrip("/").split("/")
        if glob.startswith(("/", "~")) or {"", ".", ".."} & {*pieces}:
            raise ValueError(f"{glob!r} is not relative to ROOT: use logs, or data/*.bin")
        if not re.search(r"[^*?/\[\]!-]", glob):
            raise ValueError(f"{glob!r} would hide every checkpoint: name what is to be hidden")
    return given


def name_patterns(value: object, _base: str) -> tuple[str, ...]:
    """Return patterns of dotted names, one per line. Raise ValueError for one that matches everybody's."""
    given = _read_texts(value, "a pattern of names such as 'mycompany.*'")
    for pattern in given:
        if not re.fullmatch(r"[\w.*?\[\]!<>()-]+", pattern) or not re.match(r"\w", pattern):
            raise ValueError(f"{pattern!r} is not a dotted name, or trusts everybody's: use 'mycompany.*'")
    return given


def paths(value: object, base: str) -> tuple[str, ...]:
    given = _read_texts(value, "a path, or several, one per line")
    return tuple(tree(p, "") if is_url(p) else os.path.join(base, p) for p in given)


def store_options(value: object, _base: str) -> tuple[tuple[str, str], ...]:
    """Return store options (name, value) from KEY=VALUE, one per line. Raise ValueError for a secret."""
    from ckpt_tools.storage.stores.options import check_option

    given = value.strip().splitlines() if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise ValueError("an option is KEY=VALUE, such as region=eu-west-1")
    pairs: dict[str, str] = {}
    for option in given:
        key, mark, text = option.partition("=") if isinstance(option, str) else ("", "", "")
        if not mark:  # the message does not repeat the option: it may be a bare secret
            raise ValueError("an option is KEY=VALUE, such as region=eu-west-1")
        name, text = check_option(key, text)
        if pairs.setdefault(name, text) != text:
            raise ValueError(f"{name} is given twice")
    return tuple(pairs.items())


def uids(value: object, _base: str = "") -> frozenset[int]:
    """Return user ids from ``1000,65534`` or a list of such texts; user names depend on the machine."""
    given = value if isinstance(value, list) else [value]
    words = [word for v in given if isinstance(v, str) for word in re.split(_SEPARATOR, v.strip())]
    if not words or not all(re.fullmatch(r"[0-9]{1,10}", word) and int(word) < 1 << 32 for word in words):
        hint = "use 1000,65534 ('id -u NAME' tells it)"
        raise ValueError(f"{value!r} is not a number of a user, or several: {hint}")
    return frozenset(map(int, words))


def rank_order(value: object, base: str) -> str:
    axes = text(value, base).split("-")
    known = ("tp", "cp", "ep", "dp", "pp")
    if len(set(axes)) != len(axes) or not set(axes) <= set(known):
        example = "such as tp-cp-ep-dp-pp, fastest first"
        raise ValueError(f"{value!r} is not an order of {', '.join(known)} {example}")
    return "-".join(axes)


_MOST = 1_000_000


class Share(NamedTuple):
    """One share of the contents: a part of ``parts``, a fraction, or bytes; ``text`` is as given."""

    text: str
    part: int = 0
    parts: int = 0
    fraction: Fraction | None = None
    size: int | None = None

    def has(self, home: int) -> bool:
        """Return True if the item with the number ``home`` belongs to this part; without parts, always."""
        return not self.parts or home % self.parts == self.part - 1


def share(value: object, _base: str = "") -> Share:
    """Return a share from ``2/7``, ``10%``, ``50GiB`` or a number of bytes. Raise ValueError."""
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if m := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text):
        part, parts = int(m[1]), int(m[2])
        if not 1 <= part <= parts <= _MOST:
            most = max(1, min(parts, _MOST))
            raise ValueError(f"{value!r} is not a fraction: use 1/{most} to {most}/{most}")
        return Share(text, part, parts)
    if m := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text):
        fraction = Fraction(m[1]) / 100
        if not 0 < fraction <= 1:
            raise ValueError(f"{value!r} is not above 0% and at most 100%")
        return Share(text, fraction=fraction)
    try:
        return Share(text or str(value), size=size(value))
    except ValueError:
        hint = "use a fraction (2/7), percent (10%) or a size (50GiB)"
        raise ValueError(f"{value!r} is not a share: {hint}") from None
