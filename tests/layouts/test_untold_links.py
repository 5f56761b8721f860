"""Links that tell no step: those of saves of weights alone, whose contents count nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import FORMAT_FILES
from timed import put

from ckpt_tools.api import scan

LINK = "latest-rank0.pt"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Composer with ``save_weights_only``."""
    weights = (FORMAT_FILES / "torch_zip/good/complex.pt").read_bytes()
    for step in (8, 16, 24):
        put(tmp_path / f"ep{step // 8}-ba{step}-rank0.pt", weights, 1_735_700_000 + step)
    (tmp_path / LINK).symlink_to("ep3-ba24-rank0.pt")
    return tmp_path


def test_a_link_is_of_the_step_of_what_it_leads_to(run: Path) -> None:
    assert [c.step for c in scan(str(run)).checkpoints] == [24, 16, 8]


def test_a_file_in_place_of_the_link_may_be_all_that_is_left_of_a_later_save(run: Path) -> None:
    (run / LINK).unlink()
    (run / LINK).write_bytes((run / "ep3-ba24-rank0.pt").read_bytes())
    assert [c.step for c in scan(str(run)).checkpoints] == [None, 24, 16, 8]
