"""The stages together on real trees with damage: what is found, what is planned instead, and what no input
may do.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import small_files
from fixture_trees import tree
from msgspec.structs import replace
from places import FORMAT_FILES, LAYOUT_TREES
from timed import put

from ckpt_tools import errors
from ckpt_tools.api import latest, plan, scan, verify
from ckpt_tools.formats import BY_NAME, Anatomy, structure
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Known
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.storage import BytesSource


def rewrite(path: Path, data: bytes) -> None:
    """New content under the old modification time: what a medium does, not what a job does."""
    st = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(st.st_mtime_ns, st.st_mtime_ns))


def flip(path: Path, offset: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    rewrite(path, bytes(data))


def codes(result: Verification, severity: Severity = Severity.WARNING) -> set[str]:
    return {
        f.code
        for f in [*result.findings, *(f for r in result.files for f in r.report.findings)]
        if f.severity >= severity
    }


# ---- falling back


@pytest.mark.slow
def test_damage_that_the_plan_does_not_load_never_changes_it(tmp_path: Path) -> None:
    root = tree("ascend", tmp_path)
    before = plan(str(root))
    flip(root / "iter_0000010/mp_rank_00/model_optim_rng_0.pt", 60_000)
    assert plan(str(root)).fingerprint == before.fingerprint


@pytest.mark.slow
def test_a_damaged_file_is_replaced_by_a_proven_replica(tmp_path: Path) -> None:
    root = tree("ascend", tmp_path)
    flip(root / "iter_0000020/mp_rank_00/model_optim_rng_2.pt", 60_000)
    made = latest(str(root), Selection(rank=2))
    (loaded,) = made.by_rank[0].files
    assert loaded.path.endswith("iter_0000020/mp_rank_00/model_optim_rng_0.pt")
    assert loaded.substituted
    assert loaded.source_rank == 0
    assert "rank 2's own file" in loaded.reason
    assert made.fingerprint == plan(str(root)).fingerprint


def test_an_unreadable_newest_is_not_fallen_past_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree("flat", tmp_path)
    newest = str(root / "resnet-2_5.ckpt")
    real = os.open

    def denied(path: str, *args: int, **kwargs: int) -> int:
        if path == newest:  # as root, permission bits do not bind: the system call is made to refuse
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(errors.CannotLook):
        plan(str(root))
    skipped = plan(str(root), Selection(skip_unreadable=True))
    assert skipped.checkpoint is not None
    assert skipped.checkpoint.step_in_epoch == 4
    result = verify([str(root)])
    assert result.verdict is Verdict.UNKNOWN
    assert result.summary.unknown == 1


def test_several_runs_are_a_question(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copytree(tree("flat", tmp_path / name), tmp_path / "runs" / name)
    with pytest.raises(errors.UsageError, match="several runs"):
        plan(str(tmp_path / "runs"))
    made = plan(str(tmp_path / "runs"), Selection(run="a/resnet"))
    assert made.checkpoint is not None
    assert {c.run for c in scan(str(tmp_path / "runs")).checkpoints} == {"a/resnet", "b/resnet"}


@pytest.mark.slow
def test_a_dying_gasp_beside_periodic_checkpoints_is_one_job(tmp_path: Path) -> None:
    root = tree("pangu", tmp_path)
    gasp = tree("tft", tmp_path / "ttp")
    shutil.move(gasp / "tft_saved_checkpoints-step_11", root)
    for path in root.glob("rank_*/*breakpoint*"):
        path.unlink()
    for path in (root / "tft_saved_checkpoints-step_11").rglob("*.ckpt"):
        os.utime(path, (1_900_000_000 - 200_000_000, 1_900_000_000 - 200_000_000))
    groups = {"": ((0, 2), (1, 3))}
    newest = Selection(replica_groups=groups, order="step")
    made = plan(str(root), newest)
    assert made.checkpoint is not None
    assert (made.checkpoint.kind, made.checkpoint.step) == (Kind.DYING_GASP, 11)
    back = plan(str(root), replace(newest, fault_ranks=frozenset({1}), save_interval=4))
    assert back.checkpoint is not None
    assert (back.checkpoint.kind, back.checkpoint.step) == (Kind.PERIODIC, 8)
    assert back.rollback is not None
    assert (back.rollback.origin, back.rollback.target) == (11, 8)
    assert "3 steps are lost" in back.rollback.why


# ---- across files


@pytest.mark.slow
def test_a_mindspore_file_cut_at_any_record_border_shows_against_its_siblings(tmp_path: Path) -> None:
    """No byte of such a file is wrong, with or without a CRC trailer: only the other files of its rank can
    tell.
    """
    root = tree("flat", tmp_path)
    newest = root / "resnet-2_5.ckpt"
    whole = newest.read_bytes()
    anatomy = Anatomy()
    assert not [
        f
        for f in structure(BytesSource(whole), anatomy, BY_NAME["mindspore_ckpt"].checks[Level.STRUCTURE])
        if f.severity
    ]
    borders, at = [], 0
    while at < len(whole):  # records of one Checkpoint message each: 0x0A, a varint length, the record
        size, shift, i = 0, 0, at + 1
        while True:
            size |= (whole[i] & 0x7F) << shift
            shift, i = shift + 7, i + 1
            if whole[i - 1] < 0x80:
                break
        at = i + size
        borders.append(at)
    assert len(borders) == len(anatomy.tensors)
    for border in borders[:-1]:
        rewrite(newest, whole[:border])
        assert "signature-changed" in codes(verify([str(root)]), Severity.ERROR), border
        made = plan(str(root))
        assert made.checkpoint is not None
        assert made.checkpoint.step_in_epoch == 4


def test_a_lost_crc_trailer_shows_against_its_siblings(tmp_path: Path) -> None:
    source = FORMAT_FILES / "mindspore_ckpt" / "good"
    with_crc = next(p for p in sorted(source.iterdir()) if p.read_bytes()[-17:-10] == b"crc_num")
    for i in range(1, 5):
        shutil.copyfile(with_crc, tmp_path / f"net-1_{i}.ckpt")
    assert "signature-changed" not in codes(verify([str(tmp_path)]))
    rewrite(tmp_path / "net-1_4.ckpt", with_crc.read_bytes()[:-17])
    assert "signature-changed" in codes(verify([str(tmp_path)]))


@pytest.mark.slow
def test_missing_ranks_are_errors_for_periodic_and_warnings_for_last_words(tmp_path: Path) -> None:
    root = tree("pangu", tmp_path)
    (root / "rank_3/pangu3-2_3.ckpt").unlink()
    result = verify([str(root)])
    kinds = {(f.severity, "emergency" in f.message) for f in result.findings if f.code == "missing-rank"}
    assert kinds == {(Severity.ERROR, False), (Severity.WARNING, True)}
    oldest = tree("pangu", tmp_path / "oldest")
    (oldest / "rank_3/pangu3-1_4.ckpt").unlink()
    assert all(
        f.severity is Severity.WARNING for f in verify([str(oldest)]).findings if f.code == "missing-rank"
    )


@pytest.mark.slow
def test_the_newest_may_still_be_written(tmp_path: Path) -> None:
    root = tree("tp", tmp_path)
    late = root / "iter_0000040/mp_rank_01"
    late.mkdir(parents=True)
    shutil.copyfile(root / "iter_0000030/mp_rank_01/model_optim_rng.pt", late / "model_optim_rng.pt")
    result = verify([str(root)])  # beyond the tracker: the job has not said that it is finished
    assert "unfinished-save" in codes(result)
    declared = tree("tp", tmp_path / "declared") / "iter_0000030/mp_rank_00/model_optim_rng.pt"
    declared.write_bytes(declared.read_bytes()[:9000])  # modified just now, but the tracker says 30
    assert "truncated" in codes(verify([str(declared.parents[2])]), Severity.ERROR)
    flat = tree("flat", tmp_path / "flat")
    newest = flat / "resnet-2_5.ckpt"
    newest.write_bytes(newest.read_bytes()[:9000])  # modified just now
    assert (verify([str(flat)]).verdict, codes(verify([str(flat)]))) == (
        Verdict.SUSPECT,
        {"truncated", "unfinished-save"},
    )
    assert verify([str(flat)], settle=0).verdict is Verdict.BROKEN
    assert verify([str(newest)]).verdict is Verdict.BROKEN  # asked about by name, it is judged as it is
    assert "truncated" in codes(verify([str(newest)]), Severity.ERROR)


# ---- bad input


@pytest.mark.slow
def test_a_file_that_grows_while_it_is_read_is_in_use(tmp_path: Path) -> None:
    root = tree("flat", tmp_path)
    path = root / "resnet-2_5.ckpt"
    stop = threading.Event()

    def writer() -> None:
        while not stop.is_set():
            with path.open("ab") as f:
                f.write(b"x")
            time.sleep(0.0002)

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        seen = {
            f.code
            for _ in range(200)
            for r in verify([str(path)]).files
            for f in r.report.findings
            if f.severity
        }
    finally:
        stop.set()
        thread.join()
    assert "in-use" in seen


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


def test_files_with_remove_redundancy_are_never_replicas(tmp_path: Path) -> None:
    """MindSpore's safetensors say so in their metadata: even with --replica-groups all another rank's file lacks
    parameters.
    """
    source = LAYOUT_TREES / "mindspore" / "safetensors" / "tree"
    data = (source / "rank_0" / "resnet-2_5.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for said in (b'"remove_redundancy":"True"', b'"remove_redundancy":"False"'):
        header = data[8 : 8 + size].replace(b'"remove_redundancy":"False"', said)
        root = tmp_path / said[-5:-1].decode()
        for rank in (0, 1):
            (root / f"rank_{rank}").mkdir(parents=True)
            put(
                root / f"rank_{rank}" / "net-1_5.safetensors",
                len(header).to_bytes(8, "little") + header + data[8 + size :],
                1_790_000_000,
            )
        rewrite(root / "rank_1" / "net-1_5.safetensors", b"\0" * 100)
        if b"True" in said:
            with pytest.raises(errors.NoneUsable):
                plan(str(root), Selection(replicas_all=True))
        else:
            assert plan(str(root), Selection(replicas_all=True)).by_rank[1].files[0].source_rank == 0


def test_a_lost_model_parallel_rank_of_the_newest_save_does_not_hide_that_there_were_two(
    tmp_path: Path,
) -> None:
    """DeepSpeed's files say how many there are; names alone do not, once all files of the highest one are
    gone.
    """
    for step in (10, 20):
        home = tmp_path / f"global_step{step}"
        home.mkdir()
        for m in range(2 if step == 10 else 1):
            for name, data in (
                (f"mp_rank_{m:02d}_model_states.pt", small_files.deepspeed_model(step, 1, 2, m)),
                (f"zero_pp_rank_0_mp_rank_{m:02d}_optim_states.pt", small_files.deepspeed_zero(step, 1, 0)),
            ):
                put(home / name, data, 1_700_000_000 + step)
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
