"""What the bytes are: FORMATS in the order in which magics are tried, most specific first."""

from __future__ import annotations

import re

from ckpt_tools.formats import (
    dcp,
    hdf5,
    json_member,
    mcore_integrity,
    mindspore_ckpt,
    mindspore_encrypted,
    mindspore_strategy,
    ocdbt,
    orbax_tree,
    pickle_plain,
    safetensors,
    safetensors_index,
    tf_bundle,
    torch_legacy,
    torch_tar,
    torch_zip,
    zarr,
    zip_archive,
)
from ckpt_tools.formats._base import HEAD, Anatomy, Check, Claim, Damage, Format, structure

FORMATS: tuple[Format, ...] = (
    torch_zip.FORMAT,
    zip_archive.FORMAT,
    torch_legacy.FORMAT,
    torch_tar.FORMAT,
    mindspore_encrypted.FORMAT,
    dcp.FORMAT,
    pickle_plain.FORMAT,
    safetensors.FORMAT,
    safetensors_index.FORMAT,
    tf_bundle.FORMAT,
    hdf5.FORMAT,
    mindspore_strategy.FORMAT,
    ocdbt.FORMAT,
    zarr.FORMAT,
    orbax_tree.FORMAT,
    mindspore_ckpt.FORMAT,  # no magic of its own beyond its first byte, so it comes last
    json_member.FORMAT,  # any JSON: whatever knows more goes first
    mcore_integrity.FORMAT,  # goes by its name: its magic is that of any JSON
)
BY_NAME = {f.name: f for f in FORMATS}
SUFFIXES: dict[str, tuple[Format, ...]] = {s: tuple(f for f in FORMATS if s in f.suffixes) for f in FORMATS for s in f.suffixes}
NAMES: tuple[tuple[re.Pattern[str], Format], ...] = tuple((re.compile(f.names), f) for f in FORMATS if f.names)

__all__ = ["BY_NAME", "FORMATS", "HEAD", "NAMES", "SUFFIXES", "Anatomy", "Check", "Claim", "Damage", "Format", "structure"]
