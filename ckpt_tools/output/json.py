"""Results -> one JSON object of a versioned schema (docs/json.md). Fields are only ever added."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ckpt_tools import __version__
from ckpt_tools.model.answers import FileReport, Sample, Scan, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.model.report import Region, Report, Scalar

if TYPE_CHECKING:
    from ckpt_tools.formats import Anatomy

Object = dict[str, object]
COUNTS = ("count", "nan", "inf", "denormal", "absurd", "zeros")
"""What is counted of a tensor's numbers at level values."""


def render(result: Verification | LoadPlan | Scan) -> str:
    """The JSON text of a result, ending in a line break."""
    if isinstance(result, Verification):
        return dump(_verification(result))
    if isinstance(result, LoadPlan):
        return dump(_plan(result))
    return dump(_scan(result))


def dump(value: Mapping[str, object]) -> str:
    """Valid JSON whatever the names: undecodable bytes as lone surrogate escapes, which decode to the same
    name in Python.

    One line per top-level field and per element of a top-level list: readable, comparable line by line, and
    as fast as compact JSON.
    """
    fields = (
        f"{line(key)}: {_list(item) if isinstance(item, list) and item else line(item)}"
        for key, item in value.items()
    )
    return "{\n  " + ",\n  ".join(fields) + "\n}\n"


def _list(items: Sequence[object]) -> str:
    return "[\n    " + ",\n    ".join(map(line, items)) + "\n  ]"


def line(value: object) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def scalar(value: Scalar) -> Scalar:
    """A metadata value as JSON can hold it: NaN and infinities as texts, integers beyond every reader's limit
    as hexadecimal texts.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and value.bit_length() > 1024:
        return hex(value)
    return value


def absolute(path: str) -> str:
    """Paths in JSON are absolute, so that a reader need not know where ckpt ran."""
    return os.path.join(os.getcwd(), path) if path and not os.path.isabs(path) and "://" not in path else path


def problem(name: str, message: str, hint: str, exit_code: int, *, one_line: bool = False) -> str:
    """What a failed command answers; ``name`` is that of the error's class."""
    code = "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
    answer: Object = {
        "schema": "ckpt-tools/error/v1",
        "tool_version": __version__,
        "error": {"code": code, "message": message, "hint": hint, "exit_code": exit_code},
    }
    return f"{line(answer)}\n" if one_line else dump(answer)


def catalogue(name: str, entries: Sequence[Mapping[str, object]], **more: object) -> str:
    """What ckpt knows: codes, formats, layouts, launchers."""
    return dump({"schema": f"ckpt-tools/{name}/v1", "tool_version": __version__, name: list(entries), **more})


# -- verify --------------------------------------------------------------------------------------------------


def head(result: Verification) -> Object:
    """What comes before the files."""
    s = result.summary
    return {
        "schema": "ckpt-tools/verify/v1",
        "tool_version": __version__,
        "root": absolute(result.root),
        "verdict": str(result.verdict),
        "level": str(result.level),
        "summary": {
            "files": s.files,
            "bytes": s.bytes,
            "bytes_read": s.bytes_read,
            "seconds": round(s.seconds, 6),
            "ok": s.ok,
            "suspect": s.suspect,
            "broken": s.broken,
            "unknown": s.unknown,
            "below_level": s.below_level,
            "unrecognised": s.unrecognised,
        },
        **({"sample": _sample(result.sample)} if result.sample else {}),
    }


def _sample(s: Sample) -> Object:
    return {
        "asked": s.asked,
        "max_duration": s.max_duration,
        "stopped": s.stopped,
        "bytes": s.bytes,
        "bytes_read": s.bytes_read,
        "blocks": s.blocks,
        "blocks_read": s.blocks_read,
        "files": s.files,
        "files_read": s.files_read,
        "never": s.never,
        "oldest": None if s.oldest_ns is None else round(s.oldest_ns / 1e9, 6),
    }


def _verification(result: Verification) -> Object:
    return {
        **head(result),
        "files": [file(f) for f in result.files],
        "findings": [finding(f, across=True) for f in result.findings],
    }


def file(entry: FileReport) -> Object:
    """One file of a verification."""
    part, report = entry.part, entry.report
    return {
        "path": absolute(report.path),
        "format": report.format,
        "layout": part.layout if part else None,
        "kind": str(part.kind) if part else None,
        "rank": part.rank if part else None,
        "step": part.step if part else None,
        "epoch": part.epoch if part else None,
        "step_in_epoch": part.step_in_epoch if part else None,
        **_report(report),
    }


def _report(report: Report) -> Object:
    return {
        "size": report.size,
        "verdict": str(report.verdict),
        "level": str(report.level),
        "coverage": round(report.coverage, 6),
        "metadata": {key: scalar(value) for key, value in report.metadata.items()},
        "findings": [finding(f) for f in report.findings],
        **(
            {"values": {name: sum(getattr(s, name) for s in report.stats) for name in COUNTS}}
            if report.stats
            else {}
        ),
        **({"regions": [region(r) for r in report.regions]} if report.regions else {}),
    }


def region(r: Region) -> Object:
    """One range of a file's bytes."""
    return {"offset": r.offset, "length": r.length, "what": r.what, "guard": str(r.guard)}


def finding(f: Finding, *, across: bool = False) -> Object:
    """One finding; those across files carry their path."""
    where: Object = {"path": absolute(f.path)} if across else {}
    more: Object = {"ranks": [list(pair) for pair in f.ranks]} if f.ranks else {}
    more |= {"follows": True} if f.follows else {}
    return {
        **where,
        "code": f.code,
        "severity": str(f.severity),
        "message": f.message,
        "offset": f.offset,
        "hint": f.hint,
        **more,
    }


# -- plan ----------------------------------------------------------------------------------------------------


def _plan(plan: LoadPlan) -> Object:
    back = plan.rollback
    return {
        "schema": "ckpt-tools/plan/v1",
        "tool_version": __version__,
        "root": absolute(plan.root),
        "checkpoint": _checkpoint(plan.checkpoint) if plan.checkpoint else None,
        "resume_step": plan.resume_step,
        "resume": {
            "path": absolute(plan.resume.path) if plan.resume.path else None,
            "args": list(plan.resume.args),
            "env": dict(plan.resume.env),
        },
        "rollback": (
            {
                "from": back.origin,
                "to": back.target,
                "save_interval": back.save_interval,
                "why": back.why,
            }
            if back
            else None
        ),
        "world_size": plan.world_size,
        "saved_world_size": plan.saved_world_size,
        "topology": {
            name: {"value": known.value, "provenance": known.provenance}
            for name, known in plan.topology.items()
        },
        "ranks": [{"rank": r.rank, "files": [_load(f) for f in r.files]} for r in plan.ranks],
        "shared": [_load(f) for f in plan.shared],
        "rejected": [
            {
                "step": r.checkpoint.step,
                "kind": str(r.checkpoint.kind),
                "path": absolute(r.checkpoint.path),
                "findings": [finding(f, across=True) for f in r.findings],
            }
            for r in plan.rejected
        ],
        "ahead": [_checkpoint(c) for c in plan.ahead],
        "attempts": plan.attempts,
        "bytes_verified": plan.bytes_verified,
        "warnings": [finding(f, across=True) for f in plan.warnings],
        "fingerprint": plan.fingerprint,
        "candidates": [
            {"step": c.step, "kind": str(c.kind), "path": absolute(c.path), "outcome": outcome}
            for c, outcome in outcomes(plan)
        ],
        "bytes_read": plan.bytes_read,
        "budget": plan.budget,
        "below_level": plan.below_level,
        "excluded": plan.excluded,
    }


def outcomes(plan: LoadPlan) -> list[tuple[Checkpoint, str]]:
    """Every candidate in the order in which it was considered: "rejected", "chosen", "passed over" (beyond a
    rollback's target) or "not looked at".
    """
    chosen, rejected = plan.checkpoint, {id(r.checkpoint) for r in plan.rejected}
    out, done = list[tuple[Checkpoint, str]](), False
    for c in plan.candidates:
        mine = chosen is not None and c.parts is chosen.parts
        done = done or mine
        out.append(
            (
                c,
                (
                    "chosen"
                    if mine
                    else (
                        "rejected"
                        if id(c) in rejected
                        else "not looked at"
                        if done or chosen is None
                        else "passed over"
                    )
                ),
            )
        )
    return out


def _checkpoint(c: Checkpoint) -> Object:
    return {
        "step": c.step,
        "epoch": c.epoch,
        "epoch_base": c.epoch_base,
        "step_in_epoch": c.step_in_epoch,
        "kind": str(c.kind),
        "layout": c.layout,
        "run": c.run,
        "generation": c.generation,
        "mtime": round(c.mtime_ns / 1e9, 6),
        "path": absolute(c.path),
    }


def _load(f: FileLoad) -> Object:
    return {
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
    }


# -- scan, show ----------------------------------------------------------------------------------------------


def _scan(scan: Scan) -> Object:
    # not for what is only explained: it knows every layout
    from ckpt_tools.discovery.completeness import ranks_present
    from ckpt_tools.layouts import BUILT_IN

    layouts = scan.layouts or BUILT_IN

    return {
        "schema": "ckpt-tools/scan/v1",
        "tool_version": __version__,
        "root": absolute(scan.root),
        "checkpoints": [
            {
                **_checkpoint(c),
                "unfinished": c.unfinished,
                "ranks_present": ranks_present(c, layouts.of(c)),
                "ranks_expected": scan.expected.get(c.run),
                "files": len(c.parts),
                "size": sum(max(p.size, 0) for p in c.parts),
            }
            for c in scan.checkpoints
        ],
        "findings": [finding(f, across=True) for f in scan.findings],
        "bare": scan.bare,
        "unrecognised": scan.unrecognised,
        "excluded": scan.excluded,
    }


def shown(report: Report, anatomy: Anatomy, trust: Mapping[str, str]) -> str:
    """The JSON of ``ckpt show``; ``trust`` says for every pickle global what loading it would mean."""
    return dump(
        {
            "schema": "ckpt-tools/show/v1",
            "tool_version": __version__,
            "path": absolute(report.path),
            "format": report.format,
            **_report(report),
            "signature": report.signature,
            "tensors": [
                {
                    "name": t.name,
                    "dtype": t.dtype,
                    "shape": list(t.shape),
                    "nbytes": t.nbytes,
                    "offset": t.offset,
                    "storage": t.storage,
                }
                for t in anatomy.tensors
            ],
            "stats": [
                {
                    "name": s.name,
                    "dtype": s.dtype,
                    **{n: getattr(s, n) for n in COUNTS},
                    "min": scalar(s.min),
                    "max": scalar(s.max),
                }
                for s in report.stats
            ],
            "globals": [{"name": name, "trust": trust.get(name, "unknown")} for name in anatomy.globals],
        }
    )
