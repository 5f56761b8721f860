"""docs/how-it-chooses.md: its small trees are answered as it says, and it stays one page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from places import DOCS
from run_helpers import ckpt
from small_files import adam, saved, tensor

from ckpt_tools.layouts.files import numbers_named

PAGE = DOCS / "how-it-chooses.md"
SAVED = 1_735_689_600
ROW = re.compile(r"^(\S.*?) {2,}(\d) +(\S+)$", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")
TREES = [m.groups() for m in ROW.finditer(PAGE.read_text().split("## Twelve small trees")[1])]


def content(name: str, what: str) -> bytes:
    number = int(re.search(r"\d+", name.rpartition("/")[2])[0]) if name.endswith(".pt") else 0  # type: ignore[index]
    model, optimizer = {"w": tensor(number), "b": tensor(number, 1)}, adam(number)
    whole = {"model": model, "optimizer": optimizer, "step": number}
    data = saved({"model": model, "optimizer": optimizer}.get(what, whole))
    return data[: len(data) // 2] if what == "cut" else data


def plant(root: Path, files: str) -> None:
    """Write the files of a row, a minute apart; ``=`` is the time of the file before."""
    now = SAVED
    for word in files.split():
        name, _, what = word.rstrip("=").partition(":")
        now += 0 if word.endswith("=") else 60
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(name, what) if name.endswith(".pt") else b"words\n")
        os.utime(path, (now, now))


@pytest.mark.parametrize(("files", "code", "answer"), TREES)
def test_a_small_tree_is_answered_as_the_page_says(
    files: str, code: str, answer: str, tmp_path: Path
) -> None:
    plant(tmp_path, files)
    ran = ckpt("plan", str(tmp_path), "--json")
    said = json.loads(ran.stdout)
    assert ran.returncode == int(code), ran.stderr
    if code == "0":
        assert answer in {os.path.relpath(f["path"], tmp_path) for f in said["shared"]}
    else:
        assert said["error"]["rule"] == answer


def test_a_spare_that_is_written_later_makes_no_save_newer(tmp_path: Path) -> None:
    """Weights that were exported from the best so far stand beside it: it is loaded from its own file."""
    weights = {"w": tensor(1), "b": tensor(1, 1)}
    for minute, (name, step) in enumerate((("best.pt", 12), ("last.pt", 37))):
        (tmp_path / name).write_bytes(saved({"model": weights, "optimizer": adam(step), "epoch": step}))
        os.utime(tmp_path / name, (SAVED + 3600 * minute, SAVED + 3600 * minute))
    (tmp_path / "best.pth").write_bytes(saved(weights))
    os.utime(tmp_path / "best.pth", (SAVED + 7200, SAVED + 7200))
    ran = ckpt("plan", str(tmp_path), "--json")
    assert ran.returncode == 0, ran.stderr
    assert [os.path.basename(f["path"]) for f in json.loads(ran.stdout)["shared"]] == ["last.pt"]


def test_the_names_of_the_table_are_declared_and_the_others_are_not() -> None:
    _, table = PAGE.read_text().split("| names of people's own loops | are |")
    rows, _, none = table.partition("`final.pt`")
    names = [name for row in rows.splitlines() if row.startswith("| `") for name in NAME.findall(row)]
    assert len(names) > 20 and all(numbers_named(name)[0] for name in names)
    others = NAME.findall(f"`final.pt`{none.partition(chr(10))[0]}")
    assert len(others) == 3 and not any(numbers_named(name)[0] for name in others)


def test_the_page_is_one_page_with_twelve_trees() -> None:
    assert len(TREES) == 12
    assert len(PAGE.read_text().splitlines()) <= 120
    assert "how-it-chooses.md" in (DOCS.parent / "README.md").read_text()
