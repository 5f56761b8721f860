"""Which files of a plan have to lie on this machine, and where: those that a view of it would hold, with the
version of each that was judged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decision import AGAIN, Stage, StagedFile
from ckpt_tools.job.staging.records import OWN_NAMES
from ckpt_tools.job.view_tree import Tree, fill
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.storage.stores.refresh import learn_versions, object_of
from ckpt_tools.storage.urls import is_url

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LABEL = 40
_LONGEST = 255
"""Bytes that a name may have on a disk; a key may have 1,024, and slashes anywhere."""
_NOWHERE = "/-"
"""Where a tree is said to lie until its name is known."""


def wanted_of(stage: Stage, ranks: Collection[int] | None = None) -> dict[str, StagedFile]:
    """Return the files that a decision says to stage, for these ranks (None: for all), by their names below
    the staged checkpoint.
    """
    return {
        f.path.removeprefix(f"{stage.root}/"): f
        for f in stage.files
        if ranks is None or f.ranks is None or not {*ranks}.isdisjoint(f.ranks)
    }


def describe(plan: LoadPlan, home: str, layouts: Layouts) -> dict[str, Any]:
    """What a decision says of a plan whose files are to be brought below the directory ``home``: "resume" for
    the local files, "view" with the local path of every file entry, "stage" with all that is brought.

    Raises UsageError where ROOT is no URL, or a layout's names cannot be made, CannotLook where the store
    does not answer or has another object by now.
    """
    if not is_url(plan.root):
        raise UsageError(
            f"--stage is for a ROOT in a store, and {plan.root} lies on this machine already",
            "start without --stage, or with --view DIR for a tree that holds one checkpoint alone",
        )
    tree = fill(plan, _NOWHERE, layouts)
    try:
        files = list(_find_files(tree))
    except OSError as e:
        raise CannotLook(f"{e.filename} cannot be looked at: {e.strerror}", AGAIN) from e
    directory = f"{home.rstrip('/')}/{_name(tree, files)}"
    tree = fill(plan, directory, layouts)
    rows = tuple(replace(f, path=f"{directory}/{f.path}") for f in files)
    texts = {name: data.decode("utf-8", "surrogateescape") for name, data in tree.texts.items()}
    return {**tree.describe(), "stage": to_builtins(Stage(directory, rows, texts))}


def _find_files(tree: Tree) -> Iterator[StagedFile]:
    """Yield everything that the tree would link to, by its name there. Raises OSError, and UsageError for
    names that are none here.
    """
    planned = {f.path: f for f in (*tree.plan.shared, *(f for r in tree.plan.by_rank for f in r.files))}
    learn_versions(list(tree.links.values()))
    only = _of_some_ranks(tree)
    for name, url in sorted(tree.links.items()):
        if name.partition("/")[0] in OWN_NAMES:  # of an upload of what was staged
            continue
        _require_name(tree, name, url)
        of = object_of(url)
        f = planned.get(url)
        if f is not None and (of.size, of.mtime_ns, of.etag) != (f.size, f.mtime_ns, f.etag):
            raise CannotLook(f"{url} has been replaced since it was chosen", AGAIN)
        yield StagedFile(name, url, of.size, of.mtime_ns, of.etag, of.version, only.get(name))


def _require_name(tree: Tree, name: str, url: str) -> None:
    """Raises UsageError where a file cannot have this name here."""
    parts = name.split("/")
    wrong = any(
        part in ("", ".", "..") or len(part.encode("utf-8", "surrogatepass")) > _LONGEST for part in parts
    )
    if wrong or "\0" in name:
        raise UsageError(
            f"{url} cannot be staged: {name!r} is not a name of a file here", "start without --stage"
        )
    above = next((a for n in range(1, len(parts)) if (a := "/".join(parts[:n])) in tree.links), None)
    if above is not None:
        raise UsageError(
            f"{url} cannot be staged: {tree.links[above]} is a file, and would be a directory here as well",
            "rename or delete what does not belong to the checkpoint, or start without --stage",
        )


def _of_some_ranks(tree: Tree) -> dict[str, tuple[int, ...]]:
    """The files that no node needs but those of some ranks. Nothing where a rank's loader looks for the files
    of others; rank 0's are asked for by all (Megatron-LM reads arguments from them).
    """
    if not tree.layout.ranks.own_files:
        return {}
    start = len(tree.directory) + 1
    ranks: dict[str, list[int]] = {}
    for rank, links in tree.ranks.items():
        for link in links:
            ranks.setdefault(link[start:], []).append(rank)
    return {name: tuple(mine) for name, mine in ranks.items() if 0 not in mine}


def _name(tree: Tree, files: Sequence[StagedFile]) -> str:
    """What the directory is called: one name for the same versions of the same files, and for no others."""
    # not every listing tells versions
    rows = [f"{f.path}\0{f.url}\0{f.size}\0{f.mtime_ns}\0{f.etag}" for f in files]
    texts = [f"{name}\0{data!r}" for name, data in sorted(tree.texts.items())]
    digest = xxh3_128_hexdigest("\n".join((*rows, *texts)).encode("utf-8", "surrogatepass"))
    label = _UNSAFE.sub("_", tree.checkpoint.path.rpartition("/")[2]).strip("._")[:_LABEL]
    return f"{label or 'checkpoint'}-{digest[:16]}"
