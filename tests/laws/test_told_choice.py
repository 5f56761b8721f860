"""Law: where a checkpoint is chosen, the command learns of it, by a path, arguments or variables, or nothing is
started and the form that works is named.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import TREES, materialise
from in_process import Start, executed, started

pytestmark = pytest.mark.slow  # many starts; tests/cli/test_resume_args.py has one of each kind
FOR_EACH = ("--rank N", "--worker", "--view", "--resume-args")
OWN = ("CKPT_LOAD_DIR", "CKPT_TAG")


class Job:
    """A tree, and commands that would be started for it."""

    def __init__(self, root: Path, plans: Path) -> None:
        self.root, self.common = root, ["--plan-dir", str(plans), "--no-cache"]

    def start(self, *options: str, words: Sequence[str]) -> Start:
        return started([self.root, *self.common, *options], words)

    def shell(self, *options: str) -> Start:
        code, out, said = executed(["plan", str(self.root), "--format", "shell", *options])
        env = {}
        for word in shlex.split(out)[1:]:
            name, _, value = word.partition("=")
            env[name] = value
        return Start(code, said, None, env)

    def planned(self, *options: str) -> dict[str, Any] | None:
        code, out, _ = executed(["plan", str(self.root), "--json", *options])
        return json.loads(out) if code == 0 else None


def jobs(case: Path, tmp: Path) -> Iterator[tuple[Job, dict[str, Any], list[str]]]:
    """Each directory of a fixture that is asked about and has an answer, with the plan and the options."""
    tree = materialise(case, tmp)
    asked = {q.get("root", ".") for q in json.loads(case.read_text())["plans"]}
    for i, name in enumerate(sorted({".", *asked})):
        job = Job(tree / name, tmp / f"plans-{i}")
        for options in ([], ["--order", "step"]):
            made = job.planned(*options)
            if made and made["checkpoint"]:
                yield job, made, options
                break


def files_of(made: dict[str, Any]) -> set[str]:
    return {f["path"] for f in [*made["shared"], *(f for r in made["ranks"] for f in r["files"])]}


def leads_to(path: str, made: dict[str, Any]) -> bool:
    """Whether a path is one of the planned files, or a directory or a prefix that holds some."""
    real = os.path.realpath(path)
    within = any(os.path.realpath(f).startswith(real) for f in files_of(made))
    return within or made["checkpoint"]["path"] in (path, real)


@pytest.mark.share(16)
@pytest.mark.parametrize("case", TREES)
def test_the_command_learns_of_the_choice_or_nothing_starts(case: Path, tmp_path: Path) -> None:
    for job, made, options in jobs(case, tmp_path):
        for words in (["train", "{ckpt.args}"], ["train"]):
            start = job.start(*options, words=words)
            if start.words is None:
                assert start.code == 2, start.said
                assert any(form in start.said for form in FOR_EACH), start.said
                continue
            assert start.env["CKPT_RESUME"] == "1"
            if words[1:]:
                assert start.words[1:] == made["resume"]["args"] != []
            told = [start.env["CKPT_PATH"], start.env["CKPT_ARGS"], *(start.env.get(name) for name in OWN)]
            assert any(told)
            assert not start.env["CKPT_PATH"] or leads_to(start.env["CKPT_PATH"], made)
        told_by_shell(job, made, options)


def told_by_shell(job: Job, made: dict[str, Any], options: Sequence[str]) -> None:
    exported = job.shell(*options)
    if exported.code:
        assert exported.code == 2 and "--rank N" in exported.said
        assert not (made["resume"]["path"] or made["resume"]["args"])
    else:
        assert any(exported.env.get(name) for name in ("CKPT_PATH", "CKPT_ARGS", *OWN))


@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_resume_args_say_the_path_or_nothing_starts(case: Path, tmp_path: Path) -> None:
    """Also where the layout has arguments of its own."""
    wanted = ("--resume-args", "--from {path} --now")
    for job, made, options in jobs(case, tmp_path):
        start = job.start(*options, *wanted, words=["train", "{ckpt.args}"])
        if start.words is None:
            assert start.code == 2 and made["resume"]["path"] is None, start.said
            continue
        _, flag, path, now = start.words
        assert (flag, now) == ("--from", "--now") and leads_to(path, made)
        assert start.env["CKPT_ARGS"] == shlex.join(start.words[1:])
        exported = job.shell(*options, *wanted)
        assert exported.env["CKPT_ARGS"] == start.env["CKPT_ARGS"]
