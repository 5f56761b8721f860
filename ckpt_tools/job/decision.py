"""One job, one decision: a load plan in a file, written once by whoever holds the lock, read and re-checked
by everyone else. Each field that anything follows is checked before it is followed.

Fields that nothing here names are let through, because a later version may add some. They are finite and
shallow all the same: ``ckpt latest --json`` prints a decision again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError, UsageError, explain_refusal
from ckpt_tools.model.plan import RESUME_VARIABLES, RESUME_WORDS, LoadPlan
from ckpt_tools.output import json as as_json
from ckpt_tools.output.words import printable
from ckpt_tools.planning.other_writers import get_etag
from ckpt_tools.settings import fault_file
from ckpt_tools.settings.fault_file import Count, Invalid, NoJson, Number, Path, Text, Whole
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import refresh, status
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, split

Body = dict[str, Any]
MEANT = "ckpt-tools/plan/v1"
"""What the fields mean. A version that means something else by them says another number."""
AGAIN = "start again: a new start decides again"

# ---- what the file may say

Rank = Annotated[str, Meta(pattern=r"\A[0-9]{1,18}\Z")]
Variable = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(sorted(RESUME_VARIABLES))})\Z")]
"""A name that some layout sets: any other, such as LD_PRELOAD, would be an order to the job."""


class File(Struct, frozen=True):
    """One file to load."""

    path: Path
    size: Count
    mtime_ns: Whole
    role: Text = ""
    etag: Text = ""


class Ranked(Struct, frozen=True):
    """What one rank loads."""

    rank: Count
    files: tuple[File, ...]


class Chosen(Struct, frozen=True):
    """A checkpoint."""

    path: Path
    step: Whole | None = None
    epoch: Whole | None = None
    step_in_epoch: Whole | None = None
    kind: Text = ""
    layout: Text = ""
    mtime: Number | None = None


class Resumed(Struct, frozen=True):
    """What a framework is told."""

    path: Path | None = None
    args: tuple[Text, ...] | None = None
    env: dict[Variable, Text] | None = None


class View(Struct, frozen=True):
    """Where each file is to be opened."""

    root: Path
    checkpoint: Path
    ranks: dict[Rank, tuple[Path, ...]]
    shared: tuple[Path, ...]


class StagedFile(Struct, frozen=True):
    """One file that is brought to this machine."""

    path: Path
    url: Text
    size: Count
    mtime_ns: Whole
    etag: Text
    version: Text
    ranks: tuple[Count, ...] | None


class Stage(Struct, frozen=True):
    """What is brought to this machine."""

    root: Path
    files: tuple[StagedFile, ...]
    texts: dict[Text, Text]


class About(Struct, frozen=True):
    """Who decided, when and for what."""

    root: Path
    decided_at: Number
    host: Text = ""
    agent: Text = ""
    job: Text | None = None
    asked: Text = ""
    saves: Text = ""


class Failed(Struct, frozen=True):
    """Why nothing could be decided."""

    message: Text
    hint: Text
    exit_code: Whole

    def as_error(self, who: str = "") -> CkptError:
        """Return the error, without anything that could steer a terminal."""
        message, hint = ("\n".join(map(printable, text.split("\n"))) for text in (self.message, self.hint))
        return BY_EXIT_CODE.get(self.exit_code, CannotLook)(f"{who}{message}", hint)


def failure(error: CkptError) -> Failed:
    return Failed(str(error), error.hint, error.exit_code)


class Document(Struct, frozen=True):
    """The body of a decision."""

    schema: Literal["ckpt-tools/plan/v1"]
    checkpoint: Chosen | None
    decision: About = About("", 0)
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
        """The file entries of one rank, or of all; files that every rank loads are among both."""
        mine = [f for r in self.ranks or () if rank in (None, r.rank) for f in r.files]
        return [*(self.shared or ()), *mine]


def check(body: Mapping[str, object]) -> Document:
    """Return what a decision's body says. Raises Invalid unless every field is of its type, within its
    bounds, and in agreement with the others.
    """
    fault_file.shallow(body)
    if body.get("schema") != MEANT:
        raise Invalid(f"its schema is {body.get('schema')!r}, and not {MEANT!r}: another version wrote it")
    said = fault_file.checked(body, Document)
    if said.error is not None:
        return said  # nobody starts by it
    _require_files(said)
    if said.view is not None:
        _require_links(said, said.view)
    if said.stage is not None:
        _require_staged(said, said.stage)
    if said.checkpoint is not None and said.resume is not None:
        _require_told(said, said.checkpoint, said.resume)
    return said


def _require_files(said: Document) -> None:
    """A start has files exactly where it has a checkpoint: each other way some rank would begin from nothing,
    and nobody would say so.
    """
    ranks = said.ranks or ()
    if len({r.rank for r in ranks}) != len(ranks):
        raise Invalid("ranks names a rank twice")
    if said.checkpoint is None and (ranks or said.shared):
        raise Invalid("there are files to load, and no checkpoint")
    if said.checkpoint is not None and not said.shared:
        if not ranks:
            raise Invalid("there is a checkpoint, and no files to load")
        if without := [r.rank for r in ranks if not r.files]:
            raise Invalid(f"rank {without[0]} has no files to load")


def _require_links(said: Document, view: View) -> None:
    loads = {str(r.rank): len(r.files) for r in said.ranks or ()}
    for rank, links in view.ranks.items():
        if len(links) != (n := loads.get(rank, 0)):
            raise Invalid(f"the view has {len(links)} links for rank {rank}, and the plan {n} files")
    for link in (view.checkpoint, *view.shared, *(link for some in view.ranks.values() for link in some)):
        if not _is_below(link, view.root):
            raise Invalid(f"{link} leaves the view {view.root}")


def _require_staged(said: Document, stage: Stage) -> None:
    """What is staged lies below one directory, and comes from below ROOT: all that a view of it has."""
    if said.view is None or said.view.root != stage.root:
        raise Invalid("stage.root is not where the view is")
    for name in (*(f.path for f in stage.files), *(f"{stage.root}/{n}" for n in stage.texts)):
        if not _is_below(name, stage.root) or "/./" in name or "//" in name:
            raise Invalid(f"stage: {name} leaves {stage.root}")
    if not is_url(said.top) or any(not _is_below(f.url, split(said.top)[0]) for f in stage.files):
        raise Invalid(f"stage: there are files of another store than that of {said.top}")


def _require_told(said: Document, chosen: Chosen, resume: Resumed) -> None:
    """What the framework is given leads to the planned files: it is one of them, lies in ROOT or the view, or
    is a directory above a file. Arguments are those that a layout would say; those of the user's own layouts
    are for ckpt.toml.
    """
    from ckpt_tools.layouts import LAYOUTS

    load_dir = (resume.env or {}).get("CKPT_LOAD_DIR")
    told = [("resume.path", resume.path), ("resume.env.CKPT_LOAD_DIR", load_dir)]
    if chosen.layout in {known.name for known in LAYOUTS}:
        args = resume.args or ()
        for before, word in zip(("", *args), args, strict=False):
            # a directory may have such a name
            if word.startswith("-") and word not in RESUME_WORDS and before != "--tag":
                raise Invalid(f"resume.args holds {word!r}, which no layout says")
            if word.startswith("/") or is_url(word):
                told.append(("resume.args:", word))
    for where, path in told:
        if path is not None and not _is_near(path, said, chosen):
            raise Invalid(f"{where} {path} leads to nothing that was planned")


def _is_near(path: str, said: Document, chosen: Chosen) -> bool:
    """Return whether a path lies in ROOT or the view, or is a directory above a planned file."""
    tops = (said.top, chosen.path, *([said.view.root] if said.view else []))
    near = any(_is_below(path, top) for top in tops) or any(f.path.startswith(path) for f in said.files())
    return near and bool(path.strip("/")) and ".." not in path.split("/")


def _is_below(link: str, root: str) -> bool:
    top = root.rstrip("/")
    rest = link[len(top) :]
    return link.startswith(top) and (not rest or rest.startswith("/")) and ".." not in rest.split("/")


# ---- one of them


class Decision(Struct, frozen=True, dict=True):
    """A decision as it stands in the file at ``path``: ``body`` is the JSON of the plan, and under "decision"
    who made it, when and for what. ``trusted`` is whom its reader believes: its view must be theirs, too.
    """

    path: str
    body: Mapping[str, Any]
    trusted: Trust = OURS

    @cached_property
    def said(self) -> Document:
        return check(self.body)

    @property
    def about(self) -> About:
        return self.said.decision

    @property
    def step(self) -> int | None:
        return self.said.resume_step

    @property
    def found(self) -> bool:
        return self.said.checkpoint is not None

    @property
    def resume(self) -> Resumed:
        return self.said.resume or Resumed()

    @property
    def ranks(self) -> list[int]:
        """The ranks that load files of their own."""
        return [r.rank for r in self.said.ranks or ()]

    def files(self, rank: int | None = None) -> list[File]:
        return self.said.files(rank)

    def links(self, rank: int | None = None) -> list[str]:
        """Where the entries of ``files`` are to be opened: links in the view where there is one; what lies on
        other nodes has none.
        """
        view = self.said.view
        if not view:
            return [f.path for f in self.files(rank)]
        numbers = [str(number) for number in self.ranks if rank in (None, number)]
        return [*view.shared, *(link for number in numbers for link in view.ranks.get(number, ()))]

    def path_of(self, rank: int | None) -> str | None:
        """What CKPT_PATH says: what the framework is given, else the one file that this rank loads, else of a
        view the checkpoint in it.
        """
        told, view = self.resume.path, self.said.view
        own = not told and rank is not None and not (self.said.shared and not self.said.ranks)
        files = self.links(rank) if own else []
        return files[0] if len(files) == 1 else told or (view.checkpoint if view else None)

    def check(self, ranks: Iterable[int] | None = None) -> None:
        """Raise CannotLook unless the planned files of ``ranks`` (None: all) are still what was verified:
        size, modification time and, in a store, ETag, by one stat each; and links and copies what they were.
        """
        asked = (None,) if ranks is None else tuple(ranks)
        view, stage = self.said.view, self.said.stage
        if not stage:
            self._check_files(asked)
        if view:
            hint = "every node must see --view DIR, or build its own with --agree"
            what = f"the view {view.root} that was built cannot be looked at"
            with explain_refusal(what, hint), trust.named("the view"):
                trust.check(view.root, self.trusted)
        if stage:  # what the copies are copies of does not count any more
            for link, f in self._pairs(asked):
                _check_copy(link, f.size)
        elif view:
            for link, f in self._pairs(asked):
                with explain_refusal(f"{link} of the view that was built cannot be looked at", hint):
                    to = os.readlink(link)
                if to != f.path:
                    why = f"the view has been replaced by another start: {link} leads to {to}"
                    raise CannotLook(why, "start again, and give each job a --view of its own")

    def _pairs(self, ranks: tuple[int | None, ...]) -> Iterator[tuple[str, File]]:
        """Yield links or copies and what each stands for; a rank of another node has none here."""
        for rank in self.ranks or (None,) if ranks == (None,) else ranks or (None,):
            yield from zip(self.links(rank), self.files(rank), strict=False)

    def _check_files(self, ranks: Iterable[int | None]) -> None:
        files = {f.path: f for r in ranks for f in self.files(r)}
        files |= {f.path: f for f in self.files() if f.path == self.resume.path}  # told to all ranks
        failed = refresh(files)
        for path, f in files.items():
            with explain_refusal(f"{path}, which was chosen, cannot be looked at any more", AGAIN):
                if error := failed.get(path):
                    raise error
                st = status(path)
            if (st.st_size, st.st_mtime_ns, get_etag(path)) != (f.size, f.mtime_ns, f.etag):
                raise CannotLook(f"{path} has changed since it was chosen and verified", AGAIN)


def _check_copy(path: str, planned: int) -> None:
    hint = "start again: what is not there as it was is brought again"
    with explain_refusal(f"{path}, which was staged, cannot be looked at any more", hint):
        size = os.stat(path, follow_symlinks=False).st_size
    if size != planned:
        raise CannotLook(f"{path} has changed since it was staged", hint)


# ---- reading and making them


def read(path: str, trusted: Trust = OURS, named: str = "CKPT_PLAN") -> Decision:
    """Return the decision in a file. Raises CannotLook when there is none or it is not one, UsageError when
    it says what no decision says, Untrusted when others could have written it; ``named`` led there.
    """
    hint = "is --plan-dir on a file system that every process of the job sees?"
    with explain_refusal(f"the decision {path} cannot be read", hint), trust.named(named):
        data = trust.read(path, fault_file.MOST, trusted)
    return parse(path, data, trusted)


def parse(path: str, data: bytes, trusted: Trust = OURS) -> Decision:
    """Return the decision that the bytes of the file at ``path`` are. Raises as ``read`` does."""
    try:
        body = fault_file.parsed(data)
        if not isinstance(body, dict) or not isinstance(body.get("decision"), dict):
            raise NoJson("it holds no decision")
        decision = Decision(path, body, trusted)
        decision.said  # noqa: B018 - checked before anybody follows it
    except NoJson as e:
        raise CannotLook(
            f"{path} is not a decision of ckpt: {e}",
            "CKPT_PLAN names the file that 'ckpt run' or 'ckpt hook' wrote; remove any other",
        ) from e
    except Invalid as e:
        hint = "CKPT_PLAN and --plan-dir are for files that 'ckpt run' and 'ckpt hook' write; remove this one"
        raise UsageError(f"{path} is not a decision that ckpt made: {e}", hint) from e
    return decision


def body_of(plan: LoadPlan) -> Body:
    """Return the JSON of a plan as a value."""
    body: Body = json.loads(as_json.render(plan))
    return body


def describe_failure(error: CkptError) -> Body:
    """Return the body of a decision that could not be made, so that nobody who waited has to fail alone."""
    empty = body_of(error.plan) if error.plan else {"schema": MEANT, "checkpoint": None}
    return {**empty, "error": to_builtins(failure(error))}
