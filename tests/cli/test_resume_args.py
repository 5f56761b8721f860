"""How a command learns of what was chosen: ``--resume-args``, words that vanish on a first launch, one file for
replicas; and that nothing starts where it would not. ``CKPT_ARGS``: the words come back from any shell as they were.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sample_results as sample
import small_files
from hook_job import torch_file
from in_process import Start, executed, started
from msgspec.structs import replace
from run_helpers import OLD, SAY, ckpt, megatron, one_file_per_rank, torchrun_env
from timed import lay, put

from ckpt_tools import Selection, plan
from ckpt_tools.model.plan import Resume
from ckpt_tools.output import shell

TRAIN = ["train", "{ckpt.args}"]
UNHEARD = "the command would not learn of it"
SCRIPTS = ("hook", "plan --format shell")
"""Commands whose answer a script reads."""


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A plain training loop's."""
    for step in (10, 20):
        torch_file(tmp_path / f"run/step_{step}.pt", step)
    return tmp_path / "run"


def samples(root: Path) -> Path:
    """The ImageNet sample on two nodes of eight devices: the first rank of each saves."""
    for rank in (0, 8):
        put(root / f"rank_{rank}/model_best.pth.tar", small_files.sample(7), OLD + 7)
    return root


def told(start: Start) -> list[str]:
    assert start.code == 0 and start.words is not None, start.said
    return start.words[1:]


def hint(start: Start) -> str:
    assert (start.code, start.words) == (2, None) and UNHEARD in start.said, start.said
    return start.said.partition("hint: ")[2]


def pasted(line: str) -> Start:
    """A line of ``ckpt run`` that was printed."""
    words = shlex.split(line)
    assert words[:2] == ["ckpt", "run"]
    end = words.index("--")
    return started(words[2:end], words[end + 1 :])


def test_a_loop_without_arguments_does_not_start_and_the_line_that_is_printed_does(loop: Path) -> None:
    line, mark, _ = hint(started([loop, "--allow=none"], TRAIN)).partition(", with the flag")
    assert mark and "reads CKPT_PATH" in hint(started([loop], TRAIN))
    assert "--allow=none" in line and told(pasted(line)) == ["--resume", str(loop / "step_20.pt")]


def test_a_command_reads_the_path_or_is_told_the_step(loop: Path) -> None:
    start = started([loop], ["train"])
    assert told(start) == [] and start.env["CKPT_PATH"] == str(loop / "step_20.pt")
    assert told(started([loop], ["train", "--at={ckpt.step}"])) == ["--at=20"]


@pytest.mark.parametrize("words", [TRAIN, ["train"]])
def test_a_file_for_each_rank_is_no_answer_for_all(tmp_path: Path, words: list[str]) -> None:
    root = one_file_per_rank(tmp_path / "run")
    said = hint(started([root], words))
    assert all(flag in said for flag in ("--worker", "--view DIR", "--resume-args"))
    for command in SCRIPTS:
        code, out, said = executed([*command.split(), str(root)])
        assert (code, out) == (2, "(exit 2)\n") and UNHEARD in said


def test_the_line_inside_of_torchrun_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = one_file_per_rank(tmp_path / "run")
    launch = ["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py", "{ckpt.args}"]
    line = hint(started([root], launch)).partition("with: ")[2].partition(", with the flag")[0]
    launcher, _, inner = line.partition("ckpt run ")
    assert launcher == "python -m torch.distributed.run --nproc-per-node=2 --no-python "
    for rank in range(2):
        for name, value in torchrun_env(rank, 2).items():
            monkeypatch.setenv(name, value)
        assert told(pasted(f"ckpt run {inner}"))[-2:] == ["--resume", f"{root}/rank_{rank}/net-1_20.ckpt"]


def test_ranks_that_read_their_part_later(tmp_path: Path) -> None:
    root = one_file_per_rank(tmp_path / "run")
    code, out, said = executed(["hook", str(root), "--by-rank", "--resume-args", "--from {path}"])
    assert code == 0, said
    exported = dict(word.partition("=")[::2] for word in shlex.split(out)[1:])
    assert (exported["CKPT_PATH"], exported["CKPT_ARGS"]) == ("", "")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in exported.items():
            patch.setenv(name, value)
        assert executed(["hook", "--read"])[0] == 2  # not a rank of the job
        code, out, _ = executed(["hook", "--read", "--rank", "1"])
    assert f"CKPT_ARGS='--from {root}/rank_1/net-1_20.ckpt'" in out


def test_the_callers_arguments_go_before_the_layouts(root: Path) -> None:
    start = started([root, "--resume-args", "--from {path} --at={step} '${HOME} x'"], TRAIN)
    assert told(start) == ["--from", str(root), "--at=20", "${HOME} x"]
    assert start.env["CKPT_ARGS"] == shlex.join(told(start))
    made = json.loads(executed(["plan", str(root), "--json", "--resume-args", "--at {step}"])[1])
    assert made["resume"]["args"] == ["--at", "20"] and made["resume"]["path"] == str(root)
    hooked = json.loads(executed(["hook", str(root), "--json", "--resume-args", "--at {step}"])[1])
    assert hooked["resume"]["args"] == ["--at", "20"] and hooked["env"]["CKPT_ARGS"] == "--at 20"


@pytest.mark.parametrize("value", ['"--resume {path}"', '["--resume", "{path}"]'])
@pytest.mark.parametrize("key", ["resume_args", "resume-args"])
def test_they_can_stand_in_the_configuration(loop: Path, key: str, value: str) -> None:
    Path("ckpt.toml").write_text(f"{key} = {value}\n")
    assert told(started([loop], TRAIN)) == ["--resume", str(loop / "step_20.pt")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--from {base}", "it knows {path}, {files}, {step}, {epoch}, not {base}"),
        ("'", "No closing quotation"),
        ("", ""),
    ],
)
def test_what_cannot_be_filled_in_is_refused(loop: Path, given: str, said: str) -> None:
    start = started([loop, "--resume-args", given], TRAIN)
    assert (start.code, start.words) == (2, None) and said in start.said


def test_a_number_that_is_not_known_is_never_passed_as_nothing(loop: Path) -> None:
    assert "not known" in started([loop, "--resume-args", "--at {epoch}"], ["train"]).said
    assert hint(started([loop, "--resume-args", "--at {epoch}"], TRAIN))
    code, out, said = executed(["plan", str(loop), "--format", "shell", "--resume-args", "--at {epoch}"])
    assert (code, out) == (2, "(exit 2)\n") and UNHEARD in said


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--resume", "{ckpt.path}"], []), (["--resume={ckpt.path}"], []),
        (["--load", "{ckpt.path}/model", "--lr", "3"], ["--lr", "3"]), (["trainer.path={ckpt.path}", "x"], ["x"]),
        (["--lr=3", "{ckpt.path}"], ["--lr=3"]), (["name", "{ckpt.path}"], ["name"]),
        (["-c", "use '{ckpt.path}'"], ["-c", "use ''"]), (["{ckpt.args}", "--at={ckpt.step}"], ["--at="]),
    ],
)  # fmt: skip
def test_words_that_hold_the_path_vanish(tmp_path: Path, words: list[str], left: list[str]) -> None:
    (tmp_path / "run").mkdir()
    given = [tmp_path / "run", "--allow=none", "--resume-args", "--resume {path}"]
    assert told(started(given, ["train", *words])) == left


def printed(root: Path, *options: str) -> str:
    code, out, said = executed(["plan", str(root), "--format", "shell", *options])
    assert code in (0, 2), said
    return out


def test_replicas_are_one_file_for_all_ranks(tmp_path: Path) -> None:
    root = samples(tmp_path / "run")
    path = f"{root}/rank_0/model_best.pth.tar"
    launch = ["torchrun", "--nproc-per-node=16", "main.py"]
    assert told(started([root], [*launch, "{ckpt.args}"]))[-2:] == ["--resume", path]
    assert told(started([root], [*launch, "{ckpt.path}"]))[-1] == path
    assert f"CKPT_PATH={path} " in printed(root) and f"'--resume {path}'" in printed(root)
    made = plan(str(root), Selection(world_size=16))
    assert made.resume.path == path and {f.path for r in made.ranks for f in r.files} > {path}


def test_files_of_other_tensors_are_no_replicas(tmp_path: Path) -> None:
    """The layout says that they are: what they hold contradicts it."""
    root = samples(tmp_path / "run")
    state = {"epoch": 7, "arch": "resnet18", "state_dict": {"w": small_files.tensor(1, shape=(2, 6))}}
    state |= {"best_acc1": 0.5, "optimizer": small_files.adam(7)}
    put(root / "rank_8/model_best.pth.tar", small_files.saved(state), OLD + 7)
    assert printed(root) == "(exit 2)\n"


def test_ranks_that_the_caller_calls_replicas(tmp_path: Path) -> None:
    root = one_file_per_rank(tmp_path / "run")
    assert printed(root) == "(exit 2)\n"
    assert f"CKPT_PATH={root}/rank_0/net-1_20.ckpt " in printed(root, "--replica-groups", "all")
    assert f"CKPT_PATH={root}/rank_0/net-1_20.ckpt " in printed(root, "--replica-groups", "0,1")
    assert printed(root, "--replica-groups", "0;1") == "(exit 2)\n"
    made = plan(str(root), Selection(replicas_all=True, prove_replicas=True))
    assert made.resume.path is None  # their tensors differ


def files(made: Any) -> dict[int, list[str]]:
    return {r.rank: [os.path.basename(f.path) for f in r.files] for r in made.ranks}


def test_ranks_are_never_empty_where_files_are_planned(tmp_path: Path) -> None:
    lay(tmp_path / "run/step-5", small_files.dcp(5))
    made = plan(str(tmp_path / "run"))
    shared = sorted(os.path.basename(f.path) for f in made.shared)
    assert made.by_rank == () and shared
    assert {rank: sorted(names) for rank, names in files(made).items()} == {0: shared}
    of_two = files(plan(str(tmp_path / "run"), Selection(world_size=2)))
    assert {rank: sorted(names) for rank, names in of_two.items()} in ({0: shared}, {0: shared, 1: shared})
    (tmp_path / "none").mkdir()
    assert plan(str(tmp_path / "none"), Selection(allow_none=True)).ranks == ()


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A model and its optimizer beside it, for two steps."""
    for step in (10, 20):
        saved = {"model": {"w": small_files.tensor(step)}, "optim": small_files.adam(step)}
        lay(tmp_path / "pair", {f"{name}_{step}.pt": small_files.saved(s) for name, s in saved.items()}, step)
    return tmp_path / "pair"


def test_a_loop_that_is_told_of_one_of_two_files_is_warned(pair: Path) -> None:
    alone = "model_20.pt alone, and optim_20.pt must be loaded with it"
    start = started([pair, "--resume-args", "--resume {path}"], TRAIN)
    assert start.code == 0 and f"{{path}} names {alone}" in start.said
    assert f"the path names {alone}" in started([pair], ["train"]).said
    for command in SCRIPTS:
        code, _, said = executed([*command.split(), str(pair), "--resume-args", "--resume {path}"])
        assert code == 0 and alone in said and "{files}" in said


def test_each_file_is_a_word(pair: Path) -> None:
    both = [str(pair / "model_20.pt"), str(pair / "optim_20.pt")]
    start = started([pair, "--resume-args", "--resume {files}"], TRAIN)
    assert told(start) == ["--resume", *both] and "alone" not in start.said
    made = json.loads(executed(["plan", str(pair), "--json", "--resume-args", "--at {step} {files}"])[1])
    assert made["resume"]["args"] == ["--at", "20", *both]
    assert executed(["plan", str(pair), "--resume-args", "--from={files}"])[0] == 2


def test_a_script_is_told_that_its_arguments_are_empty(loop: Path) -> None:
    for command in SCRIPTS:
        words = [*command.split(), str(loop)]
        code, _, said = executed(words)
        assert code == 0 and "CKPT_ARGS is empty" in said
        assert "CKPT_ARGS is empty" not in executed([*words, "--resume-args", "--at {step}"])[2]


def test_words_that_the_command_does_not_get_start_nothing(loop: Path) -> None:
    asked = [loop, "--resume-args", "--resume {path}"]
    line, mark, reads = hint(started(asked, ["train"])).partition("; or, if it reads CKPT_ARGS by itself: ")
    assert mark and told(pasted(line)) == ["--resume", str(loop / "step_20.pt")]
    assert pasted(reads).code == 0
    assert started(asked, ["sh", "-c", "exec train $CKPT_ARGS"]).code == 0
    assert started(asked, ["train", "{ckpt.path}"]).code == 0


SHELLS = [name for name in ("dash", "bash", "zsh", "ksh", "busybox") if shutil.which(name)]
HOSTILE = (
    "a b", "it's", 'say "x"', "$HOME `id` $(id)", "new\nline\n", "\\", "*", "", "-n", "--", "~", "!x", "\udcff\udc80", "\u202e", "a;b|c&d", "\t", "[x]{a,b}", "#c", "=ls", "\x1b[2J",
)  # fmt: skip


def words_of(name: str, text: str, script: str) -> list[bytes]:
    """What a shell makes of the line that a plan prints."""
    command = [name, *(["sh"] if name == "busybox" else []), "-c", f"{text}{script}"]
    done = subprocess.run([os.fsencode(word) for word in command], capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.split(b"\0")[:-1]


def line(args: tuple[str, ...]) -> str:
    return shell.render(replace(sample.plan(), resume=Resume("/x", args)))


SET = 'eval "set -- $CKPT_ARGS"; [ $# = 0 ] || printf \'%s\\0\' "$@"\n'
ARRAY = 'eval "args=($CKPT_ARGS)"; [ ${#args[@]} = 0 ] || printf \'%s\\0\' "${args[@]}"\n'


@pytest.mark.parametrize("name", SHELLS)
def test_every_shell_gives_the_words_back(name: str) -> None:
    assert {"dash", "bash"} <= set(SHELLS)
    for args in (HOSTILE, ("--load", "/a b", "--ckpt-step", "10"), ()):
        for script in (SET, *([ARRAY] if name in ("bash", "zsh", "ksh") else [])):
            assert words_of(name, line(args), script) == [os.fsencode(a) for a in args]


@pytest.mark.slow
def test_run_hook_plan_and_latest_say_the_same(tmp_path: Path) -> None:
    root = megatron(tmp_path / "it's\n$HOME *")
    state = ["--plan-dir", tmp_path / "plans"]
    words, told = json.loads(ckpt("run", root, *state, "--", *SAY, "{ckpt.args}").stdout)
    assert words == ["--load", str(root), "--ckpt-step", "20"]
    expected = [word.encode() for word in words]
    assert words_of("dash", "", f"CKPT_ARGS={shell.words([told['CKPT_ARGS']])}; {SET}") == expected
    shown = ["--format", "shell"]
    for command, *more in (["hook", *state], ["plan", *shown], ["latest", "--rank", "0", *shown]):
        done = ckpt(command, root, *more)
        assert done.returncode == 0 and words_of("dash", done.stdout, SET) == expected, command


@pytest.mark.slow
def test_a_view_is_what_the_arguments_name(root: Path, tmp_path: Path) -> None:
    done = ckpt("hook", root, "--plan-dir", tmp_path / "plans", "--job", "j", "--view", tmp_path / "my view")
    assert words_of("dash", done.stdout, SET)[1] == os.fsencode(tmp_path / "my view")
