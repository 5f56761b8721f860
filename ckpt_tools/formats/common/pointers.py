"""Pointer files, which stand for the data, and servers' error pages that were saved under a data file's name.

Facts: git-lfs docs/spec.md (a text of less than 1,024 bytes that begins with its version), git-annex
doc/internals/pointer_file.mdwn, git-xet's pointer (``# xet version 0``), DVC's ``.dvc`` (YAML with ``outs``),
answers of Hugging Face, GitHub, S3, Google Cloud Storage and Azure to requests for missing files.
"""

from __future__ import annotations

import re
from shlex import quote

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import ShortRead, Source

_HEAD = 1024
_AGAIN = "the download failed: look at what the file says, then download it again"

_REFUSED = (
    rb"(?:Entry not found|Repository not found|Invalid username or password|Access to model |"
    rb"(?:404: )?Not Found|Unauthorized|Forbidden|Access denied|AccessDenied|Too Many Requests)"
)
_LFS = rb"version https://(?:git-lfs|hawser)\.github\.com/spec/v1\b"
_ROWS = (
    ("a Git LFS pointer", _LFS, "git lfs pull --include {}"),
    ("a pointer of git-annex", rb"/annex/objects/\S+", "git annex get {}"),
    ("a pointer of git-xet", rb"# xet version \d", "git xet checkout, or download the file again"),
    ("a pointer of DVC", rb"(?:\w+:[^\n]*\n)*outs:\s*\n- (?:md5|etag|hash|size|path)\b", "dvc pull"),
    ("a page of HTML", rb"(?:<!--.*?-->\s*)?<(?:!doctype html|html|head|body)\b", _AGAIN),
    ("an error of an object store", rb"(?:<\?xml[^>]*>\s*)?<Error\b", _AGAIN),
    ("an error of a server in JSON", rb'\{\s*"(?:error|errors|message|detail|code|status)"\s*:', _AGAIN),
    ("an error of a server", _REFUSED, _AGAIN),
)
_BEFORE = rb"(?:\xef\xbb\xbf)?\s*"  # a byte order mark, and blanks
_KINDS = tuple(
    (what, re.compile(_BEFORE + begins, re.IGNORECASE | re.DOTALL), hint) for what, begins, hint in _ROWS
)
"""Of each kind of such files: its title, how it begins, and what to do; ``{}`` is the file's name."""
_SIZE = re.compile(rb"\nsize (\d{1,18})\r?(?:\n|$)")


def follow_pointer(source: Source, found: list[Finding]) -> list[Finding]:
    """Return the findings of a file; if it is damaged, and a pointer or error page, say only this."""
    grave = any(f.severity is Severity.ERROR or f.code in ("wrong-format", "unread-pickle") for f in found)
    if not grave or source.path.endswith(".dvc"):
        return found
    try:
        pointer = stands_for(source)
    except (OSError, ShortRead):
        return found
    return found if pointer is None else [pointer]


def stands_for(source: Source) -> Finding | None:
    """Return a finding for a pointer file or an error page, None for others. Raise OSError, ShortRead."""
    head = source.read(0, min(source.size, _HEAD))
    kind = next(((what, hint) for what, begins, hint in _KINDS if begins.match(head)), None)
    if kind is None or b"\0" in head:
        return None
    what, hint = kind
    size = _SIZE.search(head)
    stands = f"{what} for {int(size[1]):,} bytes" if size else what
    hint = hint.format(quote(source.path.rpartition("/")[2]))
    return finding("pointer-not-data", f"it is {stands}, not the data", offset=0, hint=hint)
