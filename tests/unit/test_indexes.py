"""Indexes and the files they describe: paths that leave the directory, files that are gone, files that nobody
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ckpt_tools import formats
from ckpt_tools.api import show, verify
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Format
from ckpt_tools.formats.named import NAMED, Named, Names
from ckpt_tools.inspection import check
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Source


def lines(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """A format for these tests: ``IDX`` and one member per line."""
    for name in source.read(4, source.size - 4).decode().splitlines():

        def check(member: Source, found: Anatomy, name: str = name) -> Iterator[Finding]:
            found.metadata["named"] = name
            if member.size != len(name):
                yield finding("truncated", "not as long as its name")

        anatomy.members[name] = Claim("lines", check, whole=True)
    return iter(())


LINES = Format(
    "lines", (".idx",), lambda head: head[:4] == b"IDX\n", {Level.STRUCTURE: lines}, "-", ("-",), "-",
    names=r"data\d+", index=True, index_of=lambda name: ("all.idx",) if name.startswith("data") else (),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats._loaded, "lines", LINES)
    ours = Named("lines", "", LINES.suffixes, LINES.names, describes=True)
    monkeypatch.setattr(formats, "names", Names((*NAMED, ours)))


def tree(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def codes(root: Path) -> dict[str, list[str]]:
    reports = [f.report for f in verify([str(root)], settle=0).files]
    return {str(Path(r.path).relative_to(root)): [x.code for x in r.findings] for r in reports}


def looked_at(path: Path) -> set[str]:
    return {Path(f.report.path).name for f in verify([str(path)]).files}


def test_members_are_checked_against_what_is_said(tmp_path: Path) -> None:
    index = {"all.idx": b"IDX\ndata1\nplain\nsub/x"}
    tree(tmp_path, {**index, "data1": b"12345", "plain": b"1234", "sub/x": b"12345"})
    assert codes(tmp_path) == {"all.idx": [], "data1": [], "plain": ["truncated"], "sub/x": []}


def test_members_that_are_gone_and_paths_that_leave(tmp_path: Path) -> None:
    names = ["data1", "../data2", "/etc/passwd", "a/../../b", "x\0y", ""]
    tree(tmp_path / "c", {"all.idx": b"IDX\n" + "\n".join(names).encode() + b"\n."})
    tree(tmp_path, {"data2": b"12345678"})
    assert codes(tmp_path / "c") == {"all.idx": ["path-escape"] * 6 + ["missing-part"]}


def test_a_file_without_its_index_is_an_unfinished_save_and_one_that_it_does_not_name_left_over(
    tmp_path: Path,
) -> None:
    seen = verify([str(tree(tmp_path / "a", {"data1": b"12345"}))], settle=0)
    (report,) = (f.report for f in seen.files)
    assert (report.verdict, report.level) == (Verdict.SUSPECT, Level.PRESENCE)
    assert report.findings[0].code == "unfinished-save" and seen.summary.below_level == 1
    tree(tmp_path / "b", {"all.idx": b"IDX\ndata1", "data1": b"12345", "data2": b""})
    assert codes(tmp_path / "b") == {"all.idx": [], "data1": [], "data2": ["extra-file"]}


def test_one_file_is_looked_at_with_what_its_index_says_and_nothing_else(tmp_path: Path) -> None:
    tree(tmp_path, {"all.idx": b"IDX\ndata1\ndata2", "data1": b"12345", "data2": b"123"})
    assert looked_at(tmp_path / "data1") == {"data1"}
    for name in ("all.idx", "all"):  # what they have in common names the index
        assert looked_at(tmp_path / name) == {"all.idx", "data1", "data2"}
    report, anatomy = show(str(tmp_path / "data2"))
    assert (report.verdict, anatomy.metadata) == (Verdict.BROKEN, {"named": "data2"})


def test_each_index_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"data{i}" for i in range(9)]
    tree(tmp_path, {"all.idx": "\n".join(["IDX", *names]).encode(), **dict.fromkeys(names, b"12345")})
    read, real = [], check.inspect

    def inspect(path: str, level: Level, claims: Sequence[Claim]) -> object:
        read.append(path)
        return real(path, level, claims=claims)

    monkeypatch.setattr(check, "inspect", inspect)
    known = Indexes([str(tmp_path / "all.idx")])
    assert all(known.claims(str(tmp_path / f"data{i}")) for i in range(9))
    assert len(list(known.members())) == 9
    assert read == [str(tmp_path / "all.idx")]
