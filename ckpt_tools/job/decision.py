"""One job, one decision: a load plan in a file, written once by the process that holds the lock, read and
re-checked by all others. Each field that a process acts on is checked first. Unknown ones may be of a later
version: they must only be finite and shallow, as ``ckpt latest --json`` prints a decision again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain, pairwise
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError, UsageError, explain_refusal
from ckpt_tools.model.plan import RESUME_VARIABLES, RESUME_WORDS, LoadPlan
from ckpt_tools.output import json as as_json
from ckpt_tools.output.words import printable
from ckpt_tools.planning.other_writers import get_etag
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.checked_json import Count, Invalid, NoJson, Number, Path, Text, Whole
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import refresh, status
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, split

Body = dict[str, Any]
MEANT = "ckpt-tools/plan/v1"
"""The schema: the meaning of the fields. A version that changes a meaning writes another number."""
AGAIN = "start again: a new start decides again"

# ---- the fields of the file

Rank = Annotated[str, Meta(pattern=r"\A[0-9]{1,18}\Z")]
Variable = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(sorted(RESUME_VARIABLES))})\Z")]
"""A variable that some layout sets: any other, such as LD_PRELOAD, would be an order to the job."""


class File(Struct, frozen=True):
    """One file to load."""

    path: Path
    size: Count
    mtime_ns: Whole
    role: Text = ""
    etag: Text = ""


class Ranked(Struct, frozen=True):
    """The files that one rank loads, beside the shared ones."""

    rank: Count
    files: tuple[File, ...]


class Chosen(Struct, frozen=True):
    """One checkpoint: the chosen one, or one that lies ahead of it."""

    path: Path
    step: Whole | None = None
    epoch: Whole | None = None
    step_in_epoch: Whole | None = None
    kind: Text = ""
    layout: Text = ""
    mtime: Number | None = None


class Resumed(Struct, frozen=True):
    """The path, arguments and variables by which a framework resumes."""

    path: Path | None = None
    args: tuple[Text, ...] | None = None
    env: dict[Variable, Text] | None = None


class View(Struct, frozen=True):
    """One view: the links through which ranks open their files."""

    root: Path
    checkpoint: Path
    ranks: dict[Rank, tuple[Path, ...]]
    shared: tuple[Path, ...]


class StagedFile(Struct, frozen=True):
    """One file of a store to bring to this machine; ``ranks`` is None if all need it."""

    path: Path
    url: Text
    size: Count
    mtime_ns: Whole
    etag: Text
    version: Text
    ranks: tuple[Count, ...] | None


class Stage(Struct, frozen=True):
    """The files to bring to this machine, below ``root``; ``texts`` are small files to write there."""

    root: Path
    files: tuple[StagedFile, ...]
    texts: dict[Text, Text]


class Origin(Struct, frozen=True):
    """Which process decided, when, and for which question."""

    root: Path
    decided_at: Number
    host: Text = ""
    agent: Text = ""
    job: Text | None = None
    asked: Text = ""
    saves: Text = ""


class Failed(Struct, frozen=True):
    """The error of a decision that could not be made."""

    message: Text
    hint: Text
    exit_code: Whole

    def as_error(self) -> CkptError:
        """Return the error, without control characters, which could steer a terminal."""
        message, hint = ("\n".join(map(printable, text.split("\n"))) for text in (self.message, self.hint))
        return BY_EXIT_CODE.get(self.exit_code, CannotLook)(message, hint)


class Document(Struct, frozen=True):
    """The body of one decision, as JSON."""

    schema: Literal["ckpt-tools/plan/v1"]
    checkpoint: Chosen | None
    decision: Origin = Origin("", 0)
    root: Text = ""
    resume_step: Whole | None = None
    resume: Resumed | None = None
    ranks: tuple[Ranked, ...] | None = ()
    shared: tuple[File, ...] | None = ()
    view: View | None = None
    stage: Stage | None = None
    error: Failed | None = None
    ahead: tuple[Chosen, ...] | None = None
    fingerprint: Text | None = None

    @property
    def top(self) -> str:
        return self.decision.root or self.root

    def files(self, rank: int | None = None) -> list[File]:
        """Return the files of ``rank`` (None: of all ranks), after the files that every rank loads."""
        own = [f for r in self.ranks or () if rank in (None, r.rank) for f in r.files]
        return [*(self.shared or ()), *own]


def check(body: Mapping[str, object]) -> Document:
    """Return a decision's body as a Document. Raise Invalid unless its fields are valid and agree."""
    checked_json.require_shallow(body)
    if body.get("schema") != MEANT:
        raise Invalid(f"its schema is {body.get('schema')!r}, and not {MEANT!r}: another version wrote it")
    document = checked_json.decode(body, Document)
    if document.error is None:  # else no process starts by it
        _require_files(document)
        if document.view is not None:
            _require_places(document, document.view, document.stage)
        elif document.stage is not None:
            raise Invalid("there are files to stage, and no view")
        if document.checkpoint is not None and document.resume is not None:
            _require_resume_paths(document, document.checkpoint, document.resume)
    return document


def _require_files(document: Document) -> None:
    """Raise Invalid unless each rank, named once, has files, or without a checkpoint nothing is to load."""
    ranks = document.ranks or ()
    if len({r.rank for r in ranks}) != len(ranks):
        raise Invalid("ranks names a rank twice")
    if document.checkpoint is None and (ranks or document.shared):
        raise Invalid("there are files to load, and no checkpoint")
    if document.checkpoint is not None and not document.shared:
        if not ranks:
            raise Invalid("there is a checkpoint, and no files to load")
        if without := [r.rank for r in ranks if not r.files]:
            raise Invalid(f"rank {without[0]} has no files to load")


def _require_places(document: Document, view: View, stage: Stage | None) -> None:
    """Raise Invalid unless each file of a rank has a link below the view, and what is staged goes there."""
    counts = {str(r.rank): len(r.files) for r in document.ranks or ()}
    for rank, links in view.ranks.items():
        if len(links) != (n := counts.get(rank, 0)):
            raise Invalid(f"the view has {len(links)} links for rank {rank}, and the plan {n} files")
    paths = [view.checkpoint, *view.shared, *chain.from_iterable(view.ranks.values())]
    if stage is not None:
        paths += [stage.root, *(f.path for f in stage.files), *(f"{stage.root}/{n}" for n in stage.texts)]
        if not is_url(document.top) or any(not _is_below(f.url, split(document.top)[0]) for f in stage.files):
            raise Invalid(f"stage: there are files of another store than that of {document.top}")
    for path in paths:
        if not _is_below(path, view.root) or {"", "."} & {*path[len(view.root) :].split("/")[1:]}:
            raise Invalid(f"{path} leaves the view {view.root}")


def _require_resume_paths(document: Document, chosen: Chosen, resume: Resumed) -> None:
    """Raise Invalid for a path for the framework that leads elsewhere, or an argument that no layout sets."""
    from ckpt_tools.layouts import LAYOUTS

    args = (resume.args or ()) if chosen.layout in {known.name for known in LAYOUTS} else ()
    for before, word in pairwise(("", *args)):
        # the word after --tag is a directory, whose name may begin with a dash
        if word.startswith("-") and word not in RESUME_WORDS and before != "--tag":
            raise Invalid(f"resume.args holds {word!r}, which no layout says")
    paths = [("args:", word) for word in args if word.startswith("/") or is_url(word)]
    load_dir = (resume.env or {}).get("CKPT_LOAD_DIR")
    for where, path in (("path", resume.path), ("env.CKPT_LOAD_DIR", load_dir), *paths):
        if path is not None and not _leads_to_plan(path, document, chosen):
            raise Invalid(f"resume.{where} {path} leads to nothing that was planned")


def _leads_to_plan(path: str, document: Document, chosen: Chosen) -> bool:
    """Return True if a path lies in ROOT or the view, or is a directory above a planned file."""
    tops = (document.top, chosen.path, *([document.view.root] if document.view else []))
    near = any(_is_below(path, top) for top in tops) or any(f.path.startswith(path) for f in document.files())
    return near and bool(path.strip("/")) and ".." not in path.split("/")


def _is_below(path: str, root: str) -> bool:
    """Return True if ``path`` is ``root``, or below it without any ``..``."""
    top = root.rstrip("/")
    below = path[len(top) :]
    return path.startswith(top) and (not below or below.startswith("/")) and ".." not in below.split("/")


# ---- one decision


class Decision(Struct, frozen=True, dict=True):
    """One decision, in the file at ``path``: ``body`` is the JSON of the plan, whose field "decision" says
    who made it, when and for what. ``trusted`` are the owners that its reader trusts, for its view too.
    """

    path: str
    body: Mapping[str, Any]
    trusted: Trust = OURS

    @cached_property
    def document(self) -> Document:
        return check(self.body)

    @property
    def origin(self) -> Origin:
        return self.document.decision

    @property
    def step(self) -> int | None:
        return self.document.resume_step

    @property
    def has_checkpoint(self) -> bool:
        return self.document.checkpoint is not None

    @property
    def resume(self) -> Resumed:
        return self.document.resume or Resumed()

    @property
    def ranks(self) -> list[int]:
        """The ranks that load files beside the shared ones."""
        return [r.rank for r in self.document.ranks or ()]

    def links(self, rank: int | None = None) -> list[str]:
        """Return where to open ``files``: at links if there is a view, without those of other nodes."""
        view = self.document.view
        if not view:
            return [f.path for f in self.document.files(rank)]
        numbers = [str(number) for number in self.ranks if rank in (None, number)]
        return [*view.shared, *(link for number in numbers for link in view.ranks.get(number, ()))]

    def find_path(self, rank: int | None) -> str | None:
        """Return CKPT_PATH: the framework's path, the rank's one file, the view's checkpoint, or None."""
        resume_path, view = self.resume.path, self.document.view
        own = not resume_path and rank is not None and not (self.document.shared and not self.document.ranks)
        files = self.links(rank) if own else []
        return files[0] if len(files) == 1 else resume_path or (view.checkpoint if view else None)

    def check(self, ranks: Iterable[int] | None = None) -> None:
        """Raise CannotLook unless the planned files of ``ranks`` (None: all) have the verified size,
        modification time and, in a store, ETag, by one stat each, and links and copies are unchanged.
        """
        asked = (None,) if ranks is None else tuple(ranks)
        view, stage = self.document.view, self.document.stage
        if not stage:  # else the objects that were copied do not count any more
            self._check_files(asked)
        if not view:
            return
        hint = "start again, and give each job a --view of its own that every node sees, or add --agree"
        if stage:
            hint = "start again: what is not there as it was is brought again"
        with (
            explain_refusal(f"{view.root} cannot be looked at any more", hint),
            trust.label("the view"),
        ):
            trust.check(view.root, self.trusted)
        for rank in self.ranks or (None,) if asked == (None,) else asked or (None,):
            # not strict: files of ranks on other nodes have no links here
            for link, f in zip(self.links(rank), self.document.files(rank), strict=False):
                with explain_refusal(f"{link} cannot be looked at any more", hint):
                    same = os.lstat(link).st_size == f.size if stage else os.readlink(link) == f.path
                if not same:
                    raise CannotLook(f"{link} has changed since the decision was made", hint)

    def _check_files(self, ranks: Iterable[int | None]) -> None:
        """Raise CannotLook if a planned file of ``ranks`` (None: all) has changed since it was verified."""
        files = {f.path: f for r in ranks for f in self.document.files(r)}
        # every rank gets the framework's path
        files |= {f.path: f for f in self.document.files() if f.path == self.resume.path}
        failed = refresh(files)
        for path, f in files.items():
            with explain_refusal(f"{path}, which was chosen, cannot be looked at any more", AGAIN):
                if error := failed.get(path):
                    raise error
                st = status(path)
            if (st.st_size, st.st_mtime_ns, get_etag(path)) != (f.size, f.mtime_ns, f.etag):
                raise CannotLook(f"{path} has changed since it was chosen and verified", AGAIN)


# ---- reading and making decisions


def read(path: str, trusted: Trust = OURS, setting: str = "CKPT_PLAN") -> Decision:
    """Return the decision in the file ``path``, which the flag or variable ``setting`` names. Raise
    CannotLook if it cannot be read or holds no decision, UsageError for an invalid field, and Untrusted.
    """
    hint = "is --plan-dir on a file system that every process of the job sees?"
    with explain_refusal(f"the decision {path} cannot be read", hint), trust.label(setting):
        data = trust.read(path, checked_json.MOST, trusted)
    return parse(path, data, trusted)


def parse(path: str, data: bytes, trusted: Trust = OURS) -> Decision:
    """Return the decision in ``data``, the bytes of a file. Raise CannotLook if it is none, UsageError."""
    try:
        body = checked_json.parse(data)
        if not isinstance(body, dict) or not isinstance(body.get("decision"), dict):
            raise NoJson("it holds no decision")
        decision = Decision(path, body, trusted)
        decision.document  # noqa: B018 - checks it before any process acts on it
    except NoJson as e:
        text = f"{path} is not a decision of ckpt: {e}"
        hint = "CKPT_PLAN names the file that 'ckpt run' or 'ckpt hook' wrote; remove any other"
        raise CannotLook(text, hint) from e
    except Invalid as e:
        hint = "CKPT_PLAN and --plan-dir are for files that 'ckpt run' and 'ckpt hook' write; remove this one"
        raise UsageError(f"{path} is not a decision that ckpt made: {e}", hint) from e
    return decision


def body_of(plan: LoadPlan) -> Body:
    """Return the plan as the JSON fields of a decision."""
    body: Body = json.loads(as_json.render(plan))
    return body


def describe_failure(error: CkptError) -> Body:
    """Return the body of a decision that failed: processes that wait for it raise the same error."""
    empty = body_of(error.plan) if error.plan else {"schema": MEANT, "checkpoint": None}
    return {**empty, "error": to_builtins(Failed(str(error), error.hint, error.exit_code))}
