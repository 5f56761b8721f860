"""The text of a seal (docs/seals.md): JSON, a line for each file, and a digest over all of it at its end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ckpt_tools.checksum import Hash, sums
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.common.json_text import MAX_SIZE, parse
from ckpt_tools.formats.common.stored_digests import Digest, can_compare, make_digest
from ckpt_tools.model.seal import NAMES, Fragment, Seal, SealedCheckpoint, SealedFile

# ---- Digests of whole files that a seal may have, by their names.


class Crc64Nvme:
    """CRC-64/NVME, as Amazon S3 keeps it. Raises ImportError without the package awscrt."""

    def __init__(self) -> None:
        self._crc: Any = import_module("awscrt.checksums").crc64nvme
        self._value = 0

    def update(self, data: memoryview | bytes, /) -> None:
        self._value = self._crc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(8, "big")


def known_digests(file: SealedFile, algorithm: str = "") -> dict[str, bytes]:
    """The digests of a whole file that stores keep as well; ``algorithm`` is that of the seal's own."""
    told = {"crc32": file.crc32, "crc32c": file.crc32c, **file.also, algorithm: file.digest}
    return {name: bytes.fromhex(text) for name, text in told.items() if name in NAMES}


def hash_of(name: str) -> Callable[[], Hash] | None:
    """What makes a running digest of that name; None where its package is not installed."""
    if name == "crc64nvme":
        return Crc64Nvme if find_spec("awscrt") else None
    return partial(make_digest, Digest(name, b""), 0) if can_compare(name) else None


SCHEMA = "ckpt-tools/seal/v1"
ALGORITHMS = {"xxh3": 32, "sha256": 64, "blake3": 64}
"""What the digest of a whole file may be, and how many hexadecimal digits it has. That of xxh3 follows from
the chunks (checksum/sums.py); the others are what sha256sum and b3sum say.
"""
_END = re.compile(rb'"self":"([0-9a-f]{32})"}\n')
_ZEROS = b"0" * sums.DIGITS
_BLANK = b'"self":"' + _ZEROS + b'"}\n'
_TAIL = len(_BLANK)
_OPEN, _CLOSE = b'"files":[', b"\n],\n"
"""How the line before those of the files ends, and what comes between them and the last one."""
_BATCH = 1 << 20
"""Bytes of lines that are parsed at once: the text of a seal takes eight times its size when it is."""
_MEMORY = 240_000_000
"""Bytes of memory that what a seal says may take, estimated: that of 200,000 files, or of 600,000 tensors."""
_OF_FILE, _OF_DIGEST = 1200, 400
"""Bytes of memory for a file and for a further digest of it, where each is read for two purposes."""
MOST_FILES = _MEMORY // _OF_FILE
"""Files of one seal."""
SHARED = "let ranks each seal some of its files: ckpt_tools.seal(path, rank=…, world_size=…, files=…)"
"""What to do with more of them."""
_LONGEST = 4096
"""Characters of a text."""


class NotASeal(ValueError):
    """Why a value is no seal of this version."""


def misplaced(name: str, seal: Seal) -> str:
    """Why a seal cannot have the name of its file; "" where it can."""
    own = of_one_file(name)
    if own and [f.path for f in seal.files] != [own]:
        return f"it is not the seal of {own!r}, as its name says"
    if is_fragment(name) and (seal.fragment is None or fragment_name(seal.fragment.rank) != name):
        return "it is not the fragment of the rank that its name says"
    return ""


# ---- writing


def text(seal: Seal) -> bytes:
    """The seal as bytes. Raises CannotLook for one that would be too large to be read."""
    from json import JSONEncoder

    line = JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
    head = {
        "schema": SCHEMA,
        "tool_version": seal.tool_version,
        "checkpoint": _object(seal.checkpoint),
        "algorithm": seal.algorithm,
        "chunk_size": sums.CHUNK,
        "fragment": _object(seal.fragment) if seal.fragment else None,
        "beside": list(seal.beside),
    }
    body = bytearray(line(head)[:-1].encode() + b',"files":[\n')
    for n, f in enumerate(seal.files):  # one after the other: the text of 100,000 files is in memory twice
        body += b",\n" if n else b""
        body += line(_row(f)).encode()
    body += _CLOSE
    data = closed(body)
    if len(data) > MAX_SIZE or sum(map(_weight, seal.files)) > _MEMORY:
        why = f"one seal of {len(seal.files):,} files would be too large to be read ({len(data):,} bytes)"
        raise CannotLook(why, SHARED)
    return data


def _weight(file: SealedFile) -> int:
    """About how much memory a file takes."""
    return _OF_FILE + _OF_DIGEST * (len(file.counters) + len(file.also) + len(file.tensors))


def closed(body: bytes | bytearray) -> bytes:
    """A text without its last line, closed with the digest over all of it."""
    return b"".join((body, _BLANK.replace(_ZEROS, _digest(body, _BLANK).encode())))


def _object(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _row(file: SealedFile) -> dict[str, Any]:
    """A file without what it has nothing of."""
    return {name: value for name, value in _object(file).items() if value or name in _ALWAYS}


_ALWAYS = ("path", "size", "digest", "crc32", "crc32c")


def _digest(*pieces: bytes | bytearray | memoryview) -> str:
    import xxhash

    made = xxhash.xxh3_128()
    for data in pieces:
        made.update(data)
    return made.hexdigest()


def is_whole(data: bytes) -> bool:
    """Whether the digest at the end is that of the text, with zeros in its own place."""
    tail = _END.fullmatch(data[-_TAIL:])
    return tail is not None and _digest(memoryview(data)[:-_TAIL], _BLANK) == tail[1].decode()


# ---- reading


_Kind = TypeVar("_Kind", bound=Struct)


def _convert(value: object, kind: type[_Kind], what: str) -> _Kind:
    """The value that an object is, each of its members of its type. Raises NotASeal."""
    if not isinstance(value, dict):
        raise NotASeal(f"{what} is not an object")
    known = {name: value[name] for name in kind.__struct_fields__ if name in value}
    try:
        return convert(known, kind)
    except (ValidationError, UnicodeEncodeError) as e:  # the latter: half a pair of UTF-16 for a number
        found = _MEMBER.search(str(e))
        said = f"{found[1]} is {str(value.get(found[1]))[:60]!r}" if found else str(e)
        raise NotASeal(f"{what}: {said}") from None


_MEMBER = re.compile(r"(?:\$\.|field `)(\w+)")
_CRC = 8


def parsed(data: bytes) -> Seal:
    """The seal that a text is, read by lines if it has one for each file. Raises NotASeal and Damage."""
    start, end = data.find(b"\n"), len(data) - _TAIL - len(_CLOSE)
    own = _END.fullmatch(data[-_TAIL:])
    digest = own[1].decode() if own else ""
    if not (0 < start <= end and data.endswith(_OPEN, 0, start) and data.startswith(_CLOSE, end)):
        return replace(seal_of(parse(data, [])), digest=digest)
    seal = seal_of(parse(data[:start] + b"]}", []))
    files = tuple(_read_files(_read_lines(data, start + 1, end), ALGORITHMS[seal.algorithm]))
    return replace(seal, files=files, digest=digest)


def _read_lines(data: bytes, at: int, end: int) -> Iterator[Any]:
    """The values of the lines from ``at`` to ``end``, each but the last with a comma at its end."""
    while at < end:
        stop = end if at + _BATCH >= end else data.rfind(b",\n", at, at + _BATCH)
        if stop < 0 and (stop := data.find(b",\n", at, end)) < 0:
            stop = end
        rows = parse(b"[" + data[at:stop] + b"]", [])
        yield from rows if isinstance(rows, list) else ()
        at = stop + 2


def seal_of(value: object) -> Seal:
    """The seal that a JSON value is. Raises NotASeal."""
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        raise NotASeal("it is not an object with a schema")
    if value["schema"] != SCHEMA:
        raise NotASeal(f"its schema is {value['schema'][:60]!r}, and this version reads {SCHEMA}")
    algorithm, files, beside = value.get("algorithm"), value.get("files"), value.get("beside", [])
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise NotASeal(f"its algorithm is {str(algorithm)[:40]!r}")
    if value.get("chunk_size") != sums.CHUNK:
        raise NotASeal("its chunks are of another size than 64 MiB")
    texts = isinstance(beside, list) and all(isinstance(b, str) and len(b) <= _LONGEST for b in beside)
    if not isinstance(files, list) or not texts:
        raise NotASeal("it has no list of files")
    fragment = value.get("fragment")
    seal = Seal(
        tool_version=sys.intern(str(value.get("tool_version"))[:_LONGEST]),
        checkpoint=_convert(value.get("checkpoint"), SealedCheckpoint, "checkpoint"),
        algorithm=sys.intern(algorithm),
        files=tuple(_read_files(_take_each(files), ALGORITHMS[algorithm])),
        fragment=None if fragment is None else _convert(fragment, Fragment, "fragment"),
        beside=tuple(beside),
    )
    if seal.fragment and seal.fragment.rank >= seal.fragment.world_size:
        raise NotASeal(f"rank {seal.fragment.rank} is none of {seal.fragment.world_size}")
    return seal


def _take_each(rows: list[Any]) -> Iterator[Any]:
    """Each, which the list then has no more: a seal may name 100,000 files, and none is held twice."""
    for i, row in enumerate(rows):
        rows[i] = None
        yield row


def _read_files(rows: Iterable[Any], digits: int) -> Iterator[SealedFile]:
    seen, memory = set[str](), 0
    for i, row in enumerate(rows):
        for whole, chunk in (("crc32", "chunk_crc32"), ("crc32c", "chunk_crc32c")):
            if isinstance(row, dict) and chunk in row and row[chunk] == row.get(whole):
                row[chunk] = row[whole]  # one text, where that of its only chunk is that of the whole
        file = _convert(row, SealedFile, f"file {i}")
        memory += _weight(file)
        if memory > _MEMORY:
            raise NotASeal(f"what it says takes more than {_MEMORY:,} bytes of memory")
        n = sums.count(file.size)
        lengths = (len(file.digest), len(file.chunks), len(file.chunk_crc32), len(file.chunk_crc32c))
        if lengths != (digits, n * sums.DIGITS, n * _CRC, n * _CRC):
            raise NotASeal(f"file {i}: its digests do not fit its size")
        if file.path in seen:
            raise NotASeal(f"file {i}: {file.path[:60]!r} is listed twice")
        seen.add(file.path)
        yield file


NAME = ".ckpt-seal.json"
FRAGMENTS = ".ckpt-seal.d"
"""The directory of what each rank has sealed."""
SIGNATURE = "model.sig"
"""What ``--sign-key`` writes beside a seal, for it and for model_signing."""
_FRAGMENT = re.compile(r"rank-\d{5,9}\.json")
_ASIDE = re.compile(rf"(\..*{re.escape(NAME[1:])}|{_FRAGMENT.pattern})\.\d+\.[0-9a-f]{{8}}\.tmp")


def beside(name: str) -> str:
    """The name of the seal of one file that lies among those of other checkpoints."""
    return f".{name}{NAME}"


def signature_beside(name: str) -> str:
    """The name of the signature of one file that lies among those of other checkpoints."""
    return f".{name}.{SIGNATURE}"


def is_apart(name: str) -> bool:
    """Whether a file is a seal or a signature, which no seal names."""
    return NAME in name or name == SIGNATURE or (name.startswith(".") and name.endswith(f".{SIGNATURE}"))


def of_one_file(name: str) -> str:
    """The file whose own seal has this name; "" where it is that of a directory."""
    return name[1 : -len(NAME)] if name.endswith(NAME) and len(name) > len(NAME) + 1 else ""


def fragment_name(rank: int) -> str:
    """The name of one rank's share, in FRAGMENTS."""
    return f"rank-{rank:05d}.json"


def is_fragment(name: str) -> bool:
    """Whether a file in FRAGMENTS has the name of a fragment; others are being written."""
    return _FRAGMENT.fullmatch(name) is not None


def is_aside(name: str) -> bool:
    """Whether a name is that of a seal that is being written, or whose writer died."""
    return _ASIDE.fullmatch(name) is not None


def aside(name: str) -> str:
    """A name of its own for a seal that is being written."""
    return f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def is_seal(path: str) -> bool:
    """Whether a path is that of a seal or a fragment."""
    if path.endswith(NAME):
        return True
    home, _, name = path.rpartition("/")
    return home.rpartition("/")[2] == FRAGMENTS and is_fragment(name)


def base_of(path: str) -> str:
    """The directory that the names in the seal at ``path`` are relative to."""
    home = os.path.dirname(path)
    return os.path.dirname(home) if os.path.basename(home) == FRAGMENTS else home
