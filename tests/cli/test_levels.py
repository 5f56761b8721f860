"""The levels beyond the checksums through the command: maps of bytes, keys, values; and that a file's answer
says how deep it rests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import warm
from places import FORMAT_FILES

KEYED = FORMAT_FILES / "mindspore_encrypted"


def ckpt(*args: object) -> tuple[int, Any]:
    done = warm.completed([*map(str, args), "--json"], os.environ)
    return done.returncode, json.loads(done.stdout)


def keyed(tmp_path: Path) -> tuple[Path, Path]:
    """An encrypted file, and a copy of its key: in a clone everybody can read that."""
    own = next(KEYED.glob("*gcm*.key"))
    key = tmp_path / own.name
    key.write_bytes(own.read_bytes())
    key.chmod(0o600)
    return KEYED / "good" / own.name.removesuffix(".key"), key


@pytest.mark.slow
def test_a_key_opens_what_is_in_an_encrypted_file(tmp_path: Path) -> None:
    path, key = keyed(tmp_path)
    plain = ckpt("show", path)[1]
    opened = ckpt("show", path, "--key-file", key)[1]
    assert not plain["tensors"] and opened["tensors"]
    assert {f["code"] for f in plain["findings"]} >= {"needs-key"}
    other = tmp_path / "other.key"
    other.write_bytes(b"0" * len(key.read_bytes()))
    other.chmod(0o600)
    code, answer = ckpt("verify", path, "--key-file", other)
    assert (code, answer["files"][0]["verdict"]) == (5, "unknown")
    assert [f["code"] for f in answer["files"][0]["findings"] if f["severity"] != "note"] == ["wrong-key"]
    key.write_bytes(key.read_bytes() + b"\n")  # a line end is no part of it
    assert ckpt("verify", path, "--key-file", key)[0] == 0


@pytest.mark.parametrize("content", [b"", b"too short", b"x" * 33, None])
def test_a_key_file_that_holds_no_key_is_said_without_showing_it(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "secret.key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    code, answer = ckpt("verify", FORMAT_FILES / "mindspore_encrypted/good", "--key-file", path)
    assert code == 2
    assert "secret.key" in answer["error"]["message"]
    assert not content or content.decode() not in json.dumps(answer)
