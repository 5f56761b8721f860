"""Questions about names: what cannot be a name is not there, and that is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.storage.retry import is_directory, is_file, is_link, lstat, status, there


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a\0/../b", "\udfff\ud800"])
def test_what_no_file_system_can_hold_is_not_there(name: str, tmp_path: Path) -> None:
    """Texts in files, such as trackers and JSON, may name it."""
    path = f"{tmp_path}/{name}"
    assert not any(asked(path) for asked in (there, is_file, is_directory, is_link))
    for asked in (status, lstat):
        with pytest.raises(FileNotFoundError):
            asked(path)
