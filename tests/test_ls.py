"""`ckpt ls`: what --tree and --since show. On real files."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ckpt_tools import cli, scan
from ckpt_tools.cli.ls import moment
from ckpt_tools.emit import tree
from ckpt_tools.emit.table import FEW
from ckpt_tools.errors import UsageError

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
HOUR = 3600.0


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """The four-rank job: step 10 was saved two days ago, step 20 half an hour ago."""
    for name in [n for n in os.environ if n.startswith("CKPT_")]:
        monkeypatch.delenv(name)
    root = Path(shutil.copytree(FIXTURES / "demo", tmp_path / "demo"))
    now = time.time()
    for step, age in ((10, 48 * HOUR), (20, HOUR / 2)):
        for f in (root / f"iter_00000{step}").rglob("*.pt"):
            os.utime(f, (now - age, now - age))
    return root


def ls(capfd, *argv):
    """(exit code, stdout, stderr) of ``ckpt ls``."""
    capfd.readouterr()
    code = cli.run(["ls", *map(str, argv)])
    return code, *capfd.readouterr()


def steps(out):
    return [c["step"] for c in json.loads(out)["checkpoints"]]


TREE = """\
checkpoint                             what      ranks            size     age
.                                      megatron                992 KiB
├─ step 20                             periodic  4/4           463 KiB  30 min
│  ├─ mp_rank_00/model_optim_rng_0.pt  model     rank 0 tp=0   132 KiB  30 min
│  ├─ mp_rank_01/model_optim_rng_1.pt  model     rank 1 tp=1   132 KiB  30 min
│  ├─ mp_rank_00/model_optim_rng_2.pt  model     rank 2 tp=0   132 KiB  30 min
│  └─ mp_rank_01/model_optim_rng_3.pt  model     rank 3 tp=1  66.1 KiB  30 min
└─ step 10                             periodic  4/4           529 KiB     2 d
   ├─ mp_rank_00/model_optim_rng_0.pt  model     rank 0 tp=0   132 KiB     2 d
   ├─ mp_rank_01/model_optim_rng_1.pt  model     rank 1 tp=1   132 KiB     2 d
   ├─ mp_rank_00/model_optim_rng_2.pt  model     rank 2 tp=0   132 KiB     2 d
   └─ mp_rank_01/model_optim_rng_3.pt  model     rank 3 tp=1   132 KiB     2 d

2 checkpoints
"""


def test_tree(demo, capfd):
    newest = max(c.mtime_ns for c in scan(str(demo)).checkpoints)
    assert tree.render(scan(str(demo)), now=newest / 1e9 + HOUR / 2) == TREE
    code, out, err = ls(capfd, demo, "--tree")
    assert (code, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()] == [line.split("  ")[0] for line in TREE.splitlines()]


def test_every_run_and_every_file_is_in_the_tree(capfd):
    root = FIXTURES / "layouts/mindspore/pangu/tree"
    out = ls(capfd, root, "--tree")[1]
    files = [p.name for p in root.rglob("*.ckpt")]
    assert files
    assert all(out.count(f"{name} ") == 1 for name in files)
    assert "dying-gasp" in out


def test_long_checkpoints_are_cut_unless_verbose(tmp_path, capfd):
    source = FIXTURES / "layouts/mindspore/pangu/tree/rank_0/pangu0-1_4.ckpt"
    ranks = FEW + 10
    for rank in range(ranks):
        (tmp_path / f"rank_{rank}").mkdir()
        shutil.copyfile(source, tmp_path / f"rank_{rank}/net-1_4.ckpt")
    out = ls(capfd, tmp_path, "--tree")[1]
    assert out.count("net-1_4.ckpt") == FEW - 1
    assert f"└─ {ranks - FEW + 1} more files (--verbose lists them)" in out
    assert ls(capfd, tmp_path, "--tree", "-v")[1].count("net-1_4.ckpt") == ranks


def test_names_cannot_steer_the_terminal(tmp_path, capfd):
    shutil.copyfile(FIXTURES / "layouts/mindspore/pangu/tree/rank_0/pangu0-1_4.ckpt", tmp_path / "n\x1b[2Jet-1_4.ckpt")
    out = ls(capfd, tmp_path, "--tree")[1]
    assert "\x1b" not in out
    assert r"n\x1b[2Jet-1_4.ckpt" in out


def test_a_tree_of_nothing(tmp_path, capfd):
    code, out, _ = ls(capfd, tmp_path, "--tree")
    assert (code, out) == (3, "\n0 checkpoints\n")
    assert tree.render(scan(str(tmp_path)), color=False) == out


@pytest.mark.parametrize(
    ("since", "left"),
    [
        ("10m", []),
        ("1h", [20]),
        ("1h30m", [20]),
        ("1d", [20]),
        ("3d", [20, 10]),
        ("2000-01-01", [20, 10]),
        ("2000-01-01T08:00:00Z", [20, 10]),
        ("2999-01-01", []),
    ],
)
def test_since(demo, capfd, since, left):
    code, out, _ = ls(capfd, demo, "--since", since, "--json")
    assert (code, sorted(steps(out), reverse=True)) == (0 if left else 3, left)
    assert ls(capfd, demo, "--since", since, "--tree")[1].count("periodic") == len(left)
    assert ls(capfd, demo, "--since", since)[1].count("periodic") == len(left)


def test_since_a_date(demo, capfd):
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    assert steps(ls(capfd, demo, "--since", yesterday.isoformat(), "--json")[1]) == [20]
    assert steps(ls(capfd, demo, "--since", f"{yesterday:%Y-%m-%d}", "--json")[1]) == [20]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1h", 1e9 - 3600), ("90s", 1e9 - 90), (" 2d", 1e9 - 172800), ("2001-09-09T01:46:40Z", 1e9), ("2001-09-09T03:46:40+02:00", 1e9)],
)
def test_moments(text, wanted):
    assert moment(text, 1e9) == wanted


def test_a_date_without_a_zone_is_local_time():
    assert moment("2024-05-01T12:00", 0.0) == time.mktime((2024, 5, 1, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize("text", ["", "yesterday", "20", "2024", "2h ago", "-2h", "2 weeks", "2024-13-01", "1e9", "nan", "9" * 400 + "d"])
def test_what_is_no_time(demo, capfd, text):
    with pytest.raises(UsageError):
        moment(text, 1e9)
    code, out, err = ls(capfd, demo, f"--since={text}")
    assert (code, out) == (2, "")
    assert "say 90m, 2h or 3d" in err


def test_tree_is_for_people(demo, capfd):
    code, _, err = ls(capfd, demo, "--tree", "--json")
    assert code == 2
    assert "leave one of them out" in err


def test_filters_work_together(demo, capfd):
    other = demo.parent / "other"
    shutil.copytree(demo / "iter_0000020", other / "iter_0000030")
    out = ls(capfd, demo.parent, "--run", "demo", "--tree", "--since", "1h")[1]
    assert re.findall(r"step \d+", out) == ["step 20"]
    assert "other" not in out
