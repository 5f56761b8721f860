"""A pickle that was read before tells of its file what it would tell anew."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from helpers import flipped
from places import FORMAT_FILES

from ckpt_tools.formats import BY_NAME, Anatomy, structure
from ckpt_tools.formats.torch import contents
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.storage import BytesSource

FILES = sorted((FORMAT_FILES / "torch_zip").glob("*/*"))
CHECK = BY_NAME["torch_zip"].checks[Level.STRUCTURE]


def told(data: bytes) -> tuple[list[Finding], dict[str, object]]:
    anatomy = Anatomy()
    found = [*structure(BytesSource(data), anatomy, CHECK)]
    return found, {name: getattr(anatomy, name) for name in Anatomy.__match_args__}


def anew(data: bytes) -> tuple[list[Finding], dict[str, object]]:
    contents.forget()
    return told(data)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_file_tells_the_same_however_often_it_was_read(path: Path) -> None:
    data = path.read_bytes()
    first = anew(data)
    assert told(data) == told(data) == first


GOOD = [pytest.param(p, id=p.name) for p in FILES if p.parent.name == "good"]


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("path", GOOD)
def test_what_another_file_told_changes_nothing(path: Path) -> None:
    """Neighbours: equal but for one byte, anywhere, also in the directory that says where the storages lie."""
    data, some = path.read_bytes(), random.Random(0)
    contents.forget()
    for _ in range(60):
        changed = flipped(data, 8 * some.randrange(len(data)) + some.randrange(8))
        warm = told(changed)
        assert anew(changed) == warm
        told(data)
