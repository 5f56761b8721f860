"""fairseq2: no file of a save, whichever state it is of, is lost or damaged in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import plan

CASE = LAYOUT_TREES / "fairseq2/sharded"
AT = Path("checkpoints")
FILES = sorted(
    str(p.relative_to(CASE / "tree/checkpoints/step_30"))
    for p in (CASE / "tree/checkpoints/step_30").rglob("*.pt")
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(CASE / "expected.json", tmp_path)


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["cut", "removed", "its whole kind removed"])
def test_whatever_is_damaged_the_save_before_it_is_taken(run: Path, name: str, harm: str) -> None:
    path = run / AT / "step_30" / name
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:500])
    elif harm == "removed":
        path.unlink()
    else:
        shutil.rmtree(run / AT / "step_30" / name.partition("/")[0])
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert {r.checkpoint.step for r in made.rejected} == {30}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(("trainer", "optimizer"))])
def test_a_file_of_another_step_is_seen(run: Path, name: str) -> None:
    shutil.copy2(run / AT / "step_10" / name, run / AT / "step_30" / name)
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert {f.code for r in made.rejected for f in r.findings} & {"step-mismatch", "same-content"}


@pytest.mark.slow
def test_a_model_that_was_kept_alone_is_passed_over(run: Path) -> None:
    """delete_checkpoint(keep_model=True)"""
    for kind in ("trainer", "optimizer", "data_reader"):
        shutil.rmtree(run / AT / "step_30" / kind)
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert made.rejected


@pytest.mark.slow
def test_a_save_that_was_not_renamed_is_unfinished(run: Path) -> None:
    (run / AT / "step_30").rename(run / AT / "step_30.tmp")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert {f.code for f in made.warnings} >= {"unfinished-save"}
