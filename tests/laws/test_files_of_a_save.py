"""Whatever files somebody's own training loop makes of a save: each of them is loaded, and none can be lost or
damaged without a word.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from small_files import adam, dcp, lightning, saved, tensor, trainer

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Verdict

STEPS = (100, 200, 300)
START = 1_700_000_000


def _weights(step: int, name: str) -> Any:
    return {"w": tensor(step, *name.encode()), "b": tensor(step, 1)}


def _optimizer(step: int, name: str) -> Any:
    return {**adam(step), "name": name}


def _scheduler(step: int, name: str) -> Any:
    return {"base_lrs": [0.1], "last_epoch": step, "_step_count": step + 1, "name": name}


def _rng(step: int, name: str) -> Any:
    return {"cpu": torch.full((16,), (step + len(name)) % 251, dtype=torch.uint8)}


def _other(step: int, name: str) -> Any:
    return {"seen": step * 10, "name": name}


Made = Callable[[int, str], Any]
NAMES: Mapping[str, tuple[Made, tuple[str, ...]]] = {
    "optimizer": (_optimizer, ("optim", "optim_enc", "optim_dec", "optG", "optD", "adam", "state_optimizer")),
    "scheduler": (_scheduler, ("scheduler", "sched_a", "sched_b", "lr_scheduler")),
    "rng": (_rng, ("rng", "random_cuda", "rng_numpy")),
    "other": (_other, ("extra", "sampler", "loader", "trainer", "misc", "args")),
}
"""What a save has beside a model: how it is made, and what it may be called."""
ARRANGED = ("{name}_{step}.pt", "{name}-step{step}.pth", "step_{step}/{name}.pt", "ckpt-{step}/{name}.bin",
    "{step}/{name}.pt", "epoch_{epoch}/{name}-step{step}.pt")  # fmt: skip


class Loop(NamedTuple):
    """How a training loop saves: where, which models, and what beside them."""

    arranged: str
    beside: Mapping[str, Made]

    models: tuple[str, ...] = ("model",)

    def files(self, step: int) -> dict[str, bytes]:
        made = {**dict.fromkeys(self.models, _weights), **self.beside}
        return {
            self.arranged.format(name=name, step=step, epoch=step // 200): saved(make(step, name))
            for name, make in made.items()
        }


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    beside: dict[str, Made] = {}
    for role, (make, names) in NAMES.items():
        most = 3 if role != "optimizer" else 2
        least = 1 if role == "optimizer" else 0
        drawn = draw(st.lists(st.sampled_from(names), min_size=least, max_size=most, unique=True))
        beside.update(dict.fromkeys(drawn, make))
    arranged = draw(st.sampled_from(ARRANGED))
    models: tuple[tuple[str, ...], ...] = (("model",), ("policy", "value"))
    if arranged.endswith("/{name}.pt"):  # whatever their names say, they share a directory
        models += (("unet", "vae"), ("policy", "value", "reference"))
    return Loop(arranged, beside, draw(st.sampled_from(models)))


def _write(root: Path, files: Mapping[str, bytes], when: int) -> None:
    for i, (name, data) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (START + when + i,) * 2)


def _loaded(root: Path) -> set[str] | None:
    """The files that are loaded; None where nobody is told to start."""
    try:
        made = plan(str(root))
    except CkptError:
        return None
    files = [*made.shared, *(f for r in made.by_rank for f in r.files)]
    return {str(Path(f.path).relative_to(root)) for f in files}


@examples(8)
@given(loops(), st.data())
def test_every_file_of_a_save_is_loaded_and_none_is_lost_in_silence(loop: Loop, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "run"
        for step in STEPS:
            _write(root, loop.files(step), step * 60)
        newest = loop.files(STEPS[-1])
        assert _loaded(root) == set(newest), loop
        victim = root / data.draw(st.sampled_from(sorted(newest)))
        whole, times = victim.read_bytes(), victim.stat()
        victim.write_bytes(whole[: len(whole) // 2])
        os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert _loaded(root) in (set(loop.files(STEPS[-2])), None), (loop, victim.name, "cut")
        victim.unlink()
        assert _loaded(root) in (set(loop.files(STEPS[-2])), None), (loop, victim.name, "gone")


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_weights_alone_never_stand_in_for_the_state_of_their_step(damage: str, tmp_path: Path) -> None:
    for step in STEPS:
        state = {"model": _weights(step, "m"), "optimizer": adam(step), "step": step}
        both = {f"ckpt_{step}.pt": saved(state), f"weights_{step}.pt": saved(_weights(step, "m"))}
        _write(tmp_path, both, step * 60)
    state_path = tmp_path / "ckpt_300.pt"
    if damage == "gone":
        state_path.unlink()
    else:
        state_path.write_bytes(state_path.read_bytes()[:500])
        os.utime(state_path, (START + 300 * 60,) * 2)
    made = plan(str(tmp_path))
    assert made.resume_step == 200
    assert [r.checkpoint.step for r in made.rejected] == [300]


def test_what_is_written_over_beside_a_model_is_of_its_save(tmp_path: Path) -> None:
    names = {"model.pt": _weights, "optim.pt": _optimizer, "sampler.pt": _other}
    files = {name: saved(make(300, name)) for name, make in names.items()}
    _write(tmp_path, {**files, "extra.pt": saved({"step": 300})}, 0)
    assert _loaded(tmp_path) == {*names, "extra.pt"}
    (tmp_path / "sampler.pt").write_bytes(files["sampler.pt"][:200])
    assert _loaded(tmp_path) is None


FRAMEWORKS: Mapping[str, Callable[[int], Mapping[str, bytes]]] = {
    "checkpoint-{}": trainer,
    "step-{}": dcp,
}


@pytest.mark.parametrize("home", FRAMEWORKS)
def test_a_file_that_every_other_save_has_beside_its_layout_is_missed(home: str, tmp_path: Path) -> None:
    for step in STEPS:
        files = {**FRAMEWORKS[home](step), "notes.pt": saved(_other(step, "notes"))}
        _write(tmp_path, {f"{home.format(step)}/{name}": data for name, data in files.items()}, step * 60)
    assert not [f for f in plan(str(tmp_path)).warnings if f.code == "missing-part"]
    (tmp_path / home.format(300) / "notes.pt").unlink()
    made = plan(str(tmp_path))
    assert made.resume_step == 300
    assert [f.path for f in made.warnings if f.code == "missing-part"] == [str(tmp_path / home.format(300))]


def test_one_of_several_files_beside_those_of_ranks_is_missed(tmp_path: Path) -> None:
    names = ("notes", "memo")
    for step in STEPS:
        ranks = {f"rank_{r}": {"model": _weights(step, str(r)), "optimizer": adam(step)} for r in (0, 1)}
        files = {**ranks, **{name: _other(step, name) for name in names}}
        _write(tmp_path, {f"step_{step}/{n}.pt": saved(state) for n, state in files.items()}, step * 60)
    assert plan(str(tmp_path)).resume_step == 300
    (tmp_path / "step_300" / "notes.pt").unlink()
    made = plan(str(tmp_path))
    assert made.resume_step == 200
    assert [f.code for f in made.rejected[0].findings] == ["missing-part"]


class Net:
    """What a pickle of a model as a whole holds."""

    def __init__(self, step: int) -> None:
        self.w = np.full(64, step, dtype=np.float32)


def _edm(step: int) -> dict[str, bytes]:
    state = {"net": _weights(step, "net"), "optimizer_state": adam(step)}
    return {
        f"network-snapshot-{step:06d}.pkl": pickle.dumps({"ema": Net(step)}),
        f"training-state-{step:06d}.pt": saved(state),
    }


def _pickled_values(step: int) -> dict[str, bytes]:
    return {
        f"model_{step}.pt": saved(_weights(step, "m")),
        f"optim_{step}.pt": saved(adam(step)),
        f"state_{step}.pkl": pickle.dumps({"step": step, "seen": [step] * 9}),
    }


def _pickled_arrays(step: int) -> dict[str, bytes]:
    params = {"dense": np.full((8, 8), step, dtype=np.float32)}
    moments = {"mu": params["dense"] / 2, "nu": params["dense"] * 2, "count": np.array(step)}
    return {
        f"params_{step}.pkl": pickle.dumps(params),
        f"opt_state_{step}.pkl": pickle.dumps(moments),
    }


def _vocoder(step: int) -> dict[str, bytes]:
    others = {"mpd": _weights(step, "mpd"), "optim_g": adam(step), "optim_d": adam(step), "steps": step}
    return {
        f"g_{step:08d}": saved({"generator": _weights(step, "g")}),
        f"do_{step:08d}": saved({**others, "epoch": step // 100}),
    }


def _tacotron(step: int) -> dict[str, bytes]:
    state = {"iteration": step, "state_dict": _weights(step, "t"), "optimizer": adam(step)}
    return {f"checkpoint_{step}": saved(state)}


def _both_ways(step: int) -> dict[str, bytes]:
    networks = [f"{network}_{way}" for network in "GD" for way in "AB"]
    return {f"{step}_net_{name}.pth": saved(_weights(step, name)) for name in networks}


@pytest.mark.parametrize("damage", ["whole", "cut", "gone"])
@pytest.mark.parametrize("save", [_edm, _pickled_values, _pickled_arrays, _vocoder, _tacotron, _both_ways])
def test_what_a_known_loop_saves_is_loaded_together(
    save: Callable[[int], dict[str, bytes]], damage: str, tmp_path: Path
) -> None:
    for step in STEPS:
        _write(tmp_path, save(step), step * 60)
    newest = save(STEPS[-1])
    if damage == "whole":
        assert _loaded(tmp_path) == set(newest)
        return
    for name, data in newest.items():
        for other in newest:  # one at a time
            _write(tmp_path, {other: newest[other]}, STEPS[-1] * 60)
        path = tmp_path / name
        path.write_bytes(data[: len(data) // 2])
        os.utime(path, (START + STEPS[-1] * 60,) * 2)
        if damage == "gone":
            path.unlink()
        assert _loaded(tmp_path) in (set(save(STEPS[-2])), None), name


@pytest.mark.parametrize("name", ["state.json", "progress.json", "train_progress.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_progress_in_json_beside_the_files_of_a_save_is_missed(
    name: str, damage: str, tmp_path: Path
) -> None:
    for step in STEPS:
        progress = json.dumps({"step": step, "epoch": 1, "seen": step * 8}).encode()
        files = {"model.pt": saved(_weights(step, "m")), "optim.pt": saved(adam(step)), name: progress}
        _write(tmp_path, {f"step_{step}/{n}": data for n, data in files.items()}, step * 60)
    assert plan(str(tmp_path)).warnings == ()
    path = tmp_path / "step_300" / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b'{"step": 30')
    made = plan(str(tmp_path))
    assert made.resume_step == 200 or made.warnings, made


def test_a_rolling_state_that_is_newer_wins_over_saves_of_several_files(tmp_path: Path) -> None:
    for step in STEPS:
        files = {f"model_{step}.pt": saved(_weights(step, "m")), f"optim_{step}.pt": saved(adam(step))}
        _write(tmp_path, files, step * 60)
    last = {"model": _weights(350, "m"), "optimizer": adam(350), "step": 350}
    _write(tmp_path, {"last.pt": saved(last)}, 350 * 60)
    assert _loaded(tmp_path) == {"last.pt"}


ROLLING = ("checkpoint.pth", "last.pt", "latest.ckpt", "checkpoint_last.pt")
NUMBERED = (
    "checkpoint{epoch:04}.pth",
    "epoch_{epoch}.pt",
    "ckpt-{step}.pt",
    "model-epoch{epoch}-step{step}.pth",
)


@examples(30)
@given(st.data())
def test_one_state_under_two_names_is_one_state(data: st.DataObject) -> None:
    """What a loop writes twice, into ``last.pt`` and into a file with a number, whatever either tells."""
    draw = data.draw
    rolling, numbered = draw(st.sampled_from(ROLLING)), draw(st.sampled_from(NUMBERED))
    told = draw(st.sets(st.sampled_from(("step", "epoch")), min_size=1))
    pause, rolling_first = draw(st.sampled_from((0.0, 0.01, 2.0))), draw(st.booleans())
    same = draw(st.booleans())  # else written twice, as torch.save does: under two names inside
    with tempfile.TemporaryDirectory() as name:
        for epoch, step in enumerate(STEPS):
            counters = {key: n for key, n in (("step", step), ("epoch", epoch)) if key in told}
            state = {"model": _weights(step, "m"), "optimizer": adam(step), **counters}
            names = [numbered.format(epoch=epoch, step=step), rolling]
            for i, one in enumerate(reversed(names) if rolling_first else names):
                path = Path(name) / one
                path.write_bytes(saved(state if same else {**state, "name": one}))
                os.utime(path, (START + step * 60 + i * pause,) * 2)
        made = plan(name)
        loaded = {os.path.basename(f.path) for r in made.by_rank for f in r.files}
        assert loaded | {os.path.basename(f.path) for f in made.shared} <= {rolling, names[0]}


@pytest.mark.parametrize("left", [0, 0.2, 0.35, 0.5, 0.9])
@pytest.mark.parametrize("state_first", [True, False])
def test_weights_with_a_number_never_stand_in_for_a_cut_state_without_one(
    state_first: bool, left: float, tmp_path: Path
) -> None:
    """ESPnet and others write ``checkpoint.pth`` over, and keep the weights of each epoch."""
    big = {"w": torch.arange(40_000, dtype=torch.float32)}
    momenta = {"param_groups": [{"lr": 0.1}], "state": {0: {"exp_avg": big["w"] / 2, "exp_avg_sq": big["w"]}}}
    state = saved({"model": big, "optimizer": momenta, "reporter": {"epoch": 3}})
    for epoch in (1, 2, 3):
        _write(tmp_path, {f"{epoch}epoch.pth": saved({"w": big["w"] * epoch})}, epoch * 60)
    _write(tmp_path, {"checkpoint.pth": state}, 180 + (-1 if state_first else 1))
    assert _loaded(tmp_path) == {"checkpoint.pth"}
    path, times = tmp_path / "checkpoint.pth", (tmp_path / "checkpoint.pth").stat()
    path.write_bytes(state[: int(left * len(state))])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(CkptError) as caught:
        plan(str(tmp_path))
    assert caught.value.exit_code in (2, 4)


def _weights_only(epoch: int, step: int) -> bytes:
    state = {"epoch": epoch, "global_step": step, "pytorch-lightning_version": "2.6.6"}
    return saved({**state, "state_dict": _weights(step, "w"), "loops": {}})


OFTEN = ("epoch={epoch}-step={step}.ckpt", "run-epoch={epoch}-step={step}.ckpt", "epoch={epoch}-part.ckpt")
OTHER = ("end-epoch={epoch}.ckpt", "best-epoch={epoch}-step={step}.ckpt", "best-val-epoch={epoch}-step={step}.ckpt",
    "last.ckpt")  # fmt: skip


@pytest.mark.parametrize(
    ("often", "other"),
    [*((OFTEN[0], name) for name in OTHER), *zip(OFTEN[1:], OTHER, strict=False), (OFTEN[1], OTHER[3])],
)
def test_two_callbacks_of_one_trainer_save_one_run(often: str, other: str, tmp_path: Path) -> None:
    """Lightning's ModelCheckpoint, twice: by steps, and at the end of an epoch or for the best."""
    for epoch, step in enumerate(STEPS):
        _write(tmp_path, {often.format(epoch=epoch, step=step): lightning(epoch, step)}, step * 60)
    name = other.format(epoch=3, step=350)
    _write(tmp_path, {name: lightning(3, 350)}, 350 * 60)
    assert _loaded(tmp_path) == {name}
    assert verify([str(tmp_path)]).verdict is Verdict.OK
    before = {often.format(epoch=2, step=300)}
    _write(tmp_path, {name: _weights_only(3, 350)}, 350 * 60)
    assert _loaded(tmp_path) in (before, None), "weights alone"
    (tmp_path / next(iter(before))).write_bytes(lightning(2, 300)[:900])
    assert _loaded(tmp_path) in ({often.format(epoch=1, step=200)}, None), "weights alone, and a cut state"
    _write(tmp_path, {next(iter(before)): lightning(2, 300)}, 300 * 60)
    for damaged in (lightning(3, 350)[:900], b""):
        _write(tmp_path, {name: damaged}, 350 * 60)
        assert _loaded(tmp_path) in (before, None), len(damaged)
    (tmp_path / name).unlink()
    assert _loaded(tmp_path) == before


@pytest.mark.parametrize(("put_back", "verdict"), [(False, Verdict.OK), (True, Verdict.SUSPECT)])
def test_last_is_left_behind_only_where_nothing_else_was_renewed(
    put_back: bool, verdict: Verdict, tmp_path: Path
) -> None:
    """A run that begins anew in a directory renews ``last-v1.ckpt``; an old one that was put back is seen."""
    for i, (step, last) in enumerate(((100, "last.ckpt"), (200, "last-v1.ckpt"))):
        name = f"epoch={i}-step={step}.ckpt"
        _write(tmp_path, dict.fromkeys((name, last), lightning(i, step)), step * 60)
    if put_back:
        (tmp_path / "last-v1.ckpt").unlink()
        _write(tmp_path, {"last.ckpt": lightning(0, 100)}, 300 * 60)
    found = verify([str(tmp_path)])
    assert found.verdict is verdict
    assert not [f for f in found.findings if f.code == "generation-mismatch"]
