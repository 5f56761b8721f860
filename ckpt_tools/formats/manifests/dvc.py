"""DVC's ``NAME.dvc``: the MD5 and size of a file, or of every file of a directory, that DVC keeps elsewhere.

Facts: dvc 3, dvc/schema.py and dvc_data/hashfile/tree.py: YAML with ``outs``; a directory's entry has the
MD5 of a JSON list ``[{md5, relpath}]``, which lies in the cache as ``files/md5/xx/yyyy.dir``. Without ``hash:
md5`` (DVC before 3) the MD5 is that of a text with other line ends, and is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from os.path import basename, isabs, normpath

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limit, make_format
from ckpt_tools.formats.common.json_text import mapping, parse, sequence
from ckpt_tools.formats.common.stored_digests import claim, read_digest
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_LONGEST = 1 << 20  # bytes of a .dvc file
_LONGEST_LIST = 32 << 20  # bytes of the list of a directory's files
_FIELD = re.compile(r"""(- |  )(\w+): *("[^"]*"|'[^']*'|.*?)(?: +#.*)? *""")
_FETCH = "dvc pull"


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read a .dvc file; add a claim for each file in it, or for DVC's list of the files of a directory."""
    if source.size > _LONGEST:
        raise Damage("too-complex", f"{source.size:,} bytes are more than a .dvc file has", 0)
    text = source.read(0, source.size).decode("utf-8", "surrogateescape")
    anatomy.explain(0, source.size, "names, digests and sizes", Guard.UNPROTECTED)
    outs = _read_outs(text)
    if not outs:
        yield finding("not-checksummed", "this .dvc file has no outs: nothing is known about its content")
    own = basename(source.path)
    for out in outs:
        path, md5, size = normpath(out["path"]), out.get("md5", ""), out.get("size", "")
        digest = read_digest("md5", md5.removesuffix(".dir"))
        if isabs(path) or path == ".." or path.startswith("../"):
            why = f"{path[:80]!r} lies outside its directory: it was not compared"
            yield finding("path-escape", why, severity=Severity.WARNING)
        elif digest is None:
            code = "bad-header" if md5 else "not-checksummed"
            yield finding(code, f"no MD5 of {path[:80]!r}: {md5[:40]!r}")
        elif md5.endswith(".dir"):
            check = partial(_check_directory_list, out=path, own=own)
            cached = f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"
            anatomy.members[cached] = Claim("dvc", check, optional=True, follow=True)
        else:
            known = [digest] if out.get("hash") == "md5" else []
            length = int(size) if size.isdecimal() and len(size) < 19 and known else -1
            anatomy.members[path] = claim("dvc", own, path, known, size=length)._replace(fetch=_FETCH)


def _read_outs(text: str) -> list[dict[str, str]]:
    """Return the plain text fields of each entry below ``outs`` in the YAML of a .dvc file."""
    outs, is_outs, wdir = list[dict[str, str]](), False, ""
    for line in text.splitlines():
        if line[:1] not in ("-", " ", ""):
            is_outs = line.rstrip() == "outs:"
            wdir = line.removeprefix("wdir:").strip(" '\"") if line.startswith("wdir:") else wdir
        elif is_outs and (field := _FIELD.fullmatch(line)):
            if field[1] == "- ":
                outs.append({})
            if outs:
                outs[-1][field[2]] = field[3].strip("'\"")
    lead = f"{wdir}/" if wdir else ""
    return [{**out, "path": lead + out["path"]} for out in outs if "path" in out]


def _check_directory_list(source: Source, anatomy: Anatomy, out: str, own: str) -> Iterator[Finding]:
    """Add a claim for each file in DVC's JSON list of the directory ``out``; ``own`` names the .dvc file."""
    if source.size > _LONGEST_LIST:
        raise Damage("too-complex", f"{source.size:,} bytes of names are not read", 0)
    found: list[Finding] = []
    rows = sequence(parse(source.read(0, source.size), found))
    anatomy.explain(0, source.size, "names and digests", Guard.UNPROTECTED)
    yield from found
    for row in map(mapping, rows):
        name, digest = row.get("relpath"), read_digest("md5", row.get("md5"))
        if isinstance(name, str) and digest:
            path = f"{out}/{name}"
            anatomy.members[path] = claim("dvc", own, path, [digest])._replace(fetch=_FETCH)
        else:
            yield finding("bad-header", f"no MD5 of {str(name)[:80]!r}")


FORMAT = make_format(
    "dvc", lambda head: bool(re.match(rb"\w+:", head)), _structure, distinct=False, loader=None
)
