"""What the file of a decision may say: each field that anything follows is checked before it is followed.

Fields that nothing here names are let through, because a later version may add some. They are finite and
shallow all the same:
``ckpt latest --json`` prints a decision again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ckpt_tools.model.plan import RESUME_VARIABLES, RESUME_WORDS
from ckpt_tools.settings.checked_json import (
    Count,
    Invalid,
    NoJson,
    Number,
    Path,
    Text,
    Whole,
    checked,
    shallow,
)
from ckpt_tools.settings.checked_json import parsed as json_of
from ckpt_tools.storage.urls import is_url, split

Body = dict[str, Any]
MEANT = "ckpt-tools/plan/v1"
"""What the fields mean. A version that means something else by them says another number."""
Rank = Annotated[str, Meta(pattern=r"\A[0-9]{1,18}\Z")]


Variable = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(sorted(RESUME_VARIABLES))})\Z")]
"""A name that some layout sets: any other, such as LD_PRELOAD, would be an order to the job."""


class File(Struct):
    """One file to load."""

    path: Path
    size: Count
    mtime_ns: Whole
    role: Text = ""
    level: Text = ""
    coverage: Number = 0
    source_rank: Whole | None = None
    substituted: bool | None = None
    node: Text | None = None
    reason: Text | None = None
    etag: Text = ""
    version: Text = ""


class Ranked(Struct):
    """What one rank loads."""

    rank: Count
    files: list[File]


class Chosen(Struct):
    """A checkpoint."""

    path: Path
    step: Whole | None = None
    epoch: Whole | None = None
    epoch_base: Whole | None = None
    step_in_epoch: Whole | None = None
    kind: Text = ""
    layout: Text = ""
    run: Text = ""
    generation: Whole | None = None
    mtime: Number | None = None


class Resumed(Struct):
    """What a framework is told."""

    path: Path | None = None
    args: list[Text] | None = None
    env: dict[Variable, Text] | None = None


class View(Struct):
    """Where each file is to be opened."""

    root: Path
    checkpoint: Path
    ranks: dict[Rank, list[Path]]
    shared: list[Path]


class StagedFile(Struct):
    """One file that is brought to this machine."""

    path: Path
    url: Text
    size: Count
    mtime_ns: Whole
    etag: Text
    version: Text
    ranks: list[Count] | None


class Stage(Struct):
    """What is brought to this machine."""

    root: Path
    files: list[StagedFile]
    texts: dict[Text, Text]


class About(Struct):
    """Who decided, when and for what."""

    root: Path
    decided_at: Number
    host: Text = ""
    pid: Whole = 0
    process: Text = ""
    agent: Text = ""
    job: Text | None = None
    nodes: Whole | None = None
    asked: Text = ""
    saves: Text = ""


class Failed(Struct):
    """Why nothing could be decided."""

    message: Text
    hint: Text
    exit_code: Whole


class Decided(Struct):
    """The body of a decision."""

    schema: Literal["ckpt-tools/plan/v1"]
    decision: About
    checkpoint: Chosen | None
    root: Text = ""
    resume_step: Whole | None = None
    resume: Resumed | None = None
    ranks: list[Ranked] | None = None
    shared: list[File] | None = None
    view: View | None = None
    stage: Stage | None = None
    error: Failed | None = None
    ahead: list[Chosen] | None = None
    fingerprint: Text | None = None
    world_size: Whole | None = None


def parsed(data: bytes) -> Body:
    """Return the body of a decision. Raises NoJson where the bytes are no decision of anybody, Invalid where
    a field says what it cannot say.
    """
    body = json_of(data)
    if not isinstance(body, dict) or not isinstance(body.get("decision"), dict):
        raise NoJson("it holds no decision")
    check(body)
    return body


def check(body: Mapping[str, object]) -> None:
    """Raises Invalid unless every field of a decision's body is of its type, within its bounds, and in
    agreement with the others.
    """
    shallow(body)
    if body.get("schema") != MEANT:
        raise Invalid(f"its schema is {body.get('schema')!r}, and not {MEANT!r}: another version wrote it")
    said = checked(body, Decided)
    if said.error is not None:
        return  # nobody starts by it
    _require_files(said)
    if said.view is not None:
        _require_links(said, said.view)
    if said.stage is not None:
        _require_staged(said, said.stage)
    if said.checkpoint is not None and said.resume is not None:
        _require_told(said, said.checkpoint, said.resume)


def _require_files(said: Decided) -> None:
    """A start has files exactly where it has a checkpoint: each other way some rank would begin from nothing,
    and nobody would say so.
    """
    ranks = said.ranks or []
    if len({r.rank for r in ranks}) != len(ranks):
        raise Invalid("ranks names a rank twice")
    if said.checkpoint is None and (ranks or said.shared):
        raise Invalid("there are files to load, and no checkpoint")
    if said.checkpoint is not None and not said.shared:
        if not ranks:
            raise Invalid("there is a checkpoint, and no files to load")
        if without := [r.rank for r in ranks if not r.files]:
            raise Invalid(f"rank {without[0]} has no files to load")


def _require_links(said: Decided, view: View) -> None:
    """A view's links lie in it, one for each file."""
    loads = {str(r.rank): len(r.files) for r in said.ranks or ()}
    for rank, links in view.ranks.items():
        if len(links) != loads.get(rank, 0):
            raise Invalid(
                f"the view has {len(links)} links for rank {rank}, and the plan {loads.get(rank, 0)} files"
            )
    for link in (view.checkpoint, *view.shared, *(link for links in view.ranks.values() for link in links)):
        if not _is_below(link, view.root):
            raise Invalid(f"{link} leaves the view {view.root}")


def _require_staged(said: Decided, stage: Stage) -> None:
    """What is staged lies below one directory, and comes from below ROOT: all that a view of it has."""
    if said.view is None or said.view.root != stage.root:
        raise Invalid("stage.root is not where the view is")
    for name in (*(f.path for f in stage.files), *(f"{stage.root}/{n}" for n in stage.texts)):
        if not _is_below(name, stage.root) or "/./" in name or "//" in name:
            raise Invalid(f"stage: {name} leaves {stage.root}")
    top = said.decision.root
    if not is_url(top) or any(not _is_below(f.url, split(top)[0]) for f in stage.files):
        raise Invalid(f"stage: there are files of another store than that of {top}")


def _require_told(said: Decided, chosen: Chosen, resume: Resumed) -> None:
    """What the framework is given leads to the planned files: it is one of them, lies in ROOT or the view, or
    is a directory above a file. Arguments are those that a layout would say; those of the user's own layouts
    are for ckpt.toml.
    """
    from ckpt_tools.layouts import LAYOUTS

    tops = [said.decision.root, chosen.path, *([said.view.root] if said.view else [])]
    loads = [f.path for f in _files(said)]

    def require_near(where: str, path: str) -> None:
        near = any(_is_below(path, top) for top in tops) or any(load.startswith(path) for load in loads)
        if not near or not path.strip("/") or ".." in path.split("/"):
            raise Invalid(f"{where} {path} leads to nothing that was planned")

    if resume.path is not None:
        require_near("resume.path", resume.path)
    if (directory := (resume.env or {}).get("CKPT_LOAD_DIR")) is not None:
        require_near("resume.env.CKPT_LOAD_DIR", directory)
    if chosen.layout not in {known.name for known in LAYOUTS}:
        return
    args = resume.args or []
    for before, word in zip(("", *args), args, strict=False):
        # a directory may have such a name
        if word.startswith("-") and word not in RESUME_WORDS and before != "--tag":
            raise Invalid(f"resume.args holds {word!r}, which no layout says")
        if word.startswith("/") or is_url(word):
            require_near("resume.args:", word)


def _files(said: Decided) -> Iterator[File]:
    yield from said.shared or ()
    for row in said.ranks or ():
        yield from row.files


def _is_below(link: str, root: str) -> bool:
    """Return whether a path is the root's or one in it."""
    rest = link[len(root.rstrip("/")) :]
    return (
        link.startswith(root.rstrip("/"))
        and (not rest or rest.startswith("/"))
        and ".." not in rest.split("/")
    )
