"""JSON as training frameworks write it: read whole, in bounded time and memory, and refused where Python's
own ``json.load`` refuses it.

Facts: Python 3.10 to 3.14, Lib/json/decoder.py and Modules/_json.c. ``NaN`` and ``Infinity`` are accepted, as
Python writes and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import Source

if TYPE_CHECKING:
    from json import JSONDecodeError

MAX_SIZE = 64 << 20
"""Bytes of text; the largest that real checkpoints hold are vocabularies of some 35 MB (tokenizer.json of
262k words).
"""
MAX_MEMORY = 280 << 20
"""Bytes that the text and its values may take in memory, estimated before they are made."""
MAX_DEPTH = 500
"""Levels of nesting; Python's own reader gives up at about 1000."""
MAX_DIGITS = 4300
"""Digits of an integer; Python refuses more (sys.int_info.default_max_str_digits)."""
_OTHER = bytes(set(range(256)) - set(b'[]{}"'))
_BLOCK = 1 << 16
_STEP = tuple(1 if c in b"[{" else -1 for c in range(256))
_LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


class Text(NamedTuple):
    """What a file holds: ``value`` as Python has it, the bytes, and what is odd: a key that occurs twice."""

    value: object
    data: bytes
    odd: list[Finding]


def _brackets(data: bytes) -> bytes:
    """The brackets outside strings. Escapes go first, pair by pair, so that a quote is a quote; then strings
    without brackets; of what is left every second piece is a string. In blocks: each piece costs memory.
    """
    clean = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER).replace(b'""', b"")
    out, inside = list[bytes](), 0
    for at in range(0, len(clean), _BLOCK):
        pieces = clean[at : at + _BLOCK].split(b'"')
        out.append(b"".join(pieces[inside::2]))
        inside ^= (len(pieces) - 1) & 1
    return b"".join(out)


def _refuse_costly(data: bytes) -> None:
    """Refuse what would cost the reader gigabytes or too deep a recursion; counts brackets outside strings"""
    quotes = data.count(b'"')
    cost = 2 * len(data) + quotes * 30 + data.count(b",") * 40 + data.count(b"[") * 72
    if cost + data.count(b"{") * 72 > MAX_MEMORY:
        cost -= data.count(b"[") * 72  # brackets in strings cost nothing
        bare = _brackets(data)
        if cost + bare.count(b"[") * 72 + bare.count(b"{") * 72 > MAX_MEMORY:
            why = f"{len(data)} bytes of JSON would take more than {MAX_MEMORY >> 20} MiB of memory"
            raise Damage("too-complex", why, 0)
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    depth = max(accumulate(map(_STEP.__getitem__, _brackets(data))), default=0)
    if depth > MAX_DEPTH:
        raise Damage("bad-header", f"brackets nested {depth} levels deep, or never closed", 0)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Damage("bad-header", f"an integer of {len(digits)} digits, which Python refuses to read", 0)
    return int(digits)


def _explain(e: JSONDecodeError, text: str) -> Damage:
    """The reader's complaint as damage: cut short, continued with something else, or neither."""
    rest = text[e.pos :].strip(" \t\r\n")
    at, size = len(text[: e.pos].encode()), len(text.encode())
    unfinished = rest in ("", "-") or any(word.startswith(rest) for word in _LITERALS)
    escape = e.msg.startswith("Invalid \\") and len(text) - e.pos < 8
    if unfinished or escape or e.msg.startswith("Unterminated string"):
        size = size if rest else at
        return Damage("truncated", f"the JSON text ends at byte {size} in the middle ({e.msg[:80]})", size)
    only_zeros = not rest.strip("\0")
    if e.msg == "Extra data":
        what = "zero bytes" if only_zeros else "bytes"
        return Damage("trailing-data", f"{size - at} {what} follow the end of the JSON value", at)
    if only_zeros:
        why = f"zero bytes from byte {at} to the end, in the middle of the JSON text"
        return Damage("bad-header", why, at)
    return Damage("bad-header", f"not JSON: {e.msg[:80]} ({rest[:20]!r})", at)


def opens_object(head: bytes) -> bool:
    """Whether a JSON object may begin so; of which kind it is only its content tells."""
    return head.lstrip(b" \t\r\n")[:1] == b"{"


def read_json(source: Source) -> Text:
    """The whole file as one JSON value. Raises Damage."""
    data, odd = read_text(source), list[Finding]()
    return Text(parse(data, odd), data, odd)


def read_text(source: Source) -> bytes:
    """The whole file, where it is no larger than JSON is read. Raises Damage."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > MAX_SIZE:
        why = f"{source.size} bytes of JSON: files of more than {MAX_SIZE} are not read"
        raise Damage("too-complex", why, 0)
    return source.read(0, source.size)


def parse(data: bytes, found: list[Finding]) -> object:
    """JSON text as a value. Raises Damage, whose offsets count from the beginning of ``data``."""
    if not data.strip(b"\0"):
        raise Damage("zero-filled", f"all {len(data)} bytes are zero", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        cut = e.end == len(data) and e.reason == "unexpected end of data"
        raise Damage("truncated" if cut else "bad-header", "the text is not UTF-8", e.start) from None
    if text[0] == "\ufeff":
        raise Damage("bad-header", "the text begins with a byte order mark, which Python's json refuses", 0)
    _refuse_costly(data)
    twice: list[str] = []

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs) and not twice:
            seen: set[str] = set()
            twice.extend(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        return made

    import json  # only when there is some: ckpt latest starts without

    try:
        value: object = json.loads(text, object_pairs_hook=members, parse_int=_integer)
    except json.JSONDecodeError as e:
        raise _explain(e, text) from None
    except (RecursionError, MemoryError):
        why = "nested too deep, or too large, for this Python"
        raise Damage("too-complex", why, 0, Severity.ERROR) from None
    if twice:
        at = max(0, data.rfind(json.dumps(twice[0], ensure_ascii=False).encode("utf-8", "surrogatepass")))
        why = f"{twice[0][:200]!r} occurs twice in one object; readers take the last one"
        found.append(finding("duplicate-key", why, offset=at))
    return value


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[object]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else ()


def integers(value: object, most: int = 64) -> tuple[int, ...] | None:
    """An array of at most ``most`` integers from 0 to 2**63, or None."""
    if (
        not isinstance(value, list)
        or len(value) > most
        or not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63 for v in value)
    ):
        return None
    return tuple(value)
