"""JSON text read piece by piece, so that neither the nesting nor the size of hostile JSON costs more than its
text, and with a map of its bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.tensors import MAX_NAME
from ckpt_tools.model.report import Guard

MAX_ENTRY = 4096
"""Characters of one tensor's description; real ones have about 70."""
MAX_VALUE = 1 << 16
"""Characters of one value that only has to be skipped."""

_BLANK = re.compile(r"[ \t\r\n]*")
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _integer(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)  # the reader takes "-0" for a fraction: it is no count


class Span(NamedTuple):
    """Characters that may change unseen, and what they are; ``summed`` if a checksum counts them in."""

    start: int
    stop: int
    what: str
    summed: bool = False


class Cursor:
    """A cursor over JSON text that begins at byte ``base`` of the file. ``texts`` has the metadata, key ->
    (text, where), ``free`` what may change unseen, if it is ``mapped``. Complaints are Damage.
    """

    def __init__(self, text: str, base: int = 8, *, mapped: bool = False) -> None:
        import json

        self.text, self.at, self.base = text, 0, base
        self.decoder = json.JSONDecoder(object_pairs_hook=_once, parse_int=_integer)
        self.texts: dict[str, tuple[str, int, int]] = {}
        self.mapped, self.free = mapped, list[Span]()
        self._near = (0, 0)
        self.key = self.key_end = self.value = 0  # where the last key and the last description begin and end

    def byte(self, at: int) -> int:
        """The offset in the file of a character; cheap when asked in rising order."""
        if self.text.isascii():
            return self.base + at
        have, offset = self._near if self._near[0] <= at else (0, 0)
        self._near = at, offset + len(self.text[have:at].encode())
        return self.base + self._near[1]

    @property
    def offset(self) -> int:
        """The offset in the file of the character at the cursor."""
        return self.byte(self.at)

    def bad(self, why: str) -> Damage:
        return Damage("bad-header", why, self.offset)

    def mark(self, start: int, stop: int, what: str, *, summed: bool = False) -> None:
        """These characters may change unseen."""
        if self.mapped:
            self.free.append(Span(start, stop, what, summed))

    def explain(self, anatomy: Anatomy, what: str) -> None:
        """The map of the text: ``free`` spans are unprotected, all else is noticed."""
        if not self.mapped:
            return
        if "\t" in self.text or "\r" in self.text:  # one bit turns one into the other; no writer uses either
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
        """A hexadecimal digit of an escape in capitals is one bit away from the same in small letters."""
        free = sorted(self.free)
        for m in _ESCAPE.finditer(self.text):
            for at in (m.start(1) + i for i, digit in enumerate(m[1]) if digit.isalpha()):
                before = bisect_right(free, at, key=lambda s: s.start) - 1
                if before < 0 or free[before].stop <= at:
                    why = f"{what}: a digit of an escape, whose case does not count"
                    self.free.append(Span(at, at + 1, why))

    def token(self, wanted: str) -> str:
        """The next character that is not blank, if it is one of ``wanted``."""
        at = _BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches everywhere
        self.at, found = at, self.text[at : at + 1]
        if not found or found not in wanted:
            raise self.bad(f"{self.text[at : at + 40]!r} where one of {wanted!r} belongs")
        self.at += 1
        return found

    def string(self, *, key: bool = False) -> str:
        """The JSON string at the cursor."""
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
        """The keys of the object at the cursor; the consumer moves the cursor over each value."""
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
        """A tensor's description, which ends at its first closing brace, or at one of the next."""
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
        """Pass over a value of any kind and return its text. Refuses more than MAX_VALUE."""
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
