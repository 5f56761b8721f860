"""What was staged -> where it lies now: for people, scripts and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.output.json import document, fields
from ckpt_tools.output.page import PLAIN, Page, View
from ckpt_tools.output.words import plural, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.job.staging import Staged


def render(staged: Staged, env: Mapping[str, str], view: View = PLAIN) -> str:
    page, body = Page(view), staged.decision.body
    step = f"step {body['resume_step']}" if body.get("resume_step") is not None else "a checkpoint"
    page.text(f"{step} is staged in {staged.directory}")
    page.text(f"  from: {body['checkpoint']['path']}")
    if path := env.get("CKPT_PATH"):
        page.text(f"  path: {path}")
    if args := env.get("CKPT_ARGS"):
        page.text(f"  arguments: {args}")
    total = sum(f.size for f in staged.files)
    fetched = f"{size(staged.bytes)} in {plural(staged.fetched, 'file')}" if staged.fetched else "nothing"
    page.text(f"  files: {len(staged.files):,} ({size(total)}); {fetched} fetched")
    if staged.removed:
        page.text(f"  removed: {', '.join(staged.removed)}")
    return page.done()


def json(staged: Staged, env: Mapping[str, str]) -> str:
    """Return the JSON of ckpt-tools/stage/v1. A file's ``level`` is "" if nothing stored can check it."""
    body = staged.decision.body
    files = [
        {"path": f"{staged.directory}/{f.name}", **fields(f, "url", "size", "etag", "version", "level")}
        for f in staged.files
    ]
    staged_paths, links = {f["path"] for f in files}, body["view"]["ranks"].items()
    ranks = [{"rank": int(rank), "files": paths} for rank, paths in links if staged_paths.issuperset(paths)]
    answer = {
        "root": body["root"],
        "directory": staged.directory,
        **{name: body[name] for name in ("checkpoint", "resume_step", "resume")},
        "ranks": ranks,
        "shared": body["view"]["shared"],
        "env": env,
        "files": files,
        "fetched": {"files": staged.fetched, "bytes": staged.bytes},
        "removed": list(staged.removed),
    }
    return document("stage", answer)


def render_nothing(root: str) -> str:
    """Return the JSON text for a root in which there is no checkpoint to stage."""
    return document("stage", {"root": root, "checkpoint": None})
