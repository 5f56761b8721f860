"""What lies beside checkpoints under names that nothing knows, or in a file's place: links that lead nowhere,
names in capitals, packed and renamed files, what a Mac leaves. Never older without a word, never from nothing.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fixture_trees import CASES, materialise
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools.api import plan, verify
from ckpt_tools.discovery import written_since
from ckpt_tools.errors import CkptError
from ckpt_tools.formats import names
from ckpt_tools.layouts.common.bare_names import BareName, calls_a_save, read_bare_name
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

START = 1_700_000_000


@cache
def full(step: int) -> bytes:
    return saved({"model": {"w": tensor(step)}, "optimizer": adam(step), "step": step})


def put(path: Path, data: bytes, step: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (START + 10 * step,) * 2)
    return path


def copy_of(case: str, place: Path) -> Path:
    return materialise(LAYOUT_TREES / case / "expected.json", place)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two saves of a loop of one's own."""
    for step in (100, 200):
        put(tmp_path / f"step_{step}.pt", full(step), step)
    return tmp_path


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Two saves under the ending that PyTorch's tutorials use, beside shards of data."""
    for step in (100, 200):
        put(tmp_path / f"ckpt_{step}.tar", full(step), step)
        put(tmp_path / f"train-{step:06d}.tar", packed("a.jpg", b"data"), step + 1)
    return tmp_path


def packed(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def answer(root: Path, **more: object) -> LoadPlan | int:
    try:
        return plan(str(root), Selection(settle=0, allow_none=True, **more))  # type: ignore[arg-type]
    except CkptError as e:
        return e.exit_code


def step_of(made: LoadPlan | int) -> int | None:
    assert isinstance(made, LoadPlan) and made.checkpoint is not None
    return made.checkpoint.step


def said(made: LoadPlan | int) -> set[tuple[str, str]]:
    """(code, name of the file) of all that is said about a choice."""
    assert isinstance(made, LoadPlan)
    told = [*made.warnings, *(f for r in made.rejected for f in r.findings)]
    return {(f.code, os.path.basename(f.path or "")) for f in told}


# ---- links that lead nowhere

SAVES = ["checkpoint_latest", "last", "checkpoints", "step_300", "checkpoint-300", "iter_0000300", "global_step300", "epoch=3-step=300", "300"]  # fmt: skip


@pytest.mark.parametrize("name", [*SAVES, "latest", "last.ckpt", "latest.pt", "step_300.pt"])
def test_a_link_to_a_lost_mount_is_no_first_launch(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(f"/mnt/gone/{name}")
    assert answer(tmp_path) == 4
    fresh = answer(tmp_path, allow_fresh=True)
    assert isinstance(fresh, LoadPlan) and fresh.checkpoint is None


@pytest.mark.parametrize("name", ["wandb/latest-run", "data", "debug.log", "model_zoo", "pretrained"])
def test_a_link_of_another_name_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to("/mnt/gone")
    made = answer(tmp_path)
    assert isinstance(made, LoadPlan) and made.checkpoint is None


@pytest.mark.parametrize("name", [*SAVES, "latest", "step_300.pt", "last.pt", "latest.pt"])
def test_a_link_that_may_have_led_to_a_later_one_is_named(name: str, run: Path) -> None:
    (run / name).symlink_to(f"/mnt/gone/{name}")
    made = answer(run)
    assert step_of(made) == 200
    assert ("dangling-link", name) in said(made)


@pytest.mark.parametrize("name", ["step_50", "checkpoint-100", "wandb", "notes"])
def test_a_link_that_led_to_no_later_one_is_not(name: str, run: Path) -> None:
    (run / name).symlink_to(f"/mnt/gone/{name}")
    made = answer(run)
    assert step_of(made) == 200 and not said(made)


def test_a_link_is_as_old_as_itself_where_it_leads_nowhere(run: Path) -> None:
    """And no older than all others, so that it would lose without a word."""
    (run / "last.pt").symlink_to("gone.pt")
    os.utime(run / "last.pt", (START, START), follow_symlinks=False)
    assert not [row for row in said(answer(run)) if row[1] == "last.pt"]  # older than the choice by its time


# ---- in a file's place


@pytest.mark.slow
@pytest.mark.parametrize("make", [Path.mkdir, lambda p: p.symlink_to("nowhere")], ids=["directory", "link"])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("flax/steps", "checkpoint_50"),
        ("orbax/flax", "checkpoint_20/manifest.ocdbt"),
        ("dcp/two", "step-10/.metadata"),
    ],
)
def test_what_is_no_file_is_damage_and_nothing_unseen(
    case: str, name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    root = copy_of(case, tmp_path)
    (root / name).unlink()
    make(root / name)
    made = answer(root)
    assert isinstance(made, LoadPlan) and made.checkpoint is not None
    assert not made.checkpoint.path.startswith(os.path.dirname(root / name) + "/checkpoint_50")


def test_an_empty_directory_in_place_of_the_newest_is_named(run: Path) -> None:
    (run / "step_300.pt").mkdir()
    made = answer(run)
    assert step_of(made) == 200 and ("passed-over", "step_300.pt") in said(made)


@pytest.mark.parametrize("data", [b"\x83", b"\xc1", b"no checkpoint"])
def test_what_begins_as_nothing_known_is_what_those_beside_it_are(data: bytes, tmp_path: Path) -> None:
    root = copy_of("flax/steps", tmp_path)
    (root / "checkpoint_100").write_bytes(data)
    assert ("bad-header", "checkpoint_100") in said(answer(root, order="step"))
    verdicts = {
        os.path.basename(f.report.path): f.report.verdict for f in verify([str(root)], settle=0).files
    }
    assert verdicts["checkpoint_100"] is Verdict.BROKEN and verdicts["checkpoint_50"] is Verdict.OK


# ---- names in capitals


def test_every_ending_is_known_in_capitals() -> None:
    for row in names.named:
        for ending in row.suffixes:
            assert names.known(f"X{ending.upper()}") and row.name in names.allowed(f"X{ending.upper()}")


# ---- packed, and renamed

PACKED = ["step_300.pt.gz", "step_300.pt.zst", "checkpoint-300.tar.gz", "ckpt_300.tgz", "last.ckpt.gpg", "step_300.pt.enc"]  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_checkpoint_is_a_question(
    name: str, run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    put(run / name, bytes(range(256)) * 9, 300)
    assert answer(run) == 2
    assert step_of(answer(run, exclude=(name,))) == 200
    alone = tmp_path_factory.mktemp("alone")
    put(alone / name, bytes(range(256)) * 9, 300)
    assert answer(alone) == 2


NUMBERED = [case for case in CASES if json.loads(case.read_text()).get("plans")]
AWAY = [
    pytest.param(
        case,
        packed,
        id=f"{case.parent.parent.name}-{case.parent.name}-{'packed' if packed else 'unknown'}",
        marks=[pytest.mark.exhaustive]
        * (packed == bool(zlib.crc32(str(case.relative_to(LAYOUT_TREES)).encode()) % 2)),
    )
    for case in NUMBERED
    for packed in (True, False)
]
"""Each in one of the two ways by day: pytest -m exhaustive tests/layouts/test_other_names.py -k newest_save"""


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize(("case", "packed"), AWAY)
def test_the_newest_save_packed_is_a_question_in_every_layout(
    case: Path, packed: bool, tmp_path: Path
) -> None:
    """Somebody packed it to save room, or it is of no known kind any more: what is older is not resumed from
    without a word, unless none of these is called as the newest was.
    """
    root = materialise(case, tmp_path)
    made = answer(root)
    if not isinstance(made, LoadPlan) or made.checkpoint is None:
        return
    save = Path(made.checkpoint.path)
    if save == root or not save.exists() or (save.is_dir() and not re.search(r"\d", save.name)):
        return
    times = [path.stat().st_mtime for path in (save, *save.rglob("*")) if path.is_file()]
    ending = ".vault" if not packed else ".tar.gz" if save.is_dir() else ".gz"
    away = save.with_name(f"{save.name}{ending}")
    away.write_bytes(bytes(range(256)) * 9)
    os.utime(away, (max(times) + 60,) * 2)
    shutil.rmtree(save) if save.is_dir() else save.unlink()
    again = answer(root)
    if isinstance(again, LoadPlan) and again.checkpoint is None:
        pass  # it may be anything
    elif isinstance(again, LoadPlan) and step_of(again) != step_of(made):
        like = [
            p for p in save.parent.iterdir() if re.sub(r"\d+", "", p.name) == re.sub(r"\d+", "", save.name)
        ]
        assert not (like or packed) or {("passed-over", away.name), "dangling-tracker"} & {
            *said(again),
            *(c for c, _ in said(again)),
        }


@pytest.mark.parametrize("name", ["step_300.vault", "step_300.pt.vault", "last.ckpt.age2", "step_300"])
def test_a_later_save_of_no_known_kind_is_a_question(name: str, run: Path) -> None:
    put(run / name, bytes(4000), 300)
    assert answer(run) == 2
    assert step_of(answer(run, exclude=(name,))) == 200


@pytest.mark.parametrize("name", ["checkpoint-000000000300", "step_300"])
def test_a_later_save_in_files_of_no_known_kind_is_named(name: str, run: Path) -> None:
    """As TorchRL's CheckpointRotation writes them beside what an older trainer had saved."""
    put(run / name / "manifest.json", b'{"format": 1}', 300)
    put(run / name / "components/0000-optimizer/state/tensor_00000000.memmap", bytes(4000), 300)
    made = answer(run)
    assert step_of(made) == 200 and said(made) == {("passed-over", name)}
    (run / name / "components/0000-optimizer/state/tensor_00000000.memmap").write_text("a note")
    assert not said(answer(run))


@pytest.mark.parametrize("older", ["model_2.pt", "best.pt", "step-20/model.pt"])
def test_an_epoch_of_no_known_kind_beside_saves_of_other_names_is_named(older: str, tmp_path: Path) -> None:
    put(tmp_path / older, full(20), 20)
    put(tmp_path / "epoch_3.vault", b"\x13\x37vault" * 40, 30)
    assert ("passed-over", "epoch_3.vault") in said(answer(tmp_path))
    for name in ("epoch_3.ply", "noise_3.vault", "0003.vault"):
        (tmp_path / "epoch_3.vault").rename(tmp_path / name)
        assert not said(answer(tmp_path)), name
        (tmp_path / name).rename(tmp_path / "epoch_3.vault")
    (tmp_path / "epoch_3.vault").write_text("a note")
    assert not said(answer(tmp_path))


def test_names_that_differ_in_numbers_are_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may write thousands of files of its own after its last save."""
    for i in range(300):
        put(run / f"render_{i}.vis", b"\0\1\2\3", 250)
    reads = list[str]()

    def counting(name: str) -> BareName:
        reads.append(name)
        return read_bare_name(name)

    monkeypatch.setattr(written_since, "read_bare_name", counting)
    assert step_of(answer(run)) == 200
    assert 0 < len(reads) < 20


@pytest.mark.parametrize("name", ["step_200.vault", "step_200.pt.sig", "shard_300.vault", "step_300.log", "step_300.swp"])  # fmt: skip
def test_a_file_of_no_known_kind_that_may_be_of_no_later_save_is_none(name: str, run: Path) -> None:
    put(run / name, bytes(4000), 300)
    assert step_of(answer(run)) == 200
    put(run / "step_300.vault", b"what somebody wrote down about it", 300)
    assert step_of(answer(run)) == 200


def test_a_packed_one_of_an_earlier_step_is_none(run: Path) -> None:
    put(run / "step_150.pt.gz", bytes(99), 300)
    made = answer(run)
    assert step_of(made) == 200 and ("passed-over", "step_150.pt.gz") in said(made)


@pytest.mark.parametrize("name", ["data.tar.gz", "mnist.pkl.gz", "logs-300.tar.gz", "train.npz.gz", "x.joblib.gz", "corpus_300.zip", "step_300.log.gz"])  # fmt: skip
def test_other_packed_files_are_not_asked_about(name: str, run: Path) -> None:
    put(run / name, bytes(99), 300)
    assert step_of(answer(run)) == 200


@pytest.mark.parametrize("name", ["step_300.pt.1", "#step_300.pt#", ".step_300.pt.Ab12Cd", "step_300", "checkpoint_300.model", "step_300.pt.download", "run-v1_300.ckpt.1", "net_300.ckpt_", "net-300.pth_2", "net-300", "net-300.model", "net-300_broken"])  # fmt: skip
def test_a_later_state_under_another_name_is_a_question(name: str, run: Path) -> None:
    put(run / name, full(300), 300)
    assert answer(run) == 2
    assert step_of(answer(run, exclude=("*300*",))) == 200


@pytest.mark.parametrize("name", ["step_300.pt.writing", "step_300.pt.1"])
def test_a_later_state_under_another_name_that_is_cut_is_a_warning(name: str, run: Path) -> None:
    """Whatever word its writer has for a file that is not done."""
    put(run / name, full(300)[:900], 300)
    made = answer(run)
    assert step_of(made) == 200 and said(made) == {("passed-over", name)}
    put(run / name, full(100)[:900], 50)
    assert not said(answer(run))


def test_a_cut_file_that_was_to_be_renamed_is_a_save_that_never_finished(run: Path) -> None:
    """Sample Factory writes all its saves so."""
    put(run / "step_temp", full(300)[:900], 300)
    made = answer(run)
    assert step_of(made) == 200 and said(made) == {("unfinished-save", "step_temp")}
    put(run / "step_temp", full(100)[:900], 50)
    assert not said(answer(run))


@pytest.mark.parametrize("name", ["tmp.pth.tar", "recovery_tmp.pth.tar"])
def test_so_is_one_that_a_layout_does_not_have(name: str, tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "timm/epochs/expected.json", tmp_path)
    cut = (root / "last.pth.tar").read_bytes()[:900]
    (root / name).write_bytes(cut)
    made = plan(str(root))
    assert {(f.code, os.path.basename(f.path or "")) for f in made.warnings} == {("unfinished-save", name)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step_300.pt.1", ".step_300.pt.Ab12Cd", "step_300"])
def test_what_is_cut_or_earlier_or_no_state_is_not(name: str, run: Path) -> None:
    put(run / name, full(300)[:900], 300)
    assert step_of(answer(run)) == 200
    put(run / name, full(300), 50)
    assert step_of(answer(run)) == 200
    put(run / name, full(150), 300)
    assert step_of(answer(run)) == 200
    put(run / name, b"text\n" * 99, 300)
    assert step_of(answer(run)) == 200


@pytest.mark.parametrize("name", ["net_300.ckpt_2", "net-300.pth.moved"])
def test_later_weights_under_another_name_are_named(name: str, run: Path) -> None:
    put(run / name, saved({"w": tensor(300)}), 300)
    made = answer(run)
    assert step_of(made) == 200 and ("passed-over", name) in said(made)


@pytest.mark.parametrize("name", [".nfs000000000012ab00000001", ".step_300.pt.swp"])
def test_files_of_the_system_are_none(name: str, run: Path) -> None:
    put(run / name, full(300), 300)
    assert step_of(answer(run)) == 200


# ---- what a Mac leaves


def test_what_a_mac_keeps_beside_each_file_is_none_of_ours(run: Path) -> None:
    for path in list(run.iterdir()):
        put(
            run / f"._{path.name}", struct.pack(">II16s", 0x00051607, 0x20000, b"Mac OS X") + bytes(4000), 300
        )
    made = answer(run)
    assert step_of(made) == 200 and not said(made)
    result = verify([str(run)], settle=0)
    assert {f.report.verdict for f in result.files} == {Verdict.OK}
    assert not [f for f in result.findings if f.severity is Severity.ERROR]


# ---- damage that hides the step


def test_names_that_call_a_checkpoint() -> None:
    for name in (*SAVES, "ckpt", "epoch_3", "model_step_300", "latest"):
        assert calls_a_save(name), name
    for name in ("data", "wandb", "latest-run", "model", "weights", "node_3", "shard_00001", "run_3", "v2"):
        assert not calls_a_save(name), name


# ---- parts of one state


PARTS = ("checkpoint_1_5-shard{}.pt", "checkpoint_last-shard{}.pt", "model_tp{}.pt", "state-part-{}.pth")


# ---- below a highest step


def test_a_later_state_below_the_highest_step_is_asked_about(run: Path) -> None:
    """--max-step is no reason to take an older one without a word."""
    put(run / "step_250.pt.1", full(250), 250)
    assert answer(run) == answer(run, max_step=300) == 2


def test_a_state_above_the_highest_step_is_not(run: Path) -> None:
    put(run / "step_250.pt.1", full(250), 250)
    made = answer(run, max_step=220)
    assert step_of(made) == 200 and ("passed-over", "step_250.pt.1") not in said(made)


def test_a_state_above_the_highest_step_by_its_contents_alone_is_named(run: Path) -> None:
    """A damaged byte can make a later step of an earlier one."""
    put(run / "state.pt.x", full(250), 250)
    made = answer(run, max_step=220)
    assert step_of(made) == 200 and ("passed-over", "state.pt.x") in said(made)


def test_a_state_that_tells_no_step_is_named_below_the_highest(run: Path) -> None:
    put(run / "step_250.pt.1", saved({"model": {"w": tensor(3)}, "optimizer": adam(3)}), 250)
    assert answer(run) == 2
    made = answer(run, max_step=220)
    assert step_of(made) == 200 and ("passed-over", "step_250.pt.1") in said(made)


def test_a_packed_checkpoint_is_named_below_the_highest(run: Path) -> None:
    put(run / "step_250.tar.gz", b"\x1f\x8b" + bytes(100), 250)
    assert answer(run) == 2
    made = answer(run, max_step=220)
    assert step_of(made) == 200 and ("passed-over", "step_250.tar.gz") in said(made)


# ---- archives


@pytest.mark.slow
@pytest.mark.parametrize(("of_step", "found"), [(192, 2), (64, 192)])
def test_a_later_archive_of_a_name_of_ones_own_is_asked_about(
    of_step: int, found: int, tmp_path: Path
) -> None:
    """As RL Zoo saves the model when training has ended: ``CartPole-v1.zip`` beside ``rl_model_N_steps.zip``."""
    run = copy_of("stable-baselines3/ppo", tmp_path)
    (run / f"rl_model_{of_step}_steps.zip").rename(run / "CartPole-v1.zip")
    (run / f"rl_model_vecnormalize_{of_step}_steps.pkl").unlink()
    os.utime(run / "CartPole-v1.zip")
    made = answer(run)
    if found == 2:
        assert made == 2 and step_of(answer(run, exclude=("CartPole-v1.zip",))) == 128
    else:
        assert step_of(made) == found and ("passed-over", "CartPole-v1.zip") in said(made)


def test_a_later_archive_of_something_else_is_not(run: Path) -> None:
    with zipfile.ZipFile(run / "results.zip", "w") as z:
        z.writestr("plots/loss.png", b"pixels")
    made = answer(run)
    assert step_of(made) == 200 and not said(made)


# ---- numbers that nothing explains

COUNTED = ["model_e{}.pt", "model_state_e{}_b0.th", "agent-t{}.pt", "net_{}_{}.pt", "gen{}.pt"]
MEASURED = ["net_x_acc{}.pt", "net_x_0.{}.pt"]


@pytest.mark.parametrize("key", ["opt", "optim", "opt_state", "adam"])
def test_an_optimizer_of_ones_own_is_known_by_what_it_is_called(key: str, run: Path) -> None:
    """As fastai saves it (``opt``): what it keeps of a parameter has no name that torch's optimizers have."""
    own = {"state": {0: {"grad_avg": tensor(3)}}, "hypers": [{"lr": 0.1}]}
    put(run / "step_300.pt", saved({"model": {"w": tensor(300)}, key: own, "step": 300}), 300)
    made = answer(run)
    assert step_of(made) == 300 and not said(made)


def test_a_tar_that_torch_has_saved_is_a_checkpoint(tars: Path) -> None:
    assert answer(tars).checkpoint.step == 200  # type: ignore[union-attr]


def test_shards_of_data_alone_are_no_checkpoints(tars: Path) -> None:
    for step in (100, 200):
        (tars / f"ckpt_{step}.tar").unlink()
    assert answer(tars).checkpoint is None  # type: ignore[union-attr]


def test_a_state_beside_the_files_that_is_another_step_s(tmp_path: Path) -> None:
    for step in (100, 200):
        put(tmp_path / f"step_{step}/model.pt", full(step), step)
        put(tmp_path / f"step_{step}/state.json", b'{"step": %d}' % step, step)
    made = answer(tmp_path)
    assert isinstance(made, LoadPlan) and (made.resume_step, made.warnings) == (200, ())
    put(tmp_path / "step_200/state.json", b'{"step": 100}', 200)
    made = answer(tmp_path)
    assert isinstance(made, LoadPlan) and made.resume_step == 200
    assert [(f.code, f.severity) for f in made.warnings] == [("step-mismatch", Severity.WARNING)]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most"), [(100, 0), (100_000, 64)])
def test_of_a_runs_own_files_few_are_opened(
    size: int, most: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may write thousands of files of its own beside its checkpoints, in a store each is a request."""
    for i in range(200):
        put(run / f"sample-{i}.xyz", b"abc" * (size // 3), 250)
    opened, real = set[str](), os.open

    def counting(path: str, *how: int, **more: int) -> int:
        opened.add(os.fspath(path))
        return real(path, *how, **more)

    monkeypatch.setattr(os, "open", counting)
    assert step_of(answer(run)) == 200
    assert len([path for path in opened if path.endswith(".xyz")]) <= most < len(opened) + most


def arrays(step: int) -> bytes:
    out = io.BytesIO()
    np.savez(out, **{"params/w": np.full((4, 4), float(step)), "mu/w": np.ones((4, 4))})
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "of", "asks"),
    [
        ("step_300_broken.npz", 300, True),
        (".step_300.npz.Ab3dEf", 300, True),
        ("step_300.npz.1", 300, True),
        ("step_100_broken.npz", 100, False),  # called by no later step
        ("samples_300.npz", 0, False),  # other arrays
    ],
)
def test_a_later_file_with_the_same_arrays_is_a_question(
    name: str, of: int, asks: bool, tmp_path: Path
) -> None:
    for step in (100, 200):
        put(tmp_path / f"step_{step}.npz", arrays(step), step)
    put(tmp_path / name, arrays(of).replace(b"mu/w", b"nu/w") if not of else arrays(of), 300)
    made = answer(tmp_path)
    assert made == 2 if asks else step_of(made) == 200
    assert step_of(answer(tmp_path, max_step=200)) == 200


@pytest.mark.parametrize(
    ("name", "later"), [("checkpoint-300.torchrl", True), ("checkpoint-90.torchrl", False)]
)
def test_a_later_checkpoint_without_a_state_that_can_be_read_is_a_warning(
    name: str, later: bool, run: Path
) -> None:
    """TorchRL's archive: an array of each tensor, and no pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("components/0000-optimizer/state.json", "{}")
        archive.writestr("components/0000-optimizer/state/tensor_00000000.memmap", bytes(64))
        archive.writestr("manifest.json", "{}")
    put(run / name, out.getvalue(), 300)
    made = answer(run)
    assert step_of(made) == 200 and isinstance(made, LoadPlan)
    told = [f.severity for f in made.warnings if f.path == str(run / name)]
    assert told == [Severity.WARNING if later else Severity.NOTE]


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("accelerate/epoch_last", {"step_40": 1, "step_31": 1, "epoch_1": 1}),
        ("accelerate/kohya-epochs", {"cat-000003-state": 1}),
        ("accelerate/kohya-steps", {"at-state": 1, "at-step00000300-state": 1, "at-step00000150-state": 0}),
    ],
)
def test_an_empty_save_is_told_by_the_words_of_its_siblings(
    case: str, names: dict[str, int], tmp_path: Path
) -> None:
    root = copy_of(case, tmp_path)
    for name, times in names.items():
        (root / name).mkdir()
        made = answer(root)
        assert isinstance(made, LoadPlan)
        assert [f.code for f in made.warnings if f.path == str(root / name)] == ["unfinished-save"] * times
        (root / name).rmdir()
