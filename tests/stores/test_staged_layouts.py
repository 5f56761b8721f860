"""What is staged can be loaded: a plan of the copies alone chooses what the plan of the store chose."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest
from fixture_trees import FIRST, NAMED, materialise
from helpers import flipped

from ckpt_tools import api
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.job.staging import stage
from ckpt_tools.job.staging.fetching import select_files
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.selection import Selection


@pytest.mark.share(18)
@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_copies_are_planned_as_the_store_is(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ssd = f"{case.parent.parent.name}-{tmp_path.name}", str(tmp_path / "ssd")
    shutil.copytree(materialise(case, tmp_path), tmp_path / store)  # a store has no links
    monkeypatch.chdir(tmp_path)
    try:
        theirs = api.plan(f"local://{store}", Selection())
    except CkptError as error:  # it has no answer without a flag
        with pytest.raises(type(error)):
            stage(f"local://{store}", Selection(), ssd)
        return
    copied = stage(f"local://{store}", Selection(), ssd)
    assert copied is not None and copied.decision.document.stage is not None
    ours = api.plan(copied.directory, Selection())
    assert ours.resume_step == theirs.resume_step
    assert ours.checkpoint is not None
    assert [r.rank for r in ours.by_rank] == [r.rank for r in theirs.by_rank]
    for load in (*theirs.shared, *(f for r in theirs.by_rank for f in r.files)):
        below = Path(load.path.removeprefix(f"local://{store}/"))
        assert any(f.url == load.path for f in copied.files), below
    own = BUILT_IN[ours.checkpoint.layout].ranks.own_files
    for rank in {r.rank for r in theirs.by_rank}:
        here = {f.url for f in select_files(copied.decision.document.stage, [rank]).values()}
        mine = {f.path for r in theirs.by_rank if r.rank in (0, rank) for f in r.files}
        others = {f.path for r in theirs.by_rank for f in r.files} - mine
        assert mine <= here
        assert here & others == (set() if own else others)


UNIVERSAL, SLURM = (
    NAMED[name].parent / "tree" for name in ("deepspeed-universal/converted", "lightning/slurm")
)


def test_what_only_contents_beside_others_show_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another save is whole, so that no check on its way would find it."""
    store, file = tmp_path.name, "zero/embed.weight/exp_avg_sq.pt"
    shutil.copytree(UNIVERSAL, tmp_path / store)
    older, newer = (tmp_path / store / f"global_step{step}_universal" for step in (4, 8))
    (older / "mp_rank_00_model_states.pt").write_bytes(b"")
    shutil.copyfile(older / file, newer / file)
    monkeypatch.chdir(tmp_path)
    for ask in (api.plan, lambda root, asked: stage(root, asked, "ssd")):
        with pytest.raises(UsageError, match="byte for byte the same"):
            ask(f"local://{store}", Selection(order="step"))


def test_a_question_that_contents_answer_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times and steps contradict each other, but one of the two checkpoints in question is damaged."""
    store = tmp_path / tmp_path.name
    shutil.copytree(SLURM, store)
    regular, gasp = store / "checkpoints/epoch=0-step=2.ckpt", store / "hpc_ckpt_1.ckpt"
    (store / "checkpoints/epoch=0-step=4.ckpt").unlink()
    with zipfile.ZipFile(gasp) as archive:  # of a tensor, which the checksum of its archive covers
        stored = max((archive.read(name) for name in archive.namelist() if "/data/" in name), key=len)
    gasp.write_bytes(flipped(data := gasp.read_bytes(), 8 * data.index(stored)))
    for path, at in ((gasp, 1_700_000_000), (regular, 1_700_003_600)):
        os.utime(path, (at, at))
    monkeypatch.chdir(tmp_path)
    copied = stage(f"local://{store.name}", Selection(), "ssd")
    assert copied is not None and copied.decision.step == 2


def test_the_only_copy_lies_where_its_rank_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRx's manager lists the directory of its rank alone: with nothing there a job without replication starts
    from nothing.
    """
    case = FIRST["nvrx-local"]
    shutil.move(materialise(case, tmp_path), tmp_path / "nvrx")
    (tmp_path / "nvrx/session/1/iter_0000020_1_local.pt").unlink()
    monkeypatch.chdir(tmp_path)
    copied = stage("local://nvrx", Selection(), str(tmp_path / "ssd"))
    assert copied is not None and copied.decision.document.stage is not None
    (path,) = Path(copied.directory).rglob("iter_0000020_1_local.pt")
    assert path.parent.name == "1"
    here = select_files(copied.decision.document.stage, [1])
    files = [["0", "iter_0000020_0_local.pt"], ["1", "iter_0000020_1_local.pt"]]
    assert [name.split("/")[-2:] for name in here] == files


def test_layouts_whose_ranks_open_their_own_files_alone() -> None:
    """Each by its framework's source: with one too many a rank lacks what it looks for."""
    own = {layout.name for layout in BUILT_IN if layout.ranks.own_files}
    assert own == {
        "dlrover", "megatron", "nanochat", "nvrx-local", "pytorch-sample", "rank-files", "torch-checkpointing", "verl",
    }  # fmt: skip
