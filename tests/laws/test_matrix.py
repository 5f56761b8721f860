"""The table of docs/frameworks.md is that of the stored rows, and the rows are what ckpt answers today."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest
from places import FIXTURES
from small_files import adam, saved, tensor
from timed import put

from ckpt_tools.api import scan
from ckpt_tools.planning.verification import _LOOKED_INTO

sys.path.insert(0, str(FIXTURES))

import make_matrix as make

ROWS = make.load()
CASES = {case.name: case for case in make.fixtures()}


def test_each_fixture_has_a_row() -> None:
    missing = CASES.keys() - ROWS.keys()
    assert not missing, f"python fixtures/make_matrix.py {' '.join(sorted(missing))}"
    assert {name for name, row in ROWS.items() if "command" not in row} == CASES.keys()


def test_the_page_is_that_of_the_rows() -> None:
    assert make.PAGE.read_text() == make.page(ROWS), "python fixtures/make_matrix.py --page"


@pytest.mark.share(192)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_row_is_what_ckpt_answers_today(name: str) -> None:
    assert make.row_of(CASES[name]) == ROWS[name], f"python fixtures/make_matrix.py {name}"


@pytest.mark.share(2)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_no_row_has_a_false_alarm_or_an_older_choice_without_a_reason(row: dict[str, Any]) -> None:
    if "not_run" not in row:
        assert not row["alarms"]
        assert row["fallback"] not in ("OLDER, SILENTLY", "NOT SEEN")


def test_a_word_for_those_who_built_files_by_names() -> None:
    """A framework that was not installed is never said to have written files."""

    def itself(case: str, words: str) -> bool:
        return bool(make.written(make.Case(case, FIXTURES, {"written_by": words}))["itself"])

    assert itself("accelerate/steps", "accelerate 1.15.0 Accelerator.save_state, names of the script's own")
    assert itself("dcp/two", "torch 2.13.0 torch.distributed.checkpoint.save")
    assert not itself("verl/two", "torch 2.13.0 torch.save, tiny tensors under the names that it writes")
    assert not itself("verl/two", "torch 2.13.0 torch.save")
    assert not itself("megatron/tp", "torch (Megatron-LM keys) 2.13.0+cpu (torch.save)")


RECORDED: dict[str, Any] = {
    question: answer
    for path in sorted((FIXTURES / "answers/layouts").glob("*.xz"))
    for question, answer in json.loads(lzma.decompress(path.read_bytes())).items()
}
"""What ckpt answered about the trees of fixtures/layouts, by the text of the question."""
PLANNED = ": ckpt plan @ --json"
TREES = sorted(
    question.removesuffix(PLANNED)
    for question, recorded in RECORDED.items()
    if question.endswith(PLANNED) and recorded["answer"].get("checkpoint") is not None
)
"""Those of which a plan chooses a checkpoint without a question: ``layouts/megatron/tp/tree``."""
NUMBERS = ("step", "epoch", "generation")
"""What tells one save from another in a listing, each where the names or, failing that, the contents tell it."""


@pytest.mark.parametrize("tree", TREES)
def test_what_the_plan_counts_the_listing_counts(tree: str) -> None:
    chosen = RECORDED[f"{tree}{PLANNED}"]["answer"]["checkpoint"]
    listed = RECORDED[f"{tree}: ckpt ls @ --json"]["answer"]["checkpoints"]
    same = [c for c in listed if all(c[key] == chosen[key] for key in ("path", "run", "kind"))]
    known = {key: chosen[key] for key in NUMBERS if chosen[key] is not None}
    assert any(all(c[key] == value for key, value in known.items()) for c in same)


def test_of_many_saves_the_newest_are_looked_into(tmp_path: Path) -> None:
    saves = _LOOKED_INTO + 8
    for n in range(saves):
        state = saved({"model": {"w": tensor(n)}, "optimizer": adam(n), "step": 10 * n})
        put(tmp_path / f"checkpoint_{n:06d}/state.pt", state, 1_700_000_000 + 60 * n)
    listed = scan(str(tmp_path)).checkpoints
    told = {c.generation: c.step for c in listed}
    assert told == {n: 10 * n if n >= saves - _LOOKED_INTO else None for n in range(saves)}
