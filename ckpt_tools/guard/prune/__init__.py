"""``ckpt prune``: what a policy does not keep, out of sight in one rename each and then removed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from glob import escape
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.api import plan
from ckpt_tools.cache.verdicts import remembering
from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Operation, Step, Store
from ckpt_tools.guard.prune.looked_at import Entry, entries, freed, identities
from ckpt_tools.guard.prune.pins import pin
from ckpt_tools.guard.prune.policy import Policy, Save, kept
from ckpt_tools.guard.prune.protected import Claims, always, bests, name_of, needed, not_removable
from ckpt_tools.guard.writing import DELETE_ELSEWHERE, require_writable
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import filters
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.urls import absolute, is_url, real_path

if TYPE_CHECKING:
    from ckpt_tools.guard.prune.in_store import Deleter

__all__ = ["Policy", "pin", "prune"]


def prune(
    root: str,
    policy: Policy,
    *,
    damaged: bool = False,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Remove the checkpoints below ``root`` that are verified and that ``policy`` does not keep, with
    ``damaged`` those in whose files damage is, too. Without ``apply`` it only says what it would do.

    Nothing goes where ``plan`` chooses nothing, for one of the runs: raises what it raises. Raises UsageError
    where nothing is to be kept, CannotLook where something could not be looked at or not be removed, and
    where ``plan`` would choose something else afterwards.
    """
    policy.require_one()
    root = real_path(absolute(root))
    if apply:
        require_writable([root], DELETE_ELSEWHERE)
    selection = replace(
        selection or Selection(cache=True),
        allow_none=False,
        allow_missing=False,
        allow_fresh=False,
        skip_unreadable=False,
    )
    if is_url(root):
        from ckpt_tools.guard.prune import in_store

        with in_store.opened(root, state_dir, selection.trust) if apply else nullcontext() as deleter:
            why = "the rest of what an interrupted prune had begun to remove"
            finished = [
                Change(
                    d.paths[0], "removed", why, None, d.label, len(d.objects), sum(o.size for o in d.objects)
                )
                for d in (deleter.finish() if deleter else ())
            ]
            made = _Pruning(root, policy, damaged, selection, deleter=deleter).answer()
        return replace(made, changes=(*finished, *made.changes))
    with journal.opened(root, state_dir, selection.trust) if apply else nullcontext() as store:
        return _Pruning(root, policy, damaged, selection, store).answer()


class _Pruning(Struct, frozen=True):
    """One command; ``store`` is held where it is to be done, or ``deleter`` where the root is in a store."""

    root: str
    policy: Policy
    damaged: bool
    selection: Selection
    store: Store | None = None
    deleter: Deleter | None = None

    def answer(self) -> Changes:
        sel = self.selection
        with remembering(self.root, sel.cache, sel.max_age, None, sel.trust) as cache:
            s = open_session(self.root, sel.read_options(), cache=cache)
            questions = self._questions(s)
            plans = [self._planned(question) for question in questions]
            found = entries(s, sel)
            why = self._why(s, found, Claims.of(self.root, plans, sel))
        going = [e for e in found if name_of(e) not in why]
        rows = {name_of(e): self._row(e, why.get(name_of(e), "")) for e in found}
        if going:
            self._require_same(questions, plans, self._without(going))
        number = None
        if self.store and going:
            number, written = self._remove(self.store, going, questions, plans)
            said = "somebody wrote it while it was looked at"
            rows |= {name_of(e): self._row(e, said) for e in written}
        elif self.deleter and going:
            self._delete(self.deleter, s, going, questions, plans)
        back = self.store.changes() if self.store else ()
        notes = tuple(_versions(self.root)) if going and is_url(self.root) else ()
        applied = self.store is not None or self.deleter is not None
        return Changes("prune", self.root, applied, (*back, *rows.values()), notes, number)

    # ---- what is resumed from

    def _questions(self, s: Session) -> list[Selection]:
        """One for each run that is asked about."""
        everything = grouping.group(s.parts, s.layouts, self.selection.save_interval)
        runs = list(s.runs(c for c in everything if filters.belongs(c, self.selection) and not c.unfinished))
        if self.selection.run is None and len(runs) > 1:
            with suppress(UsageError):  # several that are one, or several
                self._planned(self.selection)
                return [self.selection]
            return [replace(self.selection, run=run, layout=layout) for layout, run in runs]
        return [self.selection]

    def _planned(self, question: Selection) -> LoadPlan:
        made = plan(self.root, question)
        if made.checkpoint is None:
            raise NoCheckpoint(f"no checkpoint is chosen in {self.root}: nothing is removed")
        return made

    def _without(self, going: Sequence[Entry]) -> tuple[str, ...]:
        below = (os.path.relpath(path, self.root) for e in going for path in e.group.paths)
        return tuple(map(escape, below))

    def _require_same(
        self, questions: Sequence[Selection], plans: Sequence[LoadPlan], gone: Sequence[str] = ()
    ) -> None:
        """Whether the same is resumed from without what goes. Raises CannotLook."""
        for question, before in zip(questions, plans, strict=True):
            hint = "nothing is removed; this is a case that ckpt should know: please report it"
            try:
                after = plan(self.root, replace(question, exclude=(*question.exclude, *gone)))
            except CkptError as e:
                raise CannotLook(f"'ckpt plan' would fail after the removal: {e}", hint) from e
            if after.fingerprint != before.fingerprint:
                raise CannotLook("'ckpt plan' would choose something else after the removal", hint)

    # ---- which

    def _why(self, s: Session, found: Sequence[Entry], claims: Claims) -> dict[str, str]:
        """Path of the first file -> why it stays, of all that stay."""
        must = always(s, found, claims, self.selection.settle)
        why = {name_of(e): e.why for e in found if e.why and not (self.damaged and e.damaged)}
        for run in {e.run for e in found}:
            mine = sorted((e for e in found if e.run == run and e.good), key=lambda e: e.newness)[::-1]
            names = {name_of(e) for e in mine}
            saves = [
                Save(name_of(e), e.checkpoint.step, e.checkpoint.mtime_ns, e.checkpoint.kind, e.group.size)
                for e in mine
            ]
            why |= kept(self.policy, saves, {n: w for n, w in must.items() if n in names})
        return self._with_needed(s, found, why | must)

    def _with_needed(self, s: Session, found: Sequence[Entry], why: dict[str, str]) -> dict[str, str]:
        """Also those that others need, that cannot be taken out, and those that these need in turn."""
        while True:
            staying = [e for e in found if name_of(e) in why]
            going = [e for e in found if name_of(e) not in why]
            best = bests(s, staying, found)
            more = {
                name_of(e): reason
                for e in going
                if (
                    reason := best.get(name_of(e))
                    or needed(e, staying)
                    or not_removable(s, e, self.root, staying)
                )
            }
            if not more:
                return why
            why = {**why, **more}

    # ---- what is done

    def _remove(
        self, store: Store, going: Sequence[Entry], questions: Sequence[Selection], plans: Sequence[LoadPlan]
    ) -> tuple[int | None, list[Entry]]:
        """Move checkpoints into the trash, and empty it. Return the number of the operation, and those that
        stay because somebody has written them since they were looked at: then all comes back, and the others
        go, which nobody writes any more.
        """
        if not going:
            return None, []
        operation, written = self._move(store, going)
        if written:
            store.take_back(operation)
            number, more = self._remove(store, [e for e in going if e not in written], questions, plans)
            return number, [*written, *more]
        try:
            self._require_same(questions, plans)
        except CannotLook:
            store.take_back(operation)
            raise
        homes = {part.home for e in going for part in e.checkpoint.parts if part.home}
        for home in sorted(homes, reverse=True):  # of checkpoints whose files went one by one
            with suppress(OSError, ValueError), store.tree.above(os.path.relpath(home, self.root)) as at:
                os.rmdir(at[1], dir_fd=at[0])
        if problems := store.empty_trash():
            text = f"{len(problems):,} of the files that were moved to .ckpt/trash cannot be removed"
            why = problems[0]
            raise CannotLook(f"{text}: {why.filename}: {why.strerror}", "the next command tries it again")
        return operation.number, []

    def _move(self, store: Store, going: Sequence[Entry]) -> tuple[Operation, list[Entry]]:
        """Move checkpoints into the trash; return also those that are not what they were when looked at."""
        place = store.place("trash")
        below = {path: os.path.relpath(path, self.root) for e in going for path in e.group.paths}
        steps = [Step(below[path], f"{place}/{below[path]}") for e in going for path in _mark_first(e)]
        operation = store.run("prune", ", ".join(e.group.label for e in going), steps)
        in_trash = {path: os.path.join(self.root, place, name) for path, name in below.items()}
        return operation, [
            e for e in going if identities([in_trash[path] for path in e.group.paths]) != e.seen
        ]

    def _delete(
        self,
        deleter: Deleter,
        s: Session,
        going: Sequence[Entry],
        questions: Sequence[Selection],
        plans: Sequence[LoadPlan],
    ) -> None:
        """The same in a store, where nothing can be taken back: all is asked again before anything goes."""
        from ckpt_tools.guard.prune import in_store

        try:
            deletions = [in_store.doomed(s, e) for e in going]
        except OSError as e:
            raise CannotLook(f"cannot look at {e.filename}: {e.strerror}: nothing is removed") from e
        self._require_same(questions, plans)
        in_store.require_same(deletions)
        if problems := deleter.delete(deletions):
            raise in_store.not_deleted(problems)

    def _row(self, e: Entry, why: str) -> Change:
        path, label, number = e.group.path, e.group.label, len(e.group.files)
        if why:
            return Change(path, "stays", why, None, label, number, e.group.size)
        size, held = freed(e)
        reason = e.why.partition(",")[0] or "nothing says to keep it"
        if held:
            reason += f"; {held:,} of its files have other names too (hard links), and free nothing"
        return Change(
            path,
            "removed" if self.store or self.deleter else "would-remove",
            reason,
            None,
            label,
            number,
            size,
        )


def _versions(root: str) -> Iterator[Finding]:
    """That what is deleted stays, where the store keeps versions."""
    from ckpt_tools.storage.stores.mounts import tree_of

    if tree_of(root)[0].versioned:
        text = "the store keeps versions: what is deleted gets a delete marker, and its bytes stay"
        yield finding("versions-kept", text, path=root)


def _mark_first(e: Entry) -> list[str]:
    """Its paths, first those without which the others are no checkpoint; seals last."""
    role = {part.path: part.role for part in e.checkpoint.parts}
    order = {"metadata": 0, "index": 0}
    return sorted(
        e.group.paths, key=lambda path: (order.get(role.get(path, ""), 1 if path in role else 2), path)
    )
