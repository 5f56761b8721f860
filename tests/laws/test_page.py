"""What docs/how-it-chooses.md foretells about small trees that chance makes is what ``plan`` answers."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple

import pytest
from told_trees import FIRST, plant

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError

NAMES = [
    ("step_{}.pt", "model_step_{}.pt", "optim_step_{}.pt"),
    ("ckpt_{}.pt", "model_{}.pt", "optim_{}.pt"),
    ("step_{}/state.pt", "step_{}/model.pt", "step_{}/optim.pt"),
]
"""What a loop calls a file that holds everything, or the halves of a save."""
KINDS, HOLDS = ("whole", "stepped", "counted"), ("model optimizer", "model", "optimizer")


class Save(NamedTuple):
    step: int
    minute: int
    files: dict[str, int]  # by name which of KINDS it is
    cut: frozenset[str]  # names of files that lack their second half

    def lists_contents(self) -> set[str]:
        """What its sound files hold."""
        return {
            word for name, kind in self.files.items() if name not in self.cut for word in HOLDS[kind].split()
        }


class Tree(NamedTuple):
    saves: list[Save]
    tracker: Save | None  # which save ``latest`` names
    told_at: int  # when that was written
    stranger: tuple[int, int, int] | None  # which of KINDS agent_0.pt is, its step, and when it was written


def make_tree(chance: random.Random) -> Tree:
    steps = sorted(chance.sample([100, 200, 300, 400], chance.randint(1, 4)))
    if chance.random() < 0.25:  # training went back
        chance.shuffle(steps)
    saves, minute, names = list[Save](), 0, chance.choice(NAMES)
    for step in steps:
        minute += chance.choice([0, 60, 60])
        kinds = chance.choice([(0,), (1, 2), (1, 2), (1,)])
        files = {names[kind].format(step): kind for kind in kinds}
        cut = {name for name in files if chance.random() < 0.2}
        saves.append(Save(step, minute, files, frozenset(cut)))
    stranger = (chance.randint(0, 1), chance.choice([50, 500]), minute + chance.choice([-30, 0, 30]))
    tracked = chance.choice(saves) if chance.random() < 0.4 else None
    return Tree(
        saves, tracked, minute + chance.choice([-30, 30]), stranger if chance.random() < 0.3 else None
    )


def write(root: Path, tree: Tree) -> None:
    for s in tree.saves:
        words = (f"{n}:{KINDS[k]}{s.step}{'!' * (n in s.cut)}@{s.minute}" for n, k in s.files.items())
        plant(root, " ".join(words))
    if tree.stranger is not None:
        kind, step, minute = tree.stranger
        plant(root, f"agent_0.pt:{KINDS[kind]}{step}@{max(minute, 0)}")
    if tree.tracker is not None:
        (root / "latest").write_text(min(tree.tracker.files).partition("/")[0])
        os.utime(root / "latest", (FIRST + 60 * tree.told_at,) * 2)


def foretell(tree: Tree) -> set[str] | str:
    """The names of the files of the choice, or the rule that stops."""
    has_optimizer = any("optimizer" in s.lists_contents() for s in tree.saves)
    needed = {"model", "optimizer"} if has_optimizer else {"model"}
    usable = [s for s in tree.saves if not s.cut and s.lists_contents() >= needed]
    if not usable:
        return "choice/none-usable"
    newest = max(usable, key=lambda s: (s.minute, s.step))
    furthest = max(usable, key=lambda s: s.step)
    goes_back = any(s.minute < newest.minute and s.step < newest.step for s in tree.saves)
    if newest is furthest:
        if tree.tracker in usable and tree.tracker is not newest and tree.told_at > newest.minute:
            return "order/times-contradict-steps"
    elif tree.tracker is furthest:
        return "order/times-contradict-steps"
    elif len({s.minute for s in tree.saves}) == 1:
        newest = furthest
    elif not goes_back:
        return "order/times-contradict-steps"
    if tree.stranger is not None:
        kind, step, minute = tree.stranger
        lies_beside = not any("/" in name for name in newest.files)
        holds_more = kind == 0 and lies_beside and not has_optimizer
        holds_less = kind == 1 and has_optimizer and step < newest.step
        if holds_more or (max(minute, 0) >= newest.minute and not holds_less):
            return "choice/unplaced-newer"
    return set(newest.files)


@pytest.mark.parametrize("seed", range(6))
def test_the_page_foretells_the_answer(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for n in range(25):
        (root := tmp_path / str(n)).mkdir()
        write(root, tree := make_tree(chance))
        try:
            answer: set[str] | str = {os.path.relpath(path, root) for path in plan(str(root)).files(rank=0)}
        except CkptError as e:
            answer = e.rule
        assert (tree, answer) == (tree, foretell(tree))
