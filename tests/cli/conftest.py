"""What many tests of commands ask about: a small run that is sound, and a directory of decisions. What is imported
here at the top is there before tests/conftest.py has prepared the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from one_question import Asker


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 10 and 20 of two ranks."""
    from run_helpers import megatron

    return megatron(tmp_path / "run")


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    return tmp_path / "plans"


@pytest.fixture
def asker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Asker:
    """Commands in this process, in a directory of the test."""
    from one_question import Asker

    monkeypatch.chdir(tmp_path)
    return Asker(monkeypatch, capfd, tmp_path / "state")
