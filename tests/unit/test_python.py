"""What people use from Python: what a plan says, what a request takes, what an exception tells to do."""

from __future__ import annotations

import inspect
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
import sample_results as sample
from small_files import saved, tensor

import ckpt_tools
from ckpt_tools import Kind, Level, LoadPlan, Part, Selection, latest, plan, try_load
from ckpt_tools.errors import CkptError, LoadFailed, NoCheckpoint, NoneUsable, UsageError, name_parameters


@pytest.fixture
def made(tmp_path: Path) -> LoadPlan:
    for step in (1, 2):
        (tmp_path / f"step_{step}.pt").write_bytes(saved({"model": {"w": tensor(step, 0)}, "step": step}))
    return plan(tmp_path, Selection(order="step"))


def test_a_plan_says_what_to_load(made: LoadPlan) -> None:
    path = made.path
    assert path is not None and path.endswith("step_2.pt")
    assert made.files() == made.files(0) == [path] and made.arguments == made.resume.args
    assert repr(made).startswith("LoadPlan(step=2, path=") and len(repr(made)) < len(path) + 80
    assert latest(made.root, Selection(order="step")).files() == [path]  # of ranks that load the same, any


def test_a_part_is_a_value() -> None:
    part = Part("/r/iter_7/x.pt", "megatron", "model", "model", "run", "/r", home="/r/iter_7", rank=3, step=7)
    assert part == pickle.loads(pickle.dumps(part)) and hash(part) == hash(part._replace())
    assert repr(part).startswith("Part(path='/r/iter_7/x.pt', layout='megatron'")
    for name, value in {"path": "x", "kind": Kind.BEST, "rank": 4, "epoch": 1, "size": -1}.items():
        copy = part._replace(**{name: value})
        assert copy != part and copy._asdict() == part._asdict() | {name: value}


def test_ranks_have_files_of_their_own() -> None:
    made = sample.plan()
    assert {f for r in made.by_rank for f in made.files(r.rank)} <= set(made.files())
    with pytest.raises(KeyError):
        made.files(99)
    html = made._repr_html_()
    assert "step 120" in html and "step 160" in html and sample.empty_plan().files() == []
    assert sample.empty_plan().path is None and "nothing" in sample.empty_plan()._repr_html_()


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"order": "newest"}, "'mtime', 'step', 'tracker'"),
        ({"resume_from": "newest"}, "'mtime', 'step', 'tracker'"),
        ({"kind": "periodik"}, "'periodic', 'dying-gasp', 'release', 'best'"),
        ({"level": "deep"}, "'presence', 'structure', 'content', 'values', 'load'"),
        ({"io": "mmap"}, "'auto', 'direct'"),
        ({"max_step": "5"}, "integers from 0"),
        ({"max_step": -1}, "integers from 0"),
    ],
    ids=str,
)
def test_a_wrong_value_is_told_what_is_allowed(asked: dict[str, Any], allowed: str) -> None:
    (name,) = asked
    with pytest.raises(ValueError, match=f"{name}=.*: allowed are {allowed}"):
        Selection(**asked)


def test_words_are_kinds_and_levels() -> None:
    asked = Selection(kind="best", prefer="periodic", level="structure", order="tracker")  # type: ignore[arg-type]
    assert asked.kind is Kind.BEST and asked.prefer is Kind.PERIODIC and asked.level is Level.STRUCTURE
    assert (asked.order, asked.resume_from) == (None, "tracker")
    assert Selection(exclude="a.pt").exclude == ("a.pt",)  # type: ignore[arg-type]
    assert list(inspect.signature(Selection).parameters)[:2] == ["rank", "world_size"]
    assert set(dir(ckpt_tools)) == set(ckpt_tools.__all__)


@pytest.mark.parametrize(
    ("flags", "parameters"),
    [
        ("add --run a/b, or --run 'c d'", "pass run='a/b', or run='c d'"),
        ("for a first launch add --allow none,missing", "for a first launch pass allow_none=True, allow_missing=True"),
        ("add --max-step 5; or drop --no-fallback to accept one", "pass max_step=5; or drop no_fallback=True to accept one"),
        ("--allow unreadable goes on without it", "skip_unreadable=True goes on without it"),
        ("add --exclude a.pt to resume from step 2", "pass exclude='a.pt' to resume from step 2"),
    ],
)  # fmt: skip
def test_a_hint_names_parameters(flags: str, parameters: str) -> None:
    assert name_parameters(flags) == parameters
    error = UsageError("why", flags)
    assert error.hint == flags
    if hasattr(error, "add_note"):  # Python 3.11
        assert f"hint: {parameters} (of Selection)\n" in traceback.format_exception(error)


# --- try_load returns the first candidate that loads, and is never silent when none does


def loader(path):
    if "bad" in path:
        raise ValueError(f"cannot parse {path}")
    return {"from": path}


def test_the_first_that_loads_is_returned_with_its_trail():
    found = try_load(["bad1", "bad2", "good", "good2"], loader)
    assert found.value == {"from": "good"} and found.candidate == "good"
    trail = [(a.candidate, str(a.error)) for a in found.trail]
    assert trail == [(name, f"cannot parse {name}") for name in ("bad1", "bad2")]


def test_later_candidates_are_not_touched_and_they_may_be_any_objects():
    tried = []
    try_load(iter([(1, 2), (3, 4)]), tried.append)  # returns None, which is a value
    assert tried == [(1, 2)]


def test_none_that_loads_is_an_error_with_the_trail_and_its_cause():
    with pytest.raises(LoadFailed) as e:
        try_load(["bad1", "bad2"], loader)
    assert isinstance(e.value, NoneUsable) and e.value.exit_code == 4 and e.value.hint
    assert [c for c, _ in e.value.trail] == ["bad1", "bad2"]
    assert isinstance(e.value.__cause__, ValueError)
    said = "none of 2 candidates loads; the last one, bad2, failed with ValueError: cannot parse bad2"
    assert said in str(e.value)
    with pytest.raises(NoCheckpoint) as e:
        try_load([], loader)
    assert e.value.exit_code == 3


def test_attempts_are_bounded_and_the_error_says_so():
    tried = []

    def count(path):
        tried.append(path)
        raise OSError("gone")

    with pytest.raises(LoadFailed, match="max_attempts=5 stopped the search"):
        try_load([f"c{i}" for i in range(9)], count)
    assert len(tried) == 5
    with pytest.raises(LoadFailed) as e:
        try_load(["bad1", "bad2"], loader, max_attempts=2)
    assert "max_attempts" not in str(e.value)
    with pytest.raises(UsageError):
        try_load(["a"], loader, max_attempts=0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_about_the_checkpoint_passes_through(stop):
    def interrupted(path):
        raise stop

    with pytest.raises(stop):
        try_load(["a", "b"], interrupted)


def test_public_api_is_complete():
    for name in ckpt_tools.__all__:
        assert getattr(ckpt_tools, name) is not None
    assert issubclass(ckpt_tools.errors.LoadFailed, CkptError)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ckpt_tools.nothing
