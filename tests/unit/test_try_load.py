"""try_load returns the first candidate that loads, and is never silent when none does."""

from __future__ import annotations

import pytest

import ckpt_tools
from ckpt_tools import try_load
from ckpt_tools.errors import CkptError, LoadFailed, NoCheckpoint, NoneUsable, UsageError


def loader(path):
    if "bad" in path:
        raise ValueError(f"cannot parse {path}")
    return {"from": path}


def test_the_first_that_loads_is_returned_with_its_trail():
    found = try_load(["bad1", "bad2", "good", "good2"], loader)
    assert found.value == {"from": "good"} and found.candidate == "good"
    trail = [(a.candidate, str(a.error)) for a in found.trail]
    assert trail == [(name, f"cannot parse {name}") for name in ("bad1", "bad2")]


def test_later_candidates_are_not_touched():
    tried = []
    try_load(iter(["a", "b"]), tried.append)  # returns None, which is a value
    assert tried == ["a"]


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


def test_candidates_may_be_any_objects():
    assert try_load([(1, 2), (3, 4)], sum).value == 3


def test_public_api_is_complete():
    for name in ckpt_tools.__all__:
        assert getattr(ckpt_tools, name) is not None
    assert set(ckpt_tools.__all__) <= set(dir(ckpt_tools))
    assert issubclass(ckpt_tools.errors.LoadFailed, CkptError)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ckpt_tools.nothing
