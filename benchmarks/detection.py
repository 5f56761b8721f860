"""The detection matrix: kinds of damage to small real files by tools, each cell "detected / damaged copies".

    pip install torch safetensors picklescan model-signing     # each tool that is not installed is left out,
    and said to be python benchmarks/detection.py [--n 50] [--carrier "torch zip"] [--tool ckpt]

Damage is put on copies of good fixtures at places drawn with a fixed seed, so every run gives the same
copies. A copy counts as detected when the tool raises, ends with an error, or reports a problem that it does
not report for the undamaged file; a loader that refuses the undamaged file is left out. Each tool runs in a
process of its own, one copy after another; a copy on which the process dies counts as detected and is listed.
benchmarks/measured_loaders.json adds what MindSpore's and TensorFlow's loaders did with similar damage,
measured once where they were installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests" / "support"))  # last: its small_files is another

from _damage import CARRIERS, Case, cases, fixture, undamaged  # noqa: E402
from _tools import TOOLS, Tool, installed  # noqa: E402
from helpers import Fixture  # noqa: E402

SAME = {  # measured loaders' carriers
    "MindSpore ckpt with CRC": ["MindSpore ckpt with CRC"],
    "MindSpore ckpt without CRC": ["MindSpore ckpt without CRC"],
    "safetensors with MindSpore's CRC": ["MindSpore safetensors with crc_num"],
    "TF bundle": ["TF bundle, data shard", "TF bundle, index"],
}
DATA, HEADER = "flip in data", "flip in header or pickle"
MEASURED = {
    DATA: ("flip_data",),
    HEADER: ("flip_header", "flip_length", "flip_dtype"),
    "last byte cut off": ("trunc_last1",),
    "half cut off": ("trunc_half",),
    "cut at a tensor's end": ("trunc_record", "trunc_half_at_record"),  # MindSpore: the end of a record
    "zero page": ("zero_page",),
    "zero tail": ("zero_tail",),
    "garbage appended": ("append_garbage", "append_zeros"),
    "file of another step": ("other_content",),
}


def work(name: str) -> None:
    """The child: paths of copies on stdin, one verdict per line on stdout."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable()
    answers = sys.stdout
    tool = TOOLS[name]
    known: dict[str, object] = {}
    for line in sys.stdin:
        home, file, good, count = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            verdicts = []
            for at in (good, home):
                if at == good and good in known:
                    verdicts.append(known[good])
                    continue
                try:
                    verdict: object = tool.run(Path(at), Path(at) / file, count)
                    verdict = sorted(verdict) if isinstance(verdict, set) else bool(verdict)
                except BaseException as e:  # pyo3's panics are no Exceptions
                    verdict = f"{type(e).__name__}"
                verdicts.append(verdict)
            known[good] = verdicts[0]
        before, now = verdicts
        usable = before is False or isinstance(before, list)
        seen = (
            bool(set(now) - set(before))
            if isinstance(now, list) and isinstance(before, list)
            else now not in (False, [])
        )
        print(json.dumps(seen if usable else None), file=answers, flush=True)


def answers(name: str, jobs: list[list[object]]) -> list[bool | str | None]:
    """True, False, None (the tool refuses the undamaged copy) or "died" for each copy; a new process after
    each death.
    """
    out: list[bool | str | None] = []
    while len(out) < len(jobs):
        lines = "".join(json.dumps(j) + "\n" for j in jobs[len(out) :])
        done = subprocess.run(
            [sys.executable, __file__, "--work", name],
            input=lines,
            capture_output=True,
            text=True,
            check=False,
        )
        out += [json.loads(line) for line in done.stdout.splitlines()]
        if len(out) < len(jobs):
            out.append("died")
    return out


def written(where: Path, files: Mapping[str, bytes]) -> Path:
    for own, data in files.items():
        path = where / own
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return where


def measured(carrier: str) -> dict[str, dict[str, str]]:
    """Loader -> kind -> raised or died / all, of the framework's own loaders measured elsewhere."""
    rows = json.loads((Path(__file__).parent / "measured_loaders.json").read_text())["rows"]
    kinds = {raw: kind for kind, raws in MEASURED.items() for raw in raws}
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in rows:
        if row["carrier"] in SAME.get(carrier, ()) and row["kind"] in kinds:
            kind = kinds[row["kind"]]
            cell = counts[row["loader"]][
                HEADER if kind == DATA and row["carrier"].endswith("index") else kind
            ]
            cell[0] += row["raises"] + row["crash"]
            cell[1] += row["raises"] + row["crash"] + row["ok_same"] + row["ok_different"]
    return {
        loader: {kind: f"{seen}/{of}" for kind, (seen, of) in by_kind.items()}
        for loader, by_kind in counts.items()
    }


def explained(carrier: str, missed: list[Case]) -> Counter[str]:
    """What the map says about the bytes whose damage ckpt did not see."""
    maps = {(f := Fixture(p)).own: f.regions() for p in fixture(CARRIERS[carrier][0])}
    return Counter(
        next(
            (f"{r.guard.value}: {r.what}" for r in maps[own] if r.offset <= at < r.offset + r.length),
            "the end",
        )
        for own, at in (c.where for c in missed)
        if own
    )


def table(carrier: str, n: int, tools: Mapping[str, Tool]) -> tuple[list[str], list[str]]:
    """The carrier's table, and what ckpt did not see by what the map says of those bytes."""
    every = list(cases(carrier, n))
    if not every:
        return [f"no fixture {CARRIERS[carrier][0]}"], []
    with tempfile.TemporaryDirectory() as scratch:
        tops: dict[int, Path] = {}
        jobs: list[list[object]] = []
        for i, c in enumerate(every):
            known = undamaged(carrier) if c.known is None else c.known
            group = 0 if c.known is None else len(known) + (c.kind == "malicious pickle")
            if group not in tops:
                tops[group] = Path(scratch) / str(group)
                written(tops[group] / "good", known)
            jobs.append(
                [str(written(tops[group] / str(i), c.files)), c.file, str(tops[group] / "good"), len(c.files)]
            )
        seen = {name: answers(name, jobs) for name, t in tools.items() if carrier.startswith(t.carriers)}
    others, notes = measured(carrier), []
    rows = [
        f"| damage | {' | '.join([*seen, *(f'{loader} *' for loader in others)])} |",
        "|---" * (1 + len(seen) + len(others)) + "|",
    ]
    for kind in dict.fromkeys(c.kind for c in every):
        which, row = [i for i, c in enumerate(every) if c.kind == kind], []
        for name in seen:
            got = [seen[name][i] for i in which]
            died = f" ({got.count('died')} died)" if "died" in got else ""
            refuses = "refuses the undamaged one" if None in got else ""
            row.append(
                "runs it"
                if name == "dcp_to_torch_save" and kind == "malicious pickle"
                else refuses or f"{sum(map(bool, got))}/{len(got)}{died}"
            )
        missed = [every[i] for i in which if not seen.get("ckpt verify", [True] * len(every))[i]]
        notes += [
            f"- {carrier}, {kind}: {count} × {what}"
            for what, count in explained(carrier, missed).most_common()
        ]
        rows.append(
            f"| {' | '.join([kind, *row, *(by_kind.get(kind, '–') for by_kind in others.values())])} |"
        )
    return rows, notes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=50, help="copies for each kind of damage")
    parser.add_argument("--carrier", action="append", choices=list(CARRIERS))
    parser.add_argument("--tool", action="append", choices=list(TOOLS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    tools = {n: t for n, t in TOOLS.items() if n in (options.tool or TOOLS)}
    for n in [n for n, t in tools.items() if not installed(t)]:
        print(f"{n} is left out: {tools.pop(n).install}")
    notes: list[str] = []
    for carrier in options.carrier or CARRIERS:
        rows, more = table(carrier, options.n, tools)
        print(f"\n### {carrier} (`{CARRIERS[carrier][0]}`)\n\n" + "\n".join(rows), flush=True)
        notes += more
    print(
        "\n\\* not run here: measured_loaders.json, other files with the same kinds of damage\n\nNot seen by"
        " ckpt verify, by what the map says of the bytes:\n"
    )
    print("\n".join(notes) or "- nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
