"""What a tracker names was finished: whatever of it is gone, it is damage, never an unfinished save, never a
first launch.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fixture_trees import NAMED, below, selection

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import NoneUsable, NotNewest, UsageError
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level

START = 1_760_000_000
TRACKED = [
    "megatron/tp", "megatron/pp", "megatron/distopt", "megatron/ascend", "megatron-core/mcore", "deepspeed/zero1", "deepspeed/zero3", "deepspeed-universal/converted",
    "tensorflow/manager", "tensorflow/sharded", "dlrover/flash", "verl/grpo", "skyrl/ppo", "nanotron/zero", "mmengine/epochs", "detectron2/running",
    "cosmos/steps", "files/cosmos", "ray/train-v2", "elements/kept", "dcp-set/lm-engine", "mindformers/ranks",
    "big-vision/kept",
]  # fmt: skip
"""A tree of every layout with a tracker; those that DLRover tracks as well get its tracker."""
OTHERS = ["dcp/two", "hf-trainer/trainer"]


class Run:
    """Two checkpoints of a tree, of which the tracker names the newer one."""

    def __init__(self, name: str, target: Path) -> None:
        case = NAMED[name]
        self.root = Path(shutil.copytree(case.parent / "tree", target))
        first = json.loads(case.read_text())["plans"][0]["options"]
        self.options = {"level": Level.STRUCTURE, **first}
        found = [c for c in scan(str(self.root)).checkpoints if not c.unfinished]
        mine = sorted([c for c in found if c.run == found[0].run], key=lambda c: c.order)
        *more, self.older, self.newest = mine
        for p in (p for c in more for p in c.parts):
            os.unlink(p.path)
        for c, at in ((self.older, START), (self.newest, START + 600)):
            for path in (*(p.path for p in c.parts), *below(Path(c.parts[0].home or c.path))):
                os.utime(path, (at, at))
        layout = BUILT_IN[self.newest.layout]
        said = layout.tracker.name(self.newest)
        assert layout.tracker.file and said is not None
        tracker = Path(self.newest.parts[0].base) / layout.tracker.file
        if not tracker.exists() or name in ("dlrover/flash", *OTHERS):
            tracker.write_bytes(layout.tracker.write(said))
        self.home = self.newest.parts[0].home

    def ask(self, **more: object) -> LoadPlan:
        return plan(str(self.root), selection({**self.options, **more}))


def subsets(c: Checkpoint, seed: int) -> Iterator[list[str]]:
    """Pieces to remove: each kind of file, all but one, everything, and some at random."""
    paths, rng = [p.path for p in c.parts], random.Random(seed)
    yield from ([p.path for p in c.parts if p.piece == piece] for piece in sorted({p.piece for p in c.parts}))
    yield from ([p for p in paths if p != kept] for kept in rng.sample(paths, min(2, len(paths))))
    yield from (rng.sample(paths, rng.randint(1, len(paths))) for _ in range(3))
    last = ("metadata", "common", "state", BUILT_IN[c.layout].complete.commit)
    yield [p.path for p in c.parts if p.role in last] or paths
    yield paths


def test_every_layout_with_a_tracker_is_asked_about() -> None:
    asked = {name.partition("/")[0] for name in (*TRACKED, *OTHERS)}
    assert asked == {layout.name for layout in BUILT_IN if layout.tracker.file}


@pytest.mark.share(18)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRACKED, *OTHERS])
def test_whatever_is_gone_of_what_a_tracker_names(name: str, tmp_path: Path) -> None:
    whole = Run(name, tmp_path / "whole")
    assert whole.ask().checkpoint.path == whole.newest.path  # type: ignore[union-attr]
    for i, gone in enumerate(subsets(whole.newest, len(name))):
        run = Run(name, tmp_path / str(i))
        missing = [os.path.relpath(path, whole.root) for path in gone]
        for path in missing:
            (run.root / path).unlink()
        if len(gone) == len(run.newest.parts) and i % 2 and run.home:
            shutil.rmtree(run.home)  # the directory as well
        for options in ({}, {"allow_none": True}):
            judged(run, missing, options)
        if run.home:
            told = verify([str(run.root)], Level.STRUCTURE).findings
            mine = [f for f in told if f.code == "unfinished-save" and f.path.startswith(run.home)]
            listed = [c for c in scan(str(run.root)).checkpoints if c.unfinished and c.path == run.home]
            assert not mine and not listed, missing
        for p in run.older.parts:  # now nothing else is usable
            Path(p.path).write_bytes(b"")
        for options in ({}, {"allow_none": True}):
            with suppress(NoneUsable, UsageError):
                assert run.ask(**options).checkpoint.path == run.newest.path, missing  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_names_nothing_and_is_said(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for either; where nothing else is left it is no first launch."""
    run = Run("megatron/tp", tmp_path / "run")
    monkeypatch.chdir(run.root)  # the name of a socket has at most 107 bytes
    (tracker := Path("latest_checkpointed_iteration.txt")).unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        makers = {
            "pipe": os.mkfifo,
            "socket": bound.bind,
            "device": lambda path: os.symlink("/dev/zero", path),
        }
        makers[kind](str(tracker))
        made = run.ask()
        assert made.checkpoint is not None and made.checkpoint.path == run.newest.path
        (why,) = (f.message for f in made.warnings if f.code == "bad-tracker")
        assert why.startswith("it is not a file")
        for home in run.root.glob("iter_*"):
            shutil.rmtree(home)
        with pytest.raises(UsageError):
            run.ask(allow_none=True)


def judged(run: Run, missing: list[str], options: dict[str, object]) -> None:
    """The answer where files are gone: the newest where it can do without, else an older one with the
    reason, else an error; never a first launch.
    """
    try:
        made = run.ask(**options)
    except (NoneUsable, UsageError):
        return
    assert made.checkpoint is not None, missing
    where = run.home or run.newest.path
    told = [f for f in made.warnings if f.code == "unfinished-save" and f.path.startswith(where)]
    assert not told, (missing, told)
    if made.checkpoint.path != run.newest.path or not made.checkpoint.parts:
        assert any(f.severity is Severity.ERROR for r in made.rejected for f in r.findings), missing
        with pytest.raises((NotNewest, NoneUsable)):
            run.ask(no_fallback=True, **options)
