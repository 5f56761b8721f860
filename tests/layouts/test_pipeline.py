"""The stages together on real trees with damage: what is found, what is planned instead, and what no input
may do.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import small_files
from fixture_trees import tree, tree_of
from msgspec.structs import replace
from places import FORMAT_FILES, LAYOUT_TREES
from timed import put
from told_trees import answer, rewrite, verified

from ckpt_tools import errors
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Known
from ckpt_tools.model.selection import Selection


def codes(seen: Verification, severity: Severity = Severity.WARNING) -> set[str]:
    found = [*seen.findings, *(f for r in seen.files for f in r.report.findings)]
    return {f.code for f in found if f.severity >= severity}


@pytest.mark.slow
def test_a_dying_gasp_beside_periodic_checkpoints_is_one_job(tmp_path: Path) -> None:
    root, gasp = tree("pangu", tmp_path), tree("tft", tmp_path / "ttp")
    shutil.move(gasp / "tft_saved_checkpoints-step_11", root)
    for path in root.glob("rank_*/*breakpoint*"):
        path.unlink()
    for path in (root / "tft_saved_checkpoints-step_11").rglob("*.ckpt"):
        os.utime(path, (1_700_000_000,) * 2)
    newest = Selection(replica_groups={"": ((0, 2), (1, 3))}, order="step")
    made = plan(str(root), newest)
    assert made.checkpoint and (made.checkpoint.kind, made.checkpoint.step) == (Kind.DYING_GASP, 11)
    back = plan(str(root), replace(newest, fault_ranks=frozenset({1}), save_interval=4))
    assert back.checkpoint and (back.checkpoint.kind, back.checkpoint.step) == (Kind.PERIODIC, 8)
    assert back.rollback is not None and "3 steps are lost" in back.rollback.why
    assert (back.rollback.origin, back.rollback.target) == (11, 8)


@pytest.mark.slow
def test_the_newest_may_still_be_written(tmp_path: Path) -> None:
    declared = tree("tp", tmp_path / "declared") / "iter_0000030/mp_rank_00/model_optim_rng.pt"
    declared.write_bytes(declared.read_bytes()[:9000])  # modified just now, but the tracker says 30
    assert "truncated" in codes(verify([str(declared.parents[2])]), Severity.ERROR)
    flat = tree("flat", tmp_path / "flat")
    newest = flat / "resnet-2_5.ckpt"
    newest.write_bytes(newest.read_bytes()[:9000])  # modified just now
    seen = verify([str(flat)])
    assert (seen.verdict, codes(seen)) == (Verdict.SUSPECT, {"truncated", "unfinished-save"})
    assert verify([str(flat)], settle=0).verdict is Verdict.BROKEN
    asked = verify([str(newest)])  # asked about by name, it is judged as it is
    assert asked.verdict is Verdict.BROKEN and "truncated" in codes(asked, Severity.ERROR)


@pytest.mark.slow
def test_nothing_below_the_root_changes(tmp_path: Path) -> None:
    root = tree("ascend", tmp_path)

    def state() -> dict[str, tuple[int, int, int]]:
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns, p.stat().st_mode) for p in root.rglob("*")}

    before = state()
    verify([str(root)])
    plan(str(root))
    scan(str(root))
    assert state() == before


def test_names_with_escapes_and_odd_bytes(tmp_path: Path) -> None:
    root = tree("flat", tmp_path)
    os.rename(os.fsencode(root / "resnet-2_5.ckpt"), os.fsencode(root) + b"/re\xff\x1b[31mnet-2_5.ckpt")
    assert verify([str(root)]).verdict is Verdict.OK
    with pytest.raises(errors.UsageError, match="several runs"):
        plan(str(root))


@pytest.mark.parametrize("said", [b"True", b"False"])
def test_files_with_remove_redundancy_are_never_replicas(said: bytes, tmp_path: Path) -> None:
    """MindSpore's safetensors say so in their metadata: even with --replica-groups all another rank's file lacks
    parameters.
    """
    data = (LAYOUT_TREES / "mindspore/safetensors/tree/rank_0/resnet-2_5.safetensors").read_bytes()
    size, told = int.from_bytes(data[:8], "little"), b'"remove_redundancy":"%s"'
    header = data[8 : 8 + size].replace(told % b"False", told % said)
    put(
        tmp_path / "rank_0/net-1_5.safetensors", len(header).to_bytes(8, "little") + header + data[8 + size :]
    )
    put(tmp_path / "rank_1/net-1_5.safetensors", b"\0" * 100)
    if said == b"True":
        with pytest.raises(errors.NoneUsable):
            plan(str(tmp_path), Selection(replicas_all=True))
    else:
        assert plan(str(tmp_path), Selection(replicas_all=True)).by_rank[1].files[0].source_rank == 0


def test_a_lost_model_parallel_rank_of_the_newest_save_does_not_hide_that_there_were_two(
    tmp_path: Path,
) -> None:
    """DeepSpeed's files say how many there are; names alone do not, once all files of the highest one are
    gone.
    """
    for step, m in ((10, 0), (10, 1), (20, 0)):
        home = tmp_path / f"global_step{step}"
        put(home / f"mp_rank_{m:02d}_model_states.pt", small_files.deepspeed_model(step, 1, 2, m), step)
        zero = small_files.deepspeed_zero(step, 1, 0)
        put(home / f"zero_pp_rank_0_mp_rank_{m:02d}_optim_states.pt", zero, step)
    made = plan(str(tmp_path))
    assert made.resume_step == 10 and made.topology["tp"] == Known(2, "mp_world_size in the files")
    assert [len(r.files) for r in made.by_rank] == [2, 2]


def test_a_file_of_torch_by_the_name_of_a_file_of_flax(tmp_path: Path) -> None:
    """Tacotron 2 called its files so: that is no damage, but of a file that cannot be read it is."""
    good = next((FORMAT_FILES / "torch_zip" / "good").glob("*.pt")).read_bytes()
    (tmp_path / "checkpoint_2000").write_bytes(good)
    assert "wrong-format" not in codes(verify([str(tmp_path)]))
    (tmp_path / "checkpoint_2000").write_bytes(bytes(len(good)))
    assert "zero-filled" in codes(verify([str(tmp_path)]))


@pytest.mark.slow
def test_a_class_of_that_name_from_another_module_is_not_that_of_olmo_core(tmp_path: Path) -> None:
    """It may run anything."""
    root = tree_of("olmo-core/steps", tmp_path)
    rewrite(
        root / "run/step200/model_and_optim/.metadata",
        lambda data: data.replace(b"olmo_core.dist", b"evil_core.dist"),
    )
    assert answer(root).startswith("run/step100 ")


# --- A save of a model alone is none to train on, whatever its name and wherever it lies among the others


def test_splits_of_two_models_are_told_apart(tmp_path: Path) -> None:
    root, said = tree_of("gguf/splits", tmp_path), b"split.tensors.count"
    last = root / "llama-00003-of-00003.gguf"
    data = bytearray(last.read_bytes())
    data[data.index(said) + len(said) + 4] += 3  # behind the type of the value
    last.write_bytes(data)
    assert verified(root) == "broken missing-tensor"
    with pytest.raises(NoneUsable):
        plan(str(root))
