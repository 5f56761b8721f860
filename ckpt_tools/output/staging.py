"""What was staged -> where it lies now: for people, scripts and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ckpt_tools import __version__
from ckpt_tools.output.json import dump
from ckpt_tools.output.page import PLAIN, Page, View
from ckpt_tools.output.words import plural, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StagedFile(NamedTuple):
    """One copy: where it lies, what it is a copy of, and how deeply it was verified ("" where nothing is
    stored that it could be held against).
    """

    path: str
    url: str
    size: int
    etag: str
    version: str
    level: str


class StagedTree(NamedTuple):
    """A staged checkpoint: ``body`` is the plan's JSON with local paths, ``env`` what a job is told;
    ``fetched`` files of ``bytes`` bytes were brought now, ``removed`` went.
    """

    directory: str
    body: Mapping[str, Any]
    env: Mapping[str, str]
    files: Sequence[StagedFile]
    fetched: int
    bytes: int
    removed: Sequence[str]


def render(tree: StagedTree, view: View = PLAIN) -> str:
    """Where it lies, what it is, and what it cost."""
    page, body = Page(view), tree.body
    step = f"step {body['resume_step']}" if body.get("resume_step") is not None else "a checkpoint"
    page.text(f"{step} is staged in {tree.directory}")
    page.text(f"  from: {body['checkpoint']['path']}")
    if path := tree.env.get("CKPT_PATH"):
        page.text(f"  path: {path}")
    if args := tree.env.get("CKPT_ARGS"):
        page.text(f"  arguments: {args}")
    total = sum(f.size for f in tree.files)
    brought = f"{size(tree.bytes)} in {plural(tree.fetched, 'file')}" if tree.fetched else "nothing"
    page.text(f"  files: {len(tree.files):,} ({size(total)}); {brought} fetched")
    if tree.removed:
        page.text(f"  removed: {', '.join(tree.removed)}")
    return page.done()


def json(tree: StagedTree) -> str:
    """The schema ckpt-tools/stage/v1 (docs/json.md)."""
    body, here = tree.body, {f.path for f in tree.files}
    return dump(
        {
            "schema": "ckpt-tools/stage/v1",
            "tool_version": __version__,
            "root": body["root"],
            "directory": tree.directory,
            "checkpoint": body["checkpoint"],
            "resume_step": body["resume_step"],
            "resume": body["resume"],
            "ranks": [
                {"rank": int(rank), "files": links}
                for rank, links in body["view"]["ranks"].items()
                if here.issuperset(links)
            ],
            "shared": body["view"]["shared"],
            "env": tree.env,
            "files": [f._asdict() for f in tree.files],
            "fetched": {"files": tree.fetched, "bytes": tree.bytes},
            "removed": list(tree.removed),
        }
    )


def nothing(root: str) -> str:
    """The JSON where there is no checkpoint, and that is allowed."""
    return dump(
        {"schema": "ckpt-tools/stage/v1", "tool_version": __version__, "root": root, "checkpoint": None}
    )
