"""Files of no known kind, when nothing else was found: logs, core dumps and data sets are ignored, the others
may be checkpoints.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ckpt_tools import formats
from ckpt_tools.discovery.found import Discovery
from ckpt_tools.discovery.renamed_names import is_archive, names_a_save, wrapped_state
from ckpt_tools.formats import HEAD, format_of
from ckpt_tools.formats.archives.packed import (
    BEGINNING,
    ENDING,
    first_name,
    has_member_of_torch,
    is_whole,
    names_at,
)
from ckpt_tools.formats.named import UNREAD, UNREAD_BEGINNINGS, UNREAD_BINARIES, UNREAD_TEXTS
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common.bare_names import calls_a_save, calls_one_of_models, read_bare_name
from ckpt_tools.storage import opened
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import patiently

LARGE = 64 << 20
"""Bytes from which on a file is too large to be passed over without a word."""

_TEXT = "log out err txt json jsonl ndjson csv tsv yaml yml toml md html xml py sh ipynb"
_DATA = (
    "idx arrow parquet feather orc avro tfrecord tfrecords record recordio mindrecord rec lmdb mdb db sqlite"
    " sqlite3 wandb"
)
_MEDIA = (
    "jpg jpeg png gif webp bmp ico tif tiff exr hdr psd svg pdf mp4 m4v mpg mpeg mkv webm avi mov"
    " wav flac mp3 ogg opus aac m4a mid midi ply obj stl glb gltf usd usdz fbx pcd las nii dcm ttf otf woff2"
)
_PROGRAMS = (
    "so a o whl egg jar apk docx xlsx pptx exe deb rpm sif sqsh squashfs iso pack core dmp prof trace"
    " nsys-rep qdrep"
)
_PACKED = "tar tgz gz bz2 xz zst lz4 zip 7z"
_OTHERS = re.compile(
    rf".*\.(?:{'|'.join(f'{_TEXT} {_DATA} {_MEDIA} {_PROGRAMS} {_PACKED}'.split())})(?:\.\d+)?"
    r"|core(?:\.[\w.-]+)?|.*\.so\.[\d.]+|.*tfevents.*|.*\.(?:log|out|err)[.-].*|.*\.tfrecords?-\d+-of-\d+|.*\.(?:arrow|parquet)-\d+-of-\d+",
    re.IGNORECASE,
)
"""Names of logs, core dumps, data sets, programs and archives."""
_DESCRIBES = re.compile(r".*\.(?:json|yaml|yml|toml)", re.IGNORECASE)
"""Names of what is saved beside a model: its configuration, its vocabulary."""
_TENSORDICT = "meta.json"
"""What TensorDict writes beside the memory maps of tensors."""
_OPENED = 10_000
"""Small files whose beginning is read, at most: a tree of as many that are no checkpoints is a data set."""


class Suspect(NamedTuple):
    """A file that may be a checkpoint, or part of one; ``format`` is that of its content, "" when it is none
    of ours, ``writer`` the layout whose framework alone writes to such a path; a ``directory`` is called as
    a save.
    """

    path: str
    size: int
    format: str
    writer: Layout | None = None
    directory: bool = False


def suspects(found: Discovery, root: str, layouts: Layouts) -> Iterator[Suspect]:
    """Files that discovery passed over although their path, their name or their content is a checkpoint's,
    and large ones, those apart whose names are of other things.

    Raises OSError where one cannot be looked at.
    """
    for path, size, *_ in found.bare:
        if writer := layouts.trace(os.path.relpath(path, root)):
            yield Suspect(path, max(size, 0), "", writer)
        elif size >= LARGE and _may_be_data(os.path.basename(path)):
            yield Suspect(path, size, "")
    yield from _among_strange(found, root, layouts)


def remains(found: Discovery, root: str, layouts: Layouts) -> Layout | None:
    """Return the layout whose framework alone writes to the path of a file that no piece explains. Raises
    OSError where a directory cannot be listed.
    """
    bare = (f.path for f in found.bare)
    strange = (e.path for at in found.strange for e in entries_of(at, partial(found.excluded.keep, root)))
    traces = (layouts.trace(os.path.relpath(path, root)) for path in (*bare, *strange))
    return next(filter(None, traces), None)


def _among_strange(found: Discovery, root: str, layouts: Layouts) -> Iterator[Suspect]:
    """Those beside files that nothing recognises; of small ones only so many are opened."""
    left = _OPENED
    for directory in found.strange:
        entries = entries_of(directory, partial(found.excluded.keep, root))
        indexes = {e.name: e.path for e in entries if e.name.endswith((".idx", _TENSORDICT))}
        for e in entries:
            if writer := layouts.trace(os.path.relpath(e.path, root)):
                yield Suspect(e.path, max(_size(e), 0), "", writer)
            elif named := _named(e, indexes):
                left -= named.size > 0
                if left >= 0 or named.size >= LARGE:
                    yield from _suspected(e.path, named)


class _Named(NamedTuple):
    """A file whose name may be that of a state: ``wrapped`` in something that is no format of a state, or
    ``readable`` as one.
    """

    size: int
    wrapped: bool
    readable: bool


def _named(e: os.DirEntry[str], beside: Mapping[str, str]) -> _Named | None:
    """None where the name, or what lies ``beside`` it, says that it is something else."""
    wrapped, readable = bool(wrapped_state(e.name)), _may_be_state(e.name)
    if not (wrapped or readable) or (size := _size(e)) < 0:
        return None
    if size < LARGE and _is_buffer(e.name, beside):
        return None
    if size and _is_corpus(beside.get(f"{e.name.removesuffix('.bin')}.idx")):
        return None
    return _Named(size, wrapped, readable)


def _suspected(path: str, named: _Named) -> Iterator[Suspect]:
    if named.size == 0:
        if _is_emptied(path, wrapped=named.wrapped):
            yield Suspect(path, 0, "")
    elif s := (suspect_of(path, named.size) if named.readable else None):
        yield s
    elif named.wrapped:
        yield Suspect(path, named.size, "")


def kind_of(rows: Sequence[Suspect]) -> tuple[str, str]:
    """What all of those are that no name and no content explains, and what each is."""
    if all(s.directory for s in rows):
        return "directories called as checkpoints are", "called as a checkpoint is, with nothing of one in it"
    if not any(s.size for s in rows):
        return "empty files called as saves are", "called as a save is, and empty"
    if all(s.size >= LARGE for s in rows):
        return "large files of no known kind", "a large file of no known kind"
    return "files that ckpt cannot read", "a file that ckpt cannot read"


def called_saves(found: Discovery, root: str, outside: Callable[[str], bool]) -> Iterator[Suspect]:
    """The highest directories below ROOT that are called as one save is, and are empty or have files in them
    that nothing recognises and that may lie beside a state, or be a part of it: no logs, pictures, tables or
    programs. A job that dies in its first save leaves one, with at most what describes a model in it yet.

    Only files count that are ``outside`` of saves that never finished. Raises OSError where a directory
    cannot be listed.
    """
    names = _left_in_saves(found, root, outside)
    beside = Counter(os.path.dirname(home) for home, left in names.items() if left)
    for home, left in names.items():
        begun = all(not name or _DESCRIBES.fullmatch(name) for name in left)
        if left and (beside[os.path.dirname(home)] > 1 or not begun):
            yield Suspect(home, 0, "", directory=True)


def _left_in_saves(found: Discovery, root: str, outside: Callable[[str], bool]) -> dict[str, list[str]]:
    """By the directory of a save what lies in it: the names of files, "" where there is none."""
    names, with_files = defaultdict[str, list[str]](list), set[str]()
    for directory in dict.fromkeys((*found.strange, *(os.path.dirname(f.path) for f in found.bare))):
        if home := _called_save(directory, root):
            entries = entries_of(directory, partial(found.excluded.keep, root))
            kept = (e for e in entries if not _is_bystander(e.name) and outside(e.path))
            names[home] += (e.name for e in kept if _size(e) > 0)
            with_files.update(home for e in entries if not e.is_dir(follow_symlinks=False))
    for home in _empty_saves(found, root, outside):
        if home not in with_files:
            names[home].append("")
    return names


def _empty_saves(found: Discovery, root: str, outside: Callable[[str], bool]) -> Iterator[str]:
    """The directory of a save, once for each below it in which nothing lies, not even a link."""
    of_ranks: dict[str, bool] = {}
    for path in found.empty:
        home = _called_save(path, root)
        if not home or found.leaves_out(home) or not outside(f"{path}/"):
            continue
        if not _may_be_of_a_rank(home, of_ranks) and not entries_of(path):
            yield home


def _may_be_of_a_rank(home: str, of_ranks: dict[str, bool]) -> bool:
    """Whether a directory is called by a number alone, and one beside it 0: each rank may have one.
    ``of_ranks`` remembers that of the directories above.
    """
    above, _, name = home.rpartition("/")
    if name.isdecimal() and above not in of_ranks:
        of_ranks[above] = any(e.name == "0" for e in entries_of(above))
    return name.isdecimal() and of_ranks[above]


def _called_save(directory: str, root: str) -> str:
    names = os.path.relpath(directory, root).split("/")
    for n, name in enumerate(names, start=1):
        said = read_bare_name(name)
        if (said.numbered and calls_a_save(name)) or (said.alias and calls_one_of_models(name)):
            return os.path.join(root, *names[:n])
    return ""


def _is_bystander(name: str) -> bool:
    return bool(_OTHERS.fullmatch(name)) and not _DESCRIBES.fullmatch(name)


def _may_be_data(name: str) -> bool:
    """Whether a name is of a format that data sets have as well as checkpoints, such as .npz."""
    return formats.names.state(name) and not formats.names.only_state(name)


def _may_be_state(name: str) -> bool:
    """Whether the content of a file that is called so may be a state."""
    return not is_other(name) or bool(not wrapped_state(name) and UNREAD_TEXTS.fullmatch(name))


def is_other(name: str) -> bool:
    """Whether a name says what the file is: it has a format, or is of something else."""
    other = _OTHERS.fullmatch(name) and not is_archive(name)
    return formats.names.known(name) or bool(other and not UNREAD.fullmatch(name))


def _is_buffer(name: str, beside: Collection[str]) -> bool:
    """Whether TensorDict has not saved a memory map: others keep what is played there, before any save."""
    return name.endswith(".memmap") and _TENSORDICT not in beside


def _is_corpus(index: str | None) -> bool:
    """Whether the file beside ``x.bin`` is the index of an indexed data set
    (megatron/core/datasets/indexed_dataset.py, fairseq).
    """
    if index is None:
        return False
    with opened(index) as source:
        return source.read(0, min(9, source.size)).startswith((b"MMIDIDX", b"TNTIDX"))


def _size(e: os.DirEntry[str]) -> int:
    try:
        st = patiently(e.stat)
    except FileNotFoundError:  # a dangling link, or gone since: nothing to resume from
        return -1
    return st.st_size if stat.S_ISREG(st.st_mode) else -1


def suspect_of(path: str, size: int) -> Suspect | None:
    """What a file of no known name is by its beginning, and an archive by its end; None for what is surely no
    state. Raises OSError.
    """
    name = path.rpartition("/")[2]
    try:
        with opened(path) as source:
            begins = source.read(0, min(BEGINNING, source.size))
            last = min(ENDING, source.size) if is_archive(name) else 0
            ends = source.read(source.size - last, last)
    except OSError as why:
        why.filename = path
        raise
    if is_archive(name):
        fmt = _archived(begins, ends)
        cut = name.lower().endswith(".zip") and not is_whole(ends)
        return Suspect(path, size, fmt) if fmt or cut else None
    if UNREAD.fullmatch(name) or begins.startswith(UNREAD_BEGINNINGS):  # LightGBM's are text
        return Suspect(path, size, "")
    return _binary(path, size, begins)


def _binary(path: str, size: int, begins: bytes) -> Suspect | None:
    name = path.rpartition("/")[2]
    if UNREAD_TEXTS.fullmatch(name) or begins.startswith(b"\x7fELF") or is_text(begins):
        return None
    fmt = _told_by_magic(begins)
    called = UNREAD_BINARIES.fullmatch(name) or _is_called_a_save(path)
    return Suspect(path, size, fmt) if fmt or size >= LARGE or called else None


def _is_emptied(path: str, *, wrapped: bool) -> bool:
    """Whether a file that has no bytes was a save, or a part of one, by its name; locks have none either."""
    name = path.rpartition("/")[2]
    called = wrapped or UNREAD.fullmatch(name) is not None or _is_called_a_save(path)
    return called and not name.endswith((".lock", ".pid"))


def _is_called_a_save(path: str) -> bool:
    """Whether its name is one of a save, or of a model and nothing more (``model.bin``), or a number in a
    place of saves (``checkpoints/00000100``).
    """
    above, name = path.rsplit("/", 2)[-2:]
    own = read_bare_name(name)
    if names_a_save(name) or (own.noun and not own.words):
        return True
    said = read_bare_name(above)
    return name.partition(".")[0].isdigit() and said.noun and not said.words


def _told_by_magic(begins: bytes) -> str:
    head = begins[:HEAD]
    known = (f.name for f in map(format_of, formats.names.told_by_magic) if f.distinct and f.magic(head))
    return next(known, "") or _pickled(begins)


def _pickled(begins: bytes) -> str:
    """The format of a pickle: two bytes mark it, so that opcodes must follow; "" for anything else."""
    if not begins.startswith(b"\x80"):
        return ""
    from ckpt_tools.formats.pickles import pickle_plain  # only where a file begins as pickles do

    sound = pickle_plain.magic(begins[:HEAD]) and pickle_plain.begins_well(begins)
    return pickle_plain.FORMAT.name if sound else ""


def _archived(begins: bytes, ends: bytes) -> str:
    """The format of an archive that torch wrote, by the names of its first members, and of a zip with a state
    among those of its last; "" for others, which begin as theirs do.
    """
    if format_of("torch_zip").magic(begins[:HEAD]) and first_name(begins).endswith(
        (b"/data.pkl", b"/constants.pkl", b"/version", b"/byteorder")
    ):
        return "torch_zip"
    if has_member_of_torch(begins):
        return "torch_tar"
    zipped = format_of("zip_archive")
    members = names_at(ends) if zipped.magic(begins[:HEAD]) else ()
    return zipped.name if any(formats.names.only_state(os.path.basename(name)) for name in members) else ""


def is_text(head: bytes) -> bool:
    """Whether a file begins as logs do: no byte that a terminal would not show."""
    if not head or head.translate(None, bytes(range(32, 256)) + b"\t\n\r\f\b\x1b"):
        return False
    try:
        head[:-4].decode("utf-8")
    except UnicodeDecodeError as e:
        return e.start > len(head) - 8
    return True
