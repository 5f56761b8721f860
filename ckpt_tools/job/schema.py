"""What the file of a decision may say: each field that anything follows is checked before it is followed.

Fields that nothing here names are let through, because a later version may add some. They are finite and
shallow all the same:
``ckpt latest --json`` prints a decision again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ckpt_tools.model.plan import RESUME_VARIABLES, RESUME_WORDS
from ckpt_tools.settings.checked_json import (
    Invalid,
    NoJson,
    count,
    fields,
    listed,
    named,
    nothing_or,
    number,
    path,
    shallow,
    text,
    truth,
    whole,
    wrong,
)
from ckpt_tools.settings.checked_json import parsed as json_of
from ckpt_tools.storage.urls import is_url, split

Body = dict[str, Any]
MEANT = "ckpt-tools/plan/v1"
"""What the fields mean. A version that means something else by them says another number."""


def parsed(data: bytes) -> Body:
    """The body of a decision. Raises NoJson where the bytes are no decision of anybody, Invalid where a field
    says what it cannot say.
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
    _BODY(body, "")
    if body.get("error") is not None:
        return  # nobody starts by it
    _start(body)
    _linked(body)
    _staged(body)
    _told(body)


def variable(value: object, at: str) -> None:
    """A name that some layout sets: any other, such as LD_PRELOAD, would be an order to the job."""
    if value not in RESUME_VARIABLES:
        wrong(at, f"of variables that a layout sets ({', '.join(sorted(RESUME_VARIABLES))}), not {value!r}")


def _place(value: object, at: str) -> None:
    """An absolute path, or a URL."""
    if isinstance(value, str) and is_url(value):
        text(value, at)
    else:
        path(value, at)


def _rank_name(value: object, at: str) -> None:
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 18:
        wrong(at, "an object whose names are ranks")


_maybe_whole, _maybe_text, _maybe_number = nothing_or(whole), nothing_or(text), nothing_or(number)
_FILE = fields(
    {"path": _place, "size": count, "mtime_ns": whole},
    {
        "role": text,
        "level": text,
        "coverage": number,
        "source_rank": _maybe_whole,
        "substituted": nothing_or(truth),
        "node": _maybe_text,
        "reason": _maybe_text,
        "etag": text,
        "version": text,
    },
)
_CHECKPOINT = fields(
    {"path": _place},
    {
        "step": _maybe_whole,
        "epoch": _maybe_whole,
        "epoch_base": _maybe_whole,
        "step_in_epoch": _maybe_whole,
        "kind": text,
        "layout": text,
        "run": text,
        "generation": _maybe_whole,
        "mtime": _maybe_number,
    },
)
_RESUME = fields(
    {},
    {"path": nothing_or(_place), "args": nothing_or(listed(text)), "env": nothing_or(named(variable, text))},
)
_VIEW = fields(
    {"root": path, "checkpoint": path, "ranks": named(_rank_name, listed(path)), "shared": listed(path)}, {}
)
_STAGE = fields(
    {
        "root": path,
        "files": listed(
            fields(
                {
                    "path": path,
                    "url": text,
                    "size": count,
                    "mtime_ns": whole,
                    "etag": text,
                    "version": text,
                    "ranks": nothing_or(listed(count)),
                },
                {},
            )
        ),
        "texts": named(text, text),
    },
    {},
)
_ABOUT = fields(
    {"root": _place, "decided_at": number},
    {
        "host": text,
        "pid": whole,
        "process": text,
        "agent": text,
        "job": _maybe_text,
        "nodes": _maybe_whole,
        "asked": text,
        "saves": text,
    },
)
_ERROR = fields({"message": text, "hint": text, "exit_code": whole}, {})
_BODY = fields(
    {"decision": _ABOUT, "checkpoint": nothing_or(_CHECKPOINT)},
    {
        "root": text,
        "resume_step": _maybe_whole,
        "resume": nothing_or(_RESUME),
        "ranks": nothing_or(listed(fields({"rank": count, "files": listed(_FILE)}, {}))),
        "shared": nothing_or(listed(_FILE)),
        "view": nothing_or(_VIEW),
        "stage": nothing_or(_STAGE),
        "error": nothing_or(_ERROR),
        "ahead": nothing_or(listed(_CHECKPOINT)),
        "fingerprint": _maybe_text,
        "world_size": _maybe_whole,
    },
)


def _start(body: Mapping[str, Any]) -> None:
    """A start has files exactly where it has a checkpoint: each other way some rank would begin from nothing,
    and nobody would say so.
    """
    ranks, shared = body.get("ranks") or [], body.get("shared") or []
    if len({r["rank"] for r in ranks}) != len(ranks):
        raise Invalid("ranks names a rank twice")
    if body["checkpoint"] is None and (ranks or shared):
        raise Invalid("there are files to load, and no checkpoint")
    if body["checkpoint"] is not None and not shared:
        without = [r["rank"] for r in ranks if not r["files"]]
        if without or not ranks:
            raise Invalid(
                f"rank {without[0]} has no files to load"
                if without
                else "there is a checkpoint, and no files to load"
            )


def _linked(body: Mapping[str, Any]) -> None:
    """A view's links lie in it, one for each file."""
    view, loads = body.get("view"), {str(r["rank"]): r["files"] for r in body.get("ranks") or []}
    if view is None:
        return
    for at, link in _links(view):
        if not _below(link, view["root"]):
            raise Invalid(f"view.{at} leaves the view {view['root']}")
    for rank, links in view["ranks"].items():
        if len(links) != len(loads.get(rank, [])):
            raise Invalid(
                f"the view has {len(links)} links for rank {rank}, and the plan {len(loads.get(rank, []))}"
                " files"
            )


def _staged(body: Mapping[str, Any]) -> None:
    """What is staged lies below one directory, and comes from below ROOT: all that a view of it has."""
    stage, view = body.get("stage"), body.get("view")
    if stage is None:
        return
    if view is None or view["root"] != stage["root"]:
        raise Invalid("stage.root is not where the view is")
    for name in (*(f["path"] for f in stage["files"]), *(f"{stage['root']}/{n}" for n in stage["texts"])):
        if not _below(name, stage["root"]) or "/./" in name or "//" in name:
            raise Invalid(f"stage: {name} leaves {stage['root']}")
    top = body["decision"]["root"]
    if not is_url(top) or any(not _below(f["url"], split(top)[0]) for f in stage["files"]):
        raise Invalid(f"stage: there are files of another store than that of {top}")


def _told(body: Mapping[str, Any]) -> None:
    """What the framework is given leads to the planned files: it is one of them, lies in ROOT or the view, or
    is a directory above a file.
    """
    if body["checkpoint"] is None or not (resume := body.get("resume")):
        return
    tops = [
        body["decision"]["root"],
        body["checkpoint"]["path"],
        *([body["view"]["root"]] if body.get("view") else []),
    ]
    loads = [f["path"] for f in _files(body)]

    def near(path: str) -> bool:
        return (
            path.strip("/") != ""
            and ".." not in path.split("/")
            and (any(_below(path, top) for top in tops) or any(load.startswith(path) for load in loads))
        )

    if resume.get("path") is not None and not near(resume["path"]):
        raise Invalid(f"resume.path {resume['path']} leads to nothing that was planned")
    directory = (resume.get("env") or {}).get("CKPT_LOAD_DIR")
    if directory is not None and not near(directory):
        raise Invalid(f"resume.env.CKPT_LOAD_DIR {directory} leads to nothing that was planned")
    _words(resume.get("args") or (), str(body["checkpoint"].get("layout")), near)


def _words(args: Sequence[str], layout: str, near: Callable[[str], bool]) -> None:
    """Arguments are those that the layout itself would say; what a layout of the user's own says is for
    ckpt.toml.
    """
    from ckpt_tools.layouts import LAYOUTS

    if layout not in {known.name for known in LAYOUTS}:
        return
    for before, word in zip(("", *args), args, strict=False):
        if (
            word.startswith("-") and word not in RESUME_WORDS and before != "--tag"
        ):  # a directory may have such a name
            raise Invalid(f"resume.args holds {word!r}, which no layout says")
        if (word.startswith("/") or is_url(word)) and not near(word):
            raise Invalid(f"resume.args: {word} leads to nothing that was planned")


def _files(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from body.get("shared") or ()
    for row in body.get("ranks") or ():
        yield from row["files"]


def _links(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(where it stands, path) of everything that a view says lies in it."""
    yield "checkpoint", view["checkpoint"]
    yield from (("shared", link) for link in view["shared"])
    yield from ((f"ranks.{rank}", link) for rank, links in view["ranks"].items() for link in links)


def _below(link: str, root: str) -> bool:
    """Whether a path is the root's or one in it."""
    rest = link[len(root.rstrip("/")) :]
    return (
        link.startswith(root.rstrip("/"))
        and (not rest or rest.startswith("/"))
        and ".." not in rest.split("/")
    )
