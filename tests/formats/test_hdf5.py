"""HDF5's superblock: its checksum against known values, and what each version of it tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import bad, look
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.formats import BY_NAME, Anatomy
from ckpt_tools.formats.hdf5.blocks import lookup3

HDF5 = BY_NAME["hdf5"]
GOOD = FORMAT_FILES / "hdf5" / "good"


def test_lookup3_has_the_values_of_its_author() -> None:
    """The driver5() of lookup3.c (Bob Jenkins, May 2006)."""
    assert (lookup3(b""), lookup3(b"Four score and seven years ago")) == (0xDEADBEEF, 0x17770551)


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_the_superblock_is_read(version: int) -> None:
    anatomy, data = Anatomy(), (GOOD / f"superblock-{version}.h5").read_bytes()
    # what is in an object header is under its checksum from version 2 on
    assert [f.code for f in look(data, HDF5, anatomy)] == (["not-checksummed"] if version < 2 else [])
    assert anatomy.metadata == {"superblock": version}


@pytest.mark.parametrize("version", [0, 1])
def test_a_superblock_without_a_checksum_must_agree_with_itself(version: int) -> None:
    """Every field that the library reads before anything else; what it never looks at may be anything."""
    data, at = (GOOD / f"superblock-{version}.h5").read_bytes(), 24 + 4 * version
    fields = {9: b"\1", 10: b"\1", 12: b"\1", 14: b"\4", at: b"\1", at + 8: b"\0" * 7 + b"\x7f", at + 16: bytes(8)}  # fmt: skip
    for offset, new in fields.items():
        found = bad(look(data[:offset] + new + data[offset + len(new) :], HDF5))
        assert [f.code for f in found] == ["bad-header"], offset
    # flags that no library has ever used
    assert not bad(look(data[:20] + b"\x08" + data[21:], HDF5))


def test_a_file_of_keras_is_recognised_by_name_and_content(tmp_path: Path) -> None:
    name = "cp-0001.weights.h5"
    for data, code in (
        ((GOOD / name).read_bytes(), "not-checksummed"),
        (b"not HDF5 at all" * 100, "bad-header"),
    ):
        (tmp_path / name).write_bytes(data)
        (report,) = (f.report for f in verify([str(tmp_path)]).files)
        assert (report.format, report.coverage) == ("hdf5", 0) and code in {f.code for f in report.findings}
