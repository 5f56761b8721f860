"""Layouts of the user's own: [[layout]] tables of ckpt.toml, what each key does, what each mistake says, and
ckpt layouts --check.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import run
from places import DOCS
from small_files import saved, tensor
from timed import put
from told_trees import KINDS, SETS, Made, Question, hold, table

from ckpt_tools.api import latest, plan, scan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.formats import BY_NAME as FORMATS
from ckpt_tools.layouts import LAYOUTS, Layout, Piece, get_active, use, user
from ckpt_tools.layouts.common.templates import FIELDS
from ckpt_tools.model.selection import Selection

TEMPLATE = "{run}/step={step}/shard-{rank:05d}-of-{world}.pt"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("CKPT_")]:
        monkeypatch.delenv(name)
    yield
    use(())  # the set of layouts belongs to the process


def layout(*pieces: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "mine", "piece": list(pieces) or [{"template": TEMPLATE}], **more}


def taught(*pieces: dict[str, Any], **more: Any) -> None:
    user.load([layout(*pieces, **more)], tuple(FORMATS))


def step(root: Path, number: int, world: int = 2, run: str = "run", **content: Any) -> Path:
    """One save of every rank, later for higher steps."""
    home = root / run / f"step={number}"
    for rank in range(world):
        state = {"model": {"w": tensor(number, rank)}, "step": number, **content}
        put(home / f"shard-{rank:05d}-of-{world}.pt", saved(state), number)
    return home


# --- from a table to a plan


@pytest.mark.slow
def test_the_users_own_templates_go_first(tmp_path: Path) -> None:
    put(tmp_path / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt", saved({"w": tensor(1)}))
    assert [c.layout for c in scan(str(tmp_path)).checkpoints] == ["megatron"]
    taught({"template": "iter_{step}/mp_rank_{tp}/model_optim_rng.pt"})
    assert [(c.layout, c.step) for c in scan(str(tmp_path)).checkpoints] == [("mine", 7)]
    use(())
    assert [c.layout for c in scan(str(tmp_path)).checkpoints] == ["megatron"]


# --- what the keys do


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("holds", "text", "code"),
    [
        ("step", "20\n", ""),
        ("step", "10", "stale-tracker"),
        ("step", "30", "dangling-tracker"),
        *(("step", text, "bad-tracker") for text in ("step=20", "10\n20", "9" * 19, "")),
        ("step", None, "missing-tracker"),
        *(("name", text, "") for text in ("step=20\n", "/moved/since/step=20", "step=20/")),
        ("name", "step=10", "stale-tracker"),
        *(("name", text, "dangling-tracker") for text in ("20", "\0\xff")),
        *(("name", text, "bad-tracker") for text in ("step=10\nstep=20", " \n")),
    ],
)
def test_tracker_and_what_it_holds(tmp_path: Path, holds: str, text: str | None, code: str) -> None:
    taught(tracker="LATEST", tracker_holds=holds)
    step(tmp_path, 10)
    step(tmp_path, 20)
    if text is not None:
        put(tmp_path / "run" / "LATEST", text)
    made = plan(str(tmp_path))
    assert (made.resume_step, {f.code for f in made.warnings}) == (20, {code} - {""})
    assert {f.code for f in verify([str(tmp_path)]).findings} == {code} - {""}
    asked = Selection(resume_from="tracker")
    if code in ("", "stale-tracker"):
        assert plan(str(tmp_path), asked).resume_step == (10 if code else 20)
    else:
        with pytest.raises(UsageError):
            plan(str(tmp_path), asked)


def test_resume_args(tmp_path: Path) -> None:
    taught(resume_args=["--from={path}", "--root", "{base}", "--at={step}", "{epoch}", "$" + "{HOME} {}"])
    home = step(tmp_path, 10)
    args = plan(str(tmp_path)).resume.args
    assert args == (f"--from={home}", "--root", str(tmp_path / "run"), "--at=10", "", "${HOME} {}")
    assert latest(str(tmp_path), Selection(rank=1)).resume.args == args
    # the path is the file when all load one, and content tells the step and the epoch
    keys = {"step_keys": ["n"], "epoch_keys": ["e"], "epoch_base": 1}
    taught({"template": "last.pt", "shared": True}, resume_args=["{path}", "{epoch}", "{step}"], **keys)
    path = put(tmp_path / "one/last.pt", saved({"w": tensor(1), "n": 77, "e": 3}))
    made = plan(str(tmp_path / "one"))
    assert (made.resume.path, made.resume.args) == (str(path), (str(path), "3", "77"))
    assert made.checkpoint is not None and made.checkpoint.epoch_base == 1


SETS["pair"] = lambda n: {
    f"shard-{r:05d}-of-2.pt": saved({"model": {"w": tensor(n, r)}, "step": n}) for r in (0, 1)
}
SETS["numbered"] = lambda n: {
    f"shard-{r:05d}-of-2.pt": saved({"model": {"w": tensor(n, r)}, "step": 0, "done": n}) for r in (0, 1)
}
KINDS["thousands"] = lambda n: saved({"model": {"w": tensor(n)}, "epoch": n, "step": 1000 * n})
SETS["quad"] = lambda n: {f"shard-{r:05d}-of-4.pt": saved({"model": {"w": tensor(n, r)}}) for r in range(4)}
SETS["tps"] = lambda n: {f"tp{r}.pt": saved({"w": tensor(n, r)}) for r in (0, 1)}
ARGS = {"template": "step={step}/args.json", "role": "args", "shared": True}
DONE = {"template": "step={step}/_SUCCESS", "role": "done", "shared": True, "loaded": False}
PARTS = {"template": "step={step}/part-{shard}.pt", "shared": True}
OWN = {"template": TEMPLATE}


def of(*pieces: dict[str, Any], **more: Any) -> Made:
    """An empty directory, and a layout that is known from then on."""

    def make(root: Path) -> Path:
        taught(*pieces, **more)
        root.mkdir(parents=True)
        return root

    return make


MADE = {
    "own": of(),
    "keys": of(step_keys=["nowhere", "done"]),
    "guessed": of({"template": "checkpoint{step}.pth"}),
    "by-epoch": of({"template": "checkpoint{epoch}.pth"}),
    "ranks": of({"template": "step={step}/r{rank}.pt"}),
    "reshardable": of(PARTS, reshardable=True),
    "twice": of({"template": "step={step}/m-{step}.pt", "shared": True}),
    "done": of(OWN, DONE, commit="done"),
    "args": of(OWN, ARGS),
    "needed": of(OWN, ARGS, needs=["args"]),
    "epochs": of({"template": "e{epoch}.pt", "shared": True}, epoch_keys=["epoch"]),
    "replicated": of({"template": "step={step}/tp{tp}.pt", "replicated_over": ["dp"]}),
    "over-dp": of({"template": TEMPLATE, "replicated_over": ["dp"]}),
    "over-dp-sharded": of({"template": TEMPLATE, "replicated_over": ["dp"], "sharded": True}),
    "safetensors": of({"template": TEMPLATE, "formats": ["safetensors"]}),
    "both": of({"template": TEMPLATE, "formats": ["safetensors", "torch_zip"]}),
    "committed": of(committed=True),
    "kinds": of(
        {"template": "s{step}/a.pt", "shared": True, "single": True},
        {"template": "s{step}/b.pt", "shared": True, "single": True},
        {"template": "s{step}/notes.pt", "role": "notes", "shared": True, "loaded": False, "required": False},
        {"template": "s{step}.part/a.pt", "shared": True, "unfinished": True},
        {"template": "panic{step}/a.pt", "shared": True, "kind": "dying-gasp"},
    ),
}
TREES = table(
    """
    own slow
        # Every checkpoint needs the ranks that its own names tell: a job may grow or shrink between two saves.
        run/step=10/:quad run/step=20/:pair -> run/step=20 => ok
        then as it is | max_step=10 -> run/step=10
        then rm run/step=20/shard-00000-of-2.pt -> exit 2 save/topology-mismatch => broken missing-rank
        run/step=10/:pair run/step=20/:quad -> run/step=20 => ok
        then rm run/step=20/shard-00000-of-4.pt -> exit 2 save/topology-mismatch => broken missing-rank
        # What another number of ranks saved is never loaded in part.
        run/step=10/:quad run/step=20/:pair; cut run/step=20/shard-00001-of-2.pt
            -> exit 2 save/topology-mismatch
        then as it is | world_size=8 max_step=10 -> exit 2 save/topology-mismatch
        then as it is | world_size=2 max_step=10 replicas_all=yes -> exit 2 save/topology-mismatch
        # Directories above the template name the run.
        a/deep/step=10/:pair b/step=20/:pair -> exit 2 tree/several-runs
        then as it is | run=b -> b/step=20
        # A replica stands in only where the layout or a flag says so.
        run/step=10/:pair; cut run/step=10/shard-00001-of-2.pt
            -> exit 4 choice/none-usable -missing-rank -truncated
        then as it is | replicas_all=yes -> loads run/step=10/shard-00000-of-2.pt
        run/step=10/:pair; rm run/step=10/shard-00001-of-2.pt -> exit 4 choice/none-usable -missing-rank
        # Nothing tells that a shard is of another step.
        run/step=10/:numbered run/step=20/:numbered; cp run/step=10/shard-00001-of-2.pt run/step=20/shard-00001-of-2.pt
            -> run/step=20 +same-content +step-mismatch => suspect same-content step-mismatch
    keys slow
        run/step=10/:numbered run/step=20/:numbered; cp run/step=10/shard-00001-of-2.pt run/step=20/shard-00001-of-2.pt
            -> run/step=10 -missing-rank -step-mismatch => broken step-mismatch
    guessed
        # A template that is guessed says {step} of epochs, and the job would be told a step near nothing.
        checkpoint1.pth:thousands checkpoint2.pth:thousands -> checkpoint2.pth +step-mismatch => suspect step-mismatch
    by-epoch
        checkpoint1.pth:thousands checkpoint2.pth:thousands -> is mine periodic step 2000
    over-dp slow
        run/step=10/:pair; cut run/step=10/shard-00001-of-2.pt -> loads run/step=10/shard-00000-of-2.pt
    over-dp-sharded slow
        run/step=10/:pair; cut run/step=10/shard-00001-of-2.pt
            -> exit 4 choice/none-usable -missing-rank -truncated
    replicated
        step=5/:tps | world_size=4 sizes=tp:2 -> loads step=5/tp0.pt step=5/tp1.pt
    ranks
        step=5/r0.pt:model50 step=5/r1.pt:model51= step=5/r2.pt:model52= -> step=5 +world-size-inferred
    reshardable
        step=5/part-0.pt:model50 step=5/part-1.pt:model51= step=5/part-2.pt:model52= -> step=5
        then as it is | world_size=8 sizes=tp:2 -> step=5
        then as it is | world_size=7 sizes=tp:2 -> exit 2 save/parallel-sizes
    twice
        step=10/m-10.pt:model step=20/m-20.pt:model; mv step=20/m-20.pt step=10/m-20.pt
            -> step=10 -step-mismatch +unfinished-save => broken step-mismatch unfinished-save
    done slow
        run/step=10/:pair run/step=10/_SUCCESS:empty= run/step=20/:pair run/step=20/_SUCCESS:empty=
            -> loads run/step=20/shard-00000-of-2.pt run/step=20/shard-00001-of-2.pt => ok
        then empty run/step=20/shard-00001-of-2.pt -> run/step=10 -empty-file -missing-rank => broken empty-file
        run/step=10/:pair run/step=10/_SUCCESS:empty= run/step=20/:pair run/step=20/_SUCCESS:empty=;
            rm run/step=20/_SUCCESS -> run/step=10 +unfinished-save => suspect unfinished-save
        then rm run/step=10/_SUCCESS -> exit 2 tree/first-launch-leftovers +unfinished-save
    args slow
        run/step=10/:pair run/step=20/:pair -> run/step=20
    needed slow
        run/step=10/:pair run/step=20/:pair -> exit 4 choice/none-usable -missing-part
        then put run/step=10/args.json {} -> run/step=10 -missing-part
    epochs
        e1.pt:epoch1 e2.pt:epoch1 -> e1.pt -epoch-mismatch => broken epoch-mismatch
    safetensors slow
        run/step=10/:pair -> exit 4 choice/none-usable -missing-rank -wrong-format
    both slow
        run/step=10/:pair -> run/step=10
    kinds
        # One of two copies, and no notes; what is unfinished is no save.
        s10/a.pt:model10 s10/b.pt:model10= s20/a.pt:model20 s20/b.pt:model20= s20/notes.pt:model20= s30.part/a.pt:model30 | kind=periodic
            -> loads s20/a.pt
        then cut s20/a.pt; rm s20/notes.pt | kind=periodic -> loads s20/b.pt
        s10/a.pt:model10 s10/b.pt:model10= panic25/a.pt:model25 -> is mine dying-gasp step 25
    committed slow
        run/step=10/:pair; rm run/step=10/shard-00001-of-2.pt -> exit 2 save/groups-needed
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_a_layout_of_ones_own_leads_to(tree: str | Made, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


# --- mistakes


BAD_TABLES: list[tuple[object, str]] = [
    ("text", "layout is a list of tables"),
    (["text"], "layout 1: Expected `object`, got `str`"),
    ([{}], "layout 1: Object missing required field `name`"),
    ([{"name": "My Layout"}], "layout 1: Expected `str` matching regex '^[a-z0-9][a-z0-9_-]*\\\\Z' - at `$.name`"),
    ([{"name": "mine"}], "layout 1: Object missing required field `piece`"),
    ([layout(pieces=1)], "layout 1: Object contains unknown field `pieces`; docs/adding-a-layout.md has all keys"),
    ([layout(reshardable=1)], "layout 1: Expected `bool`, got `int` - at `$.reshardable`"),
    ([layout(needs="model")], "layout 1: Expected `array`, got `str` - at `$.needs`"),
    ([layout(needs=[1])], "layout 1: Expected `str`, got `int` - at `$.needs[0]`"),
    ([layout(tracker="")], "layout 1: Expected `str` of length >= 1 - at `$.tracker`"),
    ([layout(tracker="meta/LATEST")], "layout mine: tracker is a file's name, not the path 'meta/LATEST'"),
    ([layout(commit="done")], "layout mine: commit names the role 'done', which no piece has"),
    ([layout(tracker_holds="both")], "layout 1: Invalid enum value 'both' - at `$.tracker_holds`"),
    ([layout(resume_args=["{steps}"])], "layout mine: resume_args knows {path}, {base}, {step}"),
    ([{"name": "mine", "piece": "x"}], "layout 1: Expected `array`, got `str` - at `$.piece`"),
    ([{"name": "mine", "piece": ["x"]}], "layout 1: Expected `object`, got `str` - at `$.piece[0]`"),
    ([layout({"template": "a"}, {})], "layout mine, piece 2: a template is a path below"),
    ([layout({"template": "/abs/{rank}"})], "piece 1: a template is a path below"),
    ([layout({"template": "{ranks}.pt"})], "piece 1: {ranks} in {ranks}.pt: a field is one of tp, pp"),
    ([layout({"template": "{rank:099d}.pt"})], "min repeat greater than max repeat"),
    ([layout({"template": "{rank.pt"})], "{ in '{rank.pt' has no partner within that name"),
    ([layout({"template": "a]"})], "] in 'a]' has no partner"),
    ([layout({"template": "a", "kind": "weekly"})], "layout 1: Invalid enum value 'weekly' - at `$.piece[0].kind`"),
    ([layout({"template": "a", "formats": ["pth"]})], "piece 1: there is no format 'pth'; 'ckpt formats' lists them"),
    ([layout({"template": "a", "replicated_over": ["data"]})], "replicated_over names axes among tp, pp, ep, dp, cp, not 'data'"),
    ([layout({"template": "a", "weak": True})], "layout 1: Object contains unknown field `weak` - at `$.piece[0]`"),
    ([layout(), layout()], "there are two layouts called 'mine': choose another name"),
    ([layout(name="megatron")], "there are two layouts called 'megatron': choose another name"),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "says"), BAD_TABLES, ids=[says[:50] for _, says in BAD_TABLES])
def test_every_mistake_is_named_and_nothing_is_learnt(tables: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        user.load(tables, tuple(FORMATS))
    assert get_active().in_order == LAYOUTS


TOML = f"""
[[layout]]
name = "mine"
title = "our own trainer"
tracker = "LATEST"
resume_args = ["--ckpt", "{{path}}"]

[[layout.piece]]
template = "{TEMPLATE}"
formats = ["torch_zip"]
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with a ckpt.toml, and below it the tree of two saves."""
    (tmp_path / "ckpt.toml").write_text(TOML)
    root = tmp_path / "out"
    step(root, 10)
    step(root, 20)
    put(root / "run" / "LATEST", "20")
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.slow
def test_commands_know_the_layouts_of_the_file(tree: Path) -> None:
    code, out, _ = run("plan", "out", "--json")
    made = json.loads(out)
    assert (code, made["resume_step"], made["checkpoint"]["layout"]) == (0, 20, "mine")
    assert made["resume"]["args"] == ["--ckpt", str(tree / "run" / "step=20")]
    assert run("latest", "out", "--rank", "1")[:2] == (0, f"{tree}/run/step=20/shard-00001-of-2.pt\n")
    assert {f["layout"] for f in json.loads(run("verify", "out", "--json")[1])["files"]} == {"mine"}
    assert {c["step"] for c in json.loads(run("ls", "out", "--json")[1])["checkpoints"]} == {10, 20}
    assert run("plan", "out", "--layout", "megatron")[0] == 4
    known = [one["name"] for one in json.loads(run("layouts", "--json")[1])["layouts"]]
    assert (known[0], len(known)) == ("mine", len(LAYOUTS) + 1)


@pytest.mark.slow
def test_a_file_in_the_scanned_tree_teaches_nothing(tree: Path) -> None:
    shutil.move(tree.parent / "ckpt.toml", tree / "ckpt.toml")
    os.chdir(tree)
    _, out, err = run("ls", ".", "--json")
    assert "mine" not in {c["layout"] for c in json.loads(out)["checkpoints"]}
    assert "is not read, because it lies in the tree that is scanned" in err
    os.chdir("/")
    assert f"{tree}/ckpt.toml is not read" in run("ls", str(tree))[2]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "latest", "verify", "ls", "layouts", "layouts --check"])
def test_a_mistake_in_the_file_is_exit_2_with_a_hint(tree: Path, command: str) -> None:
    file = tree.parent / "ckpt.toml"
    for text, says in (
        (TOML.replace("tracker", "trackr"), "layout 1: Object contains unknown field `trackr`"),
        ('[layout]\nname = "mine"\n', "layout: {'name': 'mine'} is not a text"),
    ):
        if text.startswith("[layout]") and command in ("verify", "layouts"):
            continue  # then it is the setting --layout, which these do not have
        file.write_text(text)
        code, out, err = run(*command.split(), *["out"] * (command != "layouts"))
        assert (code, out) == (2, "")
        assert str(file) in err and says in err and "hint: " in err


# --- ckpt layouts --check


@pytest.mark.slow
def test_check_says_what_matches_and_what_nearly_does(tree: Path) -> None:
    code, out, _ = run("layouts", "--check", "out", "--json")
    answer = json.loads(out)
    assert (code, answer["schema"]) == (0, "ckpt-tools/layouts-check/v1")
    (row,) = answer["layouts-check"]
    assert (tree / row.pop("example")).exists()
    template = TEMPLATE.removeprefix("{run}/")
    assert row == {"layout": "mine", "template": template, "matched": 4, "near_misses": []}
    (tree / "run/stop=20").mkdir()
    (tree / "run/step=2x").mkdir()
    for name in ("20/shard-3-of-2.pt", "20/shard-00000-of-2.pt.bak", "2x/shard-00000-of-2.pt"):
        put(tree / f"run/step={name}", b"")
    put(tree / "run/stop=20/shard-00000-of-2.pt", b"")
    (row,) = json.loads(run("layouts", "--check", "out", "--json")[1])["layouts-check"]
    assert row["matched"] == 4
    assert [(m["path"], m["fits"], m["expected"], m["found"]) for m in row["near_misses"]] == [
        ("run/step=20/shard-00000-of-2.pt.bak", "step=20/shard-00000-of-2.pt", "the end of the name", ".bak"),
        ("run/step=20/shard-3-of-2.pt", "step=20/shard-", "{rank:05d}", "3-of-2.pt"),
        ("run/step=2x/shard-00000-of-2.pt", "step=2", "/shard-", "x/shard-00000-of-2.pt"),
    ]
    told = "fits up to 'step=20/shard-', then '{rank:05d}' is expected and '3-of-2.pt' is there"
    assert f"run/step=20/shard-3-of-2.pt: {told}" in run("layouts", "--check", "out")[1]


def test_check_shows_the_nearest_misses(tree: Path) -> None:
    for i in (4, 8, 0, 7, 1, 6, 2, 5, 3):
        # in the order of names the shortest comes first
        put(tree / "run" / "step=20" / f"{'shard-00000-of-2.pt'[: 2 * i + 1]}!{i}", b"")
    (row,) = json.loads(run("layouts", "--check", "out", "--json")[1])["layouts-check"]
    assert [m["path"][-1] for m in row["near_misses"]][:2] == ["8", "7"]
    assert len(row["near_misses"]) == 5


def test_check_fails_when_a_template_matches_nothing(tree: Path) -> None:
    with (tree.parent / "ckpt.toml").open("a") as f:
        f.write('[[layout.piece]]\ntemplate = "step={step}/optim-{rank}.pt"\nrole = "optimizer"\n')
    code, out, _ = run("layouts", "--check", "out", "--json")
    assert code == 1
    assert [row["matched"] for row in json.loads(out)["layouts-check"]] == [4, 0]


def test_check_survives_odd_trees(tree: Path) -> None:
    (tree / "run" / "loop").symlink_to("loop")
    (tree / "run" / "gone").symlink_to("nowhere")
    (tree / "run" / "up").symlink_to("..")
    put(tree / "run" / os.fsdecode(b"step=1\xff\n"), b"")
    (tree / "run" / "step=20" / "shard-00009-of-2.pt").mkdir()
    assert run("layouts", "--check", "out")[0] == 0
    assert run("layouts", "--check", "nowhere")[0] == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("out", "only looked at with --check"),
        ("--check out --layout nobody's", "there is no layout"),
        ("--check out --config empty.toml", "no layout of your own"),
    ],
)
def test_questions_that_check_cannot_answer(tree: Path, words: str, says: str) -> None:
    (tree.parent / "empty.toml").write_text("")
    code, _, err = run("layouts", *words.split())
    assert code == 2 and says in err and "hint: " in err


# --- the page


PAGE = DOCS / "adding-a-layout.md"


@pytest.mark.slow
def test_the_example_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)[:2])
    (tmp_path / "ckpt.toml").write_text(blocks["toml"])
    monkeypatch.chdir(tmp_path)
    put(step(tmp_path / "out", 1000, 8, run="run-7") / "_SUCCESS", b"")
    put(tmp_path / "out" / "run-7" / "LATEST", "1000\n")
    code, out, err = run("plan", "out", "--json")
    made = json.loads(out)
    assert (code, err, made["resume_step"], made["world_size"]) == (0, "", 1000, 8)
    assert made["resume"]["args"] == ["--resume", str(tmp_path / "out" / "run-7" / "step=1000")]
    put(tmp_path / "out" / "run-7" / "step=1000" / "shard-3-of-8.pt", b"")
    assert run("layouts", "--check", "out")[1] == blocks["text"].partition("\n")[2]


def test_every_key_and_field_is_on_the_page() -> None:
    page = PAGE.read_text()
    layouts, *tables = re.split(r"\| (?:key of `\[\[layout\.piece|of a `)", page)
    kinds = (
        user.LayoutTable.__struct_fields__,
        user.PieceTable.__struct_fields__,
        Layout.__struct_fields__,
        Piece.__struct_fields__,
    )
    for rows, fields in zip((layouts.partition("| key of")[2], *tables), kinds, strict=True):
        first = " ".join(line.split("|")[1] for line in rows.splitlines() if line.startswith("| `"))
        assert set(re.findall(r"`(\w+)`", first)) == set(fields)
    told = layouts.partition("| in a template")[2].partition("| key of")[0]
    assert set(re.findall(r"`\{(\w+)\}`", told)) == {*FIELDS} - {"run"}


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from([*user.LayoutTable.__struct_fields__, *user.PieceTable.__struct_fields__]) | st.text(max_size=5), v, max_size=4), max_leaves=12))  # fmt: skip
def test_any_table_is_read_or_refused(value: object) -> None:
    with suppress(ValueError):
        user.load([value], tuple(FORMATS))


@pytest.mark.parametrize(
    "template",
    [
        "{name}{name}{name}.pt", "{prefix}_{name}_{name}_{run}.pt", "{tp}{pp}{ep}{dp}.pt", "{tp}[_]{pp}[a]{ep}[.-]{dp}.pt",
        "[" * 9 + "a" + "]" * 9, "a" * 1025,
    ],
)  # fmt: skip
def test_a_template_that_reads_a_name_in_too_many_ways_is_refused(template: str) -> None:
    """A hostile name would be tried in each of them."""
    with pytest.raises(ValueError, match=r"longer than|any text|nothing between|nests"):
        user.load([{"name": "theirs", "piece": [{"template": template}]}])
    own = (
        "{prefix}-{name}_{step}.pt",
        "{tp}_{pp}_{ep}_{dp}_{cp}.pt",
        "{run}/{name}/{prefix}/a[_{tp}[_{pp}]].pt",
    )
    for taken in own:
        assert user.load([{"name": "theirs", "piece": [{"template": taken}]}])
