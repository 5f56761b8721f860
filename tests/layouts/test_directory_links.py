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


@pytest.mark.slow
def test_a_link_that_is_re_pointed_after_the_plan_changes_nothing(tmp_path: Path) -> None:
    for step in (10, 20):
        for name, data in small_files.dcp(step).items():
            put(tmp_path / f"step-{step}" / name, data, 1_760_000_000 + 600 * step)
    (tmp_path / "latest").symlink_to("step-20")
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    before = [Path(f.path).read_bytes() for f in made.shared]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("step-10")
    assert [Path(f.path).read_bytes() for f in made.shared] == before
    assert plan(str(tmp_path)).fingerprint == made.fingerprint


def test_the_root_keeps_the_caller_s_spelling_and_file_links_their_names(tmp_path: Path) -> None:
    blobs, home = tmp_path / "hub" / "blobs", tmp_path / "hub" / "run" / "checkpoint-10"
    blobs.mkdir(parents=True)
    home.mkdir(parents=True)
    for i, (name, data) in enumerate(small_files.trainer(10).items()):
        (blobs / f"{i}").write_bytes(data)
        (home / name).symlink_to(blobs / f"{i}")
    (tmp_path / "spelling").symlink_to(tmp_path / "hub" / "run")
    made = plan(str(tmp_path / "spelling"))
    assert {os.path.dirname(f.path) for f in made.shared} == {str(tmp_path / "spelling" / "checkpoint-10")}
    assert "model.safetensors" in {os.path.basename(f.path) for f in made.shared}


@pytest.mark.slow
def test_links_in_a_circle_end(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "to-b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to-a").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    for name, data in small_files.dcp(10).items():
        (tmp_path / "b" / name).write_bytes(data)
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.checkpoint.path == str(tmp_path / "b")
    assert len(verify([str(tmp_path)]).files) == len(small_files.dcp(10))


STORES = (("zz-store",), ("0-store",), ("../disk",), ("../disk", "zz-store"), ("0-store", "../disk"))
"""Where the directories of a checkpoint are kept, in turn, seen from ROOT."""


def chained(root: Path, start: Path, stores: tuple[str, ...], depth: int) -> None:
    """A directory is kept in a store, and so is the last one in it; a link to a link where there is none."""
    here = start
    for i in range(depth):
        store = stores[i % len(stores)]
        to = (root.parent / "disk" if store == "../disk" else root / store) / "kmt"[i]
        moved(here, to)
        below = sorted(path for path in to.iterdir() if path.is_dir() and not path.is_symlink())
        here = below[-1] if below else to


def starts(root: Path, home: Path) -> list[Path]:
    """The directories below ROOT on the way to the newest checkpoint, its own first."""
    return [path for path in (home, *home.parents) if root in path.parents]


@pytest.mark.share(16)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_links_inside_links_change_no_choice(case: Path, tmp_path: Path) -> None:
    """The choice and its files stay. Where a store lies below ROOT its files have two names, and a job may be
    stopped, but goes on from no other save.
    """
    for i, stores in enumerate(STORES):
        root = materialise(case, tmp_path / str(i))
        before = asked(root)
        if not before.files:
            return
        whole = root in Path(before.path).parents and Path(before.path).is_dir()
        home = Path(before.path) if whole else Path(before.files[0]).parent
        same = sorted(os.stat(path).st_ino for path in before.files)
        levels = starts(root, home)
        if not levels:
            return
        chained(root, levels[i % 2 % len(levels)], stores, 1 + i % 3)
        after = asked(root)
        if after.error:
            assert after.error in ("UsageError 2", "NoneUsable 4")
            assert set(stores) != {"../disk"}
            continue
        assert sorted(os.stat(path).st_ino for path in after.files) == same
        assert [linked(root, path) for path in after.files] == [[]] * len(after.files)


def megatron(root: Path) -> None:
    """Two saves of two tensor-parallel ranks."""
    for step in (10, 20):
        for rank in (0, 1):
            put(
                root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt",
                small_files.megatron(step, rank, 2, 1, 2),
                1_760_000_000 + 600 * step,
            )


def chosen(root: Path) -> tuple[int | None, list[str]]:
    made = plan(str(root))
    assert made.checkpoint is not None
    loads = (*made.shared, *(f for r in made.by_rank for f in r.files))
    return made.checkpoint.step, [os.path.relpath(f.path, root) for f in loads]


def again_by_another_name(root: Path) -> None:
    (root / "kept" / "0-first").symlink_to("../rank-one")


def back_to_the_older(root: Path) -> None:
    (root / "kept" / "previous").symlink_to("../iter_0000010")


def up(root: Path) -> None:
    (root / "kept" / "up").symlink_to("..")
    (root / "rank-one" / "back").symlink_to("../kept")


def none(root: Path) -> None:
    pass


@pytest.mark.parametrize("more", [none, again_by_another_name, back_to_the_older, up])
@pytest.mark.parametrize("name", ["iter_0000020", "zz/iter_0000020"])
def test_a_rank_behind_links_is_there(more: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    megatron(tmp_path)
    (tmp_path / "iter_0000020").rename(tmp_path / "kept")
    (tmp_path / "kept" / "mp_rank_01").rename(tmp_path / "rank-one")
    (tmp_path / "kept" / "mp_rank_01").symlink_to("../rank-one")
    if "/" in name:
        moved(tmp_path / "iter_0000010", tmp_path / "zz" / "iter_0000010")
    (tmp_path / name).symlink_to(tmp_path / "kept")
    more(tmp_path)
    assert chosen(tmp_path) == (20, ["kept/mp_rank_00/model_optim_rng.pt", "rank-one/model_optim_rng.pt"])


@pytest.mark.parametrize("target", ["kept", "kept/mp_rank_01"])
def test_two_links_to_one_directory_elsewhere_name_it_by_what_tells_more(target: str, tmp_path: Path) -> None:
    root, disk = tmp_path / "root", tmp_path / "disk"
    megatron(root)
    moved(root / "iter_0000020", disk / "kept")
    (root / "a-latest").symlink_to(disk / target)
    step, files = chosen(root)
    assert (step, [os.path.realpath(root / f) for f in files]) == (
        20,
        [str(disk / "kept" / f"mp_rank_0{rank}" / "model_optim_rng.pt") for rank in (0, 1)],
    )


@pytest.mark.parametrize("up", [1, 2])
@pytest.mark.parametrize("at", ["iter_0000040", "iter_0000010/mp_rank_01", "away/iter_0000040"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_to_a_directory_that_the_root_lies_in_is_a_loop(
    absolute: bool, at: str, up: int, tmp_path: Path
) -> None:
    """/ would be all of the machine. What lies beside ROOT is none of its checkpoints."""
    root = tmp_path / "jobs/run"
    for home in (root / "iter_0000010/mp_rank_00", tmp_path / "jobs/mp_rank_00", tmp_path / "mp_rank_00"):
        home.mkdir(parents=True)
        (home / "model_optim_rng.pt").write_bytes(small_files.megatron(10, 0, 1, 1, 1))
    (tmp_path / "away").mkdir()
    (root / "away").symlink_to(tmp_path / "away")
    plain = asked(root)
    link, to = root / at, root.parents[up - 1]
    link.symlink_to(to if absolute else os.path.relpath(to, os.path.realpath(link.parent)))
    assert asked(root) == plain
    assert len(verify([str(root)]).files) == 1
