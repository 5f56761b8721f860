"""A path is one path wherever the Python API takes paths: a text, bytes or a path object, alone or in a list."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from run_helpers import megatron

import ckpt_tools
from ckpt_tools import Selection, diff, latest, plan, scan, seal, try_load, verify
from ckpt_tools.errors import UsageError

FORMS: dict[str, Callable[[Path], Any]] = {"text": str, "bytes": os.fsencode, "object": Path}
ALONE: dict[str, Callable[[Any], Any]] = {
    "scan": scan,
    "verify": lambda p: replace(verify(p), summary=None),  # type: ignore[arg-type]  # what differs from run to run
    "plan": plan,
    "latest": lambda p: latest(p, Selection(rank=0)),
    "diff": lambda p: replace(diff(p, p), seconds=0.0),
    "seal": lambda p: replace(seal(p, dry_run=True), seconds=0.0),
    "show": ckpt_tools.api.show,
    "try_load": lambda p: try_load(p, os.fsdecode),
}
"""What each function says of one path."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return megatron(tmp_path / "run")


def test_every_function_that_takes_a_path_is_here() -> None:
    public = {n for n in ckpt_tools.__all__ if n[0].islower() and callable(getattr(ckpt_tools, n))}
    assert public - {"elastic", "errors"} == ALONE.keys() - {"show"}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALONE)
def test_a_path_is_one_path(root: Path, name: str, form: str) -> None:
    given = root / "iter_0000020/mp_rank_00/model_optim_rng.pt" if name == "show" else root
    said = ALONE[name](FORMS[form](given))
    if name == "try_load":
        assert (said.value, said.trail) == (str(given), ())
    else:
        assert said == ALONE[name](str(given))
        assert str(root) in repr(said)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_verify_takes_one_as_a_list_of_one(root: Path, form: str) -> None:
    one = verify(FORMS[form](root))
    assert one == replace(verify([str(root)]), summary=one.summary)
    assert (one.root, one.summary.files) == (str(root), 4)
    several = verify([FORMS[form](root / "iter_0000010"), root / "iter_0000020"])
    assert (several.root, several.summary.files) == (str(root), 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALONE.keys() - {"try_load"}))
@pytest.mark.parametrize("given", ["", b"", None, 7])
def test_what_is_no_path_is_refused(root: Path, name: str, given: Any) -> None:
    """An empty path would be the current directory, which nobody named."""
    with pytest.raises(UsageError, match="path"):
        ALONE[name](given)


@pytest.mark.parametrize("given", [[], (), [""], [None], None])
def test_no_paths_are_refused(root: Path, given: Any) -> None:
    with pytest.raises(UsageError, match="path"):
        verify(given)


@pytest.mark.slow
def test_a_name_is_one_name(root: Path) -> None:
    """Its letters would be five keys that no file has."""
    assert plan(root, Selection(require="model")).resume_step == 20  # type: ignore[arg-type]
    assert {verify(root, require=given).verdict for given in ("model", ("model",))} == {ckpt_tools.Verdict.OK}
