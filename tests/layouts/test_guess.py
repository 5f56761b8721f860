"""ckpt layouts --guess: lines worked out from names describe these names, and pasted they make the plan answer."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import timed
from in_process import executed
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.formats import BY_NAME as FORMATS
from ckpt_tools.layouts import Layouts, use, user
from ckpt_tools.layouts import guess as guessing
from ckpt_tools.layouts.guess import Guess
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.output.catalogue import render
from ckpt_tools.planning.unplaced import find_undescribed
from ckpt_tools.reading.opening import open_session

if sys.version_info >= (3, 11):
    import tomllib as toml_parser
else:
    import tomli as toml_parser


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    use(())


def guess(paths: Iterable[str]) -> Guess:
    return guessing.guess(dict.fromkeys(paths, 1))


# --- what each name is taken for


def templates(*paths: str) -> list[str]:
    return [p.template for p in guess(paths).pieces]


def grid(pattern: str, *numbers: range) -> list[str]:
    return [pattern.format(*row) for row in itertools.product(*numbers)]


TENS = range(10, 40, 10)


@pytest.mark.parametrize(
    ("pattern", "numbers", "template"),
    [
        ("step_{}/rank_{}.pt", (TENS, range(4)), "step_{step}/rank_{rank}.pt"),
        ("{}/{}.pt", (TENS, range(4)), "{step}/{rank}.pt"),
        ("rank_{}/{}.pt", (range(3), range(3)), "rank_{rank}/{step}.pt"),
        ("run-7/ours-{}/w{}.pt", (TENS, range(4)), "ours-{step}/w{rank}.pt"),
        ("run-{}/step_{}.pt", (range(2), TENS), "step_{step}.pt"),
        ("{}-7/ours-{}/w{}.pt", (("run", "try"), TENS, range(4)), "ours-{step}/w{rank}.pt"),
        ("step={}/shard-{:05d}-of-4.pt", (TENS, range(4)), "step={step}/shard-{shard:05d}-of-{of}.pt"),
        ("step={}/rank-{:05d}-of-4.pt", (TENS, range(4)), "step={step}/rank-{rank:05d}-of-{world}.pt"),
        ("{}_steps.pt", (TENS,), "{step}_steps.pt"),
        ("step_{0}/model_{0}.pt", (TENS,), "step_{step}/model_{step}.pt"),
        ("step_{}/layer_{}-tp{}-pp{}.pt", (TENS, range(3), range(2), range(2)), None),
    ],
)
def test_what_a_number_is_taken_for(pattern: str, numbers: tuple[range, ...], template: str | None) -> None:
    expected = template or "step_{step}/layer_{layer}-tp{tp}-pp{pp}.pt"
    assert templates(*grid(pattern, *numbers)) == [expected]


def test_a_save_under_way_is_described_by_nothing() -> None:
    paths = grid("step_{}_tmp/model.pt", TENS)
    assert guess(paths) == Guess((), tuple(paths), "all files are of saves under way")


@pytest.mark.parametrize(
    ("paths", "template"),
    [
        (grid("step_{}/seed{}.pt", TENS, range(5, 7)), "step_{step}/seed{shard}.pt"),
        (grid("agent_{}.pt", range(2)), "agent_{step}.pt"),
        (["agent_7.pt"], "agent_{step}.pt"),
        (grid("ours-1000/w{}.pt", range(2)), "ours-{step}/w{rank}.pt"),
        (grid("{}/{}.foo", range(3), range(4)), "{step}/{rank}.foo"),
        (
            grid("checkpoint_23_{}-model_part-{}-shard{}.pt", TENS, range(2), range(4)),
            "checkpoint_23_{step}-model_part-{rank}-shard{shard}.pt",  # facebookresearch/metaseq#53
        ),
        (
            [f"b/2024-10-04_11-20-0{n}-backup-{n}00-{n}-0/lora/lora.safetensors" for n in (2, 3)],
            "{date}-backup-{name}-{step}-0/lora/lora.safetensors",
        ),
        (["best_0.91.pt", "best_0.94.pt"], "best_{metric}.pt"),
    ],
)
def test_what_no_word_tells_has_one_form_and_a_comment(paths: list[str], template: str) -> None:
    guessed = guess(paths)
    assert ([p.template for p in guessed.pieces], guessed.left_out) == ([template], ())
    before = render(guessed, "guessed", {}).partition("template")[0]
    assert ("rank loads" in before) == ("{metric}" not in template)


def test_files_of_one_number_or_directory_are_one_save() -> None:
    pieces = guess(["model_10.pt", "optim_10.pt"]).pieces
    assert [(p.template, p.role) for p in pieces] == [
        ("model_{step}.pt", "model"),
        ("optim_{step}.pt", "optim"),
    ]
    assert templates("a/left.pt", "a/right.pt", "b/left.pt", "b/right.pt") == ["left.pt", "right.pt"]


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["model_10.pt", "agent_0.pt"], "agent_0.pt and model_10.pt one save"),
        (["model_10.pt", "left.pt", "right.pt"], "one save"),
        (["s/net/a.pt", "s/optim/b.pt"], "s/optim/b.pt and s/net/a.pt one save"),
        (["step_10/rank_0.pt", "latest/rank_0.pt"], "latest/rank_0.pt and step_10/rank_0.pt one save"),
        (["x10/agent.pt", "x20/agent.pt", "bot_10.pt"], "bot_10.pt and x10/agent.pt one save"),
        (["a<b<c<d.pt", "step_10/a.pt"], "no template can spell a<b<c<d.pt"),
        (["model[1].pt", "model[2].pt"], "no template can spell model[1].pt"),
    ],
)
def test_where_names_tell_no_save_nothing_is_guessed_and_it_is_said(paths: list[str], why: str) -> None:
    guessed = guess(paths)
    assert (guessed.pieces, guessed.left_out) == ((), tuple(paths)) and guessed.why.endswith(why)


def test_no_template_fits_a_file_of_another_layout() -> None:
    guessed = guessing.guess({"out/last/model.pt": 1}, ["out/step_10/model.pt"])
    assert not guessed.pieces and "step_10/model.pt too, which is of another layout" in guessed.why


@pytest.mark.parametrize("words", [("agent",), ("student", "teacher"), ("dernier", "final")])
def test_pasted_lines_make_the_plan_answer_whatever_the_words(words: tuple[str, ...], tmp_path: Path) -> None:
    for n, word in itertools.product((100, 200), words):
        timed.put(tmp_path / f"run/{word}_{n}.pt", saved({"model": {"w": tensor(n)}}), 600 * n)
    assert executed(["plan", str(tmp_path / "run")])[0] in (2, 4)
    files = json.loads(pasted(tmp_path / "run")[1])["shared"]
    assert sorted(os.path.basename(f["path"]) for f in files) == sorted(f"{word}_200.pt" for word in words)


def test_directories_in_a_save_are_parts_of_it() -> None:
    paths = grid("ours-{}/lora/lora.safetensors", TENS) + grid("ours-{}/optimizer/optimizer.pt", TENS)
    assert templates(*paths) == ["ours-{step}/lora/lora.safetensors", "ours-{step}/optimizer/optimizer.pt"]


def test_the_roles_of_a_checkpoint_differ() -> None:
    paths = [f"step_10/{who}/{what}_{r}.pt" for who in "ab" for what in ("model", "optim") for r in range(2)]
    roles = [p.role for p in guess(paths).pieces]
    assert len(roles) == len(set(roles)) == 4


# --- the command


def test_what_lies_beside_with_the_same_ending_is_described_too(tmp_path: Path) -> None:
    """llm.c's, in no format that is known: half of a save would be loaded else."""
    names = ["model_00000250.bin", "state_00000250_00000.bin", "state_00000250_00001.bin"]
    for name in (*names, "main.log"):
        (tmp_path / name).write_bytes(b"\x40\x2f\x35\x01" + bytes(range(255)))
    assert list(find_undescribed(open_session(str(tmp_path), ReadOptions()))) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s{}-r{}.weird", "ours-{}/part{}.pt"])
def test_what_it_prints_makes_the_plan_answer(name: str, tmp_path: Path) -> None:
    home = tmp_path / "run"
    for step, rank in itertools.product((100, 200), range(2)):
        timed.put(home / name.format(step, rank), saved({"model": {"w": tensor(step, rank)}, "step": step}))
    code, _, err = executed(["plan", str(home)])
    assert code in (2, 4) and "describe the layout in ckpt.toml: docs/adding-a-layout.md" in err
    assert json.loads(pasted(home)[1])["resume_step"] == 200
    nothing = executed(["layouts", "--guess", str(home), "--config", str(tmp_path / "ckpt.toml")])
    assert nothing[:2] == (3, "")


@pytest.mark.parametrize(
    ("flags", "why"),
    [("--guess --check", "cannot be combined"), ("--guess --json", "prints TOML"), ("", "only looked at")],
)
def test_what_is_no_question(tmp_path: Path, flags: str, why: str) -> None:
    code, _, err = executed(["layouts", *flags.split(), str(tmp_path)])
    assert code == 2 and why in err


TRACKERS = {
    "LATEST": ("ours-{}", "name"),
    "latest_checkpoint.txt": ("ours-{}\n", "name"),
    "last_step": ("{}", "step"),
    "latest_checkpointed_iteration.txt": ("{}\n", "step"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_is_written_down_and_used(tmp_path: Path, name: str) -> None:
    """What it names and is gone is missed from then on."""
    said, holds = TRACKERS[name]
    for run, step, rank in itertools.product("ab", (100, 200), range(2)):
        timed.put(
            tmp_path / f"runs/{run}/ours-{step}/w{rank}.weights", saved({"w": tensor(step + rank)}), step
        )
        (tmp_path / f"runs/{run}" / name).write_text(said.format(200))
    (layout,) = guessed_of(tmp_path / "runs")
    assert layout["tracker"] == name and layout.get("tracker_holds", "step") == holds
    known = Layouts(user.load([layout], tuple(FORMATS)))
    for path in (tmp_path / "runs/a/ours-200").iterdir():
        path.unlink()
    made = plan(str(tmp_path / "runs"), Selection(run="a", layouts=known))
    assert made.checkpoint is not None and made.checkpoint.step == 100
    assert {f.code for r in made.rejected for f in r.findings} == {"missing-part"}


@pytest.mark.slow
def test_a_number_that_is_no_step_is_no_tracker(tmp_path: Path) -> None:
    for step in (100, 200):
        timed.put(tmp_path / f"ours-{step}/w0.weights", saved({"w": tensor(step)}))
    for name, text in {"last_loss.txt": "0.31", "seed": "100", "latest.log": "0.31"}.items():
        (tmp_path / name).write_text(text)
    assert "tracker" not in guessed_of(tmp_path)[0]


def guessed_of(root: Path) -> list[dict[str, str]]:
    layouts: list[dict[str, str]] = toml_parser.loads(executed(["layouts", "--guess", str(root)])[1])[
        "layout"
    ]
    return layouts


def pasted(root: Path) -> tuple[int, str, str]:
    """Plan with the lines that a guess prints, as they are."""
    (config := root.parent / "ckpt.toml").write_text(executed(["layouts", "--guess", str(root)])[1])
    return executed(["plan", str(root), "--config", str(config), "--json"])


def put(root: Path, files: Mapping[str, object]) -> Path:
    for n, (name, held) in enumerate(files.items()):
        timed.put(root / name, saved(held), 600 * n)
    return root


def state(n: int) -> dict[str, object]:
    return {"model": {"w": tensor(n)}, "optimizer": adam(n), "step": n}


@pytest.mark.parametrize(
    "files",
    [
        {"step_1.pt": state(1), "step_2.pt": state(2), "step_2_copy.pt": state(8)},
        {"step_1.pt": state(1), "session.pt": state(9), "model_2.pt": {"w": tensor(2)}},
        {"alpha.pt": state(1), "beta.pt": state(2)},
        {"step_2.pt": state(2), "step_2_copy.pt": state(8), "zz_loss_2.pt": {"w": tensor(2)}},
    ],
    ids=", ".join,
)
def test_a_whole_state_is_neither_a_part_of_another_one_nor_passed_over(
    files: Mapping[str, object], tmp_path: Path
) -> None:
    root = put(tmp_path / "run", files)
    code, out, err = executed(["layouts", "--guess", str(root)])
    assert (code, out) == (2, "") and "write its table by hand: docs/adding-a-layout.md" in err
    assert executed(["plan", str(root)])[0] == 2


def test_a_file_without_a_number_is_a_save_of_the_run_beside_it_and_its_step_what_it_tells(
    tmp_path: Path,
) -> None:
    root = put(
        tmp_path / "run", {"step_100.pt": state(100), "step_200.pt": state(200), "final.pt": state(250)}
    )
    assert executed(["plan", str(root)])[0] == 2
    chosen = json.loads(pasted(root)[1])["checkpoint"]
    assert (chosen["step"], chosen["path"]) == (250, str(root / "final.pt"))


def test_lines_are_written_where_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "run", {"agent_3.pt": state(3), "agent_4.pt": state(4)})
    put(tmp_path / "other", {"actor_7.pt": state(7)})
    put(tmp_path / "unsure", {"bot_0.pt": state(3), "bot_1.pt": state(4)})
    monkeypatch.chdir(tmp_path)
    for root, step in (("run", 4), ("other", 7)):
        out = executed(["layouts", "--guess", root, "--write"])[1]
        told = f"{tmp_path}/ckpt.toml describes {tmp_path}/{root} to commands that start in {tmp_path}: "
        assert out.startswith(told), out
        assert json.loads(executed(["plan", root, "--json"])[1])["checkpoint"]["step"] == step
    for words in (["--write"], ["--guess", "unsure", "--write"]):
        assert executed(["layouts", *words])[0] == 2
    assert (tmp_path / "ckpt.toml").read_text().count("[[layout]]") == 2


def test_nothing_is_written_where_others_could_have_planted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "run", {"agent_3.pt": state(3)})
    (tmp_path / "mine").write_text("")
    (here := tmp_path / "open").mkdir()
    here.chmod(0o777)
    (here / "ckpt.toml").symlink_to("../mine")
    monkeypatch.chdir(here)
    code, _, err = executed(["layouts", "--guess", "../run", "--write"])
    assert code == 2 and "others could have written it" in err and (tmp_path / "mine").read_text() == ""


def test_a_name_that_is_no_text_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "run", {os.fsdecode(b"zz\xff_3.pt"): state(3)})
    monkeypatch.chdir(tmp_path)
    code, _, _ = executed(["layouts", "--guess", "run", "--write"])
    assert code == 2 and not (tmp_path / "ckpt.toml").exists()
