"""``tree/could-not-look``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of


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


def stop_changed(path: str, why: str) -> CkptError:
    """Return the error that a chosen file is another one now, or that nobody can tell and ``why``."""
    names = "" if "://" in path else f" ('fuser -v {path}' names one of this machine)"
    text = f"cannot be looked at any more: {why}" if why else "has changed since it was chosen and verified"
    return stop(f"{path} {text}", f"another process writes there{names}: end it, then start again")


def stop_late(path: str, why: str) -> CkptError:
    """Return the error that a store's first list lacked a file, or that nobody can tell and ``why``."""
    text = f"cannot be listed again: {why}" if why else "is there, but the store's first list did not have it"
    hint = "run it again: a list was not whole, or a cache between here and the store gave an old one"
    return stop(f"{path} {text}", hint)


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
