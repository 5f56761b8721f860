"""What fuzz.py does with an input: the checks of one format, and what must hold of their outcome whatever the
bytes are.

Everything else that somebody may have written is in _other_targets.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import process_time

from _other_targets import OTHERS

ROOT = Path(__file__).parent.parent
sys.path.append(
    str(ROOT / "tests" / "support")
)  # last: its small_files is another than that of the benchmarks
KEPT = ROOT / "fixtures" / "fuzz"
"""Every input that ever failed, by target; the tests replay them."""
SETS = 4
"""Members of good sets that each input is tried as."""

Target = Callable[[bytes], "float | None"]
"""Takes one input; returns the CPU seconds of the slowest of several checks, each of one file."""


def every() -> list[str]:
    """All targets: the formats, then the others."""
    from ckpt_tools.formats import FORMATS

    return [*(f.name for f in FORMATS), *OTHERS]


def kept(name: str) -> list[Path]:
    """The inputs that once failed."""
    return sorted(p for p in (KEPT / name).glob("*") if p.is_file())


def seeds(name: str) -> list[bytes]:
    """What mutation starts from: every file of a format's fixtures, sets and keys too, once; what once
    failed.
    """
    known = OTHERS[name].seeds() if name in OTHERS else _fixtures(name)
    return list(dict.fromkeys([*known, *(p.read_bytes() for p in kept(name))]))


def _fixtures(name: str) -> list[bytes]:
    return list(
        {
            p.read_bytes(): None
            for p in sorted((ROOT / "fixtures" / "formats" / name).rglob("*"))
            if p.is_file()
        }
    )


def target(name: str) -> Target:
    """What every input goes through; raises whatever is wrong with us. Imports the package, so call it where
    imports are instrumented.
    """
    return OTHERS[name].make() if name in OTHERS else _checks(name)


def _checks(name: str) -> Target:
    from helpers import Fixture, findings
    from places import FORMAT_FILES

    from ckpt_tools.findings import CODES
    from ckpt_tools.formats import BY_NAME, Anatomy, Claim, Format
    from ckpt_tools.inspection.check import regions_of, signature
    from ckpt_tools.model.finding import Finding

    fmt = BY_NAME[name]
    good = [Fixture(p) for p in sorted(FORMAT_FILES.glob(f"{name}/good/**/*")) if p.is_file()]
    key = next((p.read_bytes() for p in sorted((FORMAT_FILES / name).glob("*.key"))), None)
    members: list[tuple[str, bytes, Format, list[Claim]]] = [
        (g.path.name, g.data, g.format_of(g.own), list(g.said[g.own]))
        for g in good
        if g.home is not None and g.said.get(g.own)
    ]
    roles = members[:: max(1, len(members) // SETS)][:SETS]
    path = next(
        (g.own for g in good if g.home is not None and g.format_of(g.own) is fmt), ""
    )  # some indexes name their members after themselves

    def judge(found: list[Finding]) -> None:
        for f in found:
            assert f.code in CODES, f
            assert f.offset is None or f.offset >= 0, f
            f.message.encode()  # it will be printed

    def run(data: bytes) -> float:
        """The CPU seconds of the slowest of several checks: each is that of one file."""
        anatomy = Anatomy(key=key, regions=[])
        began = process_time()
        judge(list(findings(data, fmt, anatomy, (), path)))
        slowest = process_time() - began
        regions = regions_of(anatomy, len(data))
        ends = [0, *(r.offset + r.length for r in regions)]
        assert [r.offset for r in regions] == ends[:-1], "the map has a hole or an overlap"
        assert ends[-1] == len(data) or not data, "the map does not end with the file"
        assert all(r.length > 0 for r in regions)
        signature(anatomy.tensors)
        for member, claim in list(anatomy.members.items())[:SETS]:
            named = next(
                (m for m in members if m[0] == member.rpartition("/")[2]),
                members[0] if members else ("", b"", fmt, []),
            )
            judge(list(findings(named[1], named[2], Anatomy(), [claim])))
        for _, _, of, claims in roles:
            began = process_time()
            judge(list(findings(data, of, Anatomy(), claims)))
            slowest = max(slowest, process_time() - began)
        return slowest

    return run


def where(e: BaseException) -> str:
    """The exception and the innermost line of ours that it came through."""
    frames = [
        f for f in traceback.extract_tb(e.__traceback__) if "ckpt_tools" in f.filename
    ] or traceback.extract_tb(e.__traceback__)
    return f"{type(e).__name__}-{Path(frames[-1].filename).stem}-{frames[-1].lineno}"
