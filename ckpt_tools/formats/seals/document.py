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
from msgspec.structs import asdict, replace

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


def list_digests(file: SealedFile, algorithm: str = "") -> dict[str, bytes]:
    """Return a file's digests that stores may keep as well, by algorithm; ``algorithm`` is the seal's."""
    digests = {"crc32": file.crc32, "crc32c": file.crc32c, **file.also, algorithm: file.digest}
    return {name: bytes.fromhex(text) for name, text in digests.items() if name in NAMES}


def find_hash(name: str) -> Callable[[], Hash] | None:
    """Return what makes a running digest by the algorithm ``name``; None if its package is not installed."""
    if name == "crc64nvme":
        return Crc64Nvme if find_spec("awscrt") else None
    return partial(make_digest, Digest(name, b""), 0) if can_compare(name) else None


SCHEMA = "ckpt-tools/seal/v1"
ALGORITHMS = {"xxh3": 32, "sha256": 64, "blake3": 64}
"""The algorithms of a seal, and the hexadecimal digits of their digests. The digest by xxh3 follows from the
chunks (checksum/sums.py); the others are as sha256sum and b3sum compute them.
"""
_END = re.compile(rb'"self":"([0-9a-f]{32})"}\n')  # the last line: the digest of the text
_ZEROS = b"0" * sums.DIGITS
_BLANK = b'"self":"' + _ZEROS + b'"}\n'
_TAIL = len(_BLANK)
_OPEN, _CLOSE = b'"files":[', b"\n],\n"
"""The end of the line before the lines of files, and the text between them and the last line."""
_BATCH = 1 << 20
"""Bytes of lines that are parsed at once: parsed JSON takes eight times the size of its text."""
_MEMORY = 240_000_000
"""Bytes of memory that a seal may take, estimated: enough for 200,000 files, or 600,000 tensors."""
_OF_FILE, _OF_DIGEST = 1200, 400
"""Bytes of memory for a file, and for each further digest or counter: both are read for two purposes."""
MOST_FILES = _MEMORY // _OF_FILE
"""Files of one seal, at most."""
SHARED = "let ranks each seal some of its files: ckpt_tools.seal(path, rank=…, world_size=…, files=…)"
"""The hint for more files."""
_LONGEST = 4096
"""Characters of a text in a seal, at most."""


class NotASeal(ValueError):
    """Raised for a value that is no seal of this version; the message says why."""


def say_misplaced(name: str, seal: Seal) -> str:
    """Return why the seal in the file ``name`` does not belong there, "" if it does."""
    own = sealed_name(name)
    if own and [f.path for f in seal.files] != [own]:
        return f"it is not the seal of {own!r}, as its name says"
    if is_fragment(name) and (seal.fragment is None or fragment_name(seal.fragment.rank) != name):
        return "it is not the fragment of the rank that its name says"
    return ""


# ---- writing


def text(seal: Seal) -> bytes:
    """Return the text of a seal. Raises CannotLook if the seal would be too large to be read."""
    from json import JSONEncoder

    line = JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
    head = {
        "schema": SCHEMA,
        "tool_version": seal.tool_version,
        "checkpoint": asdict(seal.checkpoint),
        "algorithm": seal.algorithm,
        "chunk_size": sums.CHUNK,
        "fragment": asdict(seal.fragment) if seal.fragment else None,
        "beside": list(seal.beside),
    }
    body = bytearray(line(head)[:-1].encode() + b',"files":[\n')
    for n, f in enumerate(seal.files):  # one by one: else 100,000 files are in memory twice
        body += b",\n" if n else b""
        row = {name: value for name, value in asdict(f).items() if value or name in _ALWAYS}
        body += line(row).encode()
    body += _CLOSE
    data = close_seal(body)
    if len(data) > MAX_SIZE or sum(map(_estimate_memory, seal.files)) > _MEMORY:
        why = f"one seal of {len(seal.files):,} files would be too large to be read ({len(data):,} bytes)"
        raise CannotLook(why, SHARED)
    return data


def _estimate_memory(file: SealedFile) -> int:
    """Return about how many bytes of memory the entry of a file takes."""
    return _OF_FILE + _OF_DIGEST * (len(file.counters) + len(file.also) + len(file.tensors))


def close_seal(body: bytes | bytearray) -> bytes:
    """Return the text of a seal: ``body`` and the last line, with the digest of body and line."""
    return b"".join((body, _BLANK.replace(_ZEROS, _hash_pieces(body, _BLANK).encode())))


_ALWAYS = ("path", "size", "digest", "crc32", "crc32c")  # fields that are written even if empty


def _hash_pieces(*pieces: bytes | bytearray | memoryview) -> str:
    """Return the XXH3-128 of the joined pieces, in hexadecimal digits."""
    import xxhash

    running = xxhash.xxh3_128()
    for data in pieces:
        running.update(data)
    return running.hexdigest()


def is_whole(data: bytes) -> bool:
    """Return True if the digest at the end is that of the text, with zeros in place of the digest."""
    tail = _END.fullmatch(data[-_TAIL:])
    return tail is not None and _hash_pieces(memoryview(data)[:-_TAIL], _BLANK) == tail[1].decode()


# ---- reading


_Kind = TypeVar("_Kind", bound=Struct)


def _convert(value: object, kind: type[_Kind], what: str) -> _Kind:
    """Convert a JSON object to a struct of type ``kind``, and check each field. Raises NotASeal."""
    try:
        return convert(value, kind)
    except (ValidationError, UnicodeEncodeError) as e:  # the latter: half a pair of UTF-16
        raise NotASeal(f"{what}: {e}") from None


_CRC = 8  # hexadecimal digits


def parse_seal(data: bytes) -> Seal:
    """Parse a seal, line by line if each file has a line of its own. Raises NotASeal and Damage."""
    start, end = data.find(b"\n"), len(data) - _TAIL - len(_CLOSE)
    own = _END.fullmatch(data[-_TAIL:])
    digest = own[1].decode() if own else ""
    if not (0 < start <= end and data.endswith(_OPEN, 0, start) and data.startswith(_CLOSE, end)):
        return replace(convert_seal(parse(data, [])), digest=digest)
    seal = convert_seal(parse(data[:start] + b"]}", []))
    files = tuple(_read_files(_read_lines(data, start + 1, end), ALGORITHMS[seal.algorithm]))
    return replace(seal, files=files, digest=digest)


def _read_lines(data: bytes, at: int, end: int) -> Iterator[Any]:
    """Yield the JSON values of the lines from byte ``at`` to ``end``; all but the last end with a comma."""
    while at < end:
        stop = end if at + _BATCH >= end else data.rfind(b",\n", at, at + _BATCH)
        if stop < 0 and (stop := data.find(b",\n", at, end)) < 0:
            stop = end
        rows = parse(b"[" + data[at:stop] + b"]", [])
        yield from rows if isinstance(rows, list) else ()
        at = stop + 2


def convert_seal(value: object) -> Seal:
    """Return the seal that a parsed JSON value describes. Raises NotASeal."""
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        raise NotASeal("it is not an object with a schema")
    if value["schema"] != SCHEMA:
        raise NotASeal(f"its schema is {value['schema'][:60]!r}, and this version reads {SCHEMA}")
    algorithm, files, beside = value.get("algorithm"), value.get("files"), value.get("beside", [])
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise NotASeal(f"its algorithm is {str(algorithm)[:40]!r}")
    if value.get("chunk_size") != sums.CHUNK:
        raise NotASeal("its chunks are of another size than 64 MiB")
    are_texts = isinstance(beside, list) and all(isinstance(b, str) and len(b) <= _LONGEST for b in beside)
    if not isinstance(files, list) or not are_texts:
        raise NotASeal("it has no list of files")
    fragment = value.get("fragment")
    seal = Seal(
        tool_version=sys.intern(str(value.get("tool_version"))[:_LONGEST]),
        checkpoint=_convert(value.get("checkpoint"), SealedCheckpoint, "checkpoint"),
        algorithm=sys.intern(algorithm),
        files=tuple(_read_files(_drop_each(files), ALGORITHMS[algorithm])),
        fragment=None if fragment is None else _convert(fragment, Fragment, "fragment"),
        beside=tuple(beside),
    )
    if seal.fragment and seal.fragment.rank >= seal.fragment.world_size:
        raise NotASeal(f"rank {seal.fragment.rank} is none of {seal.fragment.world_size}")
    return seal


def _drop_each(rows: list[Any]) -> Iterator[Any]:
    """Yield each row and drop it from the list, so that none of 100,000 files is in memory twice."""
    for i, row in enumerate(rows):
        rows[i] = None
        yield row


def _read_files(rows: Iterable[Any], digits: int) -> Iterator[SealedFile]:
    """Yield the entries of a seal; a file's digest has ``digits`` hexadecimal digits. Raises NotASeal."""
    seen, memory = set[str](), 0
    for i, row in enumerate(rows):
        for whole, chunk in (("crc32", "chunk_crc32"), ("crc32c", "chunk_crc32c")):
            if isinstance(row, dict) and chunk in row and row[chunk] == row.get(whole):
                row[chunk] = row[whole]  # equal for a file of one chunk: in memory once
        file = _convert(row, SealedFile, f"file {i}")
        memory += _estimate_memory(file)
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
"""The directory of the fragments, one for each rank."""
SIGNATURE = "model.sig"
"""The signature that ``--sign-key`` writes beside a seal, also for model_signing."""
_FRAGMENT = re.compile(r"rank-\d{5,9}\.json")
_ASIDE = re.compile(rf"(\..*{re.escape(NAME[1:])}|{_FRAGMENT.pattern})\.\d+\.[0-9a-f]{{8}}\.tmp")


def name_seal(name: str) -> str:
    """Return the name of the seal of a single file, in a directory with files of other checkpoints."""
    return f".{name}{NAME}"


def name_signature(name: str) -> str:
    """Return the name of the signature of a single file, in a directory with files of other checkpoints."""
    return f".{name}.{SIGNATURE}"


def is_apart(name: str) -> bool:
    """Return True if a file is a seal or a signature; no seal names these."""
    return NAME in name or name == SIGNATURE or (name.startswith(".") and name.endswith(f".{SIGNATURE}"))


def sealed_name(name: str) -> str:
    """Return the name of the single file whose seal has this name; "" for the seal of a directory."""
    return name[1 : -len(NAME)] if name.endswith(NAME) and len(name) > len(NAME) + 1 else ""


def fragment_name(rank: int) -> str:
    """Return the name of the fragment of one rank, in FRAGMENTS."""
    return f"rank-{rank:05d}.json"


def is_fragment(name: str) -> bool:
    """Return True if a file in FRAGMENTS is a fragment by name; other names are of unfinished ones."""
    return _FRAGMENT.fullmatch(name) is not None


def is_aside(name: str) -> bool:
    """Return True for the name of an unfinished seal; its writer may have died."""
    return _ASIDE.fullmatch(name) is not None


def name_aside(name: str) -> str:
    """Return a unique temporary name for a seal that is being written."""
    return f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def is_seal(path: str) -> bool:
    """Return True for the path of a seal or a fragment."""
    if path.endswith(NAME):
        return True
    home, _, name = path.rpartition("/")
    return home.rpartition("/")[2] == FRAGMENTS and is_fragment(name)


def find_base(path: str) -> str:
    """Return the directory that the names in the seal at ``path`` are relative to."""
    home = os.path.dirname(path)
    return os.path.dirname(home) if os.path.basename(home) == FRAGMENTS else home
