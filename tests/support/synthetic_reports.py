"""What a report of a large job is made from, as data: no file of it is on a disk."""

from __future__ import annotations

from ckpt_tools.findings import finding
from ckpt_tools.model.answers import FileReport, Scan, Summary, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level, Report
from ckpt_tools.output.report.advice import Gathered, Start

ROOT = "/data/runs/llm-70b"
NOW = 1_760_000_000
HOUR = 3600


def part(step: int, rank: int, name: str, mtime: float) -> Part:
    path = f"{ROOT}/{name.format(step=step, rank=rank)}"
    home = path.rsplit("/", 2)[0]
    moment = {"step": step, "rank": rank, "mtime_ns": int(mtime * 1e9)}
    size = 1_503_238_553 + rank % 3
    return Part(path, "megatron", "model", "model", ".", ROOT, home=home, size=size, **moment)


def gathered(
    ranks: int = 4096,
    saves: int = 20,
    broken: tuple[tuple[int, int], ...] = ((19, 17), (19, 2049)),
    name: str = "iter_{step:07d}/mp_rank_00_{rank:03d}/model_optim_rng.pt",
) -> Gathered:
    """``saves`` checkpoints of one file for each of ``ranks``; ``broken`` are the damaged files, as (save, rank)."""
    files, checkpoints = list[FileReport](), list[Checkpoint]()
    damage = set(broken)
    for save in range(saves):
        mtime, step = NOW + save * HOUR, 500 * (save + 1)
        parts = tuple(part(step, rank, name, mtime + rank * 0.01) for rank in range(ranks))
        files += (FileReport(p, _report(p, (save, p.rank or 0) in damage)) for p in parts)
        of = ("megatron", ".", Kind.PERIODIC, parts, parts[0].home, int(mtime * 1e9))
        checkpoints.append(Checkpoint(*of, step=step))
    checkpoints.reverse()
    verdict = Verdict.BROKEN if broken else Verdict.OK
    n = len(files)
    summary = Summary(n, n << 30, n << 30, 900.0, n - len(damage), 0, len(damage), 0)
    lost, all_of_them = tuple[Rejected, ...](), tuple(checkpoints)
    if broken:
        path = checkpoints[0].parts[0].path
        why = finding("crc-mismatch", "CRC-32 df808ef4, stored 7111c588", path=path)
        lost = (Rejected(checkpoints[0], (why,)),)
    asked = (ROOT, checkpoints[len(lost)], Resume(ROOT, ("--load", ROOT)))
    plan = LoadPlan(*asked, rejected=lost, candidates=all_of_them, world_size=ranks)
    result = Verification(ROOT, verdict, Level.CONTENT, summary, tuple(files))
    scans, starts = (Scan(ROOT, all_of_them),), (Start(ROOT, None, plan),)
    return Gathered((ROOT,), float(NOW + saves * HOUR), result, scans, starts)


def _report(p: Part, damaged: bool) -> Report:
    found: tuple[Finding, ...] = ()
    if damaged:
        found = (finding("crc-mismatch", "data/16: CRC-32 df808ef4, stored 7111c588", offset=57_088),)
    verdict = Verdict.BROKEN if damaged else Verdict.OK
    of = (p.path, "torch_zip", p.size, verdict, Level.CONTENT, 0.998)
    return Report(*of, findings=found, mtime_ns=p.mtime_ns)
