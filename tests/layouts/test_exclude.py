"""--exclude hides what the caller knows to be no checkpoint, and nothing else: it may stay in a script."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import small_files
from asked_plan import Answer, asked
from fixture_trees import CASES, TREES, materialise
from in_process import executed
from places import LAYOUT_TREES
from run_helpers import megatron, sparse
from timed import lay, put
from told_trees import copy

from ckpt_tools import errors, formats
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.discovery.exclude import Excluded, is_set_aside
from ckpt_tools.discovery.walk import discover
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings.resolve import resolve

TREE = [
    "a.bin", "logs/run.log", "logs/deep/x.bin", "data/x.bin", "data/y.bin", "data/more/x.bin", "it[1]/x.bin",
    "step-1/x.bin", "step-2/x.bin",
]  # fmt: skip


@pytest.mark.parametrize(
    ("glob", "hidden"),
    [
        ("*.bin", {"a.bin"}),  # not those inside a checkpoint of tomorrow
        ("logs", {"logs"}),
        ("logs/", {"logs"}),
        ("deep", set()),
        ("data/*.bin", {"data/x.bin", "data/y.bin"}),
        ("data/**", {"data/x.bin", "data/y.bin", "data/more"}),
        ("data/**/x.bin", {"data/x.bin", "data/more/x.bin"}),
        ("**/more", {"data/more"}),
        ("step-[1x]", {"step-1"}),
        ("step-[!1]", {"step-2"}),
        ("dat?/x.bin", {"data/x.bin"}),
        ("DATA", set()),
    ],
)
def test_patterns(glob: str, hidden: set[str], tmp_path: Path) -> None:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = discover(str(tmp_path), excluded=Excluded([glob]))
    assert {str(Path(p).relative_to(tmp_path)) for p in found.excluded.paths} == hidden


@pytest.mark.parametrize(
    "glob", ["*", "**", "**/*", "?*", "", "/data/x", "~/x", "../x", "a/../b", "a//b", ".", "./a"]
)
def test_patterns_that_are_refused(glob: str, tmp_path: Path) -> None:
    """They would hide every checkpoint, or mean another place than ROOT."""
    code, _, err = executed(["plan", str(tmp_path), "--exclude", glob, "--allow=none"])
    assert code == 2 and "ckpt: error: --exclude" in err


def test_one_per_line_and_in_a_file(tmp_path: Path) -> None:
    def excluded(given: list[str] | None, **env: str) -> tuple[str, ...]:
        return resolve({"exclude": given}, env=env, cwd=str(tmp_path)).selection().exclude

    both = ("logs", "data/*.bin")
    assert excluded(None, CKPT_EXCLUDE="logs\ndata/*.bin\n") == both
    (tmp_path / "ckpt.toml").write_text('exclude = ["logs", "data/*.bin"]')
    assert excluded(None) == excluded([*both], CKPT_EXCLUDE="else") == both


def answer(root: Path, *exclude: str) -> LoadPlan | str:
    try:
        return plan(str(root), Selection(exclude=exclude, level=Level.STRUCTURE, order="step"))
    except errors.CkptError as e:
        return f"{type(e).__name__}: {e}"


@pytest.mark.slow
@pytest.mark.share(15)
@pytest.mark.parametrize("case", TREES)
def test_what_is_hidden_might_as_well_not_be_there(case: Path, tmp_path: Path) -> None:
    """A copy of the whole run, which alone would be a question or a better answer."""
    root = materialise(case, tmp_path)
    before = answer(root, "old")
    shutil.copytree(root, root / "old/copy")
    after = answer(root, "old")
    if isinstance(before, str) or isinstance(after, str):
        assert after == before
        return
    one, other = ((made.fingerprint, made.warnings, made.candidates) for made in (before, after))
    assert other == one and (before.excluded, after.excluded) == (0, 1)


@pytest.mark.slow
def test_it_is_counted_in_every_answer(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", (10,))
    for name in ("run/logs", "run/data", "empty/logs"):
        (tmp_path / name).mkdir(parents=True)
    flags = ["--exclude", "logs", "--exclude", "data", "--exclude", "nothing"]
    for words in (["plan"], ["latest", "--rank", "0"], ["ls"], ["hook", "--plan-dir", str(tmp_path / "p")]):
        code, out, _ = executed([*words, str(root), *flags, "--json"])
        assert (code, json.loads(out)["excluded"]) == (0, 2)
    for command in ("plan", "ls"):
        assert "2 entries hidden by --exclude" in executed([command, str(root), *flags])[1]
    code, _, err = executed(["plan", str(tmp_path / "empty"), *flags])
    assert code == 3 and "hidden by --exclude: 1" in err


def test_known_bystanders_are_no_reason(tmp_path: Path) -> None:
    sparse(tmp_path / "pretrained/blob")
    put(tmp_path / "pretrained/model.safetensors", b"x")
    put(tmp_path / "old/latest", "global_step500")
    with pytest.raises(errors.CkptError):
        plan(str(tmp_path), Selection(allow_none=True))
    without = Selection(allow_none=True, exclude=("pretrained", "old"))
    made = plan(str(tmp_path), without)
    assert made.checkpoint is None and made.excluded == 2
    megatron(tmp_path, (10,))
    assert plan(str(tmp_path), without).resume_step == 10  # the script of the next start is the same
    left = scan(str(tmp_path), Selection(exclude=("iter_0000010",))).checkpoints
    assert not [c for c in left if c.layout == "megatron"]


# --- Copies that people and file systems keep beside a run change nothing: neither the choice, nor its
# files, nor the exit code; but they are named.


NAMES = ("{}.bak", "{}.old", "{}.orig", "{}~", ".trash/{}", ".snapshot/{}", ".ipynb_checkpoints/{}")
"""What people and programs call a copy of a directory or of a file."""


def age(top: Path, seconds: int) -> None:
    for path in [top, *top.rglob("*")] if top.is_dir() else [top]:
        st = path.stat()
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns + seconds * 10**9))


def put_beside(source: Path, name: str, seconds: int) -> Path:
    """A copy of ``source`` under a name of NAMES."""
    target = source.parent / name.format(source.name)
    copy(source, target)
    age(target, seconds)
    return target


def top_of(copied: Path) -> Path:
    """What the copy is named by."""
    return copied.parent if copied.parent.name in (".trash", ".snapshot", ".ipynb_checkpoints") else copied


def named(root: Path, copied: Path, before: Sequence[str] = ()) -> bool:
    """Whether plan, ls and verify all name the copy, or the trash that it lies in, beside those of ``before``.
    In the trash a file is one of a checkpoint if its name alone says so.
    """
    top = top_of(copied)
    answers = [scan(str(root)).findings, verify([str(root)]).findings]
    with contextlib.suppress(errors.CkptError):
        answers.append(plan(str(root)).warnings)
    nameless = top != copied and copied.is_file() and not formats.names.known(copied.name)
    return nameless or all(sorted(set_aside(found)) == sorted([*before, str(top)]) for found in answers)


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


COPIES = [*itertools.product(("run", "checkpoint", "file"), NAMES, (-7200, 7200))]


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
    one = some if start % 2 else ("run", some[1], some[2])
    # files of a flat directory are no checkpoint's own, and where a run is asked for none is chosen
    assert undisturbed(case, tmp_path, [one]) or one[0] != "run"


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_no_copy_beside_any_layout_changes_anything(case: Path, tmp_path: Path) -> None:
    assert undisturbed(case, tmp_path, COPIES) >= len(COPIES) // 3


SET_ASIDE = (
    "run.bak",
    "model.pt.orig",
    "iter_0000020~",
    "exp.old",
    ".Trash-1000",
    ".snapshots",
    "lost+found",
)
KEPT = (
    "iter_0000020", "bold", "backup", "snapshots", ".snapshot_metadata", "run.snapshot", "epoch=1-step=20-v1.ckpt", "exp_old",
    "exp_20250131-101500", "step-20 - Copy (2)", "net-1_10 (1).ckpt",
)  # fmt: skip
"""Runs or files like any other."""


def test_names_of_copies() -> None:
    assert [name for name in (*SET_ASIDE, *KEPT) if is_set_aside(name)] == list(SET_ASIDE)


@pytest.mark.parametrize("name", ["exp.bak", ".snapshot/hourly.0"])
def test_only_copies_are_no_first_launch(name: str, tmp_path: Path) -> None:
    lay(tmp_path / name / "checkpoint-10", small_files.trainer(10))
    with pytest.raises(errors.NoneUsable, match=re.escape(name.partition("/")[0])):
        plan(str(tmp_path), Selection(allow_none=True))
    made = plan(str(tmp_path / name))  # named by the caller
    assert made.checkpoint is not None and made.checkpoint.step == 10
