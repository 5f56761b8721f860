"""Files of no layout and no format: which names are surely of something else, and how other files begin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial

from ckpt_tools import formats
from ckpt_tools.discovery.found import Discovery
from ckpt_tools.formats import HEAD, format_of
from ckpt_tools.formats.archives.packed import BEGINNING, ENDING, has_member_of_torch, read_first, read_names
from ckpt_tools.formats.named import UNREAD
from ckpt_tools.formats.pickles import pickle_plain
from ckpt_tools.storage import opened
from ckpt_tools.storage.listing import list_entries
from ckpt_tools.storage.retry import is_directory

_ENDINGS = (
    "log out err txt json jsonl ndjson csv tsv yaml yml toml md html xml py sh ipynb"
    " idx arrow parquet feather orc avro tfrecord tfrecords record recordio mindrecord rec lmdb mdb db sqlite"
    " sqlite3 wandb"
    " jpg jpeg png gif webp bmp ico tif tiff exr hdr psd svg pdf mp4 m4v mpg mpeg mkv webm avi mov"
    " wav flac mp3 ogg opus aac m4a mid midi ply obj stl glb gltf usd usdz fbx pcd las nii dcm ttf otf woff2"
    " so a o whl egg jar apk docx xlsx pptx exe deb rpm sif sqsh squashfs iso pack core dmp prof trace"
    " nsys-rep qdrep tar tgz gz bz2 xz zst lz4 zip 7z"
)
"""Endings of texts, data sets, pictures and sound, programs, and archives."""
_OTHERS = re.compile(
    rf".*\.(?:{'|'.join(_ENDINGS.split())})(?:\.\d+)?"
    r"|core(?:\.[\w.-]+)?|.*\.so\.[\d.]+|.*tfevents.*|.*\.(?:log|out|err)[.-].*|.*\.tfrecords?-\d+-of-\d+|.*\.(?:arrow|parquet)-\d+-of-\d+",
    re.IGNORECASE,
)
"""Names of logs, core dumps, data sets, programs and archives."""
_ARCHIVES = re.compile(r".*\.(?:tar|zip)(?:\.\d+)?", re.IGNORECASE)
"""Archives in which checkpoints come as well: their beginning tells."""
_PACKED = re.compile(
    r"(?:\.tar)?\.(?:tar|tgz|gz|bz2|xz|zst|lz4|lzma|z|zip|7z|gpg|pgp|age|aes|enc|crypt)\Z", re.IGNORECASE
)
"""Endings of files that were packed, compressed or encrypted."""
NO_STATE = frozenset({"text", "program", "data"})
"""Contents that are no training state: a log, a core dump, packed files."""


def is_packed_state(name: str) -> str:
    """Return the name that a state's file had before it was packed (``step_300.pt.gz``), else ""."""
    inner = strip_packing(name)
    return inner if inner != name and formats.names.only_state(inner) else ""


def strip_packing(name: str) -> str:
    """Return the name that a file had before it was compressed, packed or encrypted."""
    return _PACKED.sub("", name)


def tells_of_a_state(name: str) -> bool:
    """Return True if a name is a state's with something behind it (``step_300.pt.1``)."""
    heads = (name[: m.start()].strip("#~._") for m in re.finditer(r"[^A-Za-z0-9]|$", name))
    return any("." in head and formats.names.only_state(head) for head in heads)


def list_unknown(found: Discovery, root: str, *, files: bool = False) -> Iterator[str]:
    """Yield paths that no piece explains; without ``files`` also directories beside them. Raise OSError."""
    yield from (f.path for f in found.bare)
    for entries in (list_entries(at, partial(found.excluded.keep, root)) for at in found.strange):
        yield from (e.path for e in entries if not (files and is_directory(e)))


def is_other(name: str) -> bool:
    """Return True if a name says what the file is: it has a format's ending, or is of something else."""
    other = _OTHERS.fullmatch(name) and not _ARCHIVES.fullmatch(name)
    return formats.names.known(name) or bool(other and not UNREAD.fullmatch(name))


def is_unread(name: str) -> bool:
    """Return True for the name of a state that ckpt cannot read; memory maps may be replay buffers."""
    return UNREAD.fullmatch(name) is not None and not name.endswith(".memmap")


def read_format(path: str) -> str | None:
    """Return the format whose beginning a file has, or whose end an archive has; or None. Raise OSError."""
    is_archive = _ARCHIVES.fullmatch(path.rpartition("/")[2])
    try:
        with opened(path) as source:
            begins = source.read(0, min(BEGINNING, source.size))
            last = min(ENDING, source.size) if is_archive else 0
            ends = source.read(source.size - last, last)
    except OSError as why:
        why.filename = path
        raise
    if last:
        return _find_archive_format(begins, ends) or "data"
    head = begins[:HEAD]
    known = (f.name for f in map(format_of, formats.names.told_by_magic) if f.distinct and f.magic(head))
    if name := next(known, ""):
        return name
    # two bytes mark a pickle, so that opcodes must follow
    if begins.startswith(b"\x80") and pickle_plain.magic(head) and pickle_plain.begins_well(begins):
        return pickle_plain.FORMAT.name
    return "text" if is_text(begins) else "program" if begins.startswith(b"\x7fELF") else None


def _find_archive_format(begins: bytes, ends: bytes) -> str:
    """Return an archive's format by its first and last bytes: torch's own, or a zip with a state; else ""."""
    members = (b"/data.pkl", b"/constants.pkl", b"/version", b"/byteorder")
    if format_of("torch_zip").magic(begins[:HEAD]) and read_first(begins).endswith(members):
        return "torch_zip"
    if has_member_of_torch(begins):
        return "torch_tar"
    zip_format = format_of("zip_archive")
    names = read_names(ends) if zip_format.magic(begins[:HEAD]) else ()
    return zip_format.name if any(formats.names.only_state(os.path.basename(name)) for name in names) else ""


def is_text(head: bytes) -> bool:
    """Return True if a file begins as logs do: no byte that a terminal would not show."""
    if not head or head.translate(None, bytes(range(32, 256)) + b"\t\n\r\f\b\x1b"):
        return False
    try:
        head[:-4].decode("utf-8")
    except UnicodeDecodeError as e:
        return e.start > len(head) - 8
    return True
