"""JSON as training frameworks write it: read whole, in bounded time and memory, and refused where Python's
own ``json.load`` refuses it.

Facts: Python 3.10 to 3.14, Lib/json/decoder.py and Modules/_json.c. ``NaN`` and ``Infinity`` are accepted, as
Python writes and reads them.

Also a cursor that reads JSON text piece by piece, so that no nesting or size of hostile JSON costs more than
its text, and that maps its bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.tensors import MAX_NAME
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

if TYPE_CHECKING:
    from json import JSONDecodeError

MAX_SIZE = 64 << 20
"""The most bytes of a text; the largest are vocabularies of some 35 MB (tokenizer.json of 262k words)."""
MAX_MEMORY = 280 << 20
"""The most bytes of memory that the text and its values may take, estimated before they are made."""
MAX_DEPTH = 500
"""The most levels of nesting; Python's own reader gives up at about 1000."""
MAX_DIGITS = 4300
"""The most digits of an integer; Python refuses more (sys.int_info.default_max_str_digits)."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_BLOCK = 1 << 16
_NESTING = tuple(1 if c in b"[{" else -1 for c in range(256))
_LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


class Text(NamedTuple):
    """The JSON of a file: its value in Python, its bytes, and the findings: a key that occurs twice."""

    value: object
    data: bytes
    odd: list[Finding]


def _find_brackets(data: bytes) -> bytes:
    """Return the brackets of JSON text outside its strings: without escapes, each quote is the border of a
    string, and each second piece between quotes is a string. In blocks, as each piece costs memory.
    """
    clean = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_BRACKETS).replace(b'""', b"")
    out, in_string = list[bytes](), 0
    for at in range(0, len(clean), _BLOCK):
        pieces = clean[at : at + _BLOCK].split(b'"')
        out.append(b"".join(pieces[in_string::2]))
        in_string ^= (len(pieces) - 1) & 1
    return b"".join(out)


def _refuse_costly(data: bytes) -> None:
    """Raise Damage for text that would cost Python's reader gigabytes or too deep a recursion."""
    quotes = data.count(b'"')
    cost = 2 * len(data) + quotes * 30 + data.count(b",") * 40 + data.count(b"[") * 72
    if cost + data.count(b"{") * 72 > MAX_MEMORY:
        cost -= data.count(b"[") * 72  # brackets in strings cost nothing
        bare = _find_brackets(data)
        if cost + bare.count(b"[") * 72 + bare.count(b"{") * 72 > MAX_MEMORY:
            why = f"{len(data)} bytes of JSON would take more than {MAX_MEMORY >> 20} MiB of memory"
            raise Damage("too-complex", why, 0)
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    depth = max(accumulate(map(_NESTING.__getitem__, _find_brackets(data))), default=0)
    if depth > MAX_DEPTH:
        raise Damage("bad-header", f"brackets nested {depth} levels deep, or never closed", 0)


def _read_integer(digits: str) -> int:
    """Return an integer. Raise Damage if it has more than MAX_DIGITS."""
    if len(digits) > MAX_DIGITS:
        raise Damage("bad-header", f"an integer of {len(digits)} digits, which Python refuses to read", 0)
    return int(digits)


def _describe_error(e: JSONDecodeError, text: str) -> Damage:
    """Return the Damage for an error of Python's reader: cut short, trailing data, zeros, or no JSON."""
    unread = text[e.pos :].strip(" \t\r\n")
    at, size = len(text[: e.pos].encode()), len(text.encode())
    unfinished = unread in ("", "-") or any(word.startswith(unread) for word in _LITERALS)
    escape = e.msg.startswith("Invalid \\") and len(text) - e.pos < 8
    if unfinished or escape or e.msg.startswith("Unterminated string"):
        size = size if unread else at
        return Damage("truncated", f"the JSON text ends at byte {size} in the middle ({e.msg[:80]})", size)
    only_zeros = not unread.strip("\0")
    if e.msg == "Extra data":
        what = "zero bytes" if only_zeros else "bytes"
        return Damage("trailing-data", f"{size - at} {what} follow the end of the JSON value", at)
    if only_zeros:
        why = f"zero bytes from byte {at} to the end, in the middle of the JSON text"
        return Damage("bad-header", why, at)
    return Damage("bad-header", f"not JSON: {e.msg[:80]} ({unread[:20]!r})", at)


def opens_object(head: bytes) -> bool:
    """Return whether ``head`` may begin a JSON object; only its content tells of which format."""
    return head.lstrip(b" \t\r\n")[:1] == b"{"


def read_json(source: Source) -> Text:
    """Read the whole file as one JSON value. Raise Damage."""
    data, found = read_text(source), list[Finding]()
    return Text(parse(data, found), data, found)


def read_text(source: Source) -> bytes:
    """Return the bytes of the whole file. Raise Damage if it is empty or larger than MAX_SIZE."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > MAX_SIZE:
        why = f"{source.size} bytes of JSON: files of more than {MAX_SIZE} are not read"
        raise Damage("too-complex", why, 0)
    return source.read(0, source.size)


def parse(data: bytes, found: list[Finding]) -> object:
    """Return the value of JSON text; add a finding for a key that occurs twice. Raise Damage, whose offsets
    count from the beginning of ``data``.
    """
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
        entries = dict(pairs)
        if len(entries) != len(pairs) and not twice:
            seen: set[str] = set()
            twice.extend(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        return entries

    import json  # not at the top: ckpt latest starts faster without it

    try:
        value: object = json.loads(text, object_pairs_hook=members, parse_int=_read_integer)
    except json.JSONDecodeError as e:
        raise _describe_error(e, text) from None
    except (RecursionError, MemoryError):
        why = "nested too deep, or too large, for this Python"
        raise Damage("too-complex", why, 0, Severity.ERROR) from None
    if twice:
        at = max(0, data.rfind(json.dumps(twice[0], ensure_ascii=False).encode("utf-8", "surrogatepass")))
        why = f"{twice[0][:200]!r} occurs twice in one object; readers take the last one"
        found.append(finding("duplicate-key", why, offset=at))
    return value


def mapping(value: object) -> Mapping[str, object]:
    """Return a JSON value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[object]:
    """Return a JSON value if it is an array, else an empty one."""
    return value if isinstance(value, list) else ()


def read_integers(value: object, most: int = 64) -> tuple[int, ...] | None:
    """Return an array of at most ``most`` integers from 0 to 2**63 - 1 as a tuple, None for other values."""
    if not isinstance(value, list) or len(value) > most:
        return None
    fit = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63 for v in value)
    return tuple(value) if fit else None


MAX_ENTRY = 4096
"""The most characters of one tensor's description; real ones have about 70."""
MAX_VALUE = 1 << 16
"""The most characters of one value that is skipped."""

_BLANK = re.compile(r"[ \t\r\n]*")
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")


def _make_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raise ValueError if a key occurs twice."""
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _read_whole_number(text: str) -> int | float:
    """Return a JSON number without a fraction: "-0" as a float, which is no valid count."""
    return -0.0 if text == "-0" else int(text)


class Span(NamedTuple):
    """Characters whose change no check notices, and what they are; a checksum covers them if ``summed``."""

    start: int
    stop: int
    what: str
    summed: bool = False


class Cursor:
    """A cursor over JSON text that begins at byte ``base`` of the file; errors are Damage. ``texts`` has the
    metadata (key -> text and its place), ``free``, if ``mapped``, the spans that may change unseen.
    """

    def __init__(self, text: str, base: int = 8, *, mapped: bool = False) -> None:
        import json

        self.text, self.at, self.base = text, 0, base
        self.decoder = json.JSONDecoder(object_pairs_hook=_make_dict, parse_int=_read_whole_number)
        self.texts: dict[str, tuple[str, int, int]] = {}
        self.mapped, self.free = mapped, list[Span]()
        self._last_byte = (0, 0)
        self.key = self.key_end = self.value = 0  # of the last key and description

    def byte(self, at: int) -> int:
        """Return the file offset of a character; cheap if asked in rising order."""
        if self.text.isascii():
            return self.base + at
        have, offset = self._last_byte if self._last_byte[0] <= at else (0, 0)
        self._last_byte = at, offset + len(self.text[have:at].encode())
        return self.base + self._last_byte[1]

    @property
    def offset(self) -> int:
        """The offset in the file of the character at the cursor."""
        return self.byte(self.at)

    def bad(self, why: str) -> Damage:
        """Return the error ``bad-header`` at the cursor's file offset."""
        return Damage("bad-header", why, self.offset)

    def mark(self, start: int, stop: int, what: str, *, summed: bool = False) -> None:
        """Add a span to ``free``: no check notices if its characters change."""
        if self.mapped:
            self.free.append(Span(start, stop, what, summed))

    def explain(self, anatomy: Anatomy, what: str) -> None:
        """Map the text's bytes in ``anatomy``: spans in ``free`` are unprotected, all others structure."""
        if not self.mapped:
            return
        if "\t" in self.text or "\r" in self.text:  # one bit apart; writers use neither
            self.free = [Span(0, len(self.text), f"{what}, of which tabs and carriage returns may change")]
        else:
            self._mark_escapes(what)
        at = 0
        for start, stop, free, _ in sorted(self.free):
            begin, middle, end = self.byte(at), self.byte(start), self.byte(stop)
            anatomy.explain(begin, middle - begin, what)
            anatomy.explain(middle, end - middle, free, Guard.UNPROTECTED)
            at = stop
        anatomy.explain(self.byte(at), self.byte(len(self.text)) - self.byte(at), what)

    def _mark_escapes(self, what: str) -> None:
        """Add the letters in escapes to ``free``: a flipped bit that changes their case changes no value."""
        free = sorted(self.free)
        for m in _ESCAPE.finditer(self.text):
            for at in (m.start(1) + i for i, digit in enumerate(m[1]) if digit.isalpha()):
                before = bisect_right(free, at, key=lambda s: s.start) - 1
                if before < 0 or free[before].stop <= at:
                    why = f"{what}: a digit of an escape, whose case does not count"
                    self.free.append(Span(at, at + 1, why))

    def token(self, wanted: str) -> str:
        """Move behind the next character that is not blank, one of ``wanted``; return it. Raise Damage."""
        at = _BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches everywhere
        self.at, found = at, self.text[at : at + 1]
        if not found or found not in wanted:
            raise self.bad(f"{self.text[at : at + 40]!r} where one of {wanted!r} belongs")
        self.at += 1
        return found

    def string(self, *, key: bool = False) -> str:
        """Read the JSON string at the cursor; if it is a ``key``, note where it begins. Raise Damage."""
        self.token('"')
        if key:
            self.key = self.at - 1
        try:
            text, self.at = self.decoder.raw_decode(self.text, self.at - 1)
            text.encode()  # a lone surrogate is refused by every reader
        except ValueError as e:
            raise self.bad(f"an invalid text: {e}") from None
        return str(text)

    def members(self) -> Iterator[str]:
        """Yield the keys of the object at the cursor; the caller must move the cursor over each value."""
        self.token("{")
        start, more = self.at, self.token('"}')
        if more == "}":
            return
        self.at, more = start, ","
        while more == ",":
            key = self.string(key=True)
            if len(key) > MAX_NAME:
                raise Damage("too-complex", f"a name of {len(key)} characters", self.offset)
            self.key_end = self.at
            self.token(":")
            yield key
            more = self.token(",}")

    def entry(self, name: str) -> dict[str, Any]:
        """Read the object that describes tensor ``name``; it ends at the first "}" or later. Raise Damage."""
        self.token("{")
        self.at -= 1
        self.value = self.at
        close, why = self.text.find("}", self.at, self.at + MAX_ENTRY) + 1, "no closing brace"
        for part in (self.text[self.at : close], self.text[self.at : self.at + MAX_ENTRY]) if close else ():
            try:
                entry, length = self.decoder.raw_decode(part)
            except (ValueError, RecursionError) as e:
                why = str(e)
                continue
            self.at += length
            made: dict[str, Any] = entry
            return made
        raise self.bad(f"the description of tensor {name[:200]!r} is invalid: {why}")

    def skip(self) -> str:
        """Pass over any value and return its text. Raise Damage if it has more than MAX_VALUE characters."""
        self.at = _BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches everywhere
        start, why = self.at, ""
        for length in (256, 4096, MAX_VALUE):  # short ones first: a piece of text is a copy
            part = self.text[start : start + length]
            try:
                _, end = self.decoder.raw_decode(part)
            except (ValueError, RecursionError) as e:
                why = str(e)
            else:
                if end < length:  # else it may be a number that goes on
                    self.at += end
                    return part[:end]
            if len(part) < length:
                raise self.bad(f"an invalid value: {why}")
        raise Damage("too-complex", f"a value of more than {MAX_VALUE} characters", self.offset)
