"""What the bytes are: FORMATS in the order in which magics are tried, most specific first."""

from __future__ import annotations

import re

from ckpt_tools.formats import (
    mindspore_ckpt,
    mindspore_encrypted,
    mindspore_strategy,
    pickle_plain,
    safetensors,
    torch_legacy,
    torch_zip,
    zip_archive,
)
from ckpt_tools.formats._base import HEAD, Anatomy, Check, Claim, Damage, Format, structure

FORMATS: tuple[Format, ...] = (
    torch_zip.FORMAT,
    zip_archive.FORMAT,
    torch_legacy.FORMAT,
    mindspore_encrypted.FORMAT,
    pickle_plain.FORMAT,
    safetensors.FORMAT,
    mindspore_strategy.FORMAT,
    mindspore_ckpt.FORMAT,  # no magic of its own beyond its first byte, so it comes last
)
BY_NAME = {f.name: f for f in FORMATS}
SUFFIXES: dict[str, tuple[Format, ...]] = {s: tuple(f for f in FORMATS if s in f.suffixes) for f in FORMATS for s in f.suffixes}
NAMES: tuple[tuple[re.Pattern[str], Format], ...] = tuple((re.compile(f.names), f) for f in FORMATS if f.names)

__all__ = ["BY_NAME", "FORMATS", "HEAD", "NAMES", "SUFFIXES", "Anatomy", "Check", "Claim", "Damage", "Format", "structure"]
