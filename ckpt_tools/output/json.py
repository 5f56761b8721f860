"""Results -> one JSON object of a versioned schema (docs/json.md). Fields are only ever added."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ckpt_tools import __version__
from ckpt_tools.discovery.completeness import count_ranks
from ckpt_tools.formats import Anatomy
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.answers import FileReport, Scan, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.plan import FileLoad, LoadPlan, Rollback
from ckpt_tools.model.report import Report, Scalar
from ckpt_tools.output.failure import Failure

Object = dict[str, object]
COUNTS = ("count", "nan", "inf", "denormal", "absurd", "zeros")
"""The counts of a tensor's numbers that level values takes."""


def render(result: Verification | LoadPlan | Scan | Failure, _view: object = None) -> str:
    """Return the JSON text of a result. A failed choice is printed as its unfinished plan, with ``error``."""
    if isinstance(result, Verification):
        files = [file(f) for f in result.files]
        return dump({**head(result), "files": files, "findings": list_findings(result.findings)})
    if isinstance(result, LoadPlan):
        return document("plan", _plan(result))
    if isinstance(result, Scan):
        return document("scan", _scan(result))
    if result.plan is None:
        return dump(failed(result))
    return document("plan", {**_plan(result.plan), "error": _error(result)})


def dump(value: Mapping[str, object]) -> str:
    """Return a JSON object with a line per field, and per element of a list: easy to compare, and as fast as
    compact JSON. Undecodable bytes of a file name are lone surrogates, which decode to the same name.
    """
    rows = []
    for key, item in value.items():
        if isinstance(item, list) and item:
            text = "[\n    " + ",\n    ".join(map(line, item)) + "\n  ]"
        else:
            text = line(item)
        rows.append(f"{line(key)}: {text}")
    return "{\n  " + ",\n  ".join(rows) + "\n}\n"


def document(name: str, body: Mapping[str, object]) -> str:
    """Return the JSON text of an answer of the schema ckpt-tools/NAME/v1."""
    return dump({"schema": f"ckpt-tools/{name}/v1", "tool_version": __version__, **body})


def line(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def scalar(value: Scalar) -> Scalar:
    """Return a metadata value as JSON can hold it: NaN, infinities and huge integers (hexadecimal) as str."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and value.bit_length() > 1024:
        return hex(value)
    return value


def absolute(path: str) -> str:
    """Return an absolute path: a reader of JSON need not know where ckpt ran. URLs and "" stay the same."""
    return os.path.join(os.getcwd(), path) if path and not os.path.isabs(path) and "://" not in path else path


_CONVERTERS: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("path", "root", "to", "seal"), absolute),
    **dict.fromkeys(("coverage", "seconds"), lambda number: round(number, 6)),
    **dict.fromkeys(("change", "effect", "kind", "level", "verdict", "severity", "guard"), str),
    "shape": list,
}
"""By field name the function that makes a value fit for JSON; fields not named here need none."""


def fields(value: object, *names: str) -> Object:
    """Return the named attributes as JSON fields; ``bytes=size`` puts attribute size in field bytes."""
    found: Object = {}
    for name in names:
        key, _, attribute = name.partition("=")
        own = getattr(value, attribute or key)
        found[key] = _CONVERTERS[key](own) if key in _CONVERTERS and own is not None else own
    return found


def failed(failure: Failure) -> Object:
    """Return the JSON object of a failed command; it has the fields verdict and files of an answer, too."""
    return {
        "schema": "ckpt-tools/error/v1",
        "tool_version": __version__,
        "error": _error(failure),
        "verdict": str(Verdict.UNKNOWN),
        "files": [],
    }


def _error(failure: Failure) -> Object:
    rule = {"rule": failure.rule} if failure.rule else {}
    return {**fields(failure, "code", "message", "hint", "exit_code"), **rule}


# -- verify --------------------------------------------------------------------------------------------------


def head(result: Verification) -> Object:
    """Return the fields of a verification that come before its files: root, verdict, summary, sample."""
    counts = ("files", "bytes", "bytes_read", "seconds", "ok", "suspect", "broken", "unknown")
    about: Object = {
        "schema": "ckpt-tools/verify/v1",
        "tool_version": __version__,
        **fields(result, "root", "verdict", "level"),
        "summary": fields(result.summary, *counts, "below_level", "unrecognised"),
    }
    if s := result.sample:
        sizes = ("bytes", "bytes_read", "blocks", "blocks_read", "files", "files_read", "never")
        oldest = None if s.oldest_ns is None else round(s.oldest_ns / 1e9, 6)
        about["sample"] = {**fields(s, "asked", "max_duration", "stopped", *sizes), "oldest": oldest}
    return about


def file(entry: FileReport) -> Object:
    of_part = ("layout", "kind", "rank", "step", "epoch", "step_in_epoch")
    return {
        **fields(entry.report, "path", "format"),
        **(fields(entry.part, *of_part) if entry.part else dict.fromkeys(of_part)),
        **_report(entry.report),
    }


def _report(report: Report) -> Object:
    about: Object = {
        **fields(report, "size", "verdict", "level", "coverage"),
        "metadata": {key: scalar(value) for key, value in report.metadata.items()},
        "findings": [finding(f) for f in report.findings],
    }
    if report.stats:
        about["values"] = {name: sum(getattr(s, name) for s in report.stats) for name in COUNTS}
    if report.regions:
        about["regions"] = [fields(r, "offset", "length", "what", "guard") for r in report.regions]
    return about


def finding(f: Finding, *, across: bool = False) -> Object:
    """Return the JSON object of a finding; ``across`` adds its path, for findings across files."""
    from ckpt_tools.planning.rules.catalogue import find_rule  # imports each rule

    more: Object = {"rule": find_rule(f)}
    more |= {"ranks": [list(pair) for pair in f.ranks]} if f.ranks else {}
    more |= {"follows": True} if f.follows else {}
    where = ("path",) if across else ()
    return {**fields(f, *where, "code", "severity", "message", "offset", "hint"), **more}


def list_findings(findings: Iterable[Finding]) -> list[Object]:
    return [finding(f, across=True) for f in findings]


# -- plan ----------------------------------------------------------------------------------------------------


def _plan(plan: LoadPlan) -> Object:
    resume, back = plan.resume, plan.rollback
    return {
        **fields(plan, "root"),
        "checkpoint": _checkpoint(plan.checkpoint) if plan.checkpoint else None,
        "resume_step": plan.resume_step,
        "resume": {
            "path": absolute(resume.path) if resume.path else None,
            "args": list(resume.args),
            "env": dict(resume.env),
        },
        "rollback": rollback(back) if back else None,
        **fields(plan, "world_size", "saved_world_size"),
        "topology": {name: fields(known, "value", "provenance") for name, known in plan.topology.items()},
        "ranks": [{"rank": r.rank, "files": list(map(load, r.files))} for r in plan.by_rank],
        "shared": list(map(load, plan.shared)),
        "rejected": [
            {**fields(r.checkpoint, "step", "kind", "path"), "findings": list_findings(r.findings)}
            for r in plan.rejected
        ],
        "ahead": list(map(_checkpoint, plan.ahead)),
        **fields(plan, "attempts", "bytes_verified"),
        "warnings": list_findings(plan.warnings),
        "fingerprint": plan.fingerprint,
        "candidates": [
            {**fields(c, "step", "kind", "path"), "outcome": outcome} for c, outcome in outcomes(plan)
        ],
        **fields(plan, "bytes_read", "budget", "below_level", "excluded"),
        "state": plan.state or None,
    }


def rollback(back: Rollback) -> Object:
    return {"from": back.origin, "to": back.target, **fields(back, "save_interval", "why")}


def outcomes(plan: LoadPlan) -> list[tuple[Checkpoint, str]]:
    """Return each candidate in order with its outcome: rejected, chosen, passed over or not looked at."""
    chosen = plan.checkpoint.key if plan.checkpoint else None
    rejected = {r.checkpoint.key for r in plan.rejected}
    found, outcome = list[tuple[Checkpoint, str]](), "passed over" if chosen else "not looked at"
    for c in plan.candidates:
        if c.key == chosen:
            found.append((c, "chosen"))
            outcome = "not looked at"
        else:
            found.append((c, "rejected" if c.key in rejected else outcome))
    return found


def _checkpoint(c: Checkpoint) -> Object:
    return {
        **fields(c, "step", "epoch", "epoch_base", "step_in_epoch", "kind", "layout", "run", "generation"),
        "mtime": round(c.mtime_ns / 1e9, 6),
        **fields(c, "path"),
    }


def load(f: FileLoad) -> Object:
    return {  # without fields(), in half the time: a plan has one such object for each file of each rank
        "role": f.role,
        "path": absolute(f.path),
        "size": f.size,
        "mtime_ns": f.mtime_ns,
        "level": str(f.level),
        "coverage": round(f.coverage, 6),
        "source_rank": f.source_rank,
        "substituted": f.substituted,
        "node": f.node,
        "reason": f.reason,
        **({"etag": f.etag} if f.etag else {}),
        **({"version": f.version} if f.version else {}),
    }


# -- scan, show ----------------------------------------------------------------------------------------------


def _scan(scan: Scan) -> Object:
    layouts = scan.layouts or BUILT_IN
    checkpoints = [
        {
            **_checkpoint(c),
            "unfinished": c.unfinished,
            "state": scan.states.get(c.key) or None,
            "ranks_present": count_ranks(c, layouts.of(c)),
            "ranks_expected": scan.expected.get(c.run),
            "files": len(c.parts),
            "size": sum(max(p.size, 0) for p in c.parts),
        }
        for c in scan.checkpoints
    ]
    counts = fields(scan, "bare", "unrecognised", "excluded")
    findings = list_findings(scan.findings)
    return {**fields(scan, "root"), "checkpoints": checkpoints, "findings": findings, **counts}


def render_file(report: Report, anatomy: Anatomy, trust: Mapping[str, str]) -> str:
    """Return the JSON of ``ckpt show``; ``trust`` has for each pickle global what loading it would mean."""
    tensor = ("name", "dtype", "shape", "nbytes", "offset", "storage")
    stats = [
        {**fields(s, "name", "dtype", *COUNTS), "min": scalar(s.min), "max": scalar(s.max)}
        for s in report.stats
    ]
    body = {
        **fields(report, "path", "format"),
        **_report(report),
        "signature": report.signature,
        "tensors": [fields(t, *tensor) for t in anatomy.tensors],
        "stats": stats,
        "globals": [{"name": name, "trust": trust.get(name, "unknown")} for name in anatomy.globals],
    }
    if anatomy.files:
        body["sealed"] = [fields(f, "size", "digest", "name=path") for f in anatomy.files]
    return document("show", body)
