"""What is gone of a checkpoint, or holds only zeros, is missed where the saves beside it have it: by ``verify`` as
well as by ``plan``.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise, one_of_each
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools import plan, verify
from ckpt_tools.discovery.group import group
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.zeros import all_zero
from ckpt_tools.formats.torchsnapshot.data_files import PLAIN, Entry, check_file
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning.engine import check_together
from ckpt_tools.reading.opening import open_session
from ckpt_tools.storage import BytesSource

VERL, RANKS = "verl/grpo", "rank-files/directories"
MODELS = "accelerate/two_models"
T5X, LEVANTER, ITEMS, SNAPSHOTS = "t5x/steps", "levanter/steps", "orbax/items", "torchsnapshot/plain"
AXLEARN, BIG_VISION = "axlearn/steps", "big-vision/kept"


def tree(case: str, tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / case / "expected.json", tmp_path)


def chosen(made: LoadPlan) -> Checkpoint:
    assert made.checkpoint is not None
    return made.checkpoint


def said(root: Path) -> tuple[int | None, set[tuple[str, Severity]], Verdict]:
    """The step that is planned, what is said of it and of those that lost, and what ``verify`` makes of it."""
    made = plan(str(root))
    findings = [*made.warnings, *(f for r in made.rejected for f in r.findings)]
    return chosen(made).step, {(f.code, f.severity) for f in findings}, verify(str(root)).verdict


GONE = {
    "an array": (T5X, "checkpoint_20/target.decoder.bias"),
    "the only chunk of a parameter": (T5X, "checkpoint_20/target.decoder.kernel/0.0"),
    "a parameter's, further down": (LEVANTER, "step-20/model/decoder/kernel/0.0"),
    "what an index lists": (AXLEARN, "step_00000020/gda/model/decoder/kernel"),
    "an array of it": (BIG_VISION, "checkpoint.bv-000000020-tmp/params~decoder~bias"),
    "the number of the step": (LEVANTER, "step-20/_step/0"),
    "an item of JSON": (ITEMS, "30/loader/metadata"),
    "an item as a whole": (ITEMS, "30/loader"),
    "a rank's part of the model": (VERL, "global_step_20/actor/model_world_size_2_rank_1.pt"),
    "a rank's part of the optimizer": (VERL, "global_step_20/actor/optim_world_size_2_rank_0.pt"),
    "a rank's file beside its others": (RANKS, "epoch_3_step_30/rank_1/model.pt"),
    "an array of NumPy": ("files/npy-directories", "step_300/w.adam_m.npy"),
    "the index of an item": (ITEMS, "30/state/manifest.ocdbt"),
    "the first of two models": (MODELS, "checkpoint-30/model.safetensors"),
    "the second of two models": (MODELS, "checkpoint-30/model_1.safetensors"),
    "the first of two optimizers": (MODELS, "checkpoint-30/optimizer.bin"),
    "the second of two optimizers": (MODELS, "checkpoint-30/optimizer_1.bin"),
}


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("what", GONE)
def test_what_the_other_saves_have_is_missed(what: str, tmp_path: Path) -> None:
    case, name = GONE[what]
    root = tree(case, tmp_path)
    newest = chosen(plan(str(root))).step
    remove(root / name)
    step, findings, verdict = said(root)
    assert step is not None and newest is not None and step < newest
    assert {("missing-part", Severity.ERROR), ("missing-rank", Severity.ERROR)} & findings
    assert verdict is Verdict.BROKEN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iter_0000020", "final"])
def test_what_ranks_have_in_common_is_missed_whatever_the_directory_is_called(
    name: str, tmp_path: Path
) -> None:
    """``metadata.json`` says whether a file holds it."""
    root = tree("megatron-core/sync", tmp_path)
    home = tmp_path / "run" / name
    shutil.copytree(root / "iter_0000020", home)
    assert chosen(plan(str(home.parent))).path == str(home)
    assert any(f.path.endswith("/common.pt") for f in plan(str(home.parent)).shared)
    (home / "common.pt").unlink()
    with pytest.raises(NoneUsable):
        plan(str(home.parent))
    assert verify(str(home.parent)).verdict is Verdict.BROKEN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iter_0000020", "final"])
def test_what_ranks_have_in_common_may_be_among_the_entries(name: str, tmp_path: Path) -> None:
    """Megatron-core of mid-2026 and later writes no common.pt."""
    root = tree("megatron-core/common_state", tmp_path)
    home = tmp_path / "run" / name
    shutil.copytree(root / "iter_0000020", home)
    assert chosen(plan(str(home.parent))).path == str(home)
    assert verify(str(home.parent)).verdict is not Verdict.BROKEN
    (home / "__0_0.distcp").unlink()
    with pytest.raises(NoneUsable):
        plan(str(home.parent))


@pytest.mark.slow
def test_what_ranks_have_in_common_tells_the_iteration(tmp_path: Path) -> None:
    root = tree("megatron-core/common_state", tmp_path)
    (root / "iter_0000020").rename(root / "iter_0000030")
    (root / "latest_checkpointed_iteration.txt").write_text("30")
    made = plan(str(root))
    assert chosen(made).step == 10
    assert "step-mismatch" in {f.code for r in made.rejected for f in r.findings}


@pytest.mark.slow
def test_a_run_that_went_on_with_a_newer_framework_lacks_nothing(tmp_path: Path) -> None:
    root = tree("megatron-core/sync", tmp_path)
    newer = tree("megatron-core/common_state", tmp_path / "newer")
    shutil.rmtree(root / "iter_0000020")
    shutil.copytree(newer / "iter_0000020", root / "iter_0000020")
    assert chosen(plan(str(root))).step == 20
    assert not {f.code for f in verify(str(root)).findings} & LOST


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 0, 9])
def test_a_model_that_nothing_describes_is_not_loaded(size: int | None, tmp_path: Path) -> None:
    """``from_pretrained`` reads config.json before the weights. Whether it is gone, empty or cut."""
    root = tree("accelerate/diffusers", tmp_path)
    config = root / "checkpoint-10/unet/config.json"
    if size is None:
        remove(config)
    else:
        os.truncate(config, size)
    step, findings, verdict = said(root)
    assert step == 5 and verdict is Verdict.BROKEN and Severity.ERROR in {s for _, s in findings}
    remove(root / "checkpoint-5")
    with pytest.raises(NoneUsable):
        plan(str(root))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin"])
def test_the_first_of_two_is_missed_of_a_lone_save(name: str, tmp_path: Path) -> None:
    root = tree(MODELS, tmp_path)
    for step in (10, 20):
        remove(root / f"checkpoint-{step}")
    assert chosen(plan(str(root))).step == 30
    remove(root / "checkpoint-30" / name)
    with pytest.raises(NoneUsable):
        plan(str(root))


SPARED = {
    "the optimizer's state, which may be zeros again": (
        T5X,
        "checkpoint_20/state.param_states.decoder.kernel/0.0",
    ),
    "the same, further down": (LEVANTER, "step-20/opt_state/0/mu/decoder/kernel/0.0"),
    "shardings": (ITEMS, "30/state/_sharding"),
    "how a model answers": ("hf-trainer/trainer", "checkpoint-20/generation_config.json"),
    "the shapes of what was written": (ITEMS, "30/state/array_metadatas/process_0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SPARED)
def test_what_training_can_do_without_is_a_warning(what: str, tmp_path: Path) -> None:
    case, name = SPARED[what]
    root = tree(case, tmp_path)
    newest = chosen(plan(str(root))).step
    remove(root / name)
    step, findings, verdict = said(root)
    assert step == newest
    assert ("missing-part", Severity.WARNING) in findings
    assert verdict is Verdict.SUSPECT


@pytest.mark.slow
def test_the_shapes_are_missed_without_other_saves_too(tmp_path: Path) -> None:
    root = tree("orbax/lone", tmp_path)
    remove(root / "final/array_metadatas/process_0")
    assert ("missing-part", Severity.WARNING) in said(root)[1]


UNDESCRIBED = {
    "big-vision/kept": "checkpoint.bv-000000020-tmp/params~decoder~kernel/.zarray",
    "levanter/steps": "step-20/_step/.zarray",
    "megatron-core/zarr": "iter_0000020/model.bias/.zarray",
}
"""Of arrays that no index names."""


@pytest.mark.slow
@pytest.mark.parametrize("case", UNDESCRIBED)
def test_chunks_of_an_array_that_nothing_describes_are_missed_without_other_saves_too(
    case: str, tmp_path: Path
) -> None:
    root, home = tree(case, tmp_path), UNDESCRIBED[case].partition("/")[0]
    for other in [path for path in root.iterdir() if path.is_dir() and path.name != home]:
        shutil.rmtree(other)
    remove(root / UNDESCRIBED[case])
    with pytest.raises(NoneUsable):
        plan(str(root), Selection(order="step"))
    assert verify(str(root)).verdict is Verdict.BROKEN


@pytest.mark.slow
def test_chunks_that_no_save_has_are_zeros(tmp_path: Path) -> None:
    """tensorstore writes no chunk that only holds the fill value."""
    root = tree(T5X, tmp_path)
    for step in (10, 20):
        remove(root / f"checkpoint_{step}/target.decoder.kernel/0.0")
    assert said(root) == (20, set(), Verdict.OK)


@pytest.mark.slow
def test_saves_of_fewer_arrays_before_are_whole(tmp_path: Path) -> None:
    """A chunk is written once it is no longer zeros: that it was not before is no loss."""
    root = tree(LEVANTER, tmp_path)
    older = min(c.parent for c in root.rglob("metadata.json"))
    assert older.name != "step-20"
    shutil.copytree(root / "step-20", root / "step-30")
    remove(root / "step-30/opt_state/0/count/0")
    remove(older / "opt_state/0/count/0")
    assert {path for path, _ in missed(root)} == set()


def missed(root: Path) -> set[tuple[str, str]]:
    return {(f.path or "", f.message) for f in verify(str(root)).findings if f.code == "missing-part"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("model/bias", Severity.ERROR),
        ("model/weight_0_0", Severity.ERROR),
        ("optim/state/1/exp_avg", Severity.WARNING),
    ],
)
def test_raw_tensors_that_became_zeros_are_seen(name: str, severity: Severity, tmp_path: Path) -> None:
    root = tree(SNAPSHOTS, tmp_path)
    newest = chosen(plan(str(root))).step
    zero(root / f"run-4/0/{name}")
    step, findings, verdict = said(root)
    assert ("zero-filled", severity) in findings
    assert (step == newest) is (severity is Severity.WARNING)
    assert verdict is (Verdict.SUSPECT if severity is Severity.WARNING else Verdict.BROKEN)


def test_an_asset_of_zeros_is_seen(tmp_path: Path) -> None:
    """Nothing tells the size of an asset, but its pages were never written."""
    root = tree("saved-model/named", tmp_path)
    zero(root / "export/assets/vocab.json")
    with pytest.raises(NoneUsable):
        plan(str(root))
    assert verify(str(root)).verdict is Verdict.BROKEN


def test_a_universal_checkpoint_has_a_model_file(tmp_path: Path) -> None:
    """A lone one as well: the optimizer's parameters beside it are not all of a model."""
    root = tree("deepspeed-universal/beside", tmp_path)
    remove(root / "global_step8_universal/mp_rank_00_model_states.pt")
    with pytest.raises(NoneUsable):
        plan(str(root), Selection(layout="deepspeed-universal"))


@pytest.mark.slow
def test_raw_tensors_that_are_zeros_in_all_saves_are_whole(tmp_path: Path) -> None:
    root = tree(SNAPSHOTS, tmp_path)
    for step in (2, 4):
        zero(root / f"run-{step}/0/model/bias")
    assert said(root) == (4, set(), Verdict.OK)


@pytest.mark.parametrize(("middle", "zeros"), [(b"", True), (b"\1", False)])
def test_all_of_a_file_is_read_before_it_is_called_zeros(middle: bytes, zeros: bool) -> None:
    """Its ends are looked at with everything else, the rest only where they and the other saves say so."""
    source = BytesSource(bytes(2 << 20) + middle + bytes(2 << 20))
    entry = Entry(0, None, "w", PLAIN, "uint8", (source.size,))
    anatomy = Anatomy()
    assert list(check_file(source, anatomy, [entry])) == []
    assert anatomy.metadata == {"zeros": True}
    assert all_zero(source) is zeros


@pytest.mark.slow
def test_a_directory_that_lost_its_index_is_named(tmp_path: Path) -> None:
    """Its data files bear no name of a framework, and the older save beside it is all that is left."""
    root = tree(SNAPSHOTS, tmp_path)
    remove(root / "run-4/.snapshot_metadata")
    assert said(root) == (2, {("unfinished-save", Severity.WARNING)}, Verdict.SUSPECT)
    assert plan(str(root), Selection(exclude=("run-4",))).warnings == ()


@pytest.mark.parametrize(("step", "said"), [(300, ["unfinished-save"]), (200, [])])
def test_an_empty_directory_in_place_of_the_file_of_a_later_save_is_named(
    step: int, said: list[str], tmp_path: Path
) -> None:
    root = tree("files/npz", tmp_path)
    path = root / f"ckpt_{step}.npz"
    path.unlink()
    path.mkdir()
    made = plan(str(root))
    assert chosen(made).step == {300: 200, 200: 300}[step]
    assert [f.code for f in made.warnings if f.path == str(path)] == said


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
    loaded = () if made is None else (*made.shared, *(f for r in made.by_rank for f in r.files))
    paths = sorted({f.path for f in loaded if not Path(f.path).is_symlink() and Path(f.path).is_file()})
    if len(paths) < 2 or made is None or made.checkpoint is None:
        return
    Path(random.Random(case.parts[-2]).choice(paths)).unlink()
    now = asked(root)
    given_up = [] if now is None else [r for r in now.rejected if r.checkpoint.path == made.checkpoint.path]
    if any(f.code in LOST for r in given_up for f in r.findings):
        assert verify(str(root)).verdict is not Verdict.OK


def asked(root: Path) -> LoadPlan | None:
    try:
        return plan(str(root))
    except NoneUsable as error:
        return error.plan
    except CkptError:
        return None


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def zero(path: Path) -> None:
    times = path.stat().st_mtime_ns
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(times, times))


LISTS = "tensorstore_index.json", "model_structure.json", "tx_structure.json"


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["", "tx", *LISTS[::2], "metadata.json"])
def test_easydel_saves_as_levanter_does(gone: str, tmp_path: Path) -> None:
    """``run-N/`` with ``tx/`` in place of ``opt_state/``, and files that list the arrays; exit 4 before."""
    root = tree(LEVANTER, tmp_path)
    for step in (10, 20):
        save = (root / f"step-{step}").rename(root / f"run-{step}")
        (save / "opt_state").rename(save / "tx")
        for name in LISTS:
            shutil.copy2(save / "metadata.json", save / name)
    if gone:
        lost = root / "run-20" / gone
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    made = plan(str(root))
    findings = [*made.warnings, *(f for r in made.rejected for f in r.findings)]
    assert chosen(made).step == (10 if gone else 20)
    assert {f.code for f in findings} <= {"missing-part", "unfinished-save"}
    assert bool(findings) == bool(gone)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["an array in none of them", "the step"])
def test_what_an_index_lists_is_there(change: str, tmp_path: Path) -> None:
    """AXLearn's lists the step and every array, so that a lone save tells what it has lost."""
    root = tree(AXLEARN, tmp_path)
    remove(root / "step_00000010")
    assert said(root) == (20, set(), Verdict.OK)
    if change == "the step":
        index = root / "step_00000020/index"
        index.write_text(index.read_text().replace('["step", 20]', '["step", 10]'))
    else:
        remove(root / "step_00000020/gda/learner/optimizer/0/mu")
    code = "step-mismatch" if change == "the step" else "missing-part"
    with pytest.raises(NoneUsable) as caught:
        plan(str(root))
    assert caught.value.plan is not None
    assert {f.code for r in caught.value.plan.rejected for f in r.findings} == {code}


@pytest.mark.slow
def test_a_word_for_how_long_a_save_is_kept_is_none_of_one_under_way(tmp_path: Path) -> None:
    """big_vision's next save removes ``…-tmp``; the file beside it tells that it is whole."""
    root = tree(BIG_VISION, tmp_path)
    assert chosen(plan(str(root))).path.endswith("-000000020-tmp")
    (root / "checkpoint.bv-LAST").write_text("000000010")
    os.utime(root / "checkpoint.bv-LAST", (1_000_000_000, 1_000_000_000))  # before the saves
    made = plan(str(root))
    assert chosen(made).step == 20 and [f.code for f in made.warnings] == ["stale-tracker"]


def test_a_text_that_all_other_saves_have_is_missed(tmp_path: Path) -> None:
    """Nerogar/OneTrainer#498: meta.json is written last, and the job died before it."""
    for step in (100, 200, 300):
        home = tmp_path / f"step_{step}"
        home.mkdir()
        (home / "state.pt").write_bytes(saved({"model": {"w": tensor(step)}, "optimizer": adam(step)}))
        (home / "meta.json").write_text(f'{{"step": {step}}}')
        for path in home.iterdir():
            os.utime(path, (1_760_000_000 + 10 * step,) * 2)
    assert not plan(str(tmp_path)).warnings
    (tmp_path / "step_300/meta.json").unlink()
    (told,) = plan(str(tmp_path)).warnings
    assert (told.code, told.path) == ("missing-part", str(tmp_path / "step_300"))
    assert told in verify([str(tmp_path)]).findings
    s = open_session(str(tmp_path), ReadOptions())
    older = [c for c in group(s.parts, s.layouts) if c.step == 100]
    assert check_together(s, False, saves=older) == [], "of one save that is asked about"
