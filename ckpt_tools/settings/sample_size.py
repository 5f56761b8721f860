"""How much of the contents to read: ``n/t``, a percentage, or a size."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.settings import parsers

if TYPE_CHECKING:
    from fractions import Fraction

_MOST = 1_000_000


class Share(NamedTuple):
    """One part of several, or a fraction of the bytes, or so many of them; ``text`` as it was asked for."""

    text: str
    part: int = 0
    parts: int = 0
    fraction: Fraction | None = None
    size: int | None = None

    def has(self, home: int) -> bool:
        """Return True if a file belongs to the part; ``home`` is its number."""
        return not self.parts or home % self.parts == self.part - 1


def share(value: object, _base: str = "") -> Share:
    """A share from ``2/7``, ``10%``, ``50GiB`` or a number of bytes. Raises ValueError with what would be
    right.
    """
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if m := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text):
        part, parts = int(m[1]), int(m[2])
        if not 1 <= part <= parts <= _MOST:
            raise ValueError(
                f"{value!r} is no part: say 1/{max(1, min(parts, _MOST))} to"
                f" {max(1, min(parts, _MOST))}/{max(1, min(parts, _MOST))}"
            )
        return Share(text, part, parts)
    if m := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text):
        from fractions import Fraction  # here, because it costs start-up time

        fraction = Fraction(m[1]) / 100
        if not 0 < fraction <= 1:
            raise ValueError(f"{value!r} is not above 0% and at most 100%")
        return Share(text, fraction=fraction)
    try:
        return Share(text or str(value), size=parsers.size(value))
    except ValueError:
        raise ValueError(
            f"{value!r} is no share: say a part (2/7), percent (10%) or a size (50GiB)"
        ) from None
