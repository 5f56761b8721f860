"""A view: a directory of links in the framework's own layout, with the chosen checkpoint alone and a tracker
that names it. It is built in a fresh directory, and DIR is a link that is exchanged in one step; a view that
was replaced stays for a day, because a job may still read it.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Literal

from msgspec import Struct

from ckpt_tools.discovery.walk import roots
from ckpt_tools.errors import UsageError, explain_refusal
from ckpt_tools.job.view_tree import MARKER, Tree, make_tree
from ckpt_tools.layouts import BUILT_IN, Layouts
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.writes import replace_file

SCHEMA = "ckpt-tools/view/v1"
_DAY = 86400
_NAME = "[0-9a-f]" * 16
"""Matches the end of a view's name."""


class _Marker(Struct, frozen=True):
    """The note in a view; ``files`` are the names of its small files."""

    schema: Literal["ckpt-tools/view/v1"]
    files: list[str]


def build(
    plan: LoadPlan, directory: str, trusted: Trust = OURS, layouts: Layouts = BUILT_IN
) -> dict[str, Any]:
    """Build the view of a plan at ``directory``. Return the fields of a decision that describe it: "resume"
    with paths in the view, and "view" with the link of every file entry.

    Raise UsageError if ``directory`` is inside the scanned tree, is not a view of ours or can be written by
    others, or if the layout's names tell no rank; CannotLook if it cannot be written.
    """
    directory = os.path.abspath(directory)
    real = os.path.join(os.path.realpath(os.path.dirname(directory)), os.path.basename(directory))
    for top in roots(plan.root):
        if os.path.commonpath([real, scanned := os.path.realpath(top)]) in (real, scanned):
            text = f"--view {directory} lies inside {top}, or {top} in it"
            raise UsageError(text, "name a directory of its own, outside it, where ckpt may write")
    tree = make_tree(plan, directory, layouts)
    hint = "make room, or name another directory with --view"
    with explain_refusal(f"the view {directory} could not be built", hint):
        trust.make(os.path.dirname(directory), trusted)
        with trust.label("--view"):
            try:
                trust.check(directory, trusted)
            except FileNotFoundError:
                trust.check_absent(directory, trusted)
        new = f"{directory}.view-{secrets.token_hex(8)}"
        try:
            _fill_directory(new, tree, trusted)
            _exchange_link(new, directory, trusted)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _remove_old_views(directory, trusted)
    return tree.describe()


def _fill_directory(new: str, tree: Tree, trusted: Trust) -> None:
    """Make the directory ``new`` with the links and files of ``tree``, its note first. Raise OSError."""
    os.mkdir(new, 0o755)
    note = {"schema": SCHEMA, "checkpoint": tree.checkpoint.path, "files": sorted(tree.texts)}
    for name, data in ((MARKER, json.dumps(note, indent=1).encode()), *tree.texts.items()):
        home, _, base = f"{new}/{name}".rpartition("/")
        trust.make(home)
        replace_file(home, base, data, trusted)
    for name, path in tree.links.items():
        trust.make(os.path.dirname(f"{new}/{name}"))
        os.symlink(path, f"{new}/{name}")


def _exchange_link(new: str, directory: str, trusted: Trust) -> None:
    """Make ``directory`` a link to ``new``, in place of nothing, an empty directory, or a view of ours
    without other files. Raise OSError, and UsageError for anything else, such as a mount point.
    """
    aside = f"{new}.link"
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.rmdir(directory)  # an empty directory belongs to no view
        if os.path.lexists(directory):
            target = os.readlink(directory)
            if not re.fullmatch(rf"{re.escape(os.path.basename(directory))}\.view-{_NAME}", target):
                raise _explain_foreign(directory)
            view = os.path.join(os.path.dirname(directory), target)
            if os.path.isdir(view):
                _require_ours(view, directory, trusted)
            with suppress(OSError):
                os.utime(directory)  # its time is when it was replaced
        os.symlink(os.path.basename(new), aside)
        os.rename(aside, directory)
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EBUSY, errno.EINVAL, errno.EISDIR):
            raise _explain_foreign(directory) from e
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)


def _explain_foreign(directory: str) -> UsageError:
    """Return the error for a --view DIR that ckpt did not build, which is not replaced."""
    return UsageError(
        f"--view {directory} is not empty, a link or a mount point, and no view that ckpt has built",
        "name a directory that is not there yet; of a mount point, one in it",
    )


def _require_ours(view: str, directory: str, trusted: Trust) -> None:
    """Raise UsageError if ``view`` has no marker of ckpt, or a file of others, which may not be lost."""
    try:
        data = trust.read(f"{view}/{MARKER}", checked_json.MOST, trusted)
        note = checked_json.decode(checked_json.parse(data), _Marker)
    except (OSError, ValueError, Untrusted):
        raise _explain_foreign(directory) from None
    if foreign := find_foreign(view, note.files, MARKER, only_files=True):
        raise UsageError(
            f"{foreign} was not put there by ckpt, so the view {directory} is not replaced",
            "move it, and let the job save elsewhere",
        )


def find_foreign(directory: str, names: Collection[str], note: str, *, only_files: bool = False) -> str:
    """Return the first path below a directory that is none of ``names``, nor a directory above one, nor the
    ``note`` with them; else "". With ``only_files`` any link or directory may be there.
    """
    homes = list_homes(names)
    for above, below, files in os.walk(directory):
        at = os.path.relpath(above, directory)
        for name in files if only_files else (*below, *files):
            path = os.path.join(above, name)
            if only_files and os.path.islink(path):
                continue
            ours = homes if name in below and not os.path.islink(path) else names
            if os.path.normpath(f"{at}/{name}") not in ours and not name.startswith((".nfs", note)):
                return path
    return ""


def list_homes(names: Iterable[str]) -> set[str]:
    """Return the directories above the relative paths ``names``."""
    return {str(home) for name in names for home in PurePath(name).parents}


def _remove_old_views(directory: str, trusted: Trust) -> None:
    """Remove our views that were replaced a day ago or more, or never came into place."""
    views = f"{glob.escape(directory)}.view-{_NAME}"
    for path in (*glob.glob(views), *glob.glob(f"{views}.link")):
        with suppress(OSError, UsageError):
            in_use = os.readlink(directory) == os.path.basename(path)
            if not in_use and time.time() - os.lstat(path).st_mtime >= _DAY:
                if os.path.islink(path):
                    os.unlink(path)
                    continue
                _require_ours(path, directory, trusted)
                shutil.rmtree(path)  # follows no links
