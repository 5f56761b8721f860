"""The formats that 'ckpt verify' and 'ckpt plan' print, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import PLAIN, View
from ckpt_tools.settings import plugins

Document = Verification | LoadPlan | Failure
VERIFICATION, PLAN, FAILURE = "verification", "plan", "failure"
_KINDS: Mapping[type, str] = {Verification: VERIFICATION, LoadPlan: PLAN, Failure: FAILURE}


class Output(Struct, frozen=True):
    """One output format. ``renders`` has for each kind of document (``verification``, ``plan``, ``failure``)
    the function that returns its text, or "module:function", which is imported when it is needed.

    ``in_ci``: CI reads it after all files are written, so a young file that is cut short counts as damaged.
    ``needs`` is an optional package, ``extra`` the extra of ckpt-tools that installs it.
    """

    name: str
    title: str
    renders: Mapping[str, Callable[[Any, View], str] | str]
    needs: str = ""
    extra: str = ""
    in_ci: bool = False

    def render(self, document: Document, view: View | None = None) -> str:
        function = self.renders.get(_KINDS[type(document)])
        if function is None:
            return ""
        text: str = plugins.find_function(function)(document, view or PLAIN)
        return text

    def require(self) -> None:
        """Raise UsageError if the package ``needs`` is missing: called before the long work, not after it."""
        if self.needs and find_spec(self.needs) is None:
            hint = f"pip install 'ckpt-tools[{self.extra}]'" if self.extra else f"pip install {self.needs}"
            raise UsageError(f"--format {self.name} needs {self.needs}, which is not installed", hint)


def _built_in(name: str, title: str, *kinds: str, in_ci: bool = False) -> Output:
    """Return a format whose module has ``render`` for documents of ``kinds``, by default all."""
    home = f"ckpt_tools.output.{name}:render"
    return Output(name, title, dict.fromkeys(kinds or (VERIFICATION, PLAN, FAILURE), home), in_ci=in_ci)


OUTPUTS: tuple[Output, ...] = (
    Output(
        "table",
        "for people",
        {VERIFICATION: "ckpt_tools.output.verification:render", PLAN: "ckpt_tools.output.plan:render"},
    ),
    _built_in("json", "one object with everything (docs/json.md)"),
    _built_in("jsonl", "the same, an object per line", VERIFICATION, FAILURE),
    _built_in("shell", "variables for eval in a script", PLAN, FAILURE),
    _built_in("junit", "JUnit XML: a test case per file", VERIFICATION, FAILURE, in_ci=True),
    _built_in("sarif", "SARIF 2.1.0, for code scanning", in_ci=True),
    _built_in("github", "annotations of GitHub Actions", in_ci=True),
    _built_in("markdown", "a summary with tables, for comments and step summaries", in_ci=True),
    _built_in("csv", "a row per file, or per rank and file"),
)
"""In the order in which they are listed; a new format is an entry here and a module with ``render``."""


def every() -> tuple[Output, ...]:
    """Return the formats of this package, and the formats that installed packages add (docs/plugins.md)."""
    added = plugins.list_added("outputs", {o.name for o in OUTPUTS}).values()
    return (*OUTPUTS, *(plugin.value for plugin in added))


def names(kind: str) -> tuple[str, ...]:
    return tuple(o.name for o in every() if kind in o.renders)


def find(name: str, kind: str = FAILURE) -> Output | None:
    """Return the format of that name if it shows this kind of document, else None."""
    own = next((o for o in OUTPUTS if o.name == name), None)
    known = (own,) if own else every()
    return next((o for o in known if o.name == name and kind in o.renders), None)


def render(name: str, document: Document, view: View) -> str:
    output = find(name, _KINDS[type(document)])
    assert output is not None  # noqa: S101 - the command looked up the format before its work
    return output.render(document, view)
