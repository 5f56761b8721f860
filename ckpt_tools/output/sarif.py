"""Findings -> SARIF 2.1.0, which GitHub code scanning and other viewers of static analysis read."""

from __future__ import annotations

import hashlib
import json
import os
from urllib.parse import quote

from ckpt_tools import __version__
from ckpt_tools.findings import CODES
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import Observed, advise, here, observe, shorten
from ckpt_tools.output.page import View
from ckpt_tools.output.words import printable
from ckpt_tools.storage.urls import is_url, join, split

Object = dict[str, object]
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
MOST = 25_000
"""The most results of one run: GitHub refuses more. The worst come first; a note counts the rest."""


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """Return a SARIF log; paths below the current directory, in CI the repository's, are relative to it."""
    seen = observe(document, view)
    listed = seen.findings[:MOST]
    codes = list(dict.fromkeys(f.code for f in listed))
    rules = [*map(_describe_rule, codes)]
    run: Object = {
        "tool": {"driver": {"name": "ckpt", "semanticVersion": __version__, "rules": rules}},
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{_encode(here().rstrip('/'))}/"}},
        "invocations": [_describe_run(seen, len(seen.findings) - len(listed))],
        "columnKind": "unicodeCodePoints",
        "results": [_describe_finding(f, codes.index(f.code)) for f in listed],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _describe_rule(code: str) -> Object:
    known = CODES.get(code)
    if known is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": known.title},
        "help": {"text": known.hint},
        "defaultConfiguration": {"level": str(known.severity)},
    }


def _describe_run(seen: Observed, left_out: int) -> Object:
    """Return the invocation: the answer, or the error and its exit code; and how many results it lacks."""
    notes = [_note("note", f"{seen.title}: {seen.sentence}")]
    if left_out:
        notes.append(_note("warning", f"{left_out:,} more findings are left out: --json has all"))
    if seen.failure is None:
        return {"executionSuccessful": True, "toolExecutionNotifications": notes}
    notes[0] = {**_note("error", seen.error), "descriptor": {"id": seen.failure.code}}
    exit_code = seen.failure.exit_code
    return {"executionSuccessful": False, "exitCode": exit_code, "toolExecutionNotifications": notes}


def _note(level: str, text: str) -> Object:
    return {"level": level, "message": {"text": printable(text)}}


def _describe_finding(f: Finding, index: int) -> Object:
    identity = f"{f.code}\0{shorten(f.path)}\0{f.offset}".encode("utf-8", "surrogatepass")
    return {
        "ruleId": f.code,
        "ruleIndex": index,
        "level": str(f.severity),
        "message": {"text": printable(advise(f))},
        **({"locations": [_locate(f.path)]} if f.path else {}),
        # By this a viewer finds the same finding in an earlier upload: files of tensors have no line numbers.
        "partialFingerprints": {"ckptFinding/v1": hashlib.sha256(identity).hexdigest()},
        **({"properties": {"offset": f.offset}} if f.offset is not None else {}),
    }


def _locate(path: str) -> Object:
    name = shorten(path)
    if is_url(path):
        store, key = split(path)
        artifact = {"uri": join(store, _encode(key))}
    elif os.path.isabs(name):
        artifact = {"uri": f"file://{_encode(name)}"}
    else:
        artifact = {"uri": _encode(name), "uriBaseId": "%SRCROOT%"}
    # GitHub shows no result without a line.
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}}}


def _encode(path: str) -> str:
    """Return a path percent-encoded byte by byte, so that nothing in it can end the URI or name a scheme."""
    try:
        return quote(path.encode("utf-8", "surrogateescape"), safe="/")
    except UnicodeEncodeError:  # no file can have such a name, but an index file may claim it
        return quote(printable(path), safe="/")
