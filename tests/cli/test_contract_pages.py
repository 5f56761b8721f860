"""docs/exit-codes.md and docs/json.md promise what the commands do: each sentence about a code, and each
field, against real answers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from one_question import Asker
from own_plugins import install
from places import DOCS
from run_helpers import broken
from small_runs import FILE, encrypted, lost, plain, started_before

from ckpt_tools.errors import BY_EXIT_CODE
from ckpt_tools.settings import plugins


@pytest.fixture
def asker(asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asker]:
    """With a place for packages."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    plugins.forget()
    yield asker
    monkeypatch.undo()
    for name in ("own_parts", "own_other"):
        sys.modules.pop(name, None)
    plugins.switch(None)
    plugins.forget()


def nothing(tmp: Path) -> None:
    (tmp / "run").mkdir()
    (tmp / "run/notes.txt").write_text("x")


def stale(tmp: Path) -> None:
    tracker = plain(tmp) / "latest_checkpointed_iteration.txt"
    tracker.write_text("10")
    os.utime(tracker, (1_000_000_000, 1_000_000_000))  # before the saves: a later one is a question


def cut(tmp: Path) -> None:
    broken(plain(tmp), 20)


def broken_plugin(tmp: Path) -> None:
    """A package is installed whose layout cannot be used."""
    install(Path(sys.path[0]), source="import no_such_package")
    plain(tmp)


def two_plugins(tmp: Path) -> None:
    """Two packages add the same."""
    install(Path(sys.path[0]))
    install(Path(sys.path[0]), name="other-parts", module="own_other")
    plain(tmp)


PROMISES: list[tuple[Callable[[Path], object], str, int]] = [
    (plain, "verify run", 0), (cut, "verify run", 1), (stale, "verify run", 0), (stale, "verify run --strict", 1), (plain, "verify", 0), (nothing, "verify run", 3),
    (plain, "report run -o r.html", 0), (cut, "report run -o r.html", 1), (nothing, "report run -o r.html", 3), (nothing, "report none -o r.html", 5), (plain, "report run -o none/r.html", 5),
    (stale, "verify run --fail-on warning", 1), (stale, "verify run --fail-on error", 0), (plain, "verify run --fail-on warning", 0), (plain, "verify run none --fail-on warning", 5), (plain, "verify run --fail-on note", 2),
    (cut, "plan run --fail-on warning", 1), (cut, "plan run --fail-on error", 0), (plain, "plan run --fail-on warning", 0), (stale, "plan run --fail-on warning", 1), (lost, "plan run --fail-on warning", 4),
    (nothing, "verify none", 5), (encrypted, "verify run", 0), (encrypted, "verify run --level values --strict", 5), (plain, "verify run notes", 5), (plain, "verify run --sample 1/9 --strict", 0),
    (plain, "plan run", 0), (nothing, "plan run", 3), (nothing, "plan run --allow none", 0), (nothing, "plan none --allow none", 5),
    (nothing, "plan none --allow none,missing", 0), (nothing, "plan none --allow missing", 5), (plain, "plan run --world-size 3", 2), (cut, "plan run", 0),
    (cut, "plan run --no-fallback", 6), (lost, "plan run --allow none", 4), (lost, "plan run --allow fresh", 0), (plain, "plan run --max-step 5", 4),
    (plain, "plan run --kind best", 4), (started_before, "plan run --plan-dir log", 4), (started_before, "plan run --plan-dir log --allow none", 4),
    (started_before, "plan run --plan-dir log --allow fresh", 0), (plain, f"plan run/{FILE}.txt", 5), (plain, "plan run --run b", 2),
    (plain, "plan run --run b --allow none,missing", 0), (plain, "plan run --no-cache --budget 0s --strict", 5),
    (plain, "ls run", 0), (nothing, "ls run", 3), (plain, "ls run --kind best", 3), (nothing, "ls none", 5),
    (plain, f"show run/{FILE}", 0), (cut, f"show run/{FILE}", 1), (nothing, "show run/notes.txt", 3), (nothing, "show none", 5),
    (plain, "diff run run", 0), (plain, "diff run/iter_0000010 run/iter_0000020", 1), (cut, "diff run run", 1), (plain, "diff run none", 5),
    (encrypted, "diff run run --level structure", 0), (encrypted, "diff run run --level structure --strict", 5),
    (nothing, "explain truncated", 0), (nothing, "explain nonsense", 2), (nothing, "formats", 0), (nothing, "formats --format nonsense", 2), (nothing, "launchers", 0),
    (broken_plugin, "verify run", 0), (broken_plugin, "verify run --strict", 1), (broken_plugin, "plan run", 0), (broken_plugin, "plan run --strict", 5),
    (broken_plugin, "plan run --run b --allow none,missing", 5), (broken_plugin, "ls run --kind best", 5), (broken_plugin, "prune run --keep-last 1", 5),
    (broken_plugin, "verify run --strict --no-plugins", 0), (two_plugins, "plan run", 2), (two_plugins, "formats", 2),
    (nothing, "layouts", 0), (nothing, "layouts run", 2), (plain, "layouts run --check --layout dcp", 1), (nothing, "layouts none --check --layout dcp", 5),
    (nothing, "hook install", 0), (nothing, "completion bash", 0), (nothing, "completion nonsense", 2), (nothing, "hook install nonsense", 2), (plain, "run run", 2), (plain, "hook --read", 2), (nothing, "run run -- train", 3), (lost, "hook run", 4),
]  # fmt: skip
"""(what is there, command line, exit code), sentence by sentence."""


ANSWERED = ("verify", "report", "show", "diff", "ls", "layouts", "plan run --fail-on warning")
"""Commands whose answer says itself why it does not end in 0."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "line", "code"), PROMISES, ids=[f"{line}-{there.__name__}" for there, line, _ in PROMISES]
)
def test_a_promised_exit_code(
    asker: Asker, tmp_path: Path, there: Callable[[Path], object], line: str, code: int
) -> None:
    there(tmp_path)
    (tmp_path / "notes").mkdir()
    got, _, err = asker.execute(*line.split())
    assert got == code, err
    assert not code or "hint: " in err or "Usage:" in err or line.startswith(ANSWERED)


def test_every_code_is_promised_and_listed() -> None:
    page = (DOCS / "exit-codes.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == {0, 1, *BY_EXIT_CODE, 70, 130, 143}
    assert {code for _, _, code in PROMISES} == {0, 1, *BY_EXIT_CODE}


def test_the_example_of_a_failure_is_a_real_one(asker: Asker, tmp_path: Path) -> None:
    (tmp_path / "run-7").mkdir()
    code, out, err = asker.execute("plan", tmp_path / "run-7")
    assert (code, out) == (3, "")
    assert f"```text\n{err.replace(str(tmp_path), '/data')}```" in (DOCS / "exit-codes.md").read_text()
