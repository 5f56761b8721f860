"""Whoever pastes what a hint offers gets the checkpoint that it names, or is asked further: nothing older, nothing
damaged or mixed, and no start from nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import timed
from in_process import executed
from pasted_hints import Paste, looked_at, pastes, problems, written
from places import FIXTURES
from scripts import loaded
from small_files import adam, saved, tensor

from ckpt_tools.planning import unplaced

make = loaded(FIXTURES / "make_answers.py")
GROUPS = [group for group in make.groups() if group.startswith("layouts/")]
ASKED_OR_REFUSED = (2, 3, 4)


def unanswered(group: str) -> list[Any]:
    """The questions about the trees of a layout to which there is no answer."""
    recorded = {q: json.loads(text)["exit_code"] for q, text in make.load(group).items()}
    asked = (q for q in make.questions(group) if q.command[0] in ("plan", "latest"))
    return [q for q in asked if recorded.get(str(q)) in ASKED_OR_REFUSED]


def wrong_hints(alike: Sequence[Any], place: Path) -> Iterator[str]:
    """What is wrong with the hints of questions about one tree."""
    (settings := place / "settings").mkdir(parents=True)
    make.make_copy(alike[0], place / "tree")
    root = f"{place}/tree/{alike[0].subject}"
    with make.no_settings(settings):
        tree = looked_at(root)
        for question in alike:
            command = [root + word[1:] if word.startswith("@") else word for word in question.command]
            yield from (f"{question}: {why}" for why in problems(tree, command))


@pytest.mark.share(36)
@pytest.mark.parametrize("group", GROUPS)
def test_a_pasted_hint_leads_where_it_says(group: str, tmp_path: Path) -> None:
    trees = groupby(unanswered(group), make.needs)
    found = [w for n, (_, alike) in enumerate(trees) for w in wrong_hints(list(alike), tmp_path / str(n))]
    assert not found, "\n".join(found)


# ---- what was reported, rebuilt small

AGO = 1_700_000_000


def put(root: Path, files: Mapping[str, object]) -> Path:
    """Files by their paths, each saved a minute after the one before; what is no state is bytes."""
    for n, (name, held) in enumerate(files.items()):
        timed.put(root / name, held if isinstance(held, bytes) else saved(held), AGO + 60 * n)
    return root


def state(step: int) -> dict[str, object]:
    return {"model": {"w": tensor(step)}, "optimizer": adam(step), "step": step}


def offered(root: Path, *flags: str) -> tuple[int, str, list[tuple[str, ...]]]:
    """The exit code of a plan, its hint, and what it offers to paste."""
    code, out, err = executed(["plan", str(root), *flags])
    return code, err.partition("hint: ")[2], [paste.words for paste in pastes(err + out, str(root))]


def test_what_is_left_out_is_exactly_the_file_that_is_named(tmp_path: Path) -> None:
    """Its first name is that of the directory in which all saves lie: hidden, the job began at step 0."""
    files = {f"llm/iter_{n:07}/mp_rank_00/model_optim_rng.pt": state(n) for n in (100, 200)}
    aside = {f"llm/kept [a]/mp_rank_{r:02}/model_optim_rng.pt": state(300) for r in range(2)}
    root = put(tmp_path, {**files, "llm/latest_checkpointed_iteration.txt": b"200", **aside})
    code, hint, pasted = offered(root)
    said = tuple(word for words in pasted for word in words if words[0] == "--exclude")
    assert code == 2 and " as ROOT" not in hint
    ranks = (f"llm/kept [[]a]/mp_rank_{rank:02}/model_optim_rng.pt" for rank in (1, 0))
    assert said == tuple(word for name in ranks for word in ("--exclude", name))
    code, out, _ = executed(["plan", str(root), "--allow=none", *said])
    assert code == 0 and out.startswith("Resume from step 200")


def halves(n: int) -> dict[str, object]:
    return {
        "lora/lora.safetensors": saved({"w": tensor(n)}),
        "optimizer/optimizer.pt": adam(n),
        "meta.json": b"{}",
    }


@pytest.mark.parametrize(
    "files",
    [
        {f"{n}/net.pt": state(n) for n in (1200, 1600)},
        {f"backup/2024-10-04_11-20-0{n}-backup-{n}00-{n}-0/{name}": held for n in (2, 3) for name, held in halves(n).items()},
        {f"checkpoint_23_{n}-model_part-{at // 2}-shard{at % 2}.pt": state(n) for n in (22500, 22750) for at in range(4)},
    ],
    ids=["numbers", "halves in directories", "two coordinates"],
)  # fmt: skip
def test_no_run_is_offered_where_nothing_tells_it(files: Mapping[str, object], tmp_path: Path) -> None:
    root = put(tmp_path, files)
    assert offered(root)[0] in (0, 2)
    assert [words for words in offered(root)[2] if words[0] != "layouts"] == []
    assert offered(root / next(iter(files)).partition("/lora/")[0])[2] == []


def fixed(names: Sequence[str]) -> dict[str, object]:
    return {name: state(n) for n, name in enumerate(names)}


@pytest.mark.parametrize(
    ("names", "then"),
    [
        (("final.pt",), "Resume from "), (("agent_0.pt",), "Resume from step 0"), (("agent_0.pt", "agent_1.pt"), "Resume from step 1"),
        (("student_1.pt", "teacher_1.pt", "student_2.pt", "teacher_2.pt"), "Resume from step 2"),
        (("acc_0.91.pt", "acc_0.95.pt"), "Resume from step 1"), (("a b/it's.pt",), "Resume from "),
        (("bert_20260102_030405.pt", "bert_20260102_030505.pt"), "Resume from step 1"),
        (("ours_100_rank0.pt", "ours_100_rank1.pt"), "Resume from step 100"),
        (("ours-1000/w0.pt", "ours-1000/w1.pt"), "Resume from step 1000"),
    ],
)  # fmt: skip
def test_pasted_lines_are_an_answer(
    names: Sequence[str], then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = put(tmp_path / "a run", fixed(names))
    monkeypatch.chdir(tmp_path)
    command = ["plan", str(root), "--allow=none"]
    assert executed(command)[0] in (2, 4)
    lines = Paste("command", ("layouts", "--guess", str(root)))
    with written(lines) as text:
        assert then in "".join(executed(command)[1:]), text
    assert list(problems(looked_at(str(root)), command)) == []


@pytest.mark.parametrize(
    "names",
    [
        ("left.pt", "right.pt"), ("s/net/left.pt", "s/optim/right.pt"), ("a/left.pt", "a/right.pt", "b/left.pt", "b/right.pt"),
        ("step_100.pt", "left.pt", "right.pt"), ("net_0.91.pt", "opt_0.91.pt"), ("agent <1>.pt",), ("model[1].pt", "model[2].pt"),
        ("step_50/extra/a.pt", "step_100.pt", "run 7/zip.pt"),
    ],
)  # fmt: skip
def test_no_lines_are_printed_where_pasted_they_are_no_answer(names: Sequence[str], tmp_path: Path) -> None:
    root = put(tmp_path / "a run", fixed(names))
    assert executed(["plan", str(root), "--allow=none"])[0] in (2, 4)
    code, out, err = executed(["layouts", "--guess", str(root)])
    assert (code, out) == (2, "") and "docs/adding-a-layout.md" in err


@pytest.mark.parametrize(
    ("names", "sure"),
    [
        (("student_100.pt", "teacher_100.pt"), True), (("ours_100_rank0.pt", "ours_100_rank1.pt"), True),
        (("agent_0.pt", "agent_1.pt"), False), (("left.pt", "right.pt"), False), (("step_100.pt", "left.pt"), False),
        (("ours_1-part_0.pt", "ours_2-part_0.pt", "ours_last-part_0.pt"), False),
    ],
)  # fmt: skip
def test_lines_are_offered_where_names_tell_them(names: Sequence[str], sure: bool, tmp_path: Path) -> None:
    """All ranks loaded the file of one, or the last of two networks: nobody read the comments."""
    root = put(tmp_path / "run", fixed(names))
    code, out, err = executed(["plan", str(root)])
    assert code in (2, 4) and any(paste.is_layout for paste in pastes(err + out, str(root))) == sure


@pytest.mark.parametrize("where", [".", "run", "run/deep"])
def test_the_lines_say_where_they_are_read(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guess = ["layouts", "--guess", str(put(tmp_path / "run", fixed(["left.pt", "deep/right.txt"])))]
    monkeypatch.chdir(tmp_path / where)
    assert executed(guess)[1].startswith(f"# Save these lines as {tmp_path}/ckpt.toml, ")
    (tmp_path / "pyproject.toml").write_text("[tool.ckpt]\nsettle = 0\n")
    said = executed(guess)[1]
    assert said.startswith(f"# Add these lines to {tmp_path}/pyproject.toml, ")
    assert "\n[[tool.ckpt.layout]]" in said


def test_what_is_passed_over_is_not_offered_to_resume_from(tmp_path: Path) -> None:
    files = {"step_100.pt": state(100), "step_200.pt": state(200), "optim_best.pt": adam(5), "ema.pt": b""}
    root = put(tmp_path, files)
    code, out, err = executed(["plan", str(root)])
    assert (code, pastes(out + err, str(root))) == (0, [])


WRONG = [("--exclude llm", "starts from nothing"), ("--max-step 100", "leads to "), ("--run none", "starts from nothing")]  # fmt: skip


@pytest.mark.parametrize(("wrong", "seen"), WRONG)
def test_a_wrong_hint_is_seen(wrong: str, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unplaced, "hint_exclude_all", lambda *_, **__: f"{wrong} to resume from step 200")
    files = {f"llm/iter_{n:07}/mp_rank_00/model_optim_rng.pt": state(n) for n in (100, 200)}
    root = put(tmp_path / "run", {**files, "llm/kept/mp_rank_00/model_optim_rng.pt": state(300)})
    monkeypatch.chdir(tmp_path)
    (why,) = problems(looked_at(str(root)), ["plan", str(root), "--allow=missing"])
    assert f"-> {wrong}: {seen}" in why
