"""A file whose end is known to be missing is not read to the end: bytes are counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from places import FORMAT_FILES, LAYOUT_TREES
from safetensors_writer import beginning

from ckpt_tools import Selection, Verdict, errors, plan, verify
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.report import Level

GOOD = sorted(p for p in FORMAT_FILES.glob("*/good/**/*") if p.is_file() and p.stat().st_size > 2000)


def cut(path: Path, left: int, to: Path) -> Path:
    to.write_bytes(path.read_bytes()[:left])
    return to


@pytest.mark.slow
def test_no_format_reads_what_is_left_of_a_cut_file(tmp_path: Path) -> None:
    """Where the structure shows that the end is missing, level content reads no byte more."""
    more: dict[str, int] = {}
    for path in GOOD:
        size, name = path.stat().st_size, path.relative_to(FORMAT_FILES).parts[0]
        for left in (size - 1, size - 300, size * 3 // 4, size // 2):
            whole = cut(path, left, tmp_path / path.name)
            shallow, deep = inspect(str(whole), Level.STRUCTURE)[0], inspect(str(whole), Level.CONTENT)[0]
            ends = [f for f in shallow.findings if f.code == "truncated" and f.severity is Severity.ERROR]
            if any((f.offset or left) >= left for f in ends):
                assert deep.verdict is Verdict.BROKEN
                more[name] = more.get(name, 0) + deep.bytes_read - shallow.bytes_read
    assert len(more) >= 8 and not any(more.values()), more


def safetensors(path: Path, size: int, missing: int) -> Path:
    head = beginning(size)
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + size - missing)
    return path


def test_kilobytes_of_gigabytes(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors", 1 << 30, 1)
    found = verify(path)
    assert found.verdict is Verdict.BROKEN and found.summary.bytes_read < 1 << 20
    assert [f.code for f in found.files[0].report.findings] == ["truncated"]


def test_also_where_many_processes_read(tmp_path: Path) -> None:
    for i in range(70):
        safetensors(tmp_path / f"model{i}.safetensors", 8 << 20, 1)
    assert verify(tmp_path, jobs=2).summary.bytes_read < 70 << 12


def test_a_plan_reads_none_of_it(tmp_path: Path) -> None:
    tree = LAYOUT_TREES / "lightning"
    source = next(p for p in sorted(tree.rglob("*.ckpt")) if p.stat().st_size > 2000)
    home = tmp_path / "run" / source.parent.name
    home.mkdir(parents=True)
    path = Path(shutil.copy(source, home))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(errors.NoneUsable) as caught:
        plan(tmp_path / "run", Selection(settle=0))
    structure = inspect(str(path), Level.STRUCTURE)[0]
    assert caught.value.plan is not None and caught.value.plan.bytes_read <= 2 * structure.bytes_read
