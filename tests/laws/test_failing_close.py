"""A close() that fails, as those of FUSE and of full network disks do, ends no command as a bug of ckpt: the
answer is the same, or exit 5.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from run_helpers import megatron

from ckpt_tools.cli import execute

COMMANDS = ("plan @ --json", "latest @ --rank 0", "hook @ --plan-dir plans", "verify @ --json", "seal @ -q", "prune @ --keep 1 --apply -q")  # fmt: skip


class Closing:
    """``os.close``, of which one call frees its descriptor and fails."""

    def __init__(self, real: Callable[[int], None], nth: int) -> None:
        self.real, self.nth, self.calls = real, nth, 0

    def __call__(self, fd: int) -> None:
        self.calls += 1
        self.real(fd)
        if self.calls == self.nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def closes(command: str, place: Path, nth: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How a command ends, and how many files it closes."""
    place.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(place)
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        root = megatron(place / "run")
        patch.setattr(os, "close", closing := Closing(os.close, nth))
        return execute([str(root) if word == "@" else word for word in command.split()]), closing.calls


@pytest.mark.share(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_close_that_fails_is_no_bug(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, calls = closes(command, tmp_path / "all", 0, monkeypatch)
    assert code == 0 and calls >= 4  # each file is opened once
    said = {nth: closes(command, tmp_path / str(nth), nth, monkeypatch)[0] for nth in range(1, calls + 1, 7)}
    assert set(said.values()) <= {0, 5}, said
    assert "Traceback" not in capfd.readouterr().err
