"""How names of files and directories say that a save or a download was not done: who writes it renames it
when it is, or removes what lies beside it.
"""

from __future__ import annotations

import re

DOWNLOADS = (
    *(".crdownload", ".opdownload", ".fdmdownload", ".dtapart", ".downloading"),  # browsers
    *(".incomplete", ".filepart", "_.gstmp"),  # huggingface_hub, WinSCP, gsutil and gcloud storage
    *(".!qB", ".!ut", ".bc!", ".jc!", ".xltd"),  # qBittorrent, uTorrent, BitComet, FlashGet, Xunlei
)
"""Endings of the names of files that a download has not finished yet; ``.part`` and ``.partial`` may be of a
save as well.
"""
CONTROLS = (".aria2", ".lftp-pget-status")
"""What downloaders (aria2, lftp) keep beside the file of that name until it is whole: it may have its
size from the beginning.
"""
AGAIN = "finish the download, or download it again"
TEMPORARY = re.compile(
    r"\.tmp\w*$|^\.tmp|\.tmp$|\.dirty(\.\w+)?$|\.part(ial)?$|\.tempstate\d+$"
    rf"|(?:{'|'.join(map(re.escape, DOWNLOADS))})$"
)
"""Names of files that a save or a download has not finished yet."""
_MARKED = re.compile(
    r"(?i:.+[.](tmp|temp|incomplete|partial|part|inprogress)(?:[._-]\w*)?"
    r"|\.?(tmp|incomplete)[._-].*\d.*|.*\d.*[_-](tmp|incomplete|partial))"
)
"""Names of directories of any framework: ``step-20.tmp``, ``step_20.incomplete``, ``tmp-step-20``; without a
number or a dot a word may mean anything.
"""
_BEGUN = re.compile(r"(^|[._-])te?mp([._-]|\d|$)|\.(dirty|part|partial)(\.|$)|tmp-\d+")
"""Names of directories of which no layout knows anything."""


def is_marked(home: str) -> bool:
    """Whether the name of the directory of any framework's save says that it was not renamed yet."""
    return bool(_MARKED.fullmatch(home.rpartition("/")[2]))


def is_begun(directory: str) -> bool:
    """Whether a directory is called so that what lies in it, in no checkpoint, was being written."""
    return directory not in ("tmp", "temp") and _BEGUN.search(directory) is not None
