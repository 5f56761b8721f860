"""A decision of another node tells a framework what the layout of its checkpoint says, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES, QUESTIONS, setup
from run_helpers import megatron

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.job import derived
from ckpt_tools.job.decision import body_of
from ckpt_tools.job.view import build
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings.checked_json import Invalid

FIRST = {
    case.parts[-3]: (case, question)
    for case, question in (p.values[:2] if hasattr(p, "values") else p for p in reversed(QUESTIONS))
}
"""One question about each layout."""


def body(case: Path, question: Mapping[str, Any], tmp: Path) -> tuple[dict[str, Any], str]:
    _, made = setup(case, question, tmp)
    return json.loads(json.dumps(body_of(made))), made.root


@pytest.mark.exhaustive
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(("case", "question"), QUESTIONS)
def test_every_decision_of_ours_passes(
    case: Path, question: dict[str, Any], view: bool, tmp_path: Path
) -> None:
    _, made = setup(case, question, tmp_path)
    told = json.loads(json.dumps(body_of(made)))
    if view:
        if made.checkpoint is None:
            return
        try:
            told |= build(made, str(tmp_path / "view"))
        except UsageError:
            return  # of a layout whose names tell no rank
    derived.check(told, made.root)


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "one more argument": lambda resume: resume["args"].append("--exec=evil"),
    "another argument": lambda resume: resume.update(args=["--exec", "evil"]),
    "a path elsewhere": lambda resume: resume.update(path="/etc/evil"),
    "a variable": lambda resume: resume["env"].update(LD_PRELOAD="evil"),
    "another tag": lambda resume: resume["env"].update(CKPT_TAG="../evil"),
    "arguments elsewhere": lambda resume: resume.update(
        args=[a.replace("/", "/evil/", 1) if "/" in a else f"{a}/evil" for a in resume["args"]] or ["evil"]
    ),
}


@pytest.mark.share(8)
@pytest.mark.slow
@pytest.mark.parametrize("layout", FIRST)
def test_what_a_layout_does_not_say_is_refused(layout: str, tmp_path: Path) -> None:
    told, root = body(*FIRST[layout], tmp_path)
    derived.check(told, root)
    for name, lie in LIES.items():
        changed = json.loads(json.dumps(told))
        lie(changed["resume"])
        assert changed != told, name
        with pytest.raises(Invalid):
            derived.check(changed, root)


def test_every_layout_is_tried() -> None:
    assert len(FIRST) >= 15 and {c.parts[-3] for c in CASES} >= FIRST.keys()


def test_what_is_none_is_told_nothing() -> None:
    nothing = {"checkpoint": None, "resume": {"path": None, "args": [], "env": {}}}
    derived.check(nothing, "/r")
    for more in ({"path": "/etc"}, {"args": ["--load", "/etc"]}, {"env": {"CKPT_TAG": "x"}}):
        with pytest.raises(Invalid):
            derived.check({"checkpoint": None, "resume": {**nothing["resume"], **more}}, "/r")  # type: ignore[dict-item]


@pytest.mark.parametrize("field", ["layout", "kind"])
def test_a_layout_or_kind_that_nobody_knows(tmp_path: Path, field: str) -> None:
    root = str(megatron(tmp_path / "run"))
    told = json.loads(json.dumps(body_of(plan(root, Selection(world_size=2)))))
    told["checkpoint"][field] = "evil"
    with pytest.raises(Invalid, match=field):
        derived.check(told, root)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["deepspeed", "megatron", "hf-trainer"])
def test_a_checkpoint_behind_a_link_passes(layout: str, tmp_path: Path) -> None:
    """An archive that ROOT links to: paths of the plan are those behind the link, the framework is told the
    directory with the link.
    """
    _, made = setup(*FIRST[layout], tmp_path)
    assert made.checkpoint is not None
    there = Path(made.checkpoint.path)
    (tmp_path / "archive").mkdir()
    os.rename(there, tmp_path / "archive" / there.name)
    there.symlink_to(tmp_path / "archive" / there.name)
    try:
        again = plan(made.root, Selection(world_size=made.world_size))
    except CkptError as error:
        pytest.fail(f"no plan behind a link: {error}")
    assert again.checkpoint is not None
    derived.check(json.loads(json.dumps(body_of(again))), made.root)
