"""Of a clone without the data of its newest checkpoint (Git LFS, DVC) no job resumes from an older one unasked,
and pointers of what is older change no answer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise

from ckpt_tools import errors
from ckpt_tools.api import plan
from ckpt_tools.formats import names
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.selection import Selection

DIGEST = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{DIGEST}\nsize 4976698672\n"
DVC = "outs:\n- md5: 22a1a2931c8370d3aeedd7183606fd7f{}\n  size: 14445097\n  hash: md5\n  path: {}\n"
FAST = ("dcp-two", "hf-trainer-trainer", "mindspore-flat", "orbax-standard", "pytorch-sample-imagenet", "timm-epochs")  # fmt: skip
NAMES_DIFFER = ("accelerate-mixed", "accelerate-epoch_last", "accelerate-kohya-epochs", "files-mlx", "files-bare", "easylm-streams", "lightning-names", "mindspore-resnet", "speechbrain-epochs", "speechbrain-stopped", "timm-recovery")  # fmt: skip
"""Whose names do not tell which is the older: they are asked about."""
EACH = [
    pytest.param(case, marks=[] if name in FAST else pytest.mark.exhaustive, id=name)
    for case in CASES
    for name in [f"{case.parts[-3]}-{case.parts[-2]}"]
]


def states(c: Checkpoint) -> list[Path]:
    """The files of a checkpoint that a repository would keep elsewhere."""
    paths = sorted({p.path for p in c.parts if p.size})
    large = (p for p in paths if names.state(os.path.basename(p)) or p.endswith(".bin"))
    return [Path(p) for p in large if not p.endswith((".json", ".yaml"))]


def lfs(c: Checkpoint, root: Path) -> bool:
    """Git LFS pointers in place of its files."""
    for path in states(c):
        was = path.stat()
        path.chmod(0o644)
        path.write_text(LFS)
        os.utime(path, ns=(was.st_mtime_ns,) * 2)
    return True


def dvc_files(c: Checkpoint, root: Path) -> bool:
    """A ``.dvc`` file for each of its files."""
    for path in states(c):
        kept_elsewhere(path)
    return True


def dvc_directory(c: Checkpoint, root: Path) -> bool:
    """One for its directory, where it has one of its own."""
    home = Path(c.path)
    if not home.is_dir() or home == root:
        return False
    kept_elsewhere(home)
    return True


def kept_elsewhere(path: Path) -> None:
    was, home, suffix = path.lstat(), path.parent.stat(), ".dir" if path.is_dir() else ""
    shutil.rmtree(path) if suffix else path.unlink()
    pointer = path.with_name(f"{path.name}.dvc")
    pointer.write_text(DVC.format(suffix, path.name))
    os.utime(pointer, ns=(was.st_mtime_ns,) * 2)
    os.utime(path.parent, ns=(home.st_mtime_ns,) * 2)


KINDS = {"git lfs pull": lfs, "dvc pull": dvc_files, "dvc pull ": dvc_directory}


@pytest.mark.share(3)
@pytest.mark.parametrize("command", KINDS)
@pytest.mark.parametrize("case", EACH)
def test_nobody_goes_back_over_it_unasked(case: Path, command: str, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    try:
        newest = plan(str(root)).checkpoint
    except errors.CkptError:
        return  # nobody resumes from it anyway
    assert newest is not None
    if not KINDS[command](newest, root):
        return
    try:
        made = plan(str(root), Selection(allow_none=True)).checkpoint
    except (errors.NoneUsable, errors.CannotLook):
        return  # nothing else is there
    except errors.UsageError as asked:
        hint = asked.hint
    else:
        assert made is not None, "it would start from nothing"
        assert made.order == newest.order, "it would go back"
        return
    if "say --order step" not in hint:  # where nothing tells the order of the names
        assert command.strip() in hint
        assert "--exclude" in hint


@pytest.mark.share(2)
@pytest.mark.parametrize("command", KINDS)
@pytest.mark.parametrize("case", EACH)
def test_those_of_older_ones_change_no_answer(case: Path, command: str, tmp_path: Path) -> None:
    asks = f"{case.parts[-3]}-{case.parts[-2]}" in NAMES_DIFFER
    root = materialise(case, tmp_path)
    try:
        before = plan(str(root))
    except errors.CkptError:
        return
    newest = before.checkpoint
    assert newest is not None
    used = {p.path for p in newest.parts}
    older = [
        c
        for c in before.candidates
        if c.order < newest.order
        and (c.layout, c.run, c.kind) == (newest.layout, newest.run, newest.kind)
        and used.isdisjoint(p.path for p in c.parts)
        and (c.path != newest.path or KINDS[command] is not dvc_directory)
    ]
    done = [KINDS[command](c, root) for c in older]
    if not any(done):
        return
    try:
        made = plan(str(root)).checkpoint
    except errors.UsageError as asked:
        assert asks, asked  # noqa: PT017 - only some ask
        return
    assert made is not None
    assert made.path == newest.path


def tree(tmp_path: Path) -> Path:
    return materialise(next(c for c in CASES if c.parts[-3:-1] == ("hf-trainer", "trainer")), tmp_path)


def exit_of(question: Callable[[], object]) -> int:
    try:
        question()
    except errors.CkptError as e:
        return e.exit_code
    return 0


def test_who_leaves_it_out_goes_on(tmp_path: Path) -> None:
    root = tree(tmp_path)
    older = next(c for c in plan(str(root)).candidates if c.step == 15)
    newest = plan(str(root)).checkpoint
    assert newest
    lfs(newest, root)
    with pytest.raises(
        errors.UsageError, match=r"data of another was not fetched.*a Git LFS pointer"
    ) as asked:
        plan(str(root))
    assert "--exclude checkpoint-20 " in asked.value.hint
    for selection in (Selection(exclude=("checkpoint-20",)), Selection(max_step=15)):
        made = plan(str(root), selection).checkpoint
        assert made
        assert made.path == older.path


def test_a_file_of_the_choice_itself(tmp_path: Path) -> None:
    """Without it training would begin anew with half of its state."""
    root = tree(tmp_path)
    (root / "checkpoint-20" / "ema.pt.dvc").write_text(DVC.format("", "ema.pt"))
    with pytest.raises(errors.UsageError, match=r"ema\.pt\.dvc") as asked:
        plan(str(root))
    assert "dvc pull" in asked.value.hint


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("checkpoint-25.dvc", 2),
        ("checkpoint-25/model.safetensors.dvc", 2),
        ("checkpoint-100.dvc", 2),
        ("last.pt.dvc", 2),
        ("checkpoint-5.dvc", 0),
        ("checkpoint-3/optimizer.pt.dvc", 0),
        ("model.safetensors.dvc", 0),
        ("best_model.pt.dvc", 0),
        ("train.csv.dvc", 0),
        ("data.dvc", 0),
    ],
)
def test_what_a_name_tells(name: str, code: int, tmp_path: Path) -> None:
    root = tree(tmp_path)
    shutil.rmtree(root / "checkpoint-5", ignore_errors=True)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(DVC.format("", name))
    assert exit_of(lambda: plan(str(root))) == code


def test_a_directory_that_nobody_fetched_is_no_first_launch(tmp_path: Path) -> None:
    """Nobody knows what is in it; one that is there was looked into."""
    (tmp_path / "runs.dvc").write_text(DVC.format(".dir", "runs"))
    assert exit_of(lambda: plan(str(tmp_path), Selection(allow_none=True))) == 4
    (tmp_path / "runs").mkdir()
    assert exit_of(lambda: plan(str(tmp_path), Selection(allow_none=True))) == 0
