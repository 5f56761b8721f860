"""--exclude hides what the caller knows to be no checkpoint, and nothing else: it may stay in a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fixture_trees import TREES, materialise
from in_process import executed
from run_helpers import megatron, sparse
from timed import put

from ckpt_tools import errors
from ckpt_tools.api import plan, scan
from ckpt_tools.discovery.exclude import Excluded
from ckpt_tools.discovery.walk import discover
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
