"""``--view``: a tree of links in which an unmodified loader finds the chosen checkpoint and nothing else; for
every plan of fixtures/layouts.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from fixture_trees import NAMED, QUESTIONS, overwrite, selection, setup
from in_process import executed, started
from msgspec.structs import replace
from real_loaders import dcp_home, load_dcp, load_torch, tensors
from run_helpers import CLEAN
from timed import put

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decision import Decision, body_of
from ckpt_tools.job.view import build
from ckpt_tools.job.view_tree import MARKER, find_name_for
from ckpt_tools.layouts import LAYOUTS, user
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import LoadPlan

pytestmark = pytest.mark.slow

TRACKER = "latest_checkpointed_iteration.txt"


def picture(root: Path) -> dict[str, object]:
    """Everything about a tree that a builder could change."""

    def said(path: Path) -> object:
        if path.is_symlink():
            return os.readlink(path)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else sorted(os.listdir(path))

    stats = ((path, path.lstat()) for path in [root, *sorted(root.rglob("*"))])
    return {str(p): (said(p), st.st_mtime_ns, st.st_ctime_ns, st.st_mode, st.st_ino) for p, st in stats}


def links(view: Path) -> dict[str, str]:
    return {str(p.relative_to(view)): os.readlink(p) for p in sorted(view.rglob("*")) if p.is_symlink()}


def homes(view: Path) -> set[str]:
    """The checkpoints that its links lead to."""
    return {name.split("/")[0] for name in links(view)}


def content(made: LoadPlan) -> tuple[dict[int, list[tuple[str, str]]], list[tuple[str, str]]]:
    """What every rank loads: (role, real file)."""
    ranks = {r.rank: sorted((f.role, os.path.realpath(f.path)) for f in r.files) for r in made.by_rank}
    return ranks, sorted((f.role, os.path.realpath(f.path)) for f in made.shared)


def tree(layout: str, case: str, tmp_path: Path) -> tuple[Path, LoadPlan]:
    path = NAMED[f"{layout}/{case}"]
    return setup(path, json.loads(path.read_text())["plans"][0], tmp_path)


@pytest.mark.share(144)
@pytest.mark.parametrize(("case", "question"), QUESTIONS)
def test_a_plan_of_the_view_is_the_plan_and_its_files_load(
    case: Path, question: dict[str, Any], tmp_path: Path
) -> None:
    root, made = setup(case, question, tmp_path)
    before, view = picture(root), tmp_path / "view"
    told = build(made, str(view))
    assert picture(root) == before
    assert made.checkpoint is not None
    seen = scan(str(view)).checkpoints
    assert len({(c.step, c.epoch, c.kind) for c in seen}) == 1
    # what was ruled out or asked about other steps does not concern a view; a save interval would take a lone
    # checkpoint for another kind
    options = {
        k: v
        for k, v in question.get("options", {}).items()
        if k not in ("run", "resume_from", "max_step", "save_interval", "fault_ranks", "kind")
    }
    again = plan(str(view), selection(options | {"world_size": made.world_size} if made.by_rank else options))
    assert again.checkpoint is not None
    # torchtune's recipe_state is no file of one checkpoint: the rest is a set of safetensors; and ESPnet's
    # links to its best weights, which tell its directory, are not among what it resumes from
    lone_names = {"torchtune": "sharded-safetensors", "espnet": "files"}
    layout = lone_names.get(made.checkpoint.layout, made.checkpoint.layout)
    assert (again.checkpoint.epoch, again.checkpoint.layout) == (made.checkpoint.epoch, layout)
    # only its siblings tell the step of a breakpoint file, and of an epoch beside steps; a view has none
    lone = made.checkpoint.layout == "mindspore" and made.checkpoint.kind is Kind.DYING_GASP
    lone = lone or case.parent.name in ("epoch_last", "both_names")
    assert again.resume_step in ((made.resume_step, None) if lone else (made.resume_step,))
    assert content(again) == content(made)
    # every rank has links of its own, in the order of its files
    assert {int(r): [os.readlink(p) for p in paths] for r, paths in told["view"]["ranks"].items()} == {
        r.rank: [f.path for f in r.files] for r in made.by_rank
    }
    assert [os.readlink(p) for p in told["view"]["shared"]] == [f.path for f in made.shared]
    for word in (told["resume"]["path"], *told["resume"]["args"], *told["resume"]["env"].values()):
        if word and word.startswith("/"):
            assert word.startswith(f"{view}"), word
            assert os.path.exists(word) or os.path.exists(f"{word}.index")
    flags = [w.replace(f"{view}", made.root) for w in told["resume"]["args"] if not w.startswith("/")]
    assert flags == [w for w in made.resume.args if not w.startswith("/")] or (
        told["resume"]["path"] is None and not flags
    )
    assert glob.glob(f"{glob.escape(told['view']['checkpoint'])}*")  # what the names of its files begin with
    assert all(os.path.isabs(target) and os.path.exists(target) for target in links(view).values())
    loaders_read(view, made, told)


def loaders_read(view: Path, made: LoadPlan, told: dict[str, Any]) -> None:
    """The tracker names the checkpoint, and the real loaders of torch and safetensors read what lies in the
    view.
    """
    result = verify([str(view)])
    found = [*result.findings, *(f for r in result.files for f in r.report.findings)]
    # content that names its writer contradicts the name under which another rank loads it
    stood_in = any(f.substituted for r in made.by_rank for f in r.files)
    may = ({"rank-mismatch"} if stood_in else set()) | {f.code for f in made.warnings}
    assert {f.code for f in found if f.severity is Severity.ERROR} <= may, found
    assert not {f.code for f in result.findings if f.code.endswith("-tracker")}
    files = [*told["view"]["shared"], *(p for paths in told["view"]["ranks"].values() for p in paths)]
    formats = {r.report.path: r.report.format for r in result.files}
    for home in {dcp_home(p) for p in files if formats[p] == "dcp"}:
        assert any(t.numel() for t in tensors(load_dcp(home)))
    for path in files:
        if formats[path] in ("torch_zip", "torch_legacy", "torch_tar"):
            load_torch(path)
        elif formats[path] == "safetensors":
            assert safetensors.torch.load_file(path)


PLAIN = {"tracker": "newest", "piece": [{"template": "s{step}/r{rank}.pt"}]}
OWN = user.load([{"name": "own", **PLAIN}, {"name": "named", "tracker_holds": "name", **PLAIN}]).own
user.use(())  # for the tests of other modules


@pytest.mark.parametrize("layout", [*LAYOUTS, *OWN], ids=lambda layout: layout.name)
def test_a_written_tracker_is_read_as_what_it_was(layout: Any) -> None:
    if not layout.tracker.file:
        return
    assert layout.tracker.read is not None
    names: tuple[str, ...] = ("model.ckpt-7", 'a"b\\c-7', "modèle-7", "x y-7")
    if layout.counting.dated:
        names = ("20261126T200327F714468",)
    if layout.name == "big-vision":
        names = ("checkpoint.bv-000000007", "checkpoint.bv-000000007-tmp")
    ending = "pth" if layout.tracker.file == "last_checkpoint" else "index"
    for name, kind in product(names, Kind):
        home, piece = f"/r/{name}", layout.pieces[0].name
        part = Part(f"{home}/{name}.{ending}", layout.name, piece, "model", ".", home, home, step=7)
        said = layout.tracker.name(Checkpoint(layout.name, ".", kind, (part,), home, 0, 7))
        known = said != "release" or layout.name.startswith(("megatron", "verl"))
        assert layout.tracker.read(layout.tracker.write(said)) == (said if known else None)


NAMES = [
    ("mindio-ttp", "tft", "/r/tft_saved_checkpoints-step_9/rank_1/ttp_rank_1-3_1.ckpt", 12, {}, "tft_saved_checkpoints-step_9/rank_12/ttp_rank_12-3_1.ckpt"),
    ("mindspore", "model_rank", "/r/rank_3/pangu3-2_4.ckpt", 0, {"prefix": "pangu"}, "rank_0/pangu0-2_4.ckpt"),
    ("mindspore", "model_rank", "/r/rank_3/net_rank_3-2_4.ckpt", 0, {"prefix": "net"}, "rank_0/net_rank_0-2_4.ckpt"),
    ("mindspore", "model_rank", "/r/rank_3/net_rank_3_1-2_4.ckpt", 0, {"prefix": "net_rank_3"}, "rank_0/net_rank_0_1-2_4.ckpt"),
    ("mindspore", "model_rank", "/r/rank_3/net3-2_4.ckpt", 0, {"prefix": "net3"}, "rank_0/net3-2_4.ckpt"),
    ("mindspore", "model_rank", "/r/rank_3/net_1-2_4.ckpt", 0, {"prefix": "net"}, "rank_0/net_1-2_4.ckpt"),
    ("mindspore", "model_rank", "/r/rank_03/net-2_4.ckpt", 1, {"prefix": "net"}, "rank_01/net-2_4.ckpt"),
    ("megatron", "model_rank", "/r/iter_0000010/mp_rank_01/model_optim_rng_3.pt", 1, {}, "iter_0000010/mp_rank_01/model_optim_rng_1.pt"),
    ("megatron", "model_rank", "/r/iter_0000010/mp_rank_10_002/model_optim_rng_3.pt", 1, {"at": {"tp": 3, "pp": 0}}, "iter_0000010/mp_rank_03_000/model_optim_rng_1.pt"),
    ("pytorch-sample", "checkpoint", "/r/rank_0/checkpoint.pth.tar", 7, {}, "rank_7/checkpoint.pth.tar"),
    ("mindspore", "model", "/r/net-2_4.ckpt", 7, {}, None),
    ("deepspeed", "model", "/r/global_step4/mp_rank_00_model_states.pt", 7, {}, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "piece", "path", "rank", "more", "expected"), NAMES)
def test_the_name_of_another_rank(
    name: str, piece: str, path: str, rank: int, more: dict[str, Any], expected: str | None
) -> None:
    layout = next(one for one in LAYOUTS if one.name == name)
    own = int(m[1]) if (m := re.search(r"/rank_(\d+)/", path)) else 3
    part = Part(path, name, piece, "model", ".", "/r", prefix=more.get("prefix", ""), rank=own)
    assert find_name_for(layout.piece(piece), part, rank, more.get("at")) == expected


def test_what_goes_with_a_checkpoint_is_there(tmp_path: Path) -> None:
    root, made = tree("hf-trainer", "trainer", tmp_path)
    home = root / "checkpoint-20"
    (home / "global_step20").mkdir()
    for name in ("chat_template.jinja", "global_step20/note.txt", "latest", "half.tmp"):
        (home / name).write_text("of the optimizer")
    (home / "away").symlink_to(tmp_path)
    (home / "dangling").symlink_to(tmp_path / "nowhere")
    build(made, str(tmp_path / "v"))
    names = {str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() or p.name == "away"}
    names = {n for n in names if n != "half.tmp" and not n.startswith("away/")}
    assert {"latest", "config.json"} <= names
    assert set(links(tmp_path / "v")) == {f"checkpoint-20/{n}" for n in names}
    # no tracker: this framework has none
    assert sorted(p.name for p in (tmp_path / "v").iterdir()) == [MARKER, "checkpoint-20"]


def test_a_model_directory_does_not_bring_the_checkpoints_in_it(tmp_path: Path) -> None:
    root, made = tree("sharded-safetensors", "transformers", tmp_path)
    for name in ("1_Pooling/config.json", "checkpoint-5/trainer_state.json"):
        put(root / name, "{}")
    build(made, str(tmp_path / "v"))
    assert {"config.json", "1_Pooling/config.json"} <= set(links(tmp_path / "v"))
    assert not (tmp_path / "v" / "checkpoint-5").exists()


@pytest.mark.parametrize(("layout", "case"), [("hf-trainer", "trainer"), ("megatron", "distopt")])
def test_what_could_not_be_looked_at_is_never_left_out(
    layout: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stat and each listing that a builder asks for fails once: the view is the whole one, or none."""
    root, made = tree(layout, case, tmp_path / "in")
    assert made.checkpoint is not None
    Path(made.checkpoint.parts[0].home, "note.txt").write_text("goes with it")
    (root / "dlrover_latest.txt").write_text("20")  # beside it
    calls = list[tuple[str, str]]()

    def hooked(call: str, bad: tuple[str, str]) -> Any:
        real = getattr(os, call)

        def answer(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(f"{tmp_path}/in/"):
                calls.append((call, str(path)))
                if calls[-1] == bad:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path, *args, **kwargs)

        return answer

    def built(view: Path, failing: tuple[str, str]) -> dict[str, str]:
        with monkeypatch.context() as m:
            for call in ("stat", "scandir"):
                m.setattr(os, call, hooked(call, failing))
            build(made, str(view))
        return links(view)

    expected = built(tmp_path / "whole", ("", ""))
    for i, failing in enumerate(asked := list(dict.fromkeys(calls))):
        try:
            wrong = built(tmp_path / f"v{i}", failing) != expected
        except CannotLook as e:
            wrong = failing[1] not in str(e)
        assert not wrong, failing
    assert asked


def test_trackers_and_notes_are_fresh(tmp_path: Path) -> None:
    root, made = tree("tensorflow", "sharded", tmp_path)
    (root / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-200"\n')
    build(made, str(tmp_path / "v"))
    told = (tmp_path / "v" / "checkpoint").read_text().splitlines()
    keys = ("model_checkpoint_path", "all_model_checkpoint_paths")
    assert told == [f'{key}: "model.ckpt-300"' for key in keys]
    assert "model.ckpt-300.meta" in links(tmp_path / "v")
    root, made = tree("mindspore", "pangu", tmp_path / "m")
    for r in range(4):
        (root / f"rank_{r}" / "meta.json").write_text("{}")
    build(made, str(tmp_path / "w"))
    said = json.loads((tmp_path / "w" / "rank_2" / "meta.json").read_text())
    assert (tmp_path / "w" / "rank_2" / said["last_ckpt_file"]).exists()
    assert made.checkpoint and said["last_step"] == made.checkpoint.step_in_epoch


def test_a_rank_without_a_name_is_refused(tmp_path: Path) -> None:
    """A user's own template in which nothing says the rank."""
    _, made = tree("pytorch-sample", "imagenet", tmp_path)
    assert made.checkpoint is not None
    parts = tuple(p._replace(layout="deepspeed", piece="model_any") for p in made.checkpoint.parts)
    odd = replace(made, checkpoint=replace(made.checkpoint, layout="deepspeed", parts=parts))
    with pytest.raises(UsageError, match="no view can be made"):
        build(odd, str(tmp_path / "v"))
    assert not (tmp_path / "v").exists()


def test_the_files_of_other_nodes_are_left_out(tmp_path: Path) -> None:
    """With --agree every node has the ranks of all in its plan, and only its own files on its disk."""
    _, made = tree("mindio-ttp", "tft", tmp_path)
    assert made.checkpoint is not None
    mine = tuple(p for p in made.checkpoint.parts if p.rank == 1)
    next(Path(p.path) for p in made.checkpoint.parts if p.rank == 2).unlink()

    def placed(files: Any) -> Any:
        return tuple(replace(f, node="here" if f.source_rank == 1 else "there") for f in files)

    ranks = tuple(replace(r, files=placed(r.files)) for r in made.by_rank)
    ours = replace(made, checkpoint=replace(made.checkpoint, parts=mine), by_rank=ranks)
    told = build(ours, str(tmp_path / "v"))
    assert sorted(told["view"]["ranks"]) == ["1", "3"] and len(links(tmp_path / "v")) == 2
    decision = Decision("/plan.json", {**body_of(replace(made, by_rank=ranks)), **told})
    decision.check([1, 3])
    assert decision.links(0) == []


def test_it_is_never_built_in_or_around_the_root(tmp_path: Path) -> None:
    root, made = tree("megatron", "tp", tmp_path)
    before = picture(tmp_path)
    (outside := tmp_path.parent / f"{tmp_path.name}-out").mkdir()
    (outside / "in").symlink_to(root)
    (outside / "dir").mkdir()
    (outside / "link").symlink_to(outside / "dir")
    within = (root, root / "view", root / "iter_0000030", root / "x" / ".." / "view")
    for bad in (*within, tmp_path, outside / "in", outside / "in" / "view", outside / "link"):
        with pytest.raises(UsageError) as caught:
            build(made, str(bad))
        assert caught.value.exit_code == 2
    assert picture(tmp_path) == before
    assert sorted(p.name for p in outside.iterdir()) == ["dir", "in", "link"]


def test_nothing_but_a_view_is_replaced(tmp_path: Path) -> None:
    _, made = tree("megatron", "tp", tmp_path / "r")
    (view := tmp_path / "v").mkdir()
    build(made, str(view))  # an empty directory is nobody's
    put(view / "iter_0000040/saved.pt", "the job saves into its view")
    for _ in range(2):
        with pytest.raises(UsageError, match="was not put there by ckpt"):
            build(made, str(view))
    assert (view / "iter_0000040" / "saved.pt").read_text() and (view / "iter_0000030").is_dir()
    marked = {f"marked/{MARKER}": "{}", f"listed/{MARKER}": '{"schema": "ckpt-tools/view/v1"}'}
    for name, content in {"full/x": "mine", "file": "mine", **marked}.items():
        put(tmp_path / name, content)
        with pytest.raises(UsageError, match="no view that ckpt has built"):
            build(made, str(tmp_path / name.partition("/")[0]))
        assert (tmp_path / name).read_text() == content
    with pytest.raises(CannotLook, match="could not be built") as caught:
        build(made, "/proc/nothing/view")
    assert "--view" in caught.value.hint
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"file", "full", "listed", "marked", "r", "v", os.readlink(view)}


def test_a_save_under_the_name_of_a_link_stays(tmp_path: Path) -> None:
    """A link or a directory that the job made is no save."""
    _, made = tree("megatron", "tp", tmp_path / "r")
    build(made, str(view := tmp_path / "v"))
    (view / "logs").mkdir()
    (view / "link").symlink_to(tmp_path)
    build(made, str(view))
    put(tmp_path / "new", "saved by the job")
    os.replace(tmp_path / "new", saved := view / next(iter(links(view))))
    with pytest.raises(UsageError, match="was not put there by ckpt"):
        build(made, str(view))
    assert saved.read_text() == "saved by the job"


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_what_came_there_meanwhile_stays(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's directory, file or link takes the place while the view is built."""
    from ckpt_tools.job import view as room

    _, made = tree("megatron", "tp", tmp_path / "r")
    view, fill = tmp_path / "v", room._fill_directory
    kept = view / "precious" if kind == "directory" else view

    def plant(*words: Any) -> None:
        fill(*words)
        view.symlink_to("r") if kind == "link" else put(kept, "x")

    monkeypatch.setattr(room, "_fill_directory", plant)
    with pytest.raises(UsageError):
        build(made, str(view))
    assert os.readlink(view) == "r" if kind == "link" else kept.read_text() == "x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r", "v"]


def test_another_choice_replaces_it_whole(tmp_path: Path) -> None:
    root, made = tree("megatron", "tp", tmp_path)
    view = tmp_path / "v"
    build(made, str(view))
    decision = Decision("/plan.json", {**body_of(made), **build(made, str(view))})
    decision.check()
    first = os.path.realpath(view)
    older = plan(str(root), selection({"max_step": 20}))
    build(older, str(view))
    assert homes(view) == {"iter_0000020"} and (view / TRACKER).read_text() == "20"
    assert homes(Path(first)) == {"iter_0000030"}, "who has found the one before still sees all of it"
    with pytest.raises(CannotLook, match="cannot be looked at"):
        decision.check()
    (view / "iter_0000020" / "mp_rank_00" / "model_optim_rng.pt").unlink()
    build(older, str(view))
    assert len(links(view)) == 2
    (view / TRACKER).write_text("30")
    build(older, str(view))
    assert len(links(view)) == 2 and (view / TRACKER).read_text() == "20"


def test_a_view_that_was_replaced_goes_after_a_day(tmp_path: Path) -> None:
    """So does what a killed builder left; not one in which a job has saved, nor anything else."""
    root, made = tree("megatron", "tp", tmp_path)
    older, view = plan(str(root), selection({"max_step": 20})), tmp_path / "v"

    def age() -> None:
        for path in (*tmp_path.glob("v.*"), *tmp_path.glob("w.*")):
            os.utime(path, (1, 1), follow_symlinks=False)

    build(made, str(view))
    saved = Path(os.path.realpath(view))
    build(older, str(view))
    (saved / "iter_0000040.pt").write_text("of a job that still runs")
    age()
    build(made, str(view))
    assert len({p.name for p in tmp_path.glob("v.*")}) == 3  # one was replaced just now
    for other in ("v.view-old", "w.view-0123456789abcdef"):
        (tmp_path / other).mkdir()
    (tmp_path / f"v.view-{'0' * 16}.link").symlink_to("killed")
    age()
    build(older, str(view))
    left = {p.name for p in tmp_path.iterdir()} - {os.readlink(view), "v", "tree"}
    assert {saved.name, "v.view-old", "w.view-0123456789abcdef"} < left and len(left) == 4  # and the last one


BUILDER = """
import sys
from ckpt_tools.job.view import build
from ckpt_tools.api import plan
from ckpt_tools.model.selection import Selection
made = [plan(sys.argv[1], Selection(max_step=step)) for step in (20, 30)]
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    build(made[i % 2 if sys.argv[4] == "both" else 1], sys.argv[2])
"""


def builder(root: Path, view: Path, times: int, which: str) -> subprocess.Popen[str]:
    """One that is ready to go."""
    words = [sys.executable, "-c", BUILDER, str(root), str(view), str(times), which]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    one = subprocess.Popen(words, **pipes, text=True, env=CLEAN)
    assert one.stdout and one.stdout.readline() == "ready\n"
    return one


@pytest.mark.share(2)
@pytest.mark.parametrize("which", ["same", "both"])
def test_many_builders_at_once_end_with_one_whole_view(tmp_path: Path, which: str) -> None:
    root, _ = tree("megatron", "tp", tmp_path)
    before = picture(root)
    started = [builder(root, tmp_path / "v", 30, which) for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda one: one.communicate("go\n", timeout=1000), started))
    assert [one.returncode for one in started] == [0] * 4, ended
    assert homes(tmp_path / "v") == {"iter_0000030"} and len(links(tmp_path / "v")) == 2
    assert (tmp_path / "v" / TRACKER).read_text() == "30"
    assert not list(tmp_path.glob("*.link")) and picture(root) == before


def test_a_killed_builder_leaves_no_half_view(tmp_path: Path) -> None:
    root, made = tree("megatron", "tp", tmp_path)
    before = picture(root)
    for i in range(6):
        one = builder(root, tmp_path / "v", 100_000, "both")
        assert one.stdin
        one.stdin.write("go\n")
        one.stdin.flush()
        time.sleep(0.02 + 0.01 * i)
        one.send_signal(signal.SIGKILL)
        one.communicate(timeout=1000)
        if (tmp_path / "v").exists():
            assert len(homes(tmp_path / "v")) == 1 and len(links(tmp_path / "v")) == 2
    build(made, str(tmp_path / "v"))
    assert homes(tmp_path / "v") == {"iter_0000030"} and picture(root) == before


def test_the_command_is_told_the_view(tmp_path: Path) -> None:
    """The newest checkpoint is broken: the view holds the one before it alone, and the tracker says so."""
    root, _ = tree("megatron", "tp", tmp_path)
    newest = next((root / "iter_0000030").rglob("*.pt"))
    overwrite(newest, newest.read_bytes()[:1000], 0)
    before, view = picture(root), tmp_path / "v"
    options = [root, "--view", view, "--plan-dir", tmp_path / "plans", "--settle", "0"]
    done = started(options, ["say", "{ckpt.args}", "at={ckpt.path}"])
    assert done.words == ["say", "--load", str(view), "--ckpt-step", "20", f"at={view}"], done.said
    assert (done.env["CKPT_PATH"], done.env["CKPT_STEP"]) == (str(view), "20")
    assert sorted(p.name for p in view.iterdir()) == [MARKER, "iter_0000020", TRACKER]
    assert (view / TRACKER).read_text() == "20" and picture(root) == before
    load_torch(str(view / "iter_0000020/mp_rank_00/model_optim_rng.pt"))
    inside = started([root, "--view", root / "v", *options[3:]], ["true"])
    assert inside.code == 2 and "lies inside" in inside.said and not (root / "v").exists()


def test_a_failed_rank_finds_its_replica_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = tree("mindio-ttp", "tft", tmp_path)
    view, home = tmp_path / "v", "tft_saved_checkpoints-step_11"
    options = [root, "--view", view, "--plan-dir", tmp_path / "plans", "--world-size", "4"]
    done = started([*options, "--replica-groups", "0,2;1,3", "--fault-ranks", "0,3"], ["say", "{ckpt.path}"])
    assert done.words == ["say", str(view / home)] and done.env["CKPT_RESUME"] == "1", done.said
    names = [f"{home}/rank_{r}/ttp_rank_{r}-3_1.ckpt" for r in range(4)]
    assert links(view) == {name: str(root / names[of]) for name, of in zip(names, (2, 1, 2, 1), strict=True)}
    monkeypatch.setenv("CKPT_PLAN", done.env["CKPT_PLAN"])
    latest = [executed(["latest", "--rank", f"{r}"])[1] for r in range(4)]
    assert latest == [f"{view / name}\n" for name in names], latest
    body = json.loads(executed(["latest", "--rank", "3", "--json"])[1])
    assert body["view"]["ranks"] == {"3": [str(view / names[3])]} and body["resume"]["path"] is None
    assert body["ranks"][0]["files"][0]["path"] == str(root / names[1])  # what is re-checked
