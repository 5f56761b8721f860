"""`ckpt ls`: what --tree and --since show. On real files."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from in_process import executed
from places import FIXTURES
from small_files import mindspore

from ckpt_tools import scan
from ckpt_tools.cli.ls import moment
from ckpt_tools.output.page import FEW, View
from ckpt_tools.output.scan import draw

HOUR = 3600.0


@pytest.fixture
def demo(tmp_path):
    """The four-rank job: step 10 was saved two days ago, step 20 half an hour ago."""
    root = Path(shutil.copytree(FIXTURES / "demo", tmp_path / "demo"))
    for step, age in ((10, 48 * HOUR), (20, HOUR / 2)):
        for f in (root / f"iter_00000{step}").rglob("*.pt"):
            os.utime(f, (time.time() - age,) * 2)
    return root


def ls(*argv):
    """(exit code, stdout, stderr) of ``ckpt ls``."""
    return executed(["ls", *map(str, argv)])


def listed(*argv):
    """The document that it prints."""
    return json.loads(ls(*argv, "--json")[1])


def steps(*argv):
    return [c["step"] for c in listed(*argv)["checkpoints"]]


TREE = """\
checkpoint                             what       ranks            size     age
.                                      megatron                 992 KiB
├─ step 20                             –          4/4           463 KiB  30 min
│  ├─ mp_rank_00/model_optim_rng_0.pt  model      rank 0 tp=0   132 KiB  30 min
│  ├─ mp_rank_01/model_optim_rng_1.pt  model      rank 1 tp=1   132 KiB  30 min
│  ├─ mp_rank_00/model_optim_rng_2.pt  model      rank 2 tp=0   132 KiB  30 min
│  └─ mp_rank_01/model_optim_rng_3.pt  model      rank 3 tp=1  66.1 KiB  30 min
└─ step 10                             resumable  4/4           529 KiB     2 d
   ├─ mp_rank_00/model_optim_rng_0.pt  model      rank 0 tp=0   132 KiB     2 d
   ├─ mp_rank_01/model_optim_rng_1.pt  model      rank 1 tp=1   132 KiB     2 d
   ├─ mp_rank_00/model_optim_rng_2.pt  model      rank 2 tp=0   132 KiB     2 d
   └─ mp_rank_01/model_optim_rng_3.pt  model      rank 3 tp=1   132 KiB     2 d

2 checkpoints
"""


@pytest.mark.slow
def test_tree(demo):
    newest = max(c.mtime_ns for c in scan(str(demo)).checkpoints)
    assert draw(scan(str(demo)), View(now=newest / 1e9 + HOUR / 2)) == TREE
    code, out, err = ls(demo, "--tree")
    begins = [[line.split("  ")[0] for line in text.splitlines()] for text in (out, TREE)]
    assert (code, err) == (0, "") and begins[0] == begins[1]
    root = FIXTURES / "layouts/mindspore/pangu/tree"
    out = ls(root, "--tree")[1]  # of all runs each file
    assert all(out.count(f"{p.name} ") == 1 for p in root.rglob("*.ckpt")) and "dying-gasp" in out


def table(root):
    """The header and the first row of ``ckpt ls``, cell by cell."""
    return [re.split(r"  +", line.strip()) for line in ls(root, "-q")[1].splitlines()[:2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "label"), [("tensorflow/manager", "step 40, save 40"), ("accelerate/auto", "save 2")]
)
def test_a_count_of_saves_is_no_count_of_restarts(case, label):
    root = FIXTURES / "layouts" / case / "tree"
    header, _ = table(root)
    assert header[-2:] == ["save", "path"] and "restart" not in header
    saves = {line.split()[-2] for line in ls(root, "-q")[1].splitlines()[1:-2]}
    assert saves == {str(c["generation"]) for c in listed(root)["checkpoints"]}
    drawn = ls(root, "--tree")[1]
    assert f"─ {label} " in drawn and "restart" not in drawn and "unknown" not in drawn


def test_restarts_are_called_so(tmp_path):
    """MindSpore's K: at the same epoch and step it tells two attempts apart."""
    for name in ("net-1_5.ckpt", "net_1-1_10.ckpt", "net_1-1_15.ckpt"):
        (tmp_path / name).write_bytes(b"x")
    header, row = table(tmp_path)
    assert header[-2:] == ["restart", "path"] and "save" not in header and row[-2] in "01"
    assert "─ epoch 1 step 10, restart 1 " in ls(tmp_path, "--tree")[1]


RANKS = {
    "2": ("deepspeed/zero1", "deepspeed/pipeline", "megatron/distopt_old", "hf-trainer/fsdp"),
    "4": ("megatron/pp",),
    "4/4": ("megatron/ascend", "dcp/four"),
    "2/2": ("mindspore/resnet",),
    "–": ("deepspeed-universal/converted", "tensorflow/sharded", "orbax/ocdbt", "sharded-safetensors/transformers"),
}  # fmt: skip
"""Of zero1 one file of model states, one of optimizer states for each of two data parallel ranks; of fsdp random
numbers of two ranks: a job of any number may load it.
"""


def test_ranks_are_those_that_names_tell():
    for ranks, cases in RANKS.items():
        for case in cases:
            header, row = table(FIXTURES / "layouts" / case / "tree")
            said = row[header.index("ranks")] if "ranks" in header else "–"
            assert said == ranks, (case, "what says nothing is left out")


@pytest.mark.parametrize("case", ["ocdbt", "cut"])
def test_the_size_of_an_orbax_checkpoint_is_that_of_its_directory(case):
    answer = listed(FIXTURES / "layouts/orbax" / case / "tree")
    assert answer["checkpoints"] and answer["bare"] == answer["unrecognised"] == 0
    for c in answer["checkpoints"]:
        mine = [p for p in Path(c["path"]).rglob("*") if p.is_file()]
        assert (c["files"], c["size"]) == (len(mine), sum(p.stat().st_size for p in mine))


@pytest.mark.slow
def test_only_a_checkpoint_owns_what_lies_below_its_number(tmp_path):
    """Data is told by its place alone: a number without a checkpoint, and the files of other layouts and
    trackers inside one, are none of it, and are what they are elsewhere.
    """
    shutil.copytree(FIXTURES / "layouts/orbax/ocdbt/tree/ck", tmp_path, dirs_exist_ok=True)
    before = listed(tmp_path)
    for name in ("99/notes/a.txt", "99/notes/b/c", "20/default/net-graph.meta", "20/default/d/x.tmp", "20/hf/latest", "20/hf/model.safetensors.index.json", "20/hf/model-00001-of-00002.safetensors"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "20/own").mkdir()
    (tmp_path / "20/own/net-1_7.ckpt").write_bytes(mindspore(True, 0, step_num=7))
    after = listed(tmp_path)
    sizes = [
        {c["path"]: (c["files"], c["size"]) for c in answer["checkpoints"] if c["layout"] == "orbax"}
        for answer in (before, after)
    ]
    assert sizes[0] == sizes[1] and len(sizes[0]) == 2
    others = {(c["path"], c["step"]) for c in after["checkpoints"] if c["layout"] != "orbax"}
    assert others == {(f"{tmp_path}/20/hf", None), (f"{tmp_path}/20/own/net-1_7.ckpt", 7)}
    (found,) = after["findings"]
    assert (after["unrecognised"], found["path"]) == (2, str(tmp_path / "20/default/d/x.tmp"))


def test_data_does_not_date_a_checkpoint(tmp_path):
    """Its time is that of the files that verify and plan know by name, as in a plan."""
    shutil.copytree(FIXTURES / "layouts/orbax/cut/tree", tmp_path, dirs_exist_ok=True)
    for p in tmp_path.rglob("*"):
        os.utime(p, (1_700_000_000 + 1000 * (p.parent.name == "d"),) * 2)
    answer = listed(tmp_path)["checkpoints"]
    assert {c["unfinished"] for c in answer} == {True, False}
    assert {c["mtime"] for c in answer} == {1_700_000_000}


@pytest.mark.slow
def test_long_checkpoints_are_cut_unless_verbose(tmp_path):
    source = FIXTURES / "layouts/mindspore/pangu/tree/rank_0/pangu0-1_4.ckpt"
    ranks = FEW + 10
    for rank in range(ranks):
        (tmp_path / f"rank_{rank}").mkdir()
        shutil.copyfile(source, tmp_path / f"rank_{rank}/net-1_4.ckpt")
    out = ls(tmp_path, "--tree")[1]
    assert out.count("net-1_4.ckpt") == FEW - 1
    assert f"└─ {ranks - FEW + 1} more files (--verbose lists them)" in out
    assert ls(tmp_path, "--tree", "-v")[1].count("net-1_4.ckpt") == ranks


SINCE = {0: "10m 2999-01-01", 1: "1h 1h30m 1d", 2: "3d 2000-01-01 2000-01-01T08:00:00Z"}


@pytest.mark.parametrize(
    ("count", "since"), [(n, word) for n, words in SINCE.items() for word in words.split()]
)
def test_since(demo, since, count):
    left = [20, 10][:count]
    assert ls(demo, "--since", since)[0] == (0 if left else 3)
    assert sorted(steps(demo, "--since", since), reverse=True) == left
    assert ls(demo, "--since", since, "--tree")[1].count("step ") == len(left)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1h", 1e9 - 3600), ("90s", 1e9 - 90), (" 2d", 1e9 - 172800), ("2001-09-09T01:46:40Z", 1e9),
        ("2001-09-09T03:46:40+02:00", 1e9), ("2024-05-01T12:00", time.mktime((2024, 5, 1, 12, 0, 0, 0, 0, -1))),
    ],
)  # fmt: skip
def test_moments(text, wanted):
    assert moment(text, 1e9) == wanted


@pytest.mark.parametrize(
    "text", ["", "yesterday", "20", "2h ago", "-2h", "2 weeks", "2024-13-01", "1e9", "nan", "9" * 400 + "d"]
)
def test_what_is_no_time(text, tmp_path):
    code, out, err = ls(tmp_path, f"--since={text}")
    assert (code, out) == (2, "") and "use 90m, 2h, 3d" in err


def test_filters_work_together_and_tree_is_for_people(demo):
    code, _, err = ls(demo, "--tree", "--json")
    assert code == 2 and "leave one of them out" in err
    shutil.copytree(demo / "iter_0000020", demo.parent / "other/iter_0000030")
    out = ls(demo.parent, "--run", "demo", "--tree", "--since", "1h")[1]
    assert re.findall(r"step \d+", out) == ["step 20"] and "other" not in out


@pytest.mark.slow
def test_steps_are_filtered_as_a_plan_filters_them_and_ordered_by_time(demo):
    assert (steps(demo), steps(demo, "--max-step", "19")) == ([20, 10], [10])
    assert ls(demo, "--max-step", "9")[0] == 3
    for f in (demo / "iter_0000010").rglob("*.pt"):
        os.utime(f)
    for flags, order in (((), [10, 20]), (("--order", "mtime"), [10, 20]), (("--order", "step"), [20, 10])):
        assert steps(demo, *flags) == order


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["periodic", "dying-gasp", "best"])
def test_only_one_kind(kind):
    root = FIXTURES / "layouts/mindspore/pangu/tree"
    kinds = [c["kind"] for c in listed(root)["checkpoints"]]
    assert {"periodic", "dying-gasp"} == set(kinds)
    assert [c["kind"] for c in listed(root, "--kind", kind)["checkpoints"]] == [k for k in kinds if k == kind]
    assert ls(root, "--kind", kind)[0] == (0 if kind in kinds else 3)


def test_a_step_that_only_contents_tell_is_filtered_too(tmp_path):
    """A name without a global step (MindSpore's epoch and step in it): a plan reads it in the file, and so
    does --max-step.
    """
    for epoch, done in ((1, 5), (2, 10)):
        (tmp_path / f"net-{epoch}_5.ckpt").write_bytes(mindspore(True, 0, step_num=done, epoch_num=epoch))
    for most, epochs in {4: [], 5: [1], 9: [1], 10: [2, 1]}.items():
        found = listed(tmp_path, "--max-step", most)["checkpoints"]
        assert [c["epoch"] for c in found] == epochs
