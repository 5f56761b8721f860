"""``tree/could-not-look``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Unseen
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of


def find_broken_plugin(root: str, broken: Sequence[Finding]) -> Iterator[Hit]:
    """Yield that a broken plug-in may be the only one that knows files here (exit 5)."""
    for f in broken[:1]:
        yield Hit(root, f"whether there is a checkpoint is not known: {f.message}", f.hint, error=CannotLook)


def find_unseen(unseen: Sequence[Unseen]) -> Iterator[Hit]:
    """Yield that a file could not be read, so that nobody knows what it is (exit 5)."""
    for row in unseen[:1]:
        yield Hit(row.path, f"{row.path}: {row.why}; nobody knows what lies there", error=CannotLook)


def find_unknown(below: int, level: Level, plugins: Sequence[Finding]) -> Iterator[Hit]:
    """Yield what --strict refuses: files not read as deeply as asked, and broken plug-ins."""
    if below:
        text = f"{below} of the files to load could not be looked at as deeply as --level {level} asks"
        hint = "the plan without --strict says which, and how deeply; --budget gives it more time"
        yield Hit("", f"{text}, which --strict takes for unknown", hint, error=CannotLook)
    for f in plugins[:1]:
        yield Hit("", f"{f.message}, which --strict takes for unknown", f.hint, error=CannotLook)


def stop(text: str, hint: str, plan: LoadPlan | None = None) -> CkptError:
    """Return the error that a file or directory that may matter could not be read (exit 5)."""
    return error_of(RULE, Hit("", text, hint), CannotLook, plan)


def stop_changed(path: str, why: str | None) -> CkptError:
    names = "" if "://" in path else f" ('fuser -v {path}' names one of this machine)"
    hint = f"another process writes there{names}: end it, then start again"
    if why is None:
        return stop(f"{path} is in use: it has changed since it was chosen and verified", hint)
    return stop(f"{path}, which was chosen, cannot be looked at any more: {why}", hint)


def stop_late(path: str, why: str | None) -> CkptError:
    hint = "run it again: a list was not whole, or a cache between here and the store gave an old one"
    if why is None:
        return stop(f"{path} is there, but the store's first list did not have it", hint)
    return stop(f"{path} cannot be listed again: {why}", hint)


def stop_unread_log(what: str, why: str) -> CkptError:
    """Return the error that a log cannot be read: without it a lost mount looks like a first launch."""
    hint = "make it readable, or name another directory with --plan-dir"
    return stop(f"{what} cannot be read: {why}", hint)


def stop_damaged_log(what: str, path: str, why: str) -> CkptError:
    hint = f"to start from nothing anyway add --allow fresh; to forget what it said: rm {quote(path)}"
    return stop(f"{what} is damaged: {why}", hint)


def describe_unseen(path: str, why: str) -> Finding:
    return finding_of(RULE, Hit(path, why, severity=Severity.ERROR))


def describe_first_launch(root: str) -> Finding:
    text = "it does not exist: this is taken for a first launch (--allow missing)"
    return finding_of(RULE, Hit(root, text, code="missing-root"))


RULE = Rule(
    id="tree/could-not-look",
    codes=("unreadable", "in-use", "broken-plugin", "missing-root", "on-other-node"),
    effect=Effect.STOP,
    answer="repair what is named and run it again; --allow unreadable or CKPT_NO_PLUGINS=1 goes on without;"
    " --allow none,missing for a first launch where there is no ROOT",
    why="""\
Something below ROOT could not be read, or changed while it was read, or only a plug-in that cannot be
imported knows it, or it lies on another node's disk. It may be the newest checkpoint or a part of it, so
no older one is taken and none is said not to exist. A ROOT that is not there may be a file system that is
not mounted.
For: network file systems that answer EIO or ESTALE for a while; a directory of another user; jobs that
began again from nothing because a mount came later; pytorch/pytorch#125740: node-local directories.
""",
)
