"""Laws that every layout obeys, and the plans that real trees must lead to
(fixtures/layouts/<name>/<case>/expected.json).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_files
from fixture_trees import (
    CASES,
    TREES,
    damage,
    files_of,
    firsts,
    materialise,
    questions,
    selection,
    tree,
    tree_of,
)
from msgspec.structs import replace
from places import FORMAT_FILES, LAYOUT_TREES
from timed import put
from told_trees import answer, rewrite, verified

from ckpt_tools import CkptError, Level, errors, latest
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.findings import CODES
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.layouts.common.templates import compile_template
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Known, LoadPlan
from ckpt_tools.model.selection import Selection

# fmt: off
ACROSS = frozenset((
    "newer-index", "missing-rank", "missing-part", "missing-key", "step-mismatch", "epoch-mismatch", "rank-mismatch", "generation-mismatch",
    "unfinished-save", "signature-changed", "replica-mismatch", "replica-unproven", "stale-tracker", "dangling-tracker", "bad-tracker",
    "missing-tracker", "mtime-disagrees-with-step", "mtime-in-future", "world-size-inferred", "topology-mismatch", "fault-rank",
    "attempts-exhausted", "extra-file", "same-content",
))
# fmt: on
"""What no file shows alone. replica-groups-needed ends in a UsageError that says how to name groups."""


def alarms(result: Verification, root: Path, least: Severity = Severity.WARNING) -> Iterator[tuple[str, str]]:
    """(code, path below ``root``, "" for itself) of every warning and error."""
    rows = [(r.report.path, f) for r in result.files for f in r.report.findings]
    for path, f in (*rows, *((f.path, f) for f in result.findings)):
        if f.severity >= least:
            yield f.code, "" if path == str(root) else os.path.relpath(path, root)


@pytest.mark.share(6)
@pytest.mark.parametrize(("case", "question"), firsts(questions(), pytest.mark.slow))
def test_the_plan_is_the_right_one(case: Path, question: dict[str, Any], tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    damage(root, question)
    asked = os.path.join(root, question.get("root", "."))
    options = question.get("options", {})
    if "error" in question:
        with pytest.raises(getattr(errors, question["error"])) as caught:
            plan(asked, selection(options))
        assert type(caught.value).__name__ == question["error"]
        assert question.get("message", "") in str(caught.value)
        left = caught.value.plan
    else:
        left = plan(asked, selection(options))
    rejected = left.rejected if left else ()
    assert set(question.get("warnings", ())) <= {f.code for f in (left.warnings if left else ())}
    lost = {os.path.relpath(r.checkpoint.path, root): sorted({f.code for f in r.findings}) for r in rejected}
    said = question.get("rejected", ())
    assert lost == said if isinstance(said, dict) else {*said} <= {c for some in lost.values() for c in some}
    if "error" not in question and left is not None:
        assert_planned(left, question, root)


def assert_planned(made: LoadPlan, question: dict[str, Any], root: Path) -> None:
    assert made.checkpoint is not None
    keys = ("step", "epoch", "step_in_epoch", "generation", "layout", "kind")
    said = {key: question[key] for key in keys if key in question}
    assert {key: getattr(made.checkpoint, key) for key in said} == said
    assert made.resume_step == question.get("step", made.resume_step)
    per_rank = files_of(made, root)
    assert {rank: per_rank[rank] for rank in question["ranks"]} == question["ranks"]
    if "shared" in question:
        assert sorted(os.path.relpath(f.path, root) for f in made.shared) == sorted(question["shared"])
        assert bool(per_rank) == bool(question["ranks"])
    if "resume_path" in question:
        assert made.resume.path == os.path.normpath(root / question["resume_path"])
    if "ahead" in question:
        assert sorted(os.path.relpath(c.path, root) for c in made.ahead) == sorted(question["ahead"])
    if "substituted" in question:
        taken = {r.rank for r in made.by_rank if any(f.substituted for f in r.files)}
        assert taken == set(question["substituted"])
        assert all(f.reason for r in made.by_rank for f in r.files if f.substituted)
    back = made.rollback
    told = back and {"from": back.origin, "to": back.target, "save_interval": back.save_interval}
    if "rollback" in question or "save_interval" not in question.get("options", {}):
        assert told == question.get("rollback")
    assert " ".join(question.get("resume_args", ())) in " ".join(made.resume.args)


@pytest.mark.share(5, "slow")
@pytest.mark.parametrize("case", TREES)
def test_a_whole_tree_has_no_false_alarm(case: Path, tmp_path: Path) -> None:
    """``known`` in expected.json lists what is wrong with the tree as it is: a save that was really cut
    short.
    """
    expected = json.loads(case.read_text())
    root = materialise(case, tmp_path)
    result = verify([str(root)])
    found = sorted(alarms(result, root))
    assert found == sorted(map(tuple, expected.get("known", ())))
    assert str(result.verdict) == expected.get("verdict", "ok")
    assert result.summary.unrecognised == expected.get("unrecognised", 0)


@pytest.mark.share(2)
@pytest.mark.parametrize(("case", "question"), firsts(questions("verify"), pytest.mark.slow))
def test_damage_leads_to_exactly_these_findings(case: Path, question: dict[str, Any], tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    before = Counter(alarms(verify([str(root)]), root))
    damage(root, question)
    result = verify([str(root)])
    after = Counter(alarms(result, root))
    assert sorted((after - before).elements()) == sorted(map(tuple, question["findings"]))
    assert sorted((before - after).elements()) == sorted(map(tuple, question.get("gone", [])))
    assert {tuple(note) for note in question.get("notes", ())} <= set(alarms(result, root, Severity.NOTE))


def test_every_finding_across_files_is_seen() -> None:
    """Those that no file shows alone: each has a tree that produces it, in a plan or in a verification."""
    seen = set[str]()
    for case in CASES:
        expected = json.loads(case.read_text())
        for question in (*expected["plans"], *expected.get("verify", ())):
            lost = question.get("rejected", [])
            seen |= {*question.get("warnings", ())}
            seen |= {c for some in lost.values() for c in some} if isinstance(lost, dict) else {*lost}
            seen |= {code for code, _ in (*question.get("findings", ()), *question.get("notes", ()))}
            seen |= {code for code in CODES if code in question.get("message", "")}
    assert set() == ACROSS - seen


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_has_fixtures_reference_and_limits(layout: Any) -> None:
    assert any(case.parent.parent.name == layout.name for case in CASES)
    assert layout.reference and layout.limits and layout.title
    assert len({p.name for p in layout.pieces}) == len(layout.pieces)


@pytest.mark.slow
def test_the_plan_does_not_depend_on_older_checkpoints(tmp_path: Path) -> None:
    root = tree_of("megatron/tp", tmp_path)
    before = plan(str(root))
    shutil.rmtree(root / "iter_0000010")
    assert plan(str(root)).fingerprint == before.fingerprint


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
        ("rank_{rank}", "rank_1000000", None),  # whole ranges of ranks are gone through
        ("rank_{rank}", "rank_0000000999999", {"rank": "0000000999999"}),
        ("mp_rank_{tp:02d}", "mp_rank_1", None),
        ("step_{step}", "step_1000000", {"step": "1000000"}),
    ],
)
def test_templates(template: str, text: str, fields: dict[str, str | None] | None) -> None:
    m = re.fullmatch(compile_template(template), text)
    assert (m.groupdict() if m else None) == fields


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [layout for layout in LAYOUTS if layout.beside.stateless], ids=lambda one: one.name
)
def test_files_without_state_beside_a_run_are_known_and_change_nothing(layout: Any, tmp_path: Path) -> None:
    root = materialise(next(c for c in CASES if c.parent.parent.name == layout.name), tmp_path)
    before, known = plan(str(root)), verify([str(root)]).summary.unrecognised
    for ending in layout.beside.stateless:
        (root / f"{'net' if ending[0] in '-.' else ''}{ending}").write_text("no state")
    assert verify([str(root)]).summary.unrecognised == known
    after = plan(str(root))
    assert (after.resume, after.by_rank, after.shared) == (before.resume, before.by_rank, before.shared)


@pytest.mark.slow
def test_each_checkpoint_is_of_the_framework_whose_files_lie_in_it(tmp_path: Path) -> None:
    """Trainer and Accelerate may both call it checkpoint-N; a model alone does not tell them apart."""
    shutil.copytree(LAYOUT_TREES / "hf-trainer/trainer/tree", tmp_path / "run")
    newest = tmp_path / "run/checkpoint-40"
    shutil.copytree(LAYOUT_TREES / "accelerate/steps/tree/checkpoint-10", newest)

    def found() -> set[tuple[bool, str, bool]]:
        return {(c.path == str(newest), c.layout, c.unfinished) for c in scan(str(tmp_path)).checkpoints}

    assert found() == {(True, "accelerate", False), (False, "hf-trainer", False)}
    for path in newest.iterdir():
        if path.name != "model.safetensors":
            path.unlink()
    # as the Trainer's others: it was cut off
    assert found() == {(True, "hf-trainer", True), (False, "hf-trainer", False)}


ASKED = Selection(settle=0)


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_names_alone_and_one_rank_alone_lead_to_the_same_files(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    try:
        read = plan(str(root), ASKED)
    except CkptError:  # several runs, or none that is whole: other tests ask what is said then
        return
    try:
        named = plan(str(root), replace(ASKED, level=Level.PRESENCE))
    except UsageError:  # names count steps and epochs, and only contents tell the steps of both
        assert case.parent.parent.name == "accelerate"
        return
    assert read.checkpoint and named.checkpoint
    if named.checkpoint.key == read.checkpoint.key:
        assert {*named.files()} == {*read.files()}  # which rank loads which, names alone may not tell
    else:  # only contents tell that it is damaged
        assert named.checkpoint.key in {r.checkpoint.key for r in read.rejected}
    for load in (*read.by_rank[:1], *read.by_rank[1:][-1:]):
        alone = latest(str(root), replace(ASKED, rank=load.rank))
        assert [r for r in alone.by_rank if r.rank == load.rank] == [load]


def codes(seen: Verification, severity: Severity = Severity.WARNING) -> set[str]:
    found = [*seen.findings, *(f for r in seen.files for f in r.report.findings)]
    return {f.code for f in found if f.severity >= severity}


@pytest.mark.slow
def test_a_dying_gasp_beside_periodic_checkpoints_is_one_job(tmp_path: Path) -> None:
    root, gasp = tree("pangu", tmp_path), tree("tft", tmp_path / "ttp")
    shutil.move(gasp / "tft_saved_checkpoints-step_11", root)
    for path in root.glob("rank_*/*breakpoint*"):
        path.unlink()
    for path in (root / "tft_saved_checkpoints-step_11").rglob("*.ckpt"):
        os.utime(path, (1_700_000_000,) * 2)
    newest = Selection(replica_groups={"": ((0, 2), (1, 3))}, order="step")
    made = plan(str(root), newest)
    assert made.checkpoint and (made.checkpoint.kind, made.checkpoint.step) == (Kind.DYING_GASP, 11)
    back = plan(str(root), replace(newest, fault_ranks=frozenset({1}), save_interval=4))
    assert back.checkpoint and (back.checkpoint.kind, back.checkpoint.step) == (Kind.PERIODIC, 8)
    assert back.rollback is not None and "3 steps are lost" in back.rollback.why
    assert (back.rollback.origin, back.rollback.target) == (11, 8)


@pytest.mark.slow
def test_the_newest_may_still_be_written(tmp_path: Path) -> None:
    declared = tree("tp", tmp_path / "declared") / "iter_0000030/mp_rank_00/model_optim_rng.pt"
    declared.write_bytes(declared.read_bytes()[:9000])  # modified just now, but the tracker says 30
    assert "truncated" in codes(verify([str(declared.parents[2])]), Severity.ERROR)
    flat = tree("flat", tmp_path / "flat")
    newest = flat / "resnet-2_5.ckpt"
    newest.write_bytes(newest.read_bytes()[:9000])  # modified just now
    seen = verify([str(flat)])
    assert (seen.verdict, codes(seen)) == (Verdict.SUSPECT, {"truncated", "unfinished-save"})
    assert verify([str(flat)], settle=0).verdict is Verdict.BROKEN
    asked = verify([str(newest)])  # asked about by name, it is judged as it is
    assert asked.verdict is Verdict.BROKEN and "truncated" in codes(asked, Severity.ERROR)


@pytest.mark.parametrize("said", [b"True", b"False"])
def test_files_with_remove_redundancy_are_never_replicas(said: bytes, tmp_path: Path) -> None:
    """MindSpore's safetensors say so in their metadata: even with --replica-groups all another rank's file lacks
    parameters.
    """
    data = (LAYOUT_TREES / "mindspore/safetensors/tree/rank_0/resnet-2_5.safetensors").read_bytes()
    size, told = int.from_bytes(data[:8], "little"), b'"remove_redundancy":"%s"'
    header = data[8 : 8 + size].replace(told % b"False", told % said)
    put(
        tmp_path / "rank_0/net-1_5.safetensors", len(header).to_bytes(8, "little") + header + data[8 + size :]
    )
    put(tmp_path / "rank_1/net-1_5.safetensors", b"\0" * 100)
    if said == b"True":
        with pytest.raises(errors.NoneUsable):
            plan(str(tmp_path), Selection(replicas_all=True))
    else:
        assert plan(str(tmp_path), Selection(replicas_all=True)).by_rank[1].files[0].source_rank == 0


def test_a_lost_model_parallel_rank_of_the_newest_save_does_not_hide_that_there_were_two(
    tmp_path: Path,
) -> None:
    """DeepSpeed's files say how many there are; names alone do not, once all files of the highest one are
    gone.
    """
    for step, m in ((10, 0), (10, 1), (20, 0)):
        home = tmp_path / f"global_step{step}"
        put(home / f"mp_rank_{m:02d}_model_states.pt", small_files.deepspeed_model(step, 1, 2, m), step)
        zero = small_files.deepspeed_zero(step, 1, 0)
        put(home / f"zero_pp_rank_0_mp_rank_{m:02d}_optim_states.pt", zero, step)
    made = plan(str(tmp_path))
    assert made.resume_step == 10 and made.topology["tp"] == Known(2, "mp_world_size in the files")
    assert [len(r.files) for r in made.by_rank] == [2, 2]


def test_a_file_of_torch_by_the_name_of_a_file_of_flax(tmp_path: Path) -> None:
    """Tacotron 2 called its files so: that is no damage, but of a file that cannot be read it is."""
    good = next((FORMAT_FILES / "torch_zip" / "good").glob("*.pt")).read_bytes()
    (tmp_path / "checkpoint_2000").write_bytes(good)
    assert "wrong-format" not in codes(verify([str(tmp_path)]))
    (tmp_path / "checkpoint_2000").write_bytes(bytes(len(good)))
    assert "zero-filled" in codes(verify([str(tmp_path)]))


@pytest.mark.slow
def test_a_class_of_that_name_from_another_module_is_not_that_of_olmo_core(tmp_path: Path) -> None:
    """It may run anything."""
    root = tree_of("olmo-core/steps", tmp_path)
    rewrite(
        root / "run/step200/model_and_optim/.metadata",
        lambda data: data.replace(b"olmo_core.dist", b"evil_core.dist"),
    )
    assert answer(root).startswith("run/step100 ")


def test_splits_of_two_models_are_told_apart(tmp_path: Path) -> None:
    root, said = tree_of("gguf/splits", tmp_path), b"split.tensors.count"
    last = root / "llama-00003-of-00003.gguf"
    data = bytearray(last.read_bytes())
    data[data.index(said) + len(said) + 4] += 3  # behind the type of the value
    last.write_bytes(data)
    assert verified(root) == "broken missing-tensor"
    with pytest.raises(NoneUsable):
        plan(str(root))
