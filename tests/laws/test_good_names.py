"""Whatever a loop of one's own calls its saves and keeps beside them: of a good tree the newest is planned, and
nothing is asked or warned of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.model.finding import Severity

STEPS = (10, 20, 30)
Save = Mapping[str, bytes]


def weights(step: int) -> bytes:
    return saved({"w": tensor(step), "b": tensor(step, 1)})


def state(step: int, **told: int) -> bytes:
    return saved({"model": {"w": tensor(step), "b": tensor(step, 1)}, "optimizer": adam(step), **told})


def whole(name: str) -> Callable[[int], Save]:
    return lambda s: {name.format(s, s // 10, 1 / s): state(s)}


SAVES: dict[str, Callable[[int], Save]] = {
    name: whole(name)
    for name in (
        "step_{0}.pt",
        "ckpt_{0:08d}.pth",
        "checkpoint_{0}.th",
        "model.{0}.pt",
        "model.ckpt.{0}",
        "{0}_model.pt",
        "net-{0}-{0}0.pt",
        "modelEpoch{0}.pt",
        "model_{0}k.pt",
        "model_{0}_loss_{2:.3f}.pt",
        "epoch_{1}_step_{0}.pt",
        "epoch={1}-val_loss={2:.2f}.pt",
        "resnet50-lr0.01-bs64-ep{1}.pth",
        "step{0}-tokens{1}B.pt",
        "seed1_step{0}.pt",
        "ckpt_2026-01-{1:02d}.pt",
    )
}
SAVES |= {
    "a pair": lambda s: {f"model_{s}.pt": weights(s), f"optim_{s}.pt": saved(adam(s))},
    "an average": lambda s: {
        f"model_{s}.pt": weights(s),
        f"ema_{s}.pt": weights(s + 500),
        f"opt_{s}.pt": saved(adam(s)),
    },
    "two networks": lambda s: {f"{s:06d}_net_G.pth": weights(s), f"{s:06d}_net_D.pth": weights(s + 1)},
    "a directory": lambda s: {f"step_{s}/model.pt": weights(s), f"step_{s}/optimizer.pt": saved(adam(s))},
    "directories": lambda s: {f"step_{s}/model/w.pt": weights(s), f"step_{s}/optim/s.pt": saved(adam(s))},
    "a number": lambda s: {f"{s}/model.pt": weights(s), f"{s}/optimizer.pt": saved(adam(s))},
}


def put(root: Path, files: Save, at: float) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(int((1_735_700_000 + 100 * at) * 1e9),) * 2)


def best(root: Path, saves: Mapping[int, Save]) -> None:
    first = saves[STEPS[0]]
    if len(first) == 1:
        ((name, data),) = first.items()
        put(root, {f"best{Path(name).suffix if 'ckpt.' not in name else '.ckpt'}": data}, STEPS[0] + 0.1)


def last(root: Path, saves: Mapping[int, Save]) -> None:
    name = next(iter(saves[STEPS[-1]])).partition("/")[0]
    if len(saves[STEPS[-1]]) == 1:
        (root / f"last{Path(name).suffix}").symlink_to(name)


def tracker(root: Path, saves: Mapping[int, Save]) -> None:
    put(root, {"latest.txt": next(iter(saves[STEPS[-1]])).partition("/")[0].encode()}, STEPS[-1] + 0.1)


def records(root: Path, _saves: Mapping[int, Save]) -> None:
    later = STEPS[-1] + 1
    put(root, {"train.log": b"log\n" * 20, "metrics.json": b'{"loss": [1]}', "config.yaml": b"a: 1\n"}, later)
    put(root, {"tb/events.out.tfevents.1.host": b"\x18\0\0\0abc", "samples/step_35.png": b"\x89PNG"}, later)
    (root / "logs").mkdir()


BESIDE = (best, last, tracker, records)


@pytest.mark.share(3, "slow")
@pytest.mark.parametrize("beside", BESIDE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("called", SAVES)
def test_the_newest_of_a_good_tree_is_planned_without_a_word(
    called: str, beside: Callable[[Path, Mapping[int, Save]], None], tmp_path: Path
) -> None:
    saves = {step: SAVES[called](step) for step in STEPS}
    for step, files in saves.items():
        put(tmp_path, files, step)
    beside(tmp_path, saves)
    made = plan(str(tmp_path))
    files = [os.path.realpath(f.path) for f in (*made.shared, *(f for r in made.by_rank for f in r.files))]
    assert sorted(files) == sorted(str(tmp_path / name) for name in saves[STEPS[-1]])
    assert [f for f in made.warnings if f.severity is not Severity.NOTE] == []
