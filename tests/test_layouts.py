"""Laws that every layout obeys, and the plans that real trees must lead to (fixtures/layouts/<name>/<case>/expected.json)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools import errors
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.layouts._base import compile_template
from ckpt_tools.model import Kind, LoadPlan, Selection, Verdict
from ckpt_tools.pipeline import plan, verify

CASES = sorted((Path(__file__).parent.parent / "fixtures" / "layouts").glob("*/*/expected.json"))


def materialise(case: Path, target: Path) -> Path:
    """A copy of a case's tree with the modification times its framework left (git keeps none)."""
    expected = json.loads(case.read_text())
    root = target / "tree"
    shutil.copytree(case.parent / "tree", root)
    for name, ns in expected["mtimes"].items():
        os.utime(root / name, ns=(ns, ns))
        os.chmod(root / name, int(expected["modes"][name], 8))
    return root


def selection(options: dict[str, Any]) -> Selection:
    """The JSON form of a Selection."""
    made = dict(options)
    for key, to in (("fault_ranks", frozenset), ("require", tuple), ("kind", Kind)):
        if key in made:
            made[key] = to(made[key])
    if "replica_groups" in made:
        made["replica_groups"] = {role: tuple(map(tuple, groups)) for role, groups in made["replica_groups"].items()}
    return Selection(**made)


def files_of(made: LoadPlan, root: Path) -> dict[str, list[str]]:
    return {str(r.rank): [os.path.relpath(f.path, root) for f in r.files] for r in made.ranks}


def questions() -> list[Any]:
    return [
        pytest.param(case, question, id=f"{case.parent.parent.name}-{case.parent.name}-{i}")
        for case in CASES
        for i, question in enumerate(json.loads(case.read_text())["plans"])
    ]


@pytest.mark.parametrize(("case", "question"), questions())
def test_the_plan_is_the_right_one(case: Path, question: dict[str, Any], tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    asked = os.path.join(root, question.get("root", "."))
    if "error" in question:
        with pytest.raises(getattr(errors, question["error"])) as caught:
            plan(asked, selection(question["options"]))
        assert question.get("message", "") in str(caught.value)
        rejected = caught.value.plan.rejected if caught.value.plan else ()
        made = None
    else:
        made = plan(asked, selection(question["options"]))
        rejected = made.rejected
    codes = {f.code for r in rejected for f in r.findings}
    assert set(question.get("rejected", ())) <= codes
    if made is None:
        return
    assert made.checkpoint is not None
    for key in ("step", "epoch", "step_in_epoch", "generation"):
        if key in question:
            assert getattr(made.checkpoint, key) == question[key], key
    assert made.checkpoint.kind == question["kind"]
    assert made.resume_step == question["step"] if "step" in question else True
    got = files_of(made, root)
    for rank, files in question["ranks"].items():
        assert got[rank] == files
    if "substituted" in question:
        assert {r.rank for r in made.ranks if any(f.substituted for f in r.files)} == set(question["substituted"])
        assert all(f.reason for r in made.ranks for f in r.files if f.substituted)
    if "rollback" in question:
        assert made.rollback is not None
        assert {"from": made.rollback.origin, "to": made.rollback.target, "save_interval": made.rollback.save_interval} == question["rollback"]
    elif "save_interval" not in question["options"]:
        assert made.rollback is None
    if "resume_args" in question:
        assert " ".join(question["resume_args"]) in " ".join(made.resume.args)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_a_whole_tree_has_no_false_alarm(case: Path, tmp_path: Path) -> None:
    result = verify([str(materialise(case, tmp_path))])
    alarms = [(f.code, f.message) for r in result.files for f in r.report.findings if f.severity] + [
        (f.code, f.message) for f in result.findings if f.severity
    ]
    known = {"pangu": {"missing-rank"}, "tft": {"unfinished-save"}, "ttp": {"step-mismatch"}}.get(case.parent.name, set())
    assert {code for code, _ in alarms} == known, alarms
    assert result.verdict is (Verdict.OK if not known else Verdict.BROKEN if "step-mismatch" in known else Verdict.SUSPECT)
    assert not result.summary.unrecognised


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_has_fixtures_reference_and_limits(layout: Any) -> None:
    assert any(case.parent.parent.name == layout.name for case in CASES)
    assert layout.reference and layout.limits and layout.title
    assert len({p.name for p in layout.pieces}) == len(layout.pieces)


def test_the_plan_does_not_depend_on_directory_order_or_on_older_checkpoints(tmp_path: Path) -> None:
    case = next(c for c in CASES if c.parent.name == "tp")
    root = materialise(case, tmp_path)
    before = plan(str(root))
    shutil.rmtree(root / "iter_0000010")
    after = plan(str(root))
    assert before.fingerprint == after.fingerprint
    shutil.rmtree(root / "iter_0000030")
    following = plan(str(root))
    assert following.checkpoint is not None and following.checkpoint.step == 20
    assert "dangling-tracker" in {f.code for f in following.warnings}


@pytest.mark.parametrize(
    ("template", "text", "fields"),
    [
        ("iter_{step:07d}", "iter_0000010", {"step": "0000010"}),
        ("iter_{step:07d}", "iter_12345678", {"step": "12345678"}),
        ("iter_{step:07d}", "iter_10", None),
        ("mp_rank_{tp:02d}[_{pp:03d}]", "mp_rank_01_002", {"tp": "01", "pp": "002"}),
        ("mp_rank_{tp:02d}[_{pp:03d}]", "mp_rank_01", {"tp": "01", "pp": None}),
        (
            "{prefix}[_{generation}]-{epoch}_{step_in_epoch}.ckpt",
            "net_2-1_5.ckpt",
            {"prefix": "net", "generation": "2", "epoch": "1", "step_in_epoch": "5"},
        ),
        ("rank_{rank}", "rank_1x", None),
        ("rank_{rank}", "rank_" + "9" * 40, None),
    ],
)
def test_templates(template: str, text: str, fields: dict[str, str | None] | None) -> None:
    import re

    m = re.fullmatch(compile_template(template), text)
    assert (m.groupdict() if m else None) == fields
