"""One job, one decision: a load plan in a file, written once by whoever holds the lock, read and re-checked
by everyone else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.job import schema
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output import json as as_json
from ckpt_tools.planning.other_writers import get_etag
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url

Body = dict[str, Any]


class Decision(Struct, frozen=True):
    """A decision as it stands in the file at ``path``: the JSON of the plan, and under "decision" who made
    it, when and for what.

    ``trusted`` is whom its reader believes: its view must be theirs, too.
    """

    path: str
    body: Mapping[str, Any]
    trusted: Trust = OURS

    @property
    def about(self) -> Mapping[str, Any]:
        return self.body.get("decision") or {}

    @property
    def step(self) -> int | None:
        return self.body.get("resume_step")

    @property
    def found(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.body.get("checkpoint") is not None

    def files(self, rank: int | None = None) -> list[Mapping[str, Any]]:
        """The file entries of one rank, or of all; files that every rank loads are among both."""
        mine = [f for r in self.body.get("ranks") or () if rank in (None, r["rank"]) for f in r["files"]]
        return [*(self.body.get("shared") or ()), *mine]

    def links(self, rank: int | None = None) -> list[str]:
        """Where the entries of ``files`` are to be opened: links in the view where there is one; what lies on
        other nodes has none.
        """
        view = self.body.get("view")
        if not view:
            return [f["path"] for f in self.files(rank)]
        numbers = [str(r["rank"]) for r in self.body.get("ranks") or () if rank in (None, r["rank"])]
        return [*view["shared"], *(link for number in numbers for link in view["ranks"].get(number, ()))]

    def path_of(self, rank: int | None) -> str | None:
        """What CKPT_PATH says: what the framework is given, else the one file that this rank loads, else of a
        view the checkpoint in it.
        """
        told: str | None = (self.body.get("resume") or {}).get("path")
        files = (
            []
            if told or rank is None or (self.body.get("shared") and not self.body.get("ranks"))
            else self.links(rank)
        )
        return files[0] if len(files) == 1 else told or (self.body.get("view") or {}).get("checkpoint")

    def check(self, ranks: Iterable[int] | None = None) -> None:
        """Whether the planned files of ``ranks`` (None: all) are still what was verified: size, modification
        time and, in a store, ETag, by one stat each. Raises CannotLook.
        """
        if self.body.get("stage"):
            self._check_staged(ranks)
            return
        self._check_files(ranks)
        if view := self.body.get("view"):
            self._check_owner(view["root"])
            numbers = [r["rank"] for r in self.body.get("ranks") or ()] if ranks is None else list(ranks)
            for rank in numbers or [None]:
                self._check_links(rank)

    def _check_files(self, ranks: Iterable[int] | None) -> None:
        """Raise CannotLook if a planned file of ``ranks`` is not what was verified."""
        files = {f["path"]: f for r in ((None,) if ranks is None else ranks) for f in self.files(r)}
        told = (self.body.get("resume") or {}).get("path")  # of replicas one may be told to all ranks
        files |= {f["path"]: f for f in self.files() if f["path"] == told}
        in_stores = [path for path in files if is_url(path)]
        failed: Mapping[str, OSError] = {}
        if in_stores:
            from ckpt_tools.storage.stores.refresh import refresh_objects

            failed = refresh_objects(in_stores)
        for path, f in files.items():
            _check_unchanged(path, f, failed.get(path))

    def _check_staged(self, ranks: Iterable[int] | None) -> None:
        """Whether the copies that were brought for ``ranks`` are there: what they are copies of does not
        count any more.
        """
        self._check_owner(self.body["stage"]["root"])
        for rank in (None,) if ranks is None else ranks:
            for link, f in zip(self.links(rank), self.files(rank), strict=False):
                hint = "start again: what is not there as it was is brought again"
                try:
                    size = os.stat(link, follow_symlinks=False).st_size
                except OSError as e:
                    why = f"{link}, which was staged, cannot be looked at any more: {e.strerror}"
                    raise CannotLook(why, hint) from e
                if size != f["size"]:
                    raise CannotLook(f"{link} has changed since it was staged", hint)

    def _check_owner(self, view: str) -> None:
        try:
            with trust.named("the view"):
                trust.check(view, self.trusted)
        except OSError as e:
            hint = "every node must see --view DIR, or build its own with --agree"
            raise CannotLook(f"the view {view} that was built cannot be looked at: {e.strerror}", hint) from e

    def _check_links(self, rank: int | None) -> None:
        """Whether the view is still the one that was built for this decision."""
        for link, f in zip(
            self.links(rank), self.files(rank), strict=False
        ):  # a rank of another node has no links here
            try:
                said = os.readlink(link)
            except OSError as e:
                hint = "every node must see --view DIR, or build its own with --agree"
                raise CannotLook(
                    f"{link} of the view that was built cannot be looked at: {e.strerror}", hint
                ) from e
            if said != f["path"]:
                hint = "start again, and give each job a --view of its own"
                raise CannotLook(f"the view has been replaced by another start: {link} leads to {said}", hint)


def _check_unchanged(path: str, planned: Mapping[str, Any], failed: OSError | None) -> None:
    """Whether a planned file is still what was verified; ``failed`` is why it could not be looked at."""
    again = "start again: a new start decides anew"
    try:
        if failed is not None:
            raise failed
        st = status(path)
    except OSError as e:
        gone = f"{path}, which was chosen, cannot be looked at any more: {e.strerror}"
        raise CannotLook(gone, again) from e
    now = st.st_size, st.st_mtime_ns, get_etag(path)
    if now != (planned["size"], planned["mtime_ns"], planned.get("etag", "")):
        raise CannotLook(f"{path} has changed since it was chosen and verified", again)


def read(path: str, trusted: Trust = OURS, named: str = "CKPT_PLAN") -> Decision:
    """The decision in a file. Raises CannotLook when there is none or it is not one, UsageError when it says
    what no decision says.

    Raises Untrusted when others could have written it; ``named`` is the setting that led there.
    """
    try:
        with trust.named(named):
            data = trust.read(path, checked_json.MOST, trusted)
    except OSError as e:
        raise CannotLook(
            f"the decision {path} cannot be read: {e.strerror}",
            "is --plan-dir on a file system that every process of the job sees?",
        ) from e
    return parsed(path, data, trusted)


def parsed(path: str, data: bytes, trusted: Trust = OURS) -> Decision:
    """The decision that the bytes of the file at ``path`` are. Raises as ``read`` does."""
    try:
        return Decision(path, schema.parsed(data), trusted)
    except checked_json.NoJson as e:
        raise CannotLook(
            f"{path} is no decision of ckpt: {e}",
            "CKPT_PLAN names the file that 'ckpt run' or 'ckpt hook' wrote; remove any other",
        ) from e
    except checked_json.Invalid as e:
        hint = (
            "CKPT_PLAN and --plan-dir are for what 'ckpt run' and 'ckpt hook' write; see who wrote this file,"
            " remove it, and start again"
        )
        raise UsageError(f"{path} is no decision that ckpt made: {e}", hint) from e


def failed(error: CkptError) -> Body:
    """The body of a decision that could not be made,
    so that nobody who waited for it has to fail on his own.
    """
    empty = (
        json.loads(as_json.render(error.plan))
        if error.plan
        else {"schema": "ckpt-tools/plan/v1", "checkpoint": None}
    )
    return {**empty, "error": {"message": str(error), "hint": error.hint, "exit_code": error.exit_code}}


def body_of(plan: LoadPlan) -> Body:
    """The JSON of a plan as a value."""
    body: Body = json.loads(as_json.render(plan))
    return body
