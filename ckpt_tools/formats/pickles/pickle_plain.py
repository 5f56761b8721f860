"""One plain pickle to the last byte: read opcode by opcode, never loaded."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, make_format
from ckpt_tools.formats.pickles.judged import judge_without_joblib, read_judged
from ckpt_tools.formats.pickles.machine import Machine
from ckpt_tools.formats.pickles.reader import STEPS
from ckpt_tools.formats.pickles.scalars import add_arrays, add_scalars, read_scalar
from ckpt_tools.formats.pickles.stubs import NeedMore, Pickled
from ckpt_tools.formats.torch.tensors import add_tensors, check_not_tar, is_proto, legacy_magic
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source


def magic(head: bytes) -> bool:
    """Return whether ``head`` begins a pickle of any protocol that is not torch's legacy format."""
    if legacy_magic(head):
        return False
    if head[:1] == b"\x80":
        return is_proto(head)
    # protocols 0 and 1 have no magic: all opcodes must make sense, and picklers fill the memo
    machine = Machine(head, 0, 0, {})
    try:
        machine.run(STEPS)
    except NeedMore:
        return len(head) == HEAD and bool(machine.memo)
    except (Damage, IndexError, KeyError, ValueError):
        return False
    return len(head) < HEAD and machine.pos == len(head) > 2


def begins_well(head: bytes) -> bool:
    """Return whether the first bytes of a file are opcodes that make sense."""
    try:
        Machine(head, 0, 0, {}).run(STEPS)
    except NeedMore:
        return True
    except (Damage, IndexError, KeyError, ValueError):
        return False
    return True


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a plain pickle to its end; a number that is all it has goes into ``metadata``. Raise Damage."""
    yield finding("not-checksummed", "a pickle has no checksum: only its own structure was checked")
    yield from check_not_tar(source)
    pickled = yield from read_plain(source, anatomy)
    if pickled.unpadded_arrays:
        yield from judge_without_joblib(source)
    if type(pickled.value) is int and (number := read_scalar(pickled.value)):
        anatomy.metadata["value"] = number[0]  # the file has nothing else to list


def read_plain(source: Source, anatomy: Anatomy) -> Generator[Finding, None, Pickled]:
    """Read the pickle that fills a source; add its scalars and arrays to ``anatomy``. Raise Damage."""
    pickled = yield from read_judged(source, 0, source.size, anatomy, arrays=True)
    what = "a pickle: its opcodes and lengths are checked, not its names and numbers"
    anatomy.explain(0, pickled.end, what, Guard.UNPROTECTED)
    if pickled.persistents:
        # pickle.load raises at the first; the program that wrote the file may have its own Unpickler
        first, count = pickled.persistents[0].offset, len(pickled.persistents)
        why = f"{count:,} of its objects are kept elsewhere (persistent ids, out-of-band buffers)"
        why = f"{why}: pickle.load refuses it"
        hint = "load it by the program that wrote it; if that is pickle.load, restore it from another copy"
        yield finding("bad-pickle", why, offset=first, severity=Severity.WARNING, hint=hint)
    add_scalars(pickled.value, anatomy)
    yield from add_tensors(pickled, {}, anatomy)
    yield from add_arrays(pickled, anatomy)
    if pickled.end < source.size:
        why = f"{source.size - pickled.end:,} bytes follow the pickle"
        yield finding("trailing-data", why, offset=pickled.end)
    return pickled


FORMAT = make_format("pickle_plain", magic, _structure, distinct=False)
