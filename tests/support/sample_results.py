"""One result of every kind with every field filled, and names as nasty as file systems allow."""

from __future__ import annotations

from ckpt_tools.findings import finding
from ckpt_tools.model.answers import FileReport, Scan, Summary, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import FileLoad, Known, LoadPlan, RankLoad, Rejected, Resume, Rollback
from ckpt_tools.model.report import Level, Report

NASTY = "/data/\x1b[2J[red]\udcff\u202etp.tar"
"""A terminal escape, rich markup, a byte that is no UTF-8, a mark that reverses text."""


def part(rank: int, path: str = "", **more) -> Part:
    values = {
        "layout": "mindspore", "piece": "flat", "role": "model", "run": "out/ckpt", "base": "/data/out", "rank": rank,
        "epoch": 3, "step_in_epoch": 40, "step": 120, "size": 1000, "mtime_ns": 10**18,
    }  # fmt: skip
    return Part(path=path or f"/data/out/rank_{rank}/net-3_40.ckpt", **{**values, **more})


def checkpoint(**more) -> Checkpoint:
    values = {
        "layout": "mindspore", "run": "out/ckpt", "kind": Kind.PERIODIC, "parts": (part(0), part(1)), "path": "/data/out",
        "mtime_ns": 10**18 + 5 * 10**8, "step": 120, "epoch": 3, "epoch_base": 1, "step_in_epoch": 40, "generation": 2,
    }  # fmt: skip
    return Checkpoint(**{**values, **more})


def report(path: str, verdict: Verdict = Verdict.OK, *findings: Finding, **more) -> Report:
    values = {"format": "mindspore_ckpt", "size": 1000, "level": Level.CONTENT, "coverage": 0.996}
    said = {"metadata": {"epoch_num": 3}, "verdict": verdict, "findings": findings}
    return Report(path=path, **{**values, **said, **more})


def verification(**more) -> Verification:
    early = finding("truncated", "ends [bold]early\x07", offset=12)
    odd = {"loss": float("nan"), "lr": float("-inf"), "big": 1 << 5000}
    bad = report(NASTY, Verdict.BROKEN, early, metadata=odd)
    values = {
        "root": "/data", "verdict": Verdict.BROKEN, "level": Level.CONTENT,
        "summary": Summary(2, 2000, 1500, 0.25, 1, 0, 1, 0, 0, 3),
        "files": (FileReport(part(0), report(part(0).path)), FileReport(None, bad)),
        "findings": (finding("missing-rank", "rank 1 has no file", path="/data/out"),),
    }  # fmt: skip
    return Verification(**{**values, **more})


def load(rank: int, **more) -> FileLoad:
    values = {"role": "model", "path": f"/data/out/rank_{rank}/net-3_40.ckpt", "source_rank": rank}
    known = {"size": 1000, "mtime_ns": 10**18, "level": Level.CONTENT, "coverage": 0.5}
    return FileLoad(**{**values, **known, **more})


def plan(**more) -> LoadPlan:
    lost = checkpoint(kind=Kind.DYING_GASP, step=160, path="/data/gasp")
    why = "own file is truncated; signatures are equal"
    other = load(1, path=load(0).path, source_rank=0, substituted=True, node="n1", reason=why)
    values = {
        "root": "/data", "checkpoint": checkpoint(), "resume": Resume("/data/out", ("--load", "/data/out"), {"CKPT_EXTRA": "1"}),
        "by_rank": (RankLoad(0, (load(0),)), RankLoad(1, (other,))),
        "shared": (load(0, role="metadata", path="/data/out/meta.pt", source_rank=None),),
        "world_size": 2, "saved_world_size": 2, "topology": {"dp": Known(2, "--dp")},
        "rollback": Rollback(160, 120, 40, "rank 1 has no file"),
        "rejected": (Rejected(lost, (finding("missing-rank", "rank 1 has no file", path="/data/gasp"),)),),
        "ahead": (lost,), "attempts": 2, "bytes_verified": 2000, "bytes_read": 2000, "fingerprint": "ab" * 16,
        "warnings": (finding("world-size-inferred", "2 from the highest rank"),),
    }  # fmt: skip
    return LoadPlan(**{**values, **more})


def empty_plan(**more) -> LoadPlan:
    return LoadPlan(root="/data", checkpoint=None, resume=Resume(None), **more)


def scan(**more) -> Scan:
    left = Finding("unfinished-save", Severity.WARNING, "left over", path="/data/x.tmp", hint="remove it")
    found = (checkpoint(), checkpoint(unfinished=True, run=NASTY, generation=None, parts=()))
    counted = {"expected": {"out/ckpt": 4}, "bare": 2, "unrecognised": 7}
    return Scan(**{"root": "/data", "checkpoints": found, "findings": (left,), **counted, **more})


def field_names(value, open_maps=("metadata", "topology", "env")):
    """Every field name in a JSON value, except those that data chooses."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            if key in open_maps:
                for member in item.values() if isinstance(item, dict) else []:
                    yield from field_names(member)
            else:
                yield from field_names(item)
    elif isinstance(value, list):
        for item in value:
            yield from field_names(item)
