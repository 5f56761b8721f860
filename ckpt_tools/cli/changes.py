"""``ckpt quarantine``, ``repair``, ``undo``, ``pin``: what changes a tree, and can be undone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ckpt_tools import api
from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard import quarantine as hiding
from ckpt_tools.guard import repair as mending
from ckpt_tools.guard.prune import pin as put
from ckpt_tools.model.answers import Changes
from ckpt_tools.storage.urls import is_url, to_absolute

_FORMATS = ("table", "json")
DOWNLOAD = "download it (aws s3 sync, gcloud storage rsync, azcopy, rclone), change the copy, and upload that"
_HIDE = "'ckpt prune --damaged' removes what is damaged there; --exclude hides it from 'ckpt plan' and 'run'"
_KEEP = "say what stays with --keep, or protect the objects (S3 Object Lock, a retention)"


@options.ask(
    _FORMATS,
    options.paths("Checkpoints; with --damaged the directory in which they lie."),
    parameter("--damaged", "All damaged checkpoints below PATH."),
    parameter("--undo", "Bring back the checkpoint that was at PATH."),
    "home apply settle no_cache",
    options.TREE,
    trees_in="paths",
)
def quarantine(asked: options.Asked) -> int:
    """Move checkpoints to ROOT/.ckpt/quarantine, where their framework does not look but ckpt does. They
    still count as existing: if nothing else is left, a job does not start from nothing. A tracker that names
    one of them is changed to name what 'ckpt plan' then chooses. Without --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a question that only you can answer; 3 there is no such
    checkpoint; 5 something could not be looked at or moved: nothing is lost.

    Examples:
    ckpt quarantine run/iter_0000020  # say what would be moved
    ckpt quarantine run/iter_0000020 --apply  # move it below run/.ckpt/quarantine
    ckpt quarantine run --damaged  # all damaged checkpoints
    ckpt quarantine kept/iter_0000020 --undo --apply  # bring it back
    ckpt quarantine run/iter_0000020 --json  # the same for a program (docs/json.md)
    """
    given = asked.given
    paths, root, damaged = given["paths"], given["home"], given["damaged"]
    if damaged and given["undo"]:
        raise UsageError("--damaged and --undo contradict each other", "use one of them")
    output.say_broken_plugins()
    require_local_paths([*paths, root], _HIDE)
    home = find_home(paths, root, whole=damaged)
    names = [os.path.abspath(path) for path in paths]
    if given["undo"]:
        result = hiding.undo(home, names, apply=given["apply"], trust=asked.settings.trust)
    else:
        selection = asked.settings.selection(cache=True)
        result = hiding.quarantine(home, names, damaged=damaged, apply=given["apply"], selection=selection)
    return asked.answer("changes", result)


@options.ask(
    _FORMATS,
    options.paths("Checkpoints, files of them, or directories."),
    parameter(
        "--accept-odds P",
        "Also flip back bits that only a CRC locates, if wrong with at most this probability.",
    ),
    parameter("--tracker", "Make the framework's 'latest' file name the plan's choice."),
    "home apply settle key_file jobs",
    options.TREE,
    trees_in="paths",
)
def repair(asked: options.Asked) -> int:
    """Repair damaged files at and below PATH: flip back the one bit that a CRC locates, if a seal, a second
    checksum or --accept-odds confirms it; write the lost directory of a torch archive and the index of a
    sharded model anew. The damaged file goes to quarantine; the repaired one keeps its times, mode and
    owner. Without --apply nothing is done.

    Exit codes: 0 all damage is repaired, or would be; 1 some of it stays; 2 a question that only you can
    answer; 3 nothing recognised; 5 something could not be looked at or written: nothing is lost.

    Examples:
    ckpt repair run  # say what can be repaired, and how
    ckpt repair run --apply  # repair what is proven, and say what is not
    ckpt repair run --accept-odds 0.001 --apply  # also flip back bits that only a CRC locates
    ckpt repair run --tracker --apply  # make the tracker name what plan chooses
    ckpt repair run --json  # the same for a program (docs/json.md)
    """
    output.say_broken_plugins()
    given = asked.given
    paths, root, accept_odds = given["paths"], given["home"], given["accept_odds"]
    require_local_paths([*paths, root], DOWNLOAD)
    # a directory of several checkpoints is itself the root
    home = os.path.abspath(root or find_only_directory(_find_root(os.path.abspath(path)) for path in paths))
    how: dict[str, Any] = {"apply": given["apply"], "selection": asked.settings.selection()}
    if given["tracker"]:
        result = mending.repair_trackers(home, **how)
    else:
        try:
            odds = float(accept_odds or 0)
        except ValueError:
            odds = -1.0
        if not 0 <= odds < 1:
            why = f"--accept-odds: {accept_odds!r} is not a probability"
            raise UsageError(why, "use a number such as 0.001")
        result = mending.repair(home, paths, accept_odds=odds, **how)
    asked.answer("changes", result)
    return exit_code(result)


def exit_code(result: Changes) -> int:
    """Return 5 if a file could not be checked, else 1 if damage stays, else 0."""
    if any(f.code in ("unreadable", "in-use", "unread-pickle") for f in result.findings):
        return CannotLook.exit_code
    return int(any(c.state == "stays" for c in result.changes))


def _find_root(path: str) -> str:
    """Return the directory that holds the checkpoint or file ``path``; ``path`` if it holds checkpoints."""
    if not os.path.isdir(path):
        return os.path.dirname(path)
    checkpoints = api.scan(path).checkpoints
    is_one = bool(checkpoints) and all(p.home == path for c in checkpoints for p in c.parts)
    return os.path.dirname(path) if is_one else path


@options.ask(_FORMATS, "root apply trust trust_group trust_owner trust_dir config", options.PRINT)
def undo(asked: options.Asked) -> int:
    """Undo the last 'ckpt repair' or 'ckpt quarantine' below ROOT. Without --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a file is no longer what that command left; 3 there is
    nothing to undo; 5 something could not be looked at or moved: nothing is lost.

    Examples:
    ckpt undo kept  # say what would be undone
    ckpt undo kept --apply  # undo it
    CKPT_ROOT=kept ckpt undo  # with ROOT from a variable
    cd kept && ckpt undo  # ROOT is the current directory by default
    ckpt undo kept --json  # the same for a program (docs/json.md)
    """
    settings = asked.settings
    require_local_paths([settings.root], "nothing there was repaired or put away by ckpt")
    result = hiding.undo(settings.root, apply=asked.given["apply"], trust=settings.trust)
    return asked.answer("changes", result)


@options.ask(
    _FORMATS,
    options.paths("Checkpoints."),
    parameter("--undo", "Remove the pins of PATH."),
    parameter("--dry-run", "Only say what would be done."),
    "home",
    options.TREE,
    trees_in="paths",
)
def pin(asked: options.Asked) -> int:
    """Pin checkpoints, so that 'ckpt prune' never removes them. A pin is a file in .ckpt/pins of the
    directory that is pruned, where no framework sees it. It is written at once.

    Exit codes: 0 done, or shown what would be done; 2 PATH is only a part of a checkpoint; 3 there is no such
    checkpoint, or no such pin; 5 something could not be looked at or written.

    Examples:
    ckpt pin run/iter_0000010 --dry-run  # say what would be pinned
    ckpt pin pinned/iter_0000010  # pin it
    ckpt pin pinned/iter_0000020 --undo  # remove its pin
    ckpt pin --root run run/iter_0000010 --dry-run  # a pin that counts for 'ckpt prune run'
    ckpt pin run/iter_0000010 --dry-run --json  # the same for a program (docs/json.md)
    """
    output.say_broken_plugins()
    given = asked.given
    paths, root = given["paths"], given["home"]
    require_local_paths([*paths, root], _KEEP)
    names = [os.path.abspath(path) for path in paths]
    home = find_home(names, root)
    how = {"remove": given["undo"], "dry_run": given["dry_run"]}
    result = put(home, names, **how, selection=asked.settings.selection())
    return asked.answer("changes", result)


def require_local_paths(paths: Iterable[str | None], instead: str) -> None:
    """Raise UsageError, with the hint ``instead``, if a path lies in a store."""
    for path in paths:
        if path and is_url(to_absolute(path)):
            raise UsageError(f"{path} lies in a store: this command changes files on a disk alone", instead)


def find_home(paths: Sequence[str], root: str | None, *, whole: bool = False) -> str:
    """Return --root, else the directory of all paths; with ``whole`` the only path. Raise UsageError."""
    if root:
        return to_absolute(root)
    named = [to_absolute(path) for path in paths]
    above = [p.partition("/.ckpt/")[0] if "/.ckpt/" in p else os.path.dirname(p) for p in named]
    return find_only_directory(named if whole else above)


def find_only_directory(directories: Iterable[str]) -> str:
    """Return the only one of the directories. Raise UsageError if there are several."""
    homes = set(directories)
    if len(homes) > 1:
        raise UsageError(f"these lie in several directories: {', '.join(sorted(homes))}", "add --root DIR")
    return homes.pop()
