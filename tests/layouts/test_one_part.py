"""``--run`` and ``--prefix`` that name one part of a state: whatever the parts are called, no plan loads one of
them for all ranks without a word.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import pairs
from small_files import saved, tensor

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection

WORDS = ("rank", "shard", "part", "gpu", "worker", "tp", "pp", "mp", "dp")
FILES = ("step_{step}_{word}{n}", "{word}_{n}_step{step}", "ckpt-{step}-{word}{n:02d}")
FOLDERS = ("x_{word}{n}/step_{step}", "{word}_{n}/step_{step}/model", "x_{word}-{n}/epoch_{step}")


def put(root: Path, template: str, word: str, numbers: range, steps: tuple[int, ...] = (10, 20)) -> None:
    for n in numbers:
        for step in steps:
            path = root / f"{template.format(word=word, n=n, step=step)}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(saved({f"layer{n}.weight": tensor(float(step))}))


def questions(root: Path) -> list[Selection]:
    runs = sorted({c.run for c in scan(str(root)).checkpoints})
    assert len(runs) == 3
    return [*(Selection(run=run) for run in runs), *(Selection(run=run.rpartition("/")[2]) for run in runs)]


# files of ranks are a layout, which joins them
@pytest.mark.share(4)
@pytest.mark.parametrize(("word", "template"), pairs(WORDS[1:], FILES, pytest.mark.slow))
def test_a_part_among_the_files_of_a_directory_is_asked_about(
    template: str, word: str, tmp_path: Path
) -> None:
    put(tmp_path, template, word, range(3))
    asked = questions(tmp_path)
    prefixes = {p.prefix for c in scan(str(tmp_path)).checkpoints for p in c.parts}
    for selection in (*asked, *(Selection(prefix=prefix) for prefix in prefixes)):
        with pytest.raises(UsageError, match="reads like one part of a state") as raised:
            plan(str(tmp_path), selection)
        assert "--guess" in raised.value.hint and "--exclude" in raised.value.hint


@pytest.mark.share(8)
@pytest.mark.parametrize(("word", "template"), pairs(WORDS, FOLDERS, pytest.mark.slow))
def test_a_part_with_a_directory_of_its_own_is_said(template: str, word: str, tmp_path: Path) -> None:
    put(tmp_path, template, word, range(3))
    for selection in questions(tmp_path):
        said = [f for f in plan(str(tmp_path), selection).warnings if f.code == "missing-part"]
        assert len(said) == 1 and "reads like one part of a state" in said[0].message
        assert "--guess" in (said[0].hint or "")


def test_nothing_is_said_where_the_others_are_excluded_or_of_other_steps(tmp_path: Path) -> None:
    """Stages of one training are called so, too."""
    put(tmp_path, FILES[0], "part", range(3))
    made = plan(str(tmp_path), Selection(run="part1", exclude=("*part0*", "*part2*")))
    assert made.checkpoint and made.checkpoint.step == 20 and not made.warnings
    stages = tmp_path / "stages"
    put(stages, FOLDERS[0], "part", range(1), (10, 20))
    put(stages, FOLDERS[0], "part", range(1, 2), (30, 40))
    made = plan(str(stages), Selection(run="x_part0"))
    assert made.checkpoint and made.checkpoint.step == 20 and not made.warnings
