"""Law: where a checkpoint is chosen, the command learns of it, by a path, arguments or variables, or nothing is
started and the form that works is named.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import TREES, materialise
from in_process import executed, started

pytestmark = pytest.mark.slow  # many starts; tests/cli/test_resume_args.py has one of each kind
FOR_EACH = ("--rank N", "--worker", "--view", "--resume-args")
OWN = ("CKPT_LOAD_DIR", "CKPT_TAG")


def shell(root: Path, *options: str) -> tuple[int, str, dict[str, str]]:
    """How it ends, what is said, and what it exports."""
    code, out, said = executed(["plan", str(root), "--format", "shell", *options])
    return code, said, {word.partition("=")[0]: word.partition("=")[2] for word in shlex.split(out)[1:]}


def chosen(case: Path, tmp: Path) -> Iterator[tuple[Path, dict[str, Any], list[str]]]:
    """Each directory of a fixture that is asked about and has an answer, with the plan and the options."""
    tree = materialise(case, tmp)
    asked = {q.get("root", ".") for q in json.loads(case.read_text())["plans"]}
    for root in (tree / name for name in sorted({".", *asked})):
        for options in ([], ["--order", "step"]):
            code, out, _ = executed(["plan", str(root), "--json", *options])
            if code == 0 and (made := json.loads(out))["checkpoint"]:
                yield root, made, options
                break


def leads_to(path: str, made: dict[str, Any]) -> bool:
    """Whether a path is one of the planned files, or a directory or a prefix that holds some."""
    real = os.path.realpath(path)
    files = (f["path"] for f in [*made["shared"], *(f for r in made["ranks"] for f in r["files"])])
    within = any(os.path.realpath(f).startswith(real) for f in files)
    return within or made["checkpoint"]["path"] in (path, real)


@pytest.mark.share(16)
@pytest.mark.parametrize("case", TREES)
def test_the_command_learns_of_the_choice_or_nothing_starts(case: Path, tmp_path: Path) -> None:
    """Also as --resume-args say it, where the layout has arguments of its own."""
    wanted = ("--resume-args", "--from {path} --now")
    for root, made, options in chosen(case, tmp_path):
        common = [root, "--plan-dir", tmp_path / "plans", "--no-cache", *options]
        for words in (["train", "{ckpt.args}"], ["train"]):
            start = started(common, words)
            if start.words is None:
                assert start.code == 2 and any(form in start.said for form in FOR_EACH), start.said
                continue
            assert start.env["CKPT_RESUME"] == "1"
            assert not words[1:] or start.words[1:] == made["resume"]["args"] != []
            told = [start.env["CKPT_PATH"], start.env["CKPT_ARGS"], *(start.env.get(name) for name in OWN)]
            assert any(told) and (not told[0] or leads_to(told[0], made))
        code, said, exported = shell(root, *options)
        if code:
            assert code == 2 and "--rank N" in said and not (made["resume"]["path"] or made["resume"]["args"])
        else:
            assert any(exported.get(name) for name in ("CKPT_PATH", "CKPT_ARGS", *OWN))
        start = started([*common, *wanted], ["train", "{ckpt.args}"])
        if start.words is None:
            assert start.code == 2 and made["resume"]["path"] is None, start.said
            continue
        _, flag, path, now = start.words
        assert (flag, now) == ("--from", "--now") and leads_to(path, made)
        args = shell(root, *options, *wanted)[2]["CKPT_ARGS"]
        assert args == start.env["CKPT_ARGS"] == shlex.join(start.words[1:])
