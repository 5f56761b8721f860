"""What a plan says is what the frameworks really load: every file of every plan of fixtures/layouts goes
through the real loader of its format.

torch, safetensors and torch.distributed.checkpoint are installed where these tests run. TensorFlow, Orbax,
MindSpore and Keras are not: their files are only looked at by our own checks here, once more and to level
content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch.distributed.checkpoint as saver
from fixture_trees import QUESTIONS, TREES, damage, firsts, materialise, selection, tree_of
from real_loaders import _Modules, dcp_home, load_dcp, load_torch, tensors

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan

OURS_ALONE = {
    "text_member", "tf_bundle", "ocdbt", "orbax_tree", "zarr", "hdf5", "gguf", "onnx", "saved_model",
    "msgpack", "msgpack_stream", "zip_archive", "mindspore_ckpt", "mindspore_strategy", "paddle_dist",
    "torchsnapshot", "eqx",
}  # fmt: skip
"""Formats whose frameworks are not installed; ``zip_archive`` is Keras' own."""
STEPS = ("iteration", "global_step", "global_steps", "step", "steps")
"""Names under which the states of these trees hold the number of steps."""
FLAGS = {
    "accelerate": ("--resume_from_checkpoint",),
    "colossalai": ("--load_checkpoint",),
    "colossalai/sora": ("--load",),
    "deepspeed": ("--load_dir", "--tag"),
    "deepspeed-universal": ("--load_dir", "--tag", "--universal-checkpoint"),
    "espnet": ("--resume",),
    "fairseq": ("--restore-file",),
    "hf-trainer": ("--resume_from_checkpoint",),
    "lightning": ("--ckpt_path",),
    "megatron": ("--load", "--ckpt-step"),
    "megatron-core": ("--load", "--ckpt-step"),
    "mmengine": ("--resume",),
    "pytorch-sample/imagenet": ("--resume",),
    "timm": ("--resume",),
}
"""Layout, or one of its cases -> what its framework's programs are called with; the others take a path in
their code.
"""


def told_steps(state: object) -> set[int]:
    """What a loaded state says about its step, at its top."""
    return {n for key in STEPS if isinstance(state, dict) and isinstance(n := state.get(key), int)}


def loaded(made: LoadPlan, formats: Mapping[str, str | None]) -> tuple[dict[str, object], list[str]]:
    """Path -> state for what a real loader read; and the paths that only our own checks looked at."""
    states, ours, sets = dict[str, object](), list[str](), set[str]()
    for path in made.files():
        form = formats[path]
        if form == "dcp":
            sets.add(dcp_home(path))
        elif form in ("torch_zip", "torch_legacy", "torch_tar"):
            states[path] = load_torch(path)
        elif form in ("npy", "npz"):
            kept = np.load(path)
            states[path] = {name: kept[name].tolist() for name in kept} if form == "npz" else kept.tolist()
        elif form == "pickle_plain" and not path.endswith(".joblib"):
            with open(path, "rb") as f:
                states[path] = _Modules.load(f)
        elif form == "safetensors":
            states[path] = safetensors.torch.load_file(path)
        elif form in ("json_member", "safetensors_index", "mcore_integrity") or path.endswith(".json"):
            states[path] = json.loads(Path(path).read_text(encoding="utf-8"))
        else:
            assert form in OURS_ALONE or path.endswith(".joblib"), (path, form)
            ours.append(path)
    states.update((home, load_dcp(home)) for home in sets)
    return states, ours


@pytest.mark.share(24)
@pytest.mark.slow
@pytest.mark.parametrize(("case", "question"), firsts(QUESTIONS, pytest.mark.exhaustive))
def test_the_real_loaders_load_what_the_plan_says(
    case: Path, question: dict[str, Any], tmp_path: Path
) -> None:
    root = materialise(case, tmp_path)
    damage(root, question)
    made = plan(os.path.join(root, question.get("root", ".")), selection(question.get("options", {})))
    assert made.checkpoint is not None
    seen = {f.report.path: f.report for f in verify([str(root)]).files}
    states, ours = loaded(made, {path: report.format for path, report in seen.items()})
    assert {seen[path].verdict for path in ours} <= {Verdict.OK, Verdict.SUSPECT}
    for path, state in states.items():
        # the first one's script made up the tag; Accelerate counts batches there; NeMo's names count from 0,
        # what NeMo-RL saves through Megatron-core is always of iteration 0, and LeRobot's configuration says
        # how many steps there shall be
        counts = case.parent.parts[-2:] != ("deepspeed", "cut") and case.parent.parent.name != "nemo"
        counts = counts and "random_states" not in path and "/iter_0000000/" not in path
        counts = counts and not path.endswith("/train_config.json")
        if made.resume_step is not None and counts:
            assert told_steps(state) <= {made.resume_step}, path
        if path.endswith(".safetensors") or os.path.isdir(path):
            assert any(t.numel() for t in tensors(state)), path
    resume = made.resume
    if resume.path is not None:
        assert os.path.exists(resume.path) or os.path.exists(f"{resume.path}.index"), resume.path
        assert os.path.exists(f"{resume.path}.index") == (made.checkpoint.layout == "tensorflow")
    for word in (*resume.args, *resume.env.values()):
        assert not word.startswith("/") or os.path.exists(word), word
    told = dict(zip(resume.args, resume.args[1:], strict=False))
    flags = FLAGS.get("/".join(case.parent.parts[-2:]), FLAGS.get(made.checkpoint.layout, ()))
    assert {flag for flag in resume.args if flag.startswith("--")} == set(flags) - (
        {"--ckpt-step"} if made.checkpoint.kind is Kind.RELEASE else set()
    )
    if "--ckpt-step" in told:  # Megatron-LM makes the directory's name from the number
        home = Path(told["--load"]) / f"iter_{int(told['--ckpt-step']):07d}"
        assert all(Path(path).is_relative_to(home) for path in made.files())
    if "--tag" in told:
        home = Path(told["--load_dir"]) / told["--tag"]
        assert all(Path(path).is_relative_to(home) for path in made.files())
        assert (resume.env["CKPT_LOAD_DIR"], resume.env["CKPT_TAG"]) == (told["--load_dir"], told["--tag"])


def test_every_layout_is_loaded_or_is_known_not_to_be() -> None:
    """The layouts whose frameworks are not here; a new layout of torch's files cannot slip in among them."""
    asked = {case.values[0].parent.parent.name for case in QUESTIONS}
    assert asked == {layout.name for layout in BUILT_IN}


@pytest.mark.slow
def test_the_loaders_see_what_is_wrong(tmp_path: Path) -> None:
    """What these tests rest on: a loader here really reads the file, and the step in it is compared."""
    made = plan(str(tree_of("megatron/tp", tmp_path / "tp")))
    path = made.files()[0]
    assert told_steps(load_torch(path)) == {made.resume_step}
    Path(path).write_bytes(Path(path).read_bytes()[:1000])
    with pytest.raises(RuntimeError):
        load_torch(path)
    made = plan(str(tree_of("dcp/two", tmp_path / "dcp")))
    assert sum(t.numel() for t in tensors(load_dcp(made.resume.path or "")))
    Path(next(p for p in made.files() if p.endswith(".distcp"))).unlink()
    with pytest.raises(saver.CheckpointException):
        load_dcp(made.resume.path or "")


ALONE = {"espnet"}
"""Goes on from the one file that it writes over, and from nothing else."""


@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_arguments_tell_which_of_several_checkpoints_is_meant(case: Path) -> None:
    said: dict[tuple[object, ...], Checkpoint] = {}
    for c in scan(case.parent / "tree").checkpoints:
        resume = BUILT_IN[c.layout].resume(c, None)
        if (resume.args or resume.env) and not c.unfinished and c.layout not in ALONE:
            told = (c.layout, c.run, resume.args, *sorted(resume.env.items()))
            assert said.setdefault(told, c) is c, resume.args
