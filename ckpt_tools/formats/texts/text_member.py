"""Plain text files of a checkpoint: a number, a word, labels, or YAML with one value a line, as SpeechBrain
keeps its counters and ``CKPT.yaml``.

Facts: speechbrain 1.1.2 (utils/checkpoints.py _save_checkpoint_metafile, core.py Brain._save,
utils/epoch_loop.py EpochCounter, dataio/dataloader.py, dataio/encoder.py); PyYAML writes a line end after the
last value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, make_format
from ckpt_tools.formats.common.tensors import remember
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Scalar
from ckpt_tools.storage import Source

_MAX_SIZE = 64 << 20
_MAX_LINES = 10_000
"""Lines whose values are kept; files of labels may have more lines."""
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1f\x7f]")
_VALUE = re.compile(r"([A-Za-z_][\w.-]{0,99}): ([^\s#'\"\[{&*!|>][^\n]{0,200})")
_WHOLE = re.compile(r"-?\d{1,18}")
_WORD = re.compile(r"[A-Za-z][\w-]{0,99}", re.ASCII)
_REAL = re.compile(r"-?\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,3})?")
_META = "# yamllint disable\n"
"""The first line of each CKPT.yaml."""
_NEEDED = {"CKPT.yaml": ("end-of-epoch", "unixtime"), "brain.ckpt": ("step",)}
"""File name -> keys without which SpeechBrain does not find the checkpoint, or does not load it."""
_LABEL = re.compile(r"[^\n]{1,200} => ")
"""The beginning of an encoder's labels."""


def _magic(head: bytes) -> bool:
    """Return True for text, but not for HTML or the first bytes of a pickle or a torch archive."""
    begins_otherwise = head in (b"", b"P") or head.startswith((b"<", b"PK", b"\x80"))
    return not begins_otherwise and _BINARY.search(head) is None


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check that all bytes are text; keep the values that tell progress. Reads the whole file."""
    text = _read_text(source)
    top = dict[str, Scalar]()
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        if m := _VALUE.fullmatch(line.rstrip()):
            top[m[1]] = _read_scalar(m[2])
    if _WHOLE.fullmatch(text.strip()):
        top["value"] = int(text)
    elif _WORD.fullmatch(text.strip()):
        top["value"] = text.strip()
    anatomy.keys |= top.keys()
    for key, value in top.items():
        remember(anatomy.metadata, key, value)
    name = "CKPT.yaml" if text.startswith(_META) else source.path.rpartition("/")[2]
    needed = _NEEDED.get(name, ())
    if missing := [key for key in needed if key not in top]:
        why = f"there is no {' and no '.join(missing)}, which SpeechBrain writes"
        yield finding("bad-header" if text.endswith("\n") else "truncated", why, offset=source.size)
    elif (needed or _LABEL.match(text)) and not text.endswith("\n"):
        why = "the text does not end with the line end that SpeechBrain always writes"
        yield finding("truncated", why, offset=source.size)
    what = "text: only that it is text is checked, not what it says"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)


def _read_text(source: Source) -> str:
    """Return the text of the whole file. Raises Damage if a byte is no text."""
    if source.size > _MAX_SIZE:
        raise Damage("too-complex", f"a text of {source.size} bytes: none that is kept so is so long", 0)
    data = source.read(0, source.size)
    if m := _BINARY.search(data):
        zeros = not data[m.start() :].strip(b"\0")
        why = f"{'zeros' if zeros else f'a byte 0x{data[m.start()]:02x}'} in what is text before"
        raise Damage("zero-filled" if zeros else "bad-header", why, m.start())
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise Damage("bad-header", f"the text is no UTF-8: {e.reason}", e.start) from None


def _read_scalar(text: str) -> Scalar:
    """Return a number or a truth value as YAML reads it; else the text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)


FORMAT = make_format("text_member", _magic, _structure, distinct=False, loader=None)
