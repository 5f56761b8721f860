"""``ckpt ls`` and ``show``: the checkpoints below a directory, and what is in a file, without loading it."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from ckpt_tools import api
from ckpt_tools.cli import options, output
from ckpt_tools.cli.changes import require_local_paths
from ckpt_tools.cli.options import parameter
from ckpt_tools.cli.progress import progress
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError, explain_refusal
from ckpt_tools.formats.pickles.globals import find_verdict
from ckpt_tools.formats.pickles.stubs import Global
from ckpt_tools.guard.quarantine import list_quarantine
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.finding import Verdict, blind
from ckpt_tools.model.report import Level
from ckpt_tools.output import contents, scan
from ckpt_tools.output import json as emit
from ckpt_tools.settings import parsers
from ckpt_tools.storage.retry import exists, is_directory


@options.ask(
    ("table", "json"),
    parameter("--since TIME", "Only checkpoints modified since: 2h, 3d, or a date such as 2025-01-31T18:00."),
    parameter("--tree", "Show the runs, their checkpoints and the files of each."),
    parameter("--quarantine", "List instead what is in quarantine."),
    "root kind layout run prefix exclude max_step world_size save_interval order jobs store_option",
    options.TREE,
)
def ls(asked: options.Asked) -> int:
    """List the checkpoints below ROOT, newest first (--order: by time or by step), from directory listings
    (and from headers of files: what the newest hold, and the step where names do not tell it).

    Exit codes: 0 listed; 3 there is no checkpoint and no other file of a known format (or no checkpoint that
    the filters leave); 5 a directory could not be listed.

    Examples:
    ckpt ls run  # what is there, newest first
    ckpt ls run --tree  # runs, their checkpoints and the files of each
    ckpt ls run --since 2023-01-01  # only those saved since then; 7d means within a week
    ckpt ls run --kind periodic  # without dying gasps, which are saved because of a fault
    ckpt ls run --json  # the same for a program (docs/json.md)
    """
    to, settings, given = asked.to, asked.settings, asked.given
    if given["tree"] and to.format == "json":
        raise UsageError("--tree and --json cannot be combined", "leave one of them out")
    oldest = read_time(given["since"], time.time()) if given["since"] is not None else None
    if given["quarantine"]:
        require_local_paths([settings.root], "nothing was put away there: leave out --quarantine")
        hidden = list_quarantine(settings.root, trust=settings.trust)
        asked.answer("changes", hidden)
        return 0 if hidden.changes else NoCheckpoint.exit_code
    selection = settings.selection()
    with progress(to) as meter:
        result = api.scan(settings.root, selection, progress=meter)
    if oldest is not None:
        recent = tuple(c for c in result.checkpoints if c.mtime_ns >= oldest * 1e9)
        result = replace(result, checkpoints=recent)
    if to.format == "json":
        to.out(emit.render(result))
    else:
        to.out(scan.draw(result, to.view) if given["tree"] else scan.render(result, to.view))
    filters = (oldest, selection.kind, selection.layout, selection.run, selection.prefix, selection.max_step)
    return exit_code(result, filtered=any(value is not None for value in filters))


def read_time(text: str, now: float) -> float:
    """Return the seconds since 1970 of ``2h``, ``3d`` (before ``now``) or an ISO date. Raise UsageError."""
    with suppress(ValueError, OverflowError):
        if re.match(r"\s*[0-9.]+[a-z]", text):
            return now - parsers.duration(text)
        if not re.fullmatch(r"[0-9.\s]*", text):  # a bare number could be seconds or a year
            return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)).timestamp()
    raise UsageError(f"--since: {text!r} is not a time", "use 90m, 2h, 3d, 2025-01-31 or 2025-01-31T18:00")


def exit_code(result: Scan, *, filtered: bool) -> int:
    """Return 5 if a directory could not be listed, or if nothing is found and a plug-in is broken; 3 if there
    is no checkpoint and (unless ``filtered``) no file of a known format; else 0.
    """
    broken = any(f.code == "broken-plugin" for f in result.findings)
    if blind(result.findings) or (broken and not result.checkpoints):
        return 5
    return 0 if result.checkpoints or (result.bare and not filtered) else 3


@options.ask(
    ("table", "json"),
    parameter("FILE", "A checkpoint file, or a directory, which is listed.", required=True),
    "level key_file store_option trust no_plugins trust_group trust_owner trust_dir explain_bytes",
    "output_file format json verbose color",
    trees_in="file",
)
def show(asked: options.Asked) -> int:
    """Print the tensors, the metadata and the pickle globals of FILE, by default at level structure. Nothing
    in it is loaded or run.

    Exit codes: 0 shown; 1 shown, and found damaged; 3 the format is not known; 5 the file could not be read.

    Examples:
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt  # tensors, metadata and pickled names
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --verbose  # the whole list
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --explain-bytes  # what protects which byte
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --level content  # also compare its checksums
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --json  # the same for a program
    """
    to, settings, given = asked.to, asked.settings, asked.given
    file = given["file"]
    output.say_broken_plugins()
    with explain_refusal(f"cannot look at {file!r}"):
        is_there = exists(file)
    if not is_there:
        raise CannotLook(f"there is no file {file!r}", "'ckpt ls -v' shows where checkpoints are")
    if is_directory(file):
        return ls(root=file, tree=to.format != "json", format=given["format"], json=given["json"])
    report, anatomy = api.show(
        file,
        settings.values["level"] if given["level"] is not None else Level.STRUCTURE,
        **settings.reading(names=("key_file",)),
        explain=given["explain_bytes"],
    )
    trust = {name: find_verdict(Global(*name.split(" ", 1))) for name in anatomy.globals}
    if to.format == "json":
        to.out(emit.render_file(report, anatomy, trust))
    else:
        to.out(contents.render(report, anatomy, trust, to.view))
    if report.verdict is Verdict.UNKNOWN:
        return 5
    if report.verdict is Verdict.BROKEN:
        return 1
    return 0 if report.format else 3
