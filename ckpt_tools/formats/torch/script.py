"""The code of a TorchScript archive: text that torch.jit.load compiles, and of which it runs every
``__setstate__``.

Facts: torch/csrc/jit/serialization/import_source.cpp (``torch`` and ``ops`` are what code reaches),
frontend/lexer.cpp, and the operators of torch 2.13, torchvision and torchaudio that take a file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip import Record, read_record
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

_MOST = 16 << 20
"""Bytes of code of one archive that are searched."""
_GAP = rb"(?:\s|\\|#[^\n]*\n)*"
_FILES = re.compile(
    rb"\b(from_file|read_file|write_file|load_tensor|sox_io\w+|sox_effects_apply_effects_file"
    rb"|aten::save)\b|(?<!\bself)\." + _GAP + rb"(save)\b|\." + _GAP + rb"(save)" + _GAP + rb"\("
)
_HIDDEN = re.compile(
    rb"[\"']save[\"']|," + _GAP + rb"[\"'][^\"'\n]{0,64}\\[^\"'\n]{0,64}[\"']" + _GAP + rb"\)"
    rb"|\w[\"']" + _GAP + rb"[\"']\w|\bself\s*=[^=]"
)
"""A name for getattr that is an operator's, has escapes or is in pieces, or another self: not torch's."""


def code_of_script(source: Source, records: Sequence[Record], anatomy: Anatomy) -> Iterator[Finding]:
    """What is said of the code in the records of such an archive. Raises Damage."""
    anatomy.metadata["torchscript"] = True
    why = "a TorchScript archive: whoever loads it runs the code in it"
    yield finding("needs-trust", why, hint="load it only if you trust who wrote it")
    left = _MOST
    for r in records:
        if r.payload < 0 or not r.name.endswith((".py", "bytecode.pkl")):
            continue
        left -= r.size
        if left < 0:
            yield finding("unread-pickle", "the archive has more code than is looked into", offset=r.place)
            break
        code = read_record(source, r, _MOST)
        if (found := _FILES.search(code)) is not None:
            name = next(filter(None, found.groups())).decode()
            why = f"the code in {r.name[:100]!r} calls {name!r}, which opens or writes files"
            yield finding("unsafe-pickle", why, offset=r.place)
        elif (b"getattr" in code or b".save" in code) and _HIDDEN.search(code):
            why = f"the code in {r.name[:100]!r} hides what it calls"
            yield finding("unsafe-pickle", why, offset=r.place)
