"""The fuzzing target of benchmarks/fuzz.py over the seeds it starts from: what must hold whatever the bytes
are holds for every fixture.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from places import ROOT
from scripts import loaded

from ckpt_tools.findings import finding
from ckpt_tools.formats import FORMATS, Format
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level

sys.path.append(str(ROOT / "benchmarks"))  # last: its small_files is another than that of the tests


TARGET, FUZZ = loaded(ROOT / "benchmarks" / "_target.py"), loaded(ROOT / "benchmarks" / "fuzz.py")


@pytest.mark.share(6)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_the_target_holds_for_seeds_and_splices_of_them(fmt: Format) -> None:
    run, known, r = TARGET.target(fmt.name), TARGET.seeds(fmt.name), random.Random(1)
    assert known
    beginnings = {data[:size] for data in known for size in range(1, 17)}
    for data in (*known, *sorted(beginnings)):
        run(data)
    small = [d for d in known if len(d) <= 8192]
    for _ in range(200):
        a, b = r.choice(small), r.choice(small)
        run(a[: r.randrange(len(a) + 1)] + b[r.randrange(len(b) + 1) :])


def raises(*_: object) -> Iterator[Finding]:
    raise ZeroDivisionError


def test_the_target_lets_through_what_a_check_raises_and_objects_to_an_impossible_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FORMATS[0].checks, Level.STRUCTURE, raises)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError) as caught:
        TARGET.target(FORMATS[0].name)(b"PK")
    assert TARGET.where(caught.value).startswith("ZeroDivisionError-format-")
    impossible = [finding("truncated", "x", offset=-1)]
    monkeypatch.setitem(FORMATS[0].checks, Level.STRUCTURE, lambda *_: iter(impossible))  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        TARGET.target(FORMATS[0].name)(b"PK")


KEPT = sorted(p for p in TARGET.KEPT.rglob("*") if p.is_file())


@pytest.mark.share(2)
@pytest.mark.parametrize("path", KEPT, ids=lambda p: str(p.relative_to(TARGET.KEPT)))
def test_what_once_failed_does_not_fail_again(path: Path) -> None:
    TARGET.target(path.parent.name)(path.read_bytes())


def test_kept_inputs_are_small_and_belong_to_a_target() -> None:
    assert {p.parent.name for p in KEPT} <= set(TARGET.every())
    assert all(p.parent.parent == TARGET.KEPT and 0 < p.stat().st_size <= 64 << 10 for p in KEPT)
    # and mutation starts from them
    assert any(data == p.read_bytes() for p in KEPT for data in TARGET.seeds(p.parent.name))


@pytest.mark.share(6)
@pytest.mark.parametrize("name", sorted(TARGET.OTHERS))
def test_what_is_no_format_holds_for_seeds_and_splices_of_them(name: str) -> None:
    run, known, r = TARGET.target(name), TARGET.seeds(name), random.Random(1)
    assert len(known) > 1
    for data in r.sample(known, min(len(known), 400)):
        run(data)
    for _ in range(15):
        run(FUZZ.spliced(known, r))


def test_a_target_that_is_no_format_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_tools.layouts.LAYOUTS", ())
    wrong = [replace(finding("truncated", "x"), code="no-such-code")]
    monkeypatch.setattr("ckpt_tools.layouts.mindspore.check_records", lambda *_: wrong)
    with pytest.raises(AssertionError):
        TARGET.target("tracker")(b"20")
    monkeypatch.setattr("ckpt_tools.layouts.user.load", raises)
    with pytest.raises(ZeroDivisionError):
        TARGET.target("config")(TARGET.OTHERS["config"].seeds()[0])


def test_names_stay_below_their_directory() -> None:
    made = list(TARGET.OTHERS["names"].make.__globals__["paths"](b"/etc/passwd\n../../x\n\0a/./b\n"))
    assert made == [b"etc/passwd", b"x", b"a/b"]


def test_every_target_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, int, Path]] = []

    def campaign(name: str, seconds: int, out: Path, keep: Path | None = None) -> dict[str, object]:
        asked.append((name, seconds, out))
        defects = {"crash": {}} if name == "names" else {}
        return {"format": name, "executions": 1, "deaths": 0, "defects": defects}

    monkeypatch.setattr(FUZZ, "campaign", campaign)
    monkeypatch.setattr(FUZZ.os, "sched_getaffinity", lambda _: {0, 1})
    results = FUZZ.campaigns(120, tmp_path, None)
    assert sorted(name for name, _, _ in asked) == sorted(TARGET.every())
    assert len({out for _, _, out in asked}) == len(asked)
    assert sum(seconds for _, seconds, _ in asked) <= 2 * 120
    assert FUZZ.summed(results)["defects"] == {"names": ["crash"]} and json.dumps(FUZZ.summed(results))


def test_workflows_fuzz_every_target_for_two_minutes_and_every_night_for_long() -> None:
    push, night = (
        yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
        for name in ("ci.yml", "nightly.yml")
    )
    assert {"run": ".ci/fuzz"} in push["fuzz"]["steps"]
    assert 'benchmarks/fuzz.py --all --seconds "${1:-120}"' in (ROOT / ".ci/fuzz").read_text()
    steps = night["fuzz"]["steps"]
    assert "benchmarks/fuzz.py --list" in night["targets"]["steps"][-1]["run"]
    assert any("--seconds 1800" in step.get("run", "") for step in steps)
    assert any(step.get("if") == "always()" and "upload-artifact" in step["uses"] for step in steps)
    assert {"run": "python benchmarks/attack.py"} in night["attacks"]["steps"]


_ATHERIS = """
import json, sys
class instrument_imports:
    def __init__(self, include): self.include = include
    def __enter__(self): self.before = set(sys.modules)
    def __exit__(self, *_):
        new = [m for m in sys.modules if m not in self.before and m.startswith(tuple(self.include))]
        print(json.dumps(new))
def Setup(*_, **__): pass
def Fuzz(): pass
"""


def test_what_checks_a_format_is_instrumented(tmp_path: Path) -> None:
    """A fuzzer that saw none of its branches would be blind: modules that listing the targets imported are
    imported anew, and those that only some file needs by going through the seeds.
    """
    (tmp_path / "atheris.py").write_text(_ATHERIS)
    script = str(ROOT / "benchmarks/fuzz.py")
    done = subprocess.run(
        [sys.executable, script, "npz", "--child", str(tmp_path), "--out", str(tmp_path), "--seconds", "9"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    new = set(json.loads(done.stdout.splitlines()[0]))
    assert new >= {f"ckpt_tools.formats.{m}" for m in ("numpy.npz", "archives.zip", "numpy.npy")}
