"""For all tests: no test, and no command that one starts, uses or writes the user's own cache of verdicts or decisions."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

HOME = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module looks at the environment. Both variables, because tests start commands without any CKPT_*."""
    config.stash[HOME] = os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="ckpt-tests-")
    os.environ["CKPT_CACHE_DIR"] = os.path.join(config.stash[HOME], "ckpt")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The whole of it was ours."""
    shutil.rmtree(config.stash[HOME], ignore_errors=True)
