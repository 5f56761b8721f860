"""The fuzzing target of benchmarks/fuzz.py over the seeds it starts from: what must hold whatever the bytes are holds for every fixture."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ckpt_tools.codes import finding
from ckpt_tools.formats import FORMATS, Anatomy, Format
from ckpt_tools.model import Finding, Level
from ckpt_tools.storage import Source


def _target() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_target", Path(__file__).parent.parent / "benchmarks" / "_target.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TARGET = _target()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_the_target_holds_for_seeds_and_splices_of_them(fmt: Format) -> None:
    run, known, r = TARGET.target(fmt.name), TARGET.seeds(fmt.name), random.Random(1)
    assert known
    for data in known:
        run(data)
    small = [d for d in known if len(d) <= 8192]
    for _ in range(200):
        a, b = r.choice(small), r.choice(small)
        run(a[: r.randrange(len(a) + 1)] + b[r.randrange(len(b) + 1) :])


def test_the_target_lets_through_what_a_check_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        raise ZeroDivisionError

    monkeypatch.setitem(FORMATS[0].checks, Level.STRUCTURE, broken)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError) as caught:
        TARGET.target(FORMATS[0].name)(b"PK")
    assert TARGET.where(caught.value).startswith("ZeroDivisionError-_base-")


def test_the_target_objects_to_an_impossible_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        yield finding("truncated", "x", offset=-1)

    monkeypatch.setitem(FORMATS[0].checks, Level.STRUCTURE, broken)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        TARGET.target(FORMATS[0].name)(b"PK")
