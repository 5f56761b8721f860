"""What a decision tells a framework, held against its layout: nothing is passed to a command that the layout
of the chosen checkpoint would not say itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from ckpt_tools.layouts import BUILT_IN, Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.settings.checked_json import Invalid
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.urls import is_normal

_UP = 3
"""Directories between a checkpoint's own and the one above all that its layout's templates match, at most."""
_FEW = 4
_NAMED = 1000
"""Files that a layout may name in the arguments: no framework is told of more."""


def check(body: Mapping[str, Any], root: str, layouts: Layouts = BUILT_IN) -> None:
    """Raises Invalid unless the path, arguments and variables of a decision about ``root`` are what its
    layout makes of its checkpoint and files.
    """
    said, chosen = body.get("resume") or {}, body["checkpoint"]
    resume = Resume(said.get("path"), tuple(said.get("args") or ()), dict(said.get("env") or {}))
    if chosen is None:
        if resume != Resume(None):
            raise Invalid("resume tells a framework to load something, and there is no checkpoint")
        return
    layout = layouts.get(chosen.get("layout"))
    if chosen.get("kind", "periodic") not in {str(k) for k in Kind}:
        raise Invalid(f"checkpoint.kind must be one of those that ckpt knows, not {chosen.get('kind')!r}")
    if layout is None:
        raise Invalid(f"checkpoint.layout must be one of those that ckpt knows, not {chosen.get('layout')!r}")
    if not any(layout.resume(c, path) == resume for c, path in _possible(body, _inside(resume, root))):
        raise Invalid(
            f"resume tells a framework what the layout {layout.name} does not: {list(resume.args)}"
            f" {resume.env} {resume.path!r}"
        )


def _inside(resume: Resume, root: str) -> list[str]:
    """Directories below the root that are told, and what they are told to have in them: behind a link, a
    checkpoint really lies elsewhere.
    """
    top = root if is_directory(root) else os.path.dirname(root)
    words = [w for w in (resume.path, *resume.args, *resume.env.values()) if w]
    names = [w for w in words if "/" not in w and w not in (".", "..") and not w.startswith("-")]
    told = [w for w in words if is_normal(w) and f"{w}/".startswith(f"{top.rstrip('/')}/")]
    return [*told, *(os.path.join(at, name) for at in told for name in names)]


def _possible(body: Mapping[str, Any], inside: Sequence[str]) -> Iterator[tuple[Checkpoint, str | None]]:
    """The chosen checkpoint with each place that its run may have, and the one path that its framework may be
    given.
    """
    chosen, files = body["checkpoint"], _files(body)
    home = (body.get("view") or {}).get("checkpoint") or chosen["path"]
    bases = dict.fromkeys((*_above(home), *_above(os.path.dirname(files[0])), *inside))
    homes = dict.fromkeys(("", *_above(home), *inside))
    told = (body.get("resume") or {}).get("path")  # of many, that of replicas
    paths = (None, *(f for f in files if f == told or len(files) <= _FEW))
    kind, run, generation = (
        Kind(chosen.get("kind", "periodic")),
        chosen.get("run") or "",
        chosen.get("generation"),
    )
    step, epoch, first, within = (
        chosen.get(name) for name in ("step", "epoch", "epoch_base", "step_in_epoch")
    )

    def part(file: str, base: str = "", own: str = "") -> Part:
        return Part(file, chosen["layout"], "", "", run, base, own, step=step, epoch=epoch)

    others = [part(file) for file in files[1:]] if len(files) <= _NAMED else []
    for base, own, path in product(bases, homes, paths):
        parts = (part(files[0], base, own), *others)
        c = Checkpoint(chosen["layout"], run, kind, parts, home, 0, step, epoch, first, within, generation)
        yield c, path


def _files(body: Mapping[str, Any]) -> list[str]:
    """Where the files to load are to be opened, each once; links in the view where there is one."""
    view = body.get("view")
    if view:
        found = [*view["shared"], *(link for links in view["ranks"].values() for link in links)]
    else:
        found = [f["path"] for f in body.get("shared") or ()] + [
            f["path"] for r in body.get("ranks") or () for f in r["files"]
        ]
    return list(dict.fromkeys(found)) or [body["checkpoint"]["path"]]


def _above(path: str) -> Iterator[str]:
    """A directory and some above it; of ``ckpt_3``, which holds one rank, also what it has in common with
    ``ckpt_4``.
    """
    for _ in range(_UP + 1):
        yield path
        if numbered := re.fullmatch(r"(.+)_[0-9]+", path):
            yield numbered[1]
        path = os.path.dirname(path)
