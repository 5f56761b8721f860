"""Links to directories below ROOT can be re-pointed after a decision: a plan names what they lead to, and
chooses what it would choose without them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small_files
from asked_plan import asked
from fixture_trees import CASES, materialise, tree_of
from places import LAYOUT_TREES
from timed import put

from ckpt_tools.api import plan, verify


def linked(root: Path, path: str) -> list[str]:
    """The directories on the way to a path below ``root`` that are links."""
    return [str(here) for here in Path(path).parents if root in here.parents and here.is_symlink()]


def moved(source: Path, to: Path) -> None:
    """``source`` is kept elsewhere, and is a link to that."""
    to.parent.mkdir(parents=True, exist_ok=True)
    source.rename(to)  # within the test's own directory, or it fails
    source.symlink_to(to)


def beside(root: Path, home: Path) -> None:
    (home.parent / "a-latest").symlink_to(home.name)


def behind(root: Path, home: Path) -> None:
    (home.parent / "zz-latest").symlink_to(home)


def above(root: Path, home: Path) -> None:
    (root / "0-newest").symlink_to(home)


def stored(root: Path, home: Path) -> None:
    moved(home, root / "zz-store" / "8f3a")


def elsewhere(root: Path, home: Path) -> None:
    moved(home, root.parent / "disk" / "x1")


WAYS: tuple[Callable[[Path, Path], None], ...] = (beside, behind, above, stored, elsewhere)


def homes() -> Iterator[tuple[Path, Callable[[Path, Path], None]]]:
    for case in (c for c in CASES if c.parent.name != "two_runs"):
        name = case.parent.relative_to(LAYOUT_TREES).as_posix()
        way = WAYS[zlib.crc32(name.encode()) % len(WAYS)]
        # a folder of safetensors whose name tells no step is a run of its own
        yield case, elsewhere if name.startswith(("sharded-safetensors/", "torchtune/")) else way


@pytest.mark.slow
@pytest.mark.share(16)
@pytest.mark.parametrize(
    ("case", "way"),
    [pytest.param(c, w, id=f"{c.parent.parent.name}-{c.parent.name}-{w.__name__}") for c, w in homes()],
)
def test_no_planned_path_has_a_link_to_a_directory_below_the_root(
    case: Path, way: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    root = materialise(case, tmp_path)
    before = asked(root)
    home = Path(before.files[0]).parent if before.files else root
    if before.path and root in Path(before.path).parents and Path(before.path).is_dir():
        home = Path(before.path)  # else the files of several checkpoints share a directory
    if home == root:
        (root / "again").symlink_to(root)
    else:
        assert tmp_path in home.parents
        way(root, home)
    after = asked(root)
    if way is stored and after.error == "UsageError 2":
        return  # below ROOT its files have two names
    assert after.error == before.error
    assert sorted(map(os.path.basename, after.files)) == sorted(map(os.path.basename, before.files))
    assert [linked(root, path) for path in (*after.files, f"{after.path}/x")] == [[]] * (len(after.files) + 1)
    assert all(os.path.isfile(path) for path in after.files)
    if way in (beside, behind, above):
        assert after == before


@pytest.mark.parametrize("name", ["files/npz-directories", "files/npy-directories", "dcp/two"])
def test_a_directory_is_the_save_of_the_link_that_tells_its_step(name: str, tmp_path: Path) -> None:
    root = tree_of(name, tmp_path)
    before = asked(root)
    same = sorted(os.stat(path).st_ino for path in before.files)
    moved(Path(before.files[0]).parent, root / "store" / "k")
    after = asked(root)
    assert (after.error, sorted(os.stat(path).st_ino for path in after.files)) == ("", same)


def test_the_root_keeps_the_caller_s_spelling_and_file_links_their_names(tmp_path: Path) -> None:
    home = tmp_path / "hub/run/checkpoint-10"
    home.mkdir(parents=True)
    for i, (name, data) in enumerate(small_files.trainer(10).items()):
        (home / name).symlink_to(put(tmp_path / f"hub/blobs/{i}", data))
    (tmp_path / "spelling").symlink_to(tmp_path / "hub/run")
    loads = plan(str(tmp_path / "spelling")).files()
    assert {os.path.dirname(path) for path in loads} == {str(tmp_path / "spelling/checkpoint-10")}
    assert "model.safetensors" in set(map(os.path.basename, loads))


@pytest.mark.parametrize("up", [1, 2])
@pytest.mark.parametrize("at", ["iter_0000040", "iter_0000010/mp_rank_01", "away/iter_0000040"])
def test_a_link_to_a_directory_that_the_root_lies_in_is_a_loop(at: str, up: int, tmp_path: Path) -> None:
    """/ would be all of the machine. What lies beside ROOT is none of its checkpoints."""
    root = tmp_path / "jobs/run"
    for home in (root / "iter_0000010/mp_rank_00", tmp_path / "jobs/mp_rank_00", tmp_path / "mp_rank_00"):
        put(home / "model_optim_rng.pt", small_files.megatron(10, 0, 1, 1, 1))
    (tmp_path / "away").mkdir()
    (root / "away").symlink_to(tmp_path / "away")
    plain = asked(root)
    link, to = root / at, root.parents[up - 1]
    for target in (to, os.path.relpath(to, os.path.realpath(link.parent))):
        link.symlink_to(target)
        assert asked(root) == plain and len(verify([str(root)]).files) == 1
        link.unlink()
