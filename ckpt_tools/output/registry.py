"""The formats that 'ckpt verify' and 'ckpt plan' print, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.model.answers import Failure, Verification
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.page import PLAIN, View
from ckpt_tools.settings import plugins

Document = Verification | LoadPlan | Failure
Render = Callable[[Any, View], str]
VERIFICATION, PLAN, FAILURE = "verification", "plan", "failure"
_KINDS: Mapping[type, str] = {Verification: VERIFICATION, LoadPlan: PLAN, Failure: FAILURE}


class Output(Struct, frozen=True):
    """One format. ``renders`` has for each kind of document that it can show (``verification``, ``plan``,
    ``failure``) the function that does, or "module:function", which is imported when it is needed.

    ``in_ci``: it is read where nothing is still written, so a young file that ends early is damaged there.
    ``needs`` is a package that is not always there, ``extra`` the extra of ckpt-tools that brings it.
    """

    name: str
    title: str
    renders: Mapping[str, Render | str]
    needs: str = ""
    extra: str = ""
    in_ci: bool = False

    def render(self, document: Document, view: View | None = None) -> str:
        found = self.renders.get(_KINDS[type(document)])
        if found is None:
            return ""
        text: str = plugins.find_function(found)(document, view or PLAIN)
        return text

    def require(self) -> None:
        """Raise UsageError where a package is missing, before the long work rather than after it."""
        if self.needs and find_spec(self.needs) is None:
            hint = f"pip install 'ckpt-tools[{self.extra}]'" if self.extra else f"pip install {self.needs}"
            raise UsageError(f"--format {self.name} needs {self.needs}, which is not installed", hint)


def _built_in(name: str, title: str, *kinds: str, **more: Any) -> Output:
    """Return a format of a module whose ``render`` takes these kinds (``failed`` a failure), else all."""
    home = f"ckpt_tools.output.{more.pop('home', name)}"
    renders = dict.fromkeys(kinds or (VERIFICATION, PLAN, FAILURE), f"{home}:render")
    return Output(name, title, {**renders, **({FAILURE: f"{home}:failed"} if kinds else {})}, **more)


OUTPUTS: tuple[Output, ...] = (
    Output(
        "table",
        "for people",
        {VERIFICATION: "ckpt_tools.output.verification:render", PLAN: "ckpt_tools.output.plan:render"},
    ),
    _built_in("json", "one object with everything (docs/json.md)"),
    _built_in("jsonl", "the same, an object per line", VERIFICATION),
    _built_in("shell", "variables for eval in a script", PLAN),
    _built_in("junit", "JUnit XML: a test case per file, or per rank", in_ci=True),
    _built_in("sarif", "SARIF 2.1.0, for code scanning", in_ci=True),
    _built_in("github", "annotations of GitHub Actions", in_ci=True),
    _built_in("markdown", "a summary with tables, for comments and step summaries", in_ci=True),
    _built_in("csv", "a row per file, or per rank and file"),
    _built_in("prometheus", "metrics for the node exporter's textfile collector"),
    _built_in(
        "html",
        "a page to look at, without network",
        *(VERIFICATION, PLAN),
        home="report",
        needs="jinja2",
        extra="report",
    ),
)
"""In the order in which they are listed; a new one is a line here and a file that renders."""


def every() -> tuple[Output, ...]:
    """Those of this package, and those that installed packages add (docs/plugins.md)."""
    found = plugins.added("outputs", {o.name for o in OUTPUTS}).values()
    return (*OUTPUTS, *(plugin.value for plugin in found))


def names(kind: str) -> tuple[str, ...]:
    return tuple(o.name for o in every() if kind in o.renders)


def find(name: str, kind: str = FAILURE) -> Output | None:
    """The format of that name, where it shows this kind of document."""
    own = next((o for o in OUTPUTS if o.name == name), None)
    known = (own,) if own else every()
    return next((o for o in known if o.name == name and kind in o.renders), None)


def render(name: str, document: Document, view: View) -> str:
    found = find(name, _KINDS[type(document)])
    assert found is not None  # noqa: S101 - what is asked for was looked up before the work
    return found.render(document, view)
