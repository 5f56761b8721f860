"""Copies that people make by hand beside a run change nothing: neither the choice, nor its files, nor the
exit code; but they are named.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import small_files
from asked_plan import Answer, asked
from fixture_trees import CASES, TREES, materialise, tree
from places import LAYOUT_TREES

from ckpt_tools import errors, formats
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.layouts.common.copies import Proof, copy
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.selection import Selection

NAMES = (
    "{}.bak",
    "{}.old",
    "{}-copy",
    "{} (1)",
    ".trash/{}",
    ".snapshot/{}",
    "{}_20250131",
    "{}-2025-01-31_120000",
    "{}_old",
)
"""What people call a copy of a directory or, before its suffix or after it, of a file."""


def age(top: Path, seconds: int) -> None:
    for path in [top, *top.rglob("*")] if top.is_dir() else [top]:
        st = path.stat()
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns + seconds * 10**9))


def put_beside(source: Path, name: str, seconds: int) -> Path:
    """A copy of ``source`` under a name of NAMES; a file keeps its suffix behind the mark where people (or
    file managers) leave it there.
    """
    suffix = "".join(source.suffixes[-1:]) if source.is_file() and name[-1] in ")y1" else ""
    target = source.parent / (name.format(source.name.removesuffix(suffix)) + suffix)
    target.parent.mkdir(exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
    age(target, seconds)
    return target


def top_of(copied: Path) -> Path:
    """What the copy is named by."""
    return copied.parent if copied.parent.name in (".trash", ".snapshot") else copied


def named(root: Path, copied: Path, before: Sequence[str] = ()) -> bool:
    """Whether plan, ls and verify all name the copy, or the trash that it lies in, beside those of ``before``.
    In the trash a file is one of a checkpoint if its name alone says so.
    """
    top = top_of(copied)
    answers = [scan(str(root)).findings, verify([str(root)]).findings]
    with contextlib.suppress(errors.CkptError):
        answers.append(plan(str(root)).warnings)
    told = [sorted(set_aside(found)) for found in answers]
    nameless = top != copied and copied.is_file() and not formats.names.known(copied.name)
    return all(found == sorted([*before, str(top)]) for found in told) or nameless


def set_aside(found: Iterable[Finding]) -> list[str]:
    return [f.path for f in found if f.code == "set-aside"]


def sources(root: Path, before: Answer) -> dict[str, Path]:
    """What is copied: the whole run, the newest checkpoint's own directory, one of its files."""
    out = {"run": root / "run"}
    if before.files:
        out["file"] = Path(before.files[0])
    if os.path.isdir(before.path) and before.path != str(out["run"]):
        out["checkpoint"] = Path(before.path)
    return out


COPIES = [
    (kind, name, seconds)
    for name in NAMES
    for kind in ("run", "checkpoint", "file")
    for seconds in (-7200, 7200)
]


def undisturbed(case: Path, tmp_path: Path, copies: Iterable[tuple[str, str, int]]) -> int:
    """How many copies changed nothing."""
    root, done = tmp_path / "root", 0
    root.mkdir()
    materialise(case, tmp_path).rename(root / "run")
    before, was, found = asked(root), verify([str(root)]), sources(root, asked(root))
    for kind, name, seconds in copies:
        if kind not in found:
            continue
        copied = put_beside(found[kind], name, seconds)
        assert asked(root) == before, (kind, name, seconds)
        assert verify([str(root)]).verdict is was.verdict, (kind, name)
        assert named(root, copied, set_aside(was.findings)), (kind, name)
        top = top_of(copied)
        shutil.rmtree(top) if top.is_dir() else top.unlink()
        done += 1
    return done


@pytest.mark.slow
@pytest.mark.share(80)
@pytest.mark.parametrize("case", TREES)
def test_copies_beside_a_run_change_nothing_and_are_named(case: Path, tmp_path: Path) -> None:
    # every copy meets some layouts, and every layout a copy
    start = zlib.crc32(case.parent.relative_to(LAYOUT_TREES).as_posix().encode())
    some = COPIES[(5 * start) % len(COPIES)]
    copy = some if start % 2 else ("run", some[1], some[2])
    # files of a flat directory are no checkpoint's own, and where a run is asked for none is chosen
    assert undisturbed(case, tmp_path, [copy]) or copy[0] != "run"


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_no_copy_beside_any_layout_changes_anything(case: Path, tmp_path: Path) -> None:
    assert undisturbed(case, tmp_path, COPIES) >= len(COPIES) // 3


@pytest.mark.parametrize(
    ("name", "of", "proof"),
    [
        ("run.bak", "run", Proof.NAME),
        ("net-1_10 (1).ckpt", "net-1_10.ckpt", Proof.NAME),
        ("net-1_10-copy.ckpt", "net-1_10.ckpt", Proof.NAME),
        ("ckpt-10-copy.data-00000-of-00001", "ckpt-10.data-00000-of-00001", Proof.NAME),
        ("model.pt.orig", "model.pt", Proof.NAME),
        ("iter_0000020~", "iter_0000020", Proof.NAME),
        ("step-20 - Copy (2)", "step-20", Proof.NAME),
        (".Trash-1000", "", Proof.NAME),
        (".snapshot", "", Proof.NAME),
        (".zfs", "", Proof.NAME),
        ("~snapshot", "", Proof.NAME),
        ("exp_old", "exp", Proof.EQUAL),
        ("exp_20250131-101500", "exp", Proof.EQUAL),
        ("exp.1738300000", "exp", Proof.EQUAL),
    ],
)
def test_names_of_copies(name: str, of: str, proof: Proof) -> None:
    assert copy(name) == (of, proof)


@pytest.mark.parametrize(
    "name",
    [
        "iter_0000020",
        "step_1000000",
        "20250131",
        "hardcopy",
        "bold",
        "threshold",
        "backup",
        "snapshots",
        ".snapshot_metadata",
        "run.snapshot",
        "net_2-1_10.ckpt",
        "epoch=1-step=20-v1.ckpt",
    ],
)
def test_names_of_no_copies(name: str) -> None:
    assert copy(name) is None


def trainer(root: Path, name: str, step: int, seed: int = 0) -> None:
    for file, data in small_files.trainer(step + seed).items():
        path = root / name / f"checkpoint-{step}" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_a_run_with_a_date_that_holds_something_else_is_a_run(tmp_path: Path) -> None:
    trainer(tmp_path, "exp", 10)
    trainer(tmp_path, "exp_20250131", 10)
    assert asked(tmp_path).error == ""
    (tmp_path / "exp_20250131" / "checkpoint-10" / "model.safetensors").write_bytes(
        small_files.trainer(11)["model.safetensors"]
    )
    assert asked(tmp_path).error == "UsageError 2"  # several runs


@pytest.mark.parametrize("name", ["exp.bak", ".snapshot/hourly.0"])
def test_only_copies_are_no_first_launch(name: str, tmp_path: Path) -> None:
    trainer(tmp_path, name, 10)
    with pytest.raises(errors.NoneUsable, match=re.escape(name.partition("/")[0])):
        plan(str(tmp_path), Selection(allow_none=True))
    made = plan(str(tmp_path / name))  # named by the caller
    assert made.checkpoint is not None and made.checkpoint.step == 10


@pytest.mark.share(6)
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [-7200, 0, 7200])
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.parent.name in ("two", "zero1", "pipeline", "fsdp", "mcore", "converted")],
    ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}",
)
def test_of_two_equal_trees_the_one_whose_name_fits_its_run_is_the_original(
    case: Path, seconds: int, tmp_path: Path
) -> None:
    root = materialise(case, tmp_path)
    before = asked(root)
    keep = Path(before.path).parent / "keep"
    shutil.copytree(before.path, keep)
    age(keep, seconds)
    assert asked(root) == before and named(root, keep)
    largest = max((p for p in keep.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-1] ^= 1
    largest.write_bytes(bytes(data))
    # no copy any more
    assert str(keep) not in {f.path for f in scan(str(root)).findings if f.code == "set-aside"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "severity"),
    [("final", "note"), ("export", "note"), ("merged", "note"), ("mine", "warning"), ("keep", "warning")],
)
def test_the_export_that_ends_a_training_is_worth_no_warning(
    name: str, severity: str, tmp_path: Path
) -> None:
    run = tree("trainer", tmp_path)
    chosen = plan(run).checkpoint
    assert chosen is not None
    shutil.copytree(chosen.path, run / name)
    told = [str(f.severity) for f in plan(run).warnings if f.code == "set-aside"]
    assert told == [severity]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nothing", "loop", "directory", "fifo"])
def test_a_copy_of_a_checkpoint_with_something_that_is_no_file_stops_nothing(
    kind: str, tmp_path: Path
) -> None:
    """Such an entry holds no bytes to compare; the others show that it is a copy."""
    root = materialise(LAYOUT_TREES / "hf-trainer/trainer/expected.json", tmp_path)
    before = plan(str(root))
    older = min(root.glob("checkpoint-*"))
    (entry := older / "optimizer.pt").unlink()
    {
        "nothing": lambda: entry.symlink_to("nowhere"),
        "loop": lambda: entry.symlink_to(entry.name),
        "directory": entry.mkdir,
        "fifo": lambda: os.mkfifo(entry),
    }[kind]()
    subprocess.run(["cp", "-a", older, f"{older}_old"], check=True)
    made = plan(str(root))
    assert made.checkpoint == before.checkpoint
    assert "set-aside" in {w.code for w in made.warnings}
