"""Whatever befalls the files of a tree of any layout: another save or another file is taken, or something is
said of it; nothing damaged is loaded, nothing older without a word, nothing from nothing, and every rank hears
the same.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from asked_plan import loads
from fixture_trees import CASES, TREES, materialise, one_of_each, overwrite, selection, tree_of
from memory import brief_directory
from places import LAYOUT_TREES
from safetensors.torch import save as safetensors_save
from scenarios import Whole, mishap, wrong
from timed import same_times

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError, NotRecognised
from ckpt_tools.formats import names
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.lost_files import MODELS

UNNEEDED = {"_sharding"}
"""Orbax restores without it."""
UNLISTED = {"dcp-hf/two"}
"""One save alone of which nothing lists the shards."""
UNREAD = {("hf-trainer/lone", "config.json")}
"""A Trainer resumes without it, and of a model that is no PreTrainedModel it writes none."""
SHRUNK = {"dlrover/flash", "nanochat/base", "rank-files/ray-train-v2"}
"""Without the file of its last rank it is the save of a job that has fewer ranks by now, as the launcher says."""
FILES = 4


class Told(NamedTuple):
    """The exit code, what is resumed from or why nothing is, what is said of it, and the files that are loaded."""

    code: int
    path: str
    said: frozenset[tuple[str, str | None]] = frozenset()
    loaded: frozenset[str] = frozenset()
    made: LoadPlan | None = None

    @property
    def choice(self) -> tuple[int, str, frozenset[str]]:
        return self.code, self.path, self.loaded


def ask(root: Path, options: Mapping[str, Any] = {}) -> Told:
    try:
        made = plan(str(root), selection(dict(options)))
    except CkptError as e:
        return Told(e.exit_code, str(e))
    found, chosen = (*made.warnings, *(f for r in made.rejected for f in r.findings)), made.checkpoint
    said, loaded = frozenset((f.code, f.path) for f in found), frozenset(f.path for f in loads(made))
    return Told(0, chosen.path if chosen else "", said, loaded, made if chosen else None)


def without_each(files: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Some of the files, each gone for a while."""
    for path in {*files[:: max(1, len(files) // FILES)], files[-1]}:
        if path.is_file() and not path.is_symlink() and path.name not in UNNEEDED:
            data = path.read_bytes()
            with same_times(path):
                path.unlink()
                yield path, data
                path.write_bytes(data)


@pytest.mark.share(120)
@pytest.mark.parametrize("case", TREES)
def test_a_lost_file_is_told_at_any_size_of_the_job(case: Path, tmp_path: Path) -> None:
    name = "/".join(case.parts[-3:-1])
    question = next((q for q in json.loads(case.read_text())["plans"] if "error" not in q), {})
    options, root = question.get("options", {}), materialise(case, tmp_path) / question.get("root", ".")
    good = ask(root, options)
    if good.made is None or name in UNLISTED:
        return
    world = good.made.world_size or len(good.made.by_rank) or 1
    sizes = [{}] if "world_size" in options else [{}, *({"world_size": w} for w in {1, world, 2 * world})]
    whole = [ask(root, options | size) for size in sizes]
    for path, data in without_each([*map(Path, sorted(good.loaded))]):
        for size, before in zip(sizes, whole, strict=True):
            now = ask(root, options | size)
            if (
                now.made is None
                or now.path != good.path
                or now.made.checkpoint.label != good.made.checkpoint.label
            ):
                continue
            if before.made is None:
                assert name in SHRUNK, (path, size)
            elif str(path) in before.loaded and (name, path.name) not in UNREAD:
                instead = any(f.substituted or Path(f.path).read_bytes() == data for f in loads(now.made))
                assert now.made.warnings or instead, (path, size)


def files_of_older(root: Path, used: frozenset[str], *, each: bool) -> list[Path]:
    """Files of saves that are older than the choice, none of which it loads; unless ``each``, one of a role."""
    chosen = plan(root).checkpoint
    assert chosen is not None

    def is_older(c: Checkpoint) -> bool:
        return not c.unfinished and c.path != chosen.path and c.mtime_ns < chosen.mtime_ns

    taken = used | {p.path for p in chosen.parts}
    older = [p for c in scan(root).checkpoints if is_older(c) for p in c.parts if p.path not in taken]
    ones = {p.path if each else (p.layout, p.role): Path(p.path) for p in older}
    return [path for path in ones.values() if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.share(3)
@pytest.mark.parametrize("case", one_of_each(TREES))
def test_damage_in_an_older_save_leaves_the_choice_as_it_was(case: Path, each: bool, tmp_path: Path) -> None:
    """One file after the other is damaged: each in all ways, or in one of them, which take turns."""
    root = materialise(case, tmp_path)
    before = ask(root)
    files = files_of_older(root, before.loaded, each=each) if before.made else ()
    for turn, file in enumerate(files, zlib.crc32(case.parent.name.encode())):
        data = file.read_bytes()
        ways = (bytes(len(data)), data[: len(data) // 2], b"")
        for damaged in ways if each else ways[turn % 3 :][:1]:
            overwrite(file, damaged, 0)
            assert ask(root).choice == before.choice, (os.path.relpath(file, root), len(damaged))
        overwrite(file, data, 0)


_TELLS = ("last_epoch", "step", "global_step", "current_step", "optimizer_step", "iteration")
"""What files call the step that their name tells as well."""
_MAY_SKIP = ("last_epoch", "optimizer_step")
"""What of these is one less in a save of its own as well: an optimizer may have skipped a step."""


def _pairs(root: Path, taken: frozenset[str]) -> Iterator[tuple[Path, bytes]]:
    """Files that are taken, and tell the step in their name, and what those of the save before hold that do so."""
    tells = dict[str, frozenset[str]]()
    for f in verify(str(root), level=Level.STRUCTURE).files:
        step = f.part and f.part.step
        name = f.report.path if f.part is None else f.part.home.rpartition("/")[2]
        numbers = [int(n) for n in re.findall(r"\d+", name)]
        told = frozenset(key for key in _TELLS if step and f.report.metadata.get(key) == step)
        tells[f.report.path] = told if step in numbers else frozenset()
    saves = sorted((c for c in scan(str(root)).checkpoints if c.kind is Kind.PERIODIC), key=lambda c: c.order)
    for older, newer in pairwise(saves):
        doubtful = frozenset(_MAY_SKIP if newer.step == (older.step or 0) + 1 else ())
        there = {(p.piece, p.rank, p.coords, p.path.removeprefix(p.home)): p for p in older.parts if p.home}
        for p in newer.parts:
            twin = there.get((p.piece, p.rank, p.coords, p.path.removeprefix(p.home)))
            if twin and p.path in taken and tells.get(p.path, doubtful) - doubtful and tells.get(twin.path):
                yield Path(p.path), Path(twin.path).read_bytes()


@pytest.mark.parametrize("most", [2, pytest.param(99, marks=pytest.mark.exhaustive)])
@pytest.mark.share(32)
@pytest.mark.parametrize("case", TREES)
def test_a_file_that_tells_its_step_is_not_exchanged_in_silence(
    case: Path, most: int, tmp_path: Path
) -> None:
    root = materialise(case, tmp_path)
    before = ask(root)
    pairs = {mine.suffix: (mine, older) for mine, older in _pairs(root, before.loaded)}
    for mine, older in [*pairs.values()][:most]:
        data = mine.read_bytes()
        overwrite(mine, older, 0)
        after = ask(root)
        assert str(mine) not in after.loaded or after.path != before.path or after.said - before.said, mine
        overwrite(mine, data, 0)


@pytest.mark.parametrize("tag", ["global_step8", "global_step4"])
def test_a_tag_of_another_step_than_its_files_is_told(tag: str, tmp_path: Path) -> None:
    """Engines call tags after their own count of steps; that of a copied or renamed one is another."""
    run = Path(shutil.copytree(LAYOUT_TREES / "deepspeed/zero1/tree", tmp_path / "run"))
    for name in (tag, "global_step12"):
        (run / tag).rename(run / name) if name != tag else None
        files = verify(str(run)).files
        told = [f.report.path for f in files if any(x.code == "step-mismatch" for x in f.report.findings)]
        assert [os.path.relpath(p, run).split("/")[0] for p in told] == ([name] if name != tag else [])


SEEDS = [3, pytest.param(40, marks=pytest.mark.exhaustive)]
"""For each case that is tried by day; for each, every night."""


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.share(32)
@pytest.mark.parametrize("case", TREES)
def test_nothing_is_answered_that_may_not_be(case: Path, seeds: int) -> None:
    name = f"{case.parent.parent.name}/{case.parent.name}"
    with brief_directory() as top:
        whole = Whole(case, top / "case")
        for seed in range(seeds):
            happened = mishap(whole, f"{name} {seed}")
            assert not [*wrong(happened)], f"{name} {seed} {happened.said}"


OF_RUNS = {"basicsr", "nanochat", "nvrx-local"}
"""Whose saves lie in a directory that is a whole run's, and may have any name."""
ENDS = ("{}.tmp", "{}.incomplete", "{}.tmp-9f3a", "{}.partial")


def has_directories(case: Path) -> bool:
    """Whether the first question about a tree leads to a directory."""
    asked = json.loads(case.read_text())["plans"][0]
    path = asked.get("resume_path") or "."
    return not asked["options"] and path != "." and (case.parent / "tree" / path).is_dir()


LAYOUTS = {case.parts[-3]: case for case in CASES if has_directories(case)}
"""One tree of each layout whose saves are directories."""


@pytest.mark.share(12)
@pytest.mark.parametrize(("layout", "name"), [*itertools.product(sorted(LAYOUTS.keys() - OF_RUNS), ENDS)])
def test_a_save_that_was_not_renamed_is_not_chosen(layout: str, name: str, tmp_path: Path) -> None:
    root = materialise(LAYOUTS[layout], tmp_path)
    whole = ask(root)
    home = Path(whole.path)
    marked = home.rename(home.with_name(name.format(home.name)))
    now = ask(root)
    assert now.code or (now.made and Path(now.path) != marked)
    assert now.code or now.said - whole.said, "an older one is chosen without a word"


@pytest.mark.parametrize("tree", ["dcp/two", "orbax/standard", "torchsnapshot/steps"])
def test_the_only_save_left_is_no_first_launch(tree: str, tmp_path: Path) -> None:
    """Who writes aside and renames may have removed the one before."""
    root = tree_of(tree, tmp_path)
    chosen = Path(ask(root).path)
    alone = tmp_path / "alone" / f"{chosen.name}.tmp"
    alone.parent.mkdir()
    chosen.rename(alone)
    with pytest.raises(NotRecognised, match="nothing but its name"):
        plan(str(alone.parent), Selection(allow_none=True))


FORMATS = ("safetensors", "torch_zip", "torch_legacy")


def without_tensors(form: str) -> bytes:
    buffer = io.BytesIO()
    torch.save({}, buffer, _use_new_zipfile_serialization=form == "torch_zip")
    return safetensors_save({}) if form == "safetensors" else buffer.getvalue()


def of_models(made: LoadPlan) -> Iterator[tuple[Path, str]]:
    """The files of models with tensors in them, one of each name, and their formats."""
    of_name = {"".join(c for c in os.path.basename(f.path) if not c.isdigit()): f for f in loads(made)[::-1]}
    for f in of_name.values():
        report, _ = inspect(f.path, Level.STRUCTURE)
        if f.role in MODELS and report.format in FORMATS and report.tensors:
            yield Path(f.path), report.format


@pytest.mark.share(50)
@pytest.mark.parametrize("case", TREES)
def test_a_model_without_tensors_is_never_loaded_without_a_word(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    before = ask(root)
    for path, form in of_models(before.made) if before.made else ():
        data = path.read_bytes()
        overwrite(path, without_tensors(form), 0)
        now = ask(root)
        told = now.made and any(f.severity is not Severity.NOTE for f in now.made.warnings)
        assert told or str(path) not in now.loaded, path
        overwrite(path, data, 0)


def state_files(root: Path) -> list[Path]:
    """Files of checkpoints that a repository would keep elsewhere."""
    files = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size]
    states = (p for p in files if names.state(p.name) or p.suffix == ".bin")
    return [p for p in states if not p.name.endswith((".json", ".yaml"))]


POINTER = (
    f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a2146' * 8}\nsize 4976698672\n".encode()
)


@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_nobody_starts_over_a_file_that_only_stands_for_its_data(case: Path, tmp_path: Path) -> None:
    """Of a clone without its large files, no job resumes, and none begins from nothing."""
    root = materialise(case, tmp_path)
    replaced = state_files(root)
    for path in replaced:
        overwrite(path, POINTER, 0)
    for level in (Level.STRUCTURE, Level.CONTENT):
        now = ask(root, {"allow_none": True, "level": level})
        assert now.code or now.made, "it would start from nothing"
        assert replaced and not now.loaded & {*map(str, replaced)}
