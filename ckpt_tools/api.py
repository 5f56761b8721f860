"""The functions that the command line and other programs call: they take roots and requests, and return
scans, verifications and load plans.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckpt_tools.cache import Note, open_cache
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.formats import Anatomy
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions, Selection, StoreOptions
from ckpt_tools.reading.session import Progress
from ckpt_tools.storage import count_read
from ckpt_tools.storage.paths import Path, Paths, names, one, to_paths
from ckpt_tools.storage.stalls import limit_time
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, to_absolute

if TYPE_CHECKING:
    from ckpt_tools.model.answers import Scan, Verification
    from ckpt_tools.reading.engines import Engine
    from ckpt_tools.reading.sampling import Asked
    from ckpt_tools.settings.parsers import Share

__all__ = ["Progress", "latest", "plan", "scan", "show", "verify"]


def scan(
    root: Path = ".",
    selection: Selection | None = None,
    *,
    trackers: bool = False,
    progress: Progress | None = None,
) -> Scan:
    """Find the checkpoints below ``root`` from directory listings, and file structure if names do not tell
    the step.

    These fields of ``selection`` count: the filters (layout, run, prefix, kind, max_step, exclude), order,
    world_size, save_interval, settle, key_file, jobs, trust, layouts and stores. With ``trackers`` the answer
    also has the trackers beside checkpoints, and what they name. Raises CannotLook if ``root`` cannot be
    listed.
    """
    from ckpt_tools.planning.verification import scan_root

    return scan_root(one(root), selection or Selection(), trackers=trackers, progress=progress)


def verify(
    paths: Paths = ".",
    level: Level = Level.CONTENT,
    *,
    jobs: int = 0,
    require: Iterable[str] = (),
    require_seal: bool = False,
    seal_dir: str | None = None,
    verify_key: str | None = None,
    trust_global: Sequence[str] = (),
    settle: float = 120.0,
    progress: Progress | None = None,
    key_file: str | None = None,
    by_store: bool = False,
    explain: bool = False,
    cache: bool = False,
    max_age: float = 0.0,
    note: Note | None = None,
    io: str = "auto",
    limit_rate: float | None = None,
    sample: Share | str | None = None,
    max_duration: float | None = None,
    engine: Engine | None = None,
    trust: Trust = OURS,
    layouts: Layouts | None = None,
    stores: StoreOptions | None = None,
) -> Verification:
    """Look at every checkpoint file at or below ``paths`` (one path, or several), and compare the files of
    every checkpoint and run with each other.

    ``trust_global`` are patterns of names that pickles may call although they are in no list. With
    ``require_seal`` a file that no seal names is an error; seals in ``seal_dir`` count too, below the
    absolute path of the sealed directory. With ``verify_key`` every file must be signed by the owner of that
    public key. With ``by_store`` no contents are read in an object store: the checksums that it keeps are
    compared with seals and manifests, and only files that these prove reach level content. ``key_file`` holds
    the key of MindSpore's encrypted files. With ``explain`` each report has a map of the file's bytes.

    With ``cache`` the verdicts are kept for later runs, and verdicts that are at most ``max_age`` seconds old
    are used; with 0 everything is read. ``note`` is called with a text when something is wrong with the
    cache. ``io`` says how contents are read (auto, direct), ``limit_rate`` how many bytes per second at most.
    With a ``sample`` ("2/7", "10%", "50GiB"), or for ``max_duration`` seconds, only a part of the contents is
    read, the least recently checked first (``cache`` remembers what was checked).

    ``trust`` says whose key file and cache count besides this user's own. ``layouts`` are the layouts to use,
    None for the built-in ones. ``stores`` are the options of stores, None for those that this process was
    given before. With an ``engine`` (``ckpt_tools.reading.engines``) its workers read; they must see the
    files under the same paths, and the answer is the same.

    Raises CannotLook when a path does not exist or cannot be listed, and when the engine is gone. Raises
    UsageError without a path, for a ``sample`` or ``max_duration`` at another level or with an engine, and
    for ``by_store`` without a store.
    """
    options = ReadOptions(
        jobs=jobs,
        io=io,
        limit_rate=limit_rate,
        cache=cache,
        max_age=max_age,
        settle=settle,
        require=names(require),
        require_seal=require_seal,
        seal_dir=seal_dir,
        verify_key=verify_key,
        trust_global=tuple(trust_global),
        key_file=key_file,
        by_store=by_store,
        explain=explain,
        trust=trust,
        progress=progress,
        note=note,
        layouts=layouts,
        stores=stores,
    )
    asked = _parse_sample(sample, max_duration, level)
    roots = [to_absolute(p) for p in to_paths(paths)]
    if engine is not None and asked is not None:
        why = "workers read whole files, and not the part that --sample or --budget asks for"
        raise UsageError(why, "leave out --scheduler; several hosts can read --sample n/t each by itself")
    if engine is not None and any(map(is_url, roots)):
        from ckpt_tools.reading.engines import require_nothing_untold

        require_nothing_untold(roots, stores)
    if by_store and (level is not Level.CONTENT or asked is not None):
        why = "what stores keep checksums of are whole contents: no sample, and no other level"
        raise UsageError(why, "add --by-store (by_store=True) alone")
    if by_store and (local := next((root for root in roots if not is_url(root)), None)):
        raise UsageError(f"{local} lies in no store that could be asked", "leave --by-store out")
    from ckpt_tools.planning.verification import Verifier

    return Verifier(level, options, asked, engine).verify(roots)


def _parse_sample(sample: Share | str | None, max_duration: float | None, level: Level) -> Asked | None:
    """Return which part of the contents to read; None for all."""
    if sample is None and max_duration is None:
        return None
    from ckpt_tools.reading.sampling import Asked
    from ckpt_tools.settings.parsers import share

    try:
        return Asked(share(sample) if isinstance(sample, str) else sample, max_duration, level)
    except ValueError as e:
        raise UsageError(f"sample: {e}", 'say sample="1/7"') from e


def show(
    path: Path,
    level: Level = Level.STRUCTURE,
    *,
    key_file: str | None = None,
    explain: bool = False,
    trust: Trust = OURS,
    layouts: Layouts | None = None,
    stores: StoreOptions | None = None,
) -> tuple[Report, Anatomy]:
    """Read one file, together with the indexes beside it, and return its report and its contents."""
    from ckpt_tools.reading.opening import open_session

    path = one(path, "path")
    options = ReadOptions(key_file=key_file, explain=explain, trust=trust, layouts=layouts, stores=stores)
    s = open_session(path, options)
    seen = next((p.findings for p in s.parts), next((b.findings for b in s.found.bare), ()))
    return s.inspect(to_absolute(path), level, seen)


def plan(
    root: Path = ".",
    selection: Selection | None = None,
    *,
    progress: Progress | None = None,
    note: Note | None = None,
) -> LoadPlan:
    """Return the load plan of all ranks. Raises subclasses of CkptError; if choosing failed, their ``.plan``
    has the rejected candidates.

    ``note`` is called with one sentence when verdicts of earlier runs cannot be used. Nothing is written
    except the cache, if ``selection.cache`` is set.
    """
    from ckpt_tools.planning.planner import load_plan

    root, selection = one(root), selection or Selection()
    if selection.plan_dir is not None:  # checked early: later it counts only if nothing is found
        from ckpt_tools.planning import first_launch

        first_launch.name_home(selection.plan_dir, root)
    with (
        limit_time(selection.budget),
        count_read() as read,
        open_cache(root, selection.cache, selection.max_age, note, selection.trust) as cache,
    ):
        try:
            made = load_plan(root, selection, progress, cache)
        except CkptError as error:
            if error.plan is not None:
                error.plan = replace(error.plan, bytes_read=read.bytes)
            raise
    return replace(made, bytes_read=read.bytes)


def latest(
    root: Path = ".",
    selection: Selection | None = None,
    *,
    progress: Progress | None = None,
    note: Note | None = None,
) -> LoadPlan:
    """Return the plan for ``selection.rank`` alone, or for the rank that the launcher gave this process. The
    fingerprint is still that of the plan for all ranks.

    Raises as ``plan`` does, and UsageError if the rank is outside the world, or unknown while ranks load
    different files.
    """
    from ckpt_tools import launchers
    from ckpt_tools.planning.planner import find_asking_rank, narrow_to_rank

    selection = selection or Selection()
    started = launchers.detect(os.environ)
    if started and started.skip and selection.rank is None:
        raise UsageError(started.unclear, started.hint)
    full = plan(root, selection, progress=progress, note=note)
    if full.checkpoint is None:
        return full
    return narrow_to_rank(full, find_asking_rank(full, selection, started))
