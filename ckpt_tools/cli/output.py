"""How a command answers, its settings, and what it reports on stderr besides its answer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.cli import console
from ckpt_tools.cli.progress import progress
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.formats import names
from ckpt_tools.layouts import user
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.output import registry
from ckpt_tools.output.page import View
from ckpt_tools.output.plan import render as render_plan
from ckpt_tools.output.sentence import explain_rejection
from ckpt_tools.settings import parsers, plugins
from ckpt_tools.settings import resolve as config
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.urls import is_url
from ckpt_tools.storage.writes import check_writable

T = TypeVar("T")
_HINTS = {
    "text": "'ckpt run' becomes the command, and what is printed is its own; 'ckpt plan --json' answers "
    "without starting it, and $CKPT_PLAN names the decision within it"
}
"""By the first format of a command the hint for an unknown format, if the command has only one format."""
_GONE = {
    "--format html": "'ckpt report ROOT -o FILE' makes the page",
    "--format prometheus": "'ckpt watch ROOT --once --metrics FILE' writes metrics",
}
"""By a format of earlier copies what to say instead."""
_LOST = 8
"""The most rejected candidates that stderr explains."""


class Output(Struct, frozen=True):
    """One way to answer, as --format, --quiet, --verbose, --color, --progress and --output say."""

    format: str
    quiet: bool = False
    verbose: bool = False
    color: str | None = None
    progress: str = "auto"
    file: str | None = None
    """The file for the answer; None for stdout."""
    warnings_fail: bool = False
    """Whether the exit code counts warnings, too."""

    @property
    def view(self) -> View:
        """How documents are shown: in a file without a width, and coloured only if --color says so."""
        stream = None if self.file else sys.stdout
        width = None if self.file else console.width()
        color = console.is_colored(self.color, stream)
        return View(color, width, self.verbose, time.time(), self.warnings_fail)

    @property
    def terminal(self) -> bool:
        return not self.file and console.terminal(sys.stdout)

    def out(self, text: str) -> None:
        console.out(text, self.file)


def read_output(formats: Sequence[str], given: Mapping[str, Any], kind: str = "") -> Output:
    """Return how to answer: by default in the first format; a ``kind`` of document adds registry formats."""
    choice, color = given.get("format"), given.get("color")
    progress_as = given.get("progress_as") or "auto"
    if given.get("json") and choice not in (None, "json"):
        raise UsageError(f"--json and --format {choice} contradict each other", "use one of them")
    choice = "json" if given.get("json") else choice or formats[0]
    if kind and choice not in formats:
        if found := registry.find(choice, kind):
            found.require()
        else:
            say_broken_plugins(("outputs",))
        formats = registry.names(kind)
    for flag, value, allowed in (
        ("--format", choice, formats),
        ("--color", color or "auto", ("auto", "always", "never")),
        ("--progress", progress_as, ("auto", "bar", "json", "none")),
        ("--fail-on", given.get("fail_on") or "error", ("error", "warning")),
    ):
        hint = _GONE.get(f"{flag} {value}") or _HINTS.get(allowed[0], f"leave {flag} out for {allowed[0]}")
        read_value(flag, parsers.one_of(*allowed), value, hint)
    if given.get("format") == "json" and not given.get("quiet"):
        console.warn_deprecated("--format json", "--json")
    return Output(
        choice,
        given.get("quiet", False),
        given.get("verbose", False),
        color,
        progress_as,
        _check_output_file(given),
        warnings_fail=given.get("fail_on") == "warning",
    )


def read_value(flag: str, parse: Callable[[object, str], T], text: str, hint: str = "") -> T:
    """Return the parsed value of a flag. Raise UsageError that names the flag."""
    try:
        return parse(text, "")
    except ValueError as e:
        raise UsageError(f"{flag}: {e}", hint) from e


def read_settings(given: Mapping[str, Any], to: Output, roots: tuple[str, ...] = ()) -> config.Settings:
    """Return a command's settings from flags, variables and the file; print their notes, configure stores."""
    known = config.BY_KEY.keys() | config.WORDS.keys()
    flags = {key: value for name, value in given.items() if (key := name.replace("_", "-")) in known}
    settings = config.resolve(flags, roots)
    mounts.forget()  # what an earlier command of this process had
    mounts.configure(settings.stores or StoreOptions())
    if not to.quiet:
        for note in settings.notes:
            console.problem("note", note)
        for name, instead in settings.going:
            console.warn_deprecated(name, instead)
        if settings.refused:
            console.problem("warning", str(settings.refused), settings.refused.hint)
    if to.verbose and settings.file:
        console.problem("note", f"configuration from {settings.file}")
    if settings.layout_tables is None:
        return settings
    try:
        return replace(settings, layouts=user.load(settings.layout_tables, names.order))
    except ValueError as e:
        hint = "'ckpt layouts --check ROOT' shows what each template matches"
        raise UsageError(f"{settings.file}: {e}", hint) from e


def _check_output_file(given: Mapping[str, Any]) -> str | None:
    """Return the file of --output; None for stdout. Raise UsageError before the work if it cannot be used."""
    path: str | None = given.get("output_file")
    if path is None or path == "-":
        return None
    if is_url(path):
        raise UsageError(f"-o {path} lies in a store", "name a FILE of this machine, and upload that")
    asked = [*given.get("paths", ()), *(given.get(name) for name in ("root", "file", "a", "b"))]
    if is_state(path) or any(one is not None and is_same_file(one, path) for one in asked):
        raise UsageError(f"-o {path} would overwrite a file of a checkpoint", "name another FILE")
    check_writable(path)
    return path


def is_state(path: str) -> bool:
    """Return True if a file exists and has a name that only files of a training run have."""
    return os.path.exists(path) and names.only_state(os.path.basename(os.path.realpath(path)))


def is_same_file(path: str, other: str) -> bool:
    """Return True if both paths lead to one file; False for a directory or if a path does not exist."""
    return os.path.isfile(path) and os.path.exists(other) and os.path.samefile(path, other)


def tell(plan: LoadPlan, to: Output) -> str:
    """Return the verbose page of a plan, for people."""
    return render_plan(plan, replace(to.view, verbose=True))


def say_broken_plugins(groups: Collection[str] = ()) -> None:
    """Warn of broken plug-ins of ``groups``; by default of the groups that can change an answer."""
    for broken in plugins.list_broken(groups or plugins.DECIDING):
        console.problem("warning", str(broken), plugins.HINT)


@contextmanager
def reading(to: Output, say: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """Yield ``progress`` and ``note`` for a call that reads. If it raises an error with a plan, report why
    each candidate was rejected (or ``say`` the whole plan) before the error says that none is left.
    """
    note = None if to.quiet else lambda text: console.problem("warning", text)
    try:
        with progress(to) as meter:
            yield {"progress": meter, "note": note}
    except CkptError as error:
        if error.plan is not None and say:
            say(tell(error.plan, to))
        elif error.plan is not None:
            report(error.plan, to)
        raise


def report(plan: LoadPlan, to: Output) -> None:
    """Print rejected candidates and warnings on stderr."""
    if to.quiet:
        return
    for rejected in plan.rejected[:_LOST]:
        c = rejected.checkpoint
        causes = sorted((f for f in rejected.findings if not f.follows), key=lambda f: -f.severity)
        what = f"{c.label} was skipped{f' ({c.path})' if c.parts else ''}"
        reason = explain_rejection(rejected)
        first = [f"{f.path}: {f.code}: {f.message}" for f in causes[:1] if f.message not in reason]
        console.problem("warning", f"{what}: {'; '.join([reason, *first])}")
    if more := plan.rejected[_LOST:]:
        console.problem("warning", f"{len(more):,} older ones were skipped too: 'ckpt plan -v' names them")
    console.findings(plan.warnings, plan.root)
