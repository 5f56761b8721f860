"""Names in pickles that are in no list: what is said of them, and whose the caller vouches for
(``--trust global=PATTERN``). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from shlex import quote

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Verdict, worst
from ckpt_tools.model.report import Report, Unlisted

_MOST = 8  # named one by one
_FLAG = "--trust global="


def suspects(called: Sequence[Unlisted]) -> Iterator[Finding]:
    """Warnings about names in no list that a pickle calls."""
    for u in called[:_MOST]:
        why = f"loading the pickle calls {u.name[:120]}, which ckpt does not know"
        yield finding("suspect-call", why, offset=u.offset)
    if len(called) > _MOST:
        why = f"loading the pickle calls {len(called) - _MOST:,} more that ckpt does not know"
        yield finding("suspect-call", why, offset=called[_MOST].offset)


def strangers(named: Sequence[Unlisted]) -> Iterator[Finding]:
    """Warn of names in no list in a file that is unpickled without asking: what they import then runs."""
    for u in named[:_MOST]:
        how = "calls" if u.called else "imports"
        why = f"loading the pickle {how} {u.name[:120]}, which ckpt does not know, and its framework"
        hint = f"if it is yours, add {_FLAG}{quote(pattern(u.name))}; else do not load this file"
        yield finding("unknown-global", f"{why} loads it without asking", offset=u.offset, hint=hint)
    if len(named) > _MOST:
        why = f"{len(named) - _MOST:,} more that ckpt does not know"
        yield finding("unknown-global", why, offset=named[_MOST].offset)


def vouched(report: Report, trusted: Sequence[str], unasked: bool) -> Report:
    """The report as ``trusted`` patterns for whole dotted names leave it; they lift no error. ``unasked``:
    the framework unpickles the file without asking, so that each name in no list is a question.
    """
    if not report.unlisted or not (trusted or unasked):
        return report
    left = [u for u in report.unlisted if not any(fnmatchcase(u.name, p) for p in trusted)]
    others = [f for f in report.findings if f.code not in ("suspect-call", "unknown-global")]
    findings = (*others, *(strangers(left) if unasked else suspects([u for u in left if u.called])))
    unknown = report.verdict is Verdict.UNKNOWN
    return replace(
        report,
        findings=findings,
        verdict=Verdict.UNKNOWN if unknown else worst(findings),
        unlisted=tuple(left),
    )


def pattern(name: str) -> str:
    """What stands for a name and all others of its package."""
    package = name.partition(".")[0]
    return f"{package}.*" if package.isidentifier() and package != name else name


def question(path: str, left: Sequence[Unlisted]) -> tuple[str, str]:
    """What to ask about a file whose framework would load these names: the text and the hint."""
    some = ", ".join(u.name[:120] for u in left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
    patterns = " ".join(f"{_FLAG}{quote(p)}" for p in list(dict.fromkeys(pattern(u.name) for u in left))[:4])
    text = (
        f"{path} names {some}, which ckpt does not know; its framework unpickles the file without"
        " asking, and runs what it names"
    )
    hint = f"if that is your own code, add {patterns}; if not, do not load the file"
    return text, hint
