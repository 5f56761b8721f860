"""Indexes and the files they describe: which are looked at together."""

from __future__ import annotations

from pathlib import Path

from places import FORMAT_FILES

from ckpt_tools.api import verify

HOME = FORMAT_FILES / "tf_bundle/good/manager"
DATA = "ckpt-2.data-00000-of-00001"


def looked_at(name: str) -> set[str]:
    return {Path(f.report.path).name for f in verify([str(HOME / name)]).files}


def test_one_file_is_looked_at_with_what_its_index_says_and_nothing_else() -> None:
    assert looked_at(DATA) == {DATA}
    for name in ("ckpt-2.index", "ckpt-2"):  # what they have in common names the index
        assert looked_at(name) == {"ckpt-2.index", DATA}
