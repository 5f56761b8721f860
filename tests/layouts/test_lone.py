"""A checkpoint that no other one of its run can be compared with: what it lacks shows all the same."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise, one_of_each, tree_of
from places import LAYOUT_TREES
from small_files import adam, saved, tensor
from timed import put
from told_trees import answer, remove

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError, NoneUsable, NotRecognised
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.zeros import is_zero
from ckpt_tools.formats.dcp.torchsnapshot import PLAIN, Entry, check_file
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.storage import BytesSource

TOLD = [
    case
    for case in CASES
    if any(x.name == case.parent.parent.name and x.complete.saved_with for x in LAYOUTS)
    and not json.loads(case.read_text())["plans"][0].get("error")  # of several runs none is chosen
]


def lone(case: Path, at: Path) -> tuple[Path, Checkpoint]:
    """The tree with no more than its newest checkpoint."""
    root = materialise(case, at)
    newest = plan(str(root)).checkpoint
    assert newest is not None
    keep = {p.path for p in newest.parts}
    for path in root.rglob("*"):
        if path.is_file() and str(path) not in keep:
            path.unlink()
    return root, newest


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize("case", TOLD, ids=lambda case: "/".join(case.parts[-3:-1]))
def test_what_is_always_saved_together_is_missed_alone(case: Path, tmp_path: Path) -> None:
    root, newest = lone(case, tmp_path)
    layout = next(x for x in LAYOUTS if x.name == newest.layout)
    for name, role in layout.complete.saved_with:
        others = [p for p in newest.parts if layout.piece(p.piece).role == role]
        if not others or name not in {p.piece for p in newest.parts}:
            continue
        for p in others:
            Path(p.path).rename(tmp_path / p.name)
        survivable = any(layout.piece(p.piece).readers.survivable for p in others)
        assert missed(root, survivable=survivable), (name, role)
        for p in others:
            (tmp_path / p.name).rename(p.path)


def missed(root: Path, survivable: bool) -> bool:
    try:
        made = plan(str(root))
    except NoneUsable as e:
        return not survivable and e.plan is not None and "missing-part" in str(e.plan.rejected)
    return survivable and "missing-part" in {f.code for f in made.warnings}


APART = """
accelerate/fsdp/tree/step_8 optimizer_0
accelerate/fsdp-full/tree/step_8 optimizer.bin
dcp-hf/two/tree/step-10 shard-00002-*
dcp-set/lm-engine/tree/global_step20 optimizer
files/mlx-npz/tree/step_60 weights.npz unusable
levanter/steps/tree/step-20 model unusable
levanter/steps/tree/step-20 opt_state
mindformers/lone/tree/iteration_00000010 qwen3-opt-0000000-0000001.safetensors
mindformers/ranks/tree/iteration_00000030 opt-*.safetensors unusable
nanotron/zero/tree/20 random/tp-1-*
nemo-rl/dtensor/tree/step_4 policy unusable
nemo-rl/dtensor/tree/step_4 value/weights unusable
nemo-rl/dtensor/tree/step_4 policy/optimizer
nemo-rl/megatron/tree/step_4 policy/weights unusable
skyrl/ppo/tree/global_step_20 critic/optim*
speechbrain/epochs/tree/save/CKPT+2026-11-24+08-31-47+02 optimizer.ckpt
verl/ppo/tree/global_step_20 actor/optim*
verl/ppo/tree/global_step_20 critic/model*
"""


@pytest.mark.slow
@pytest.mark.parametrize("row", APART.strip().splitlines())
def test_what_lies_apart_from_the_rest_is_missed_alone(row: str, tmp_path: Path) -> None:
    """An optimizer, or a model of several: a warning where a job may have saved none."""
    save, lost, *unusable = row.split()
    home = Path(shutil.copytree(LAYOUT_TREES / save, tmp_path / "run" / Path(save).name))
    for path in home.rglob("*"):  # as one save writes them
        os.utime(path, (1_700_000_000,) * 2)
    assert not [w for w in plan(str(home.parent)).warnings if w.code == "missing-part"]
    for path in home.glob(lost):
        remove(path)
    assert missed(home.parent, survivable=not unusable)


@pytest.mark.parametrize(
    ("names", "code", "todo"),
    [
        ("model_00000250.bin", "no layout", "ckpt layouts --guess"),  # llm.c
        (
            "params.00001 params.00002 state/optimizer_last.pkl",
            "missing-part",
            "describe the layout in ckpt.toml",
        ),
        ("model.pt scheduler.pt", "missing-part", "bring it back"),
    ],
)
def test_where_none_is_usable_the_hint_says_what_to_do(
    names: str, code: str, todo: str, tmp_path: Path
) -> None:
    first, *others = names.split()
    llm = b"\x40\x2f\x35\x01" + bytes(range(255)) * 40
    put(tmp_path / first, saved({"w": tensor(1)}) if others else llm)
    for name in others:
        state = {"last_epoch": 10, "base_lrs": [0.1]} if "scheduler" in name else adam(3)
        put(tmp_path / name, saved(state))
    with pytest.raises((NoneUsable, NotRecognised), match=code) as raised:
        plan(str(tmp_path))
    assert todo in raised.value.hint


@pytest.mark.slow
@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("at", ["", "out", "20"])
def test_directories_of_one_save_are_one_whatever_it_is_called(at: str, tmp_path: Path) -> None:
    """A job that writes one save over the other has no number in its names."""
    saves = materialise(LAYOUT_TREES / "dcp-set/lm-engine/expected.json", tmp_path)
    root = tmp_path / "run"
    shutil.copytree(saves / "global_step20", root / at)
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(root / at)
    assert len(made.shared) == sum(p.is_file() for p in (root / at).rglob("*"))
    for kind in ("model", "optimizer"):
        for name in (".metadata", "__1_0.distcp"):
            (root / at / kind / name).rename(tmp_path / name)
            with pytest.raises(NoneUsable):
                plan(str(root))
            (tmp_path / name).rename(root / at / kind / name)


@pytest.mark.parametrize(("middle", "zeros"), [(b"", True), (b"\1", False)])
def test_all_of_a_file_is_read_before_it_is_called_zeros(middle: bytes, zeros: bool) -> None:
    """Its ends are looked at with everything else, the rest only where they and the other saves say so."""
    source = BytesSource(bytes(2 << 20) + middle + bytes(2 << 20))
    entry = Entry(0, None, "w", PLAIN, "uint8", (source.size,))
    anatomy = Anatomy()
    assert list(check_file(source, anatomy, [entry])) == []
    assert anatomy.metadata == {"zeros": True}
    assert is_zero(source) is zeros


EXEMPT = {"flax/gda", "lightning/sharded"}
"""Of a directory of arrays alone, and of one without its index, nothing tells that it was a checkpoint."""
LOST = {"missing-part", "missing-rank"}
SEVERAL = [
    pytest.param(case, id=name) for case in CASES if (name := "/".join(case.parts[-3:-1])) not in EXEMPT
]


@pytest.mark.share(6)
@pytest.mark.slow
@pytest.mark.parametrize("case", one_of_each(SEVERAL))
def test_verify_misses_what_makes_plan_give_up_a_checkpoint(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    made = asked(root)
    paths = sorted(path for path in (made.files() if made else ()) if Path(path).is_file() and not Path(path).is_symlink())  # fmt: skip
    if len(paths) < 2 or made is None or made.checkpoint is None:
        return
    Path(random.Random(case.parts[-2]).choice(paths)).unlink()
    now = asked(root)
    given_up = [r for r in (now.rejected if now else ()) if r.checkpoint.path == made.checkpoint.path]
    if any(f.code in LOST for r in given_up for f in r.findings):
        assert verify(str(root)).verdict is not Verdict.OK


def asked(root: Path) -> LoadPlan | None:
    try:
        return plan(str(root))
    except NoneUsable as error:
        return error.plan
    except CkptError:
        return None


@pytest.mark.slow
def test_the_step_that_an_index_lists_is_that_of_its_save(tmp_path: Path) -> None:
    index = tree_of("axlearn/steps", tmp_path) / "step_00000020/index"
    index.write_text(index.read_text().replace('["step", 20]', '["step", 10]'))
    assert answer(index.parents[1]) == "step_00000010 -step-mismatch"
